"""The address that Prometheus scrapes."""

from __future__ import annotations

import logging
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from django.contrib.auth.decorators import login_not_required
from django.db import connections as databases
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import CollectorRegistry

from ..settings.conf import SETTING, conf
from .collector import Collector

if TYPE_CHECKING:
    from rest_framework.request import Request

logger: Final = logging.getLogger(__name__)
_NO_API: Final = (
    f"the metrics are not public, and without Django REST framework nobody can be recognised: pip install "
    f"'django-delayq[api]', or set {SETTING}['METRICS'] = {{'public': True}} and guard the address elsewhere\n"
)


def _open(view: Any) -> Any:
    """For a scraper, also where the project's middlewares ask for a login or a CSRF token, and outside of the
    transactions of all its databases. (``api.base`` has the same, but may only be imported where Django REST framework
    is.)"""
    for alias in databases:
        view = transaction.non_atomic_requests(using=alias)(view)
    return login_not_required(csrf_exempt(view))


@_open
@require_GET
def metrics(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
    """All metrics, in the format that the request asks for.

    Whoever may view the HTTP API may see them, with the same token; with ``METRICS["public"]`` everybody may.
    """
    if conf().metrics.public:
        return exposition(request)
    try:
        view = _guarded()
    except ImportError:
        logger.error(_NO_API.strip())
        return HttpResponse(_NO_API, status=403, content_type="text/plain; charset=utf-8")
    answer: HttpResponse = view(request, *args, **kwargs)
    return answer


def exposition(request: HttpRequest | Request) -> HttpResponse:
    """The metrics as Prometheus reads them; 200 also while Redis is away (``delayq_up`` is 0 then)."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector())
    try:
        encode, content_type = choose_encoder(request.META.get("HTTP_ACCEPT", ""))
    except (TypeError, ValueError):  # versions that are no numbers
        encode, content_type = choose_encoder("")
    return HttpResponse(encode(registry), content_type=content_type, headers={"Cache-Control": "no-store"})


@cache
def _guarded() -> Any:
    """The same behind the API's authentication, permission, word of the project and throttle."""
    from rest_framework.negotiation import BaseContentNegotiation

    from ..api.base import ApiView

    class AnyFormat(BaseContentNegotiation):
        """A scraper asks for formats that Django REST framework does not know; only errors are in one of its own."""

        def select_parser(self, request: Any, parsers: Any) -> Any:
            return parsers[0]

        def select_renderer(self, request: Any, renderers: Any, format_suffix: Any = None) -> Any:
            return renderers[0], renderers[0].media_type

    class Metrics(ApiView):
        """The metrics, for those who may view the API."""

        actions = {"GET": "view"}  # noqa: RUF012
        content_negotiation_class = AnyFormat
        schema = None  # type: ignore[assignment]

        def get(self, request: Request, *args: Any, **kwargs: Any) -> HttpResponse:
            """The metrics."""
            return exposition(request)

    return Metrics.as_view()

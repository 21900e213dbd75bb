"""View that Prometheus scrapes, and its URL: ``path("metrics", include("django_delayq.metrics.urls"))``.

``django_delayq.api.urls`` already includes it.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.views.decorators.http import require_GET
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import CollectorRegistry

from ..access import open_to_all
from ..settings.conf import SETTING, conf
from .collector import Collector

if TYPE_CHECKING:
    from rest_framework.request import Request

logger: Final = logging.getLogger(__name__)
_NO_API: Final = (
    f"the metrics are not public, and callers cannot be authenticated without Django REST framework: pip install "
    f"'django-delayq[api]', or set {SETTING}['METRICS'] = {{'public': True}} and guard the address elsewhere\n"
)


@open_to_all
@require_GET
def metrics(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
    """Return all metrics in the requested format.

    Permission to view the HTTP API is required, with the same token; with ``METRICS["public"]`` none is.
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
    """Return the metrics in Prometheus format; status 200 even while Redis is down (``delayq_up`` is 0 then)."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector())
    try:
        encode, content_type = choose_encoder(request.META.get("HTTP_ACCEPT", ""))
    except (TypeError, ValueError):  # version numbers in the header that cannot be parsed
        encode, content_type = choose_encoder("")
    return HttpResponse(encode(registry), content_type=content_type, headers={"Cache-Control": "no-store"})


@cache
def _guarded() -> Any:
    """Return the view behind the API's authentication, permission, ``allow`` rule and throttle."""
    from rest_framework.negotiation import BaseContentNegotiation

    from ..access.views import GuardedView

    class AnyFormat(BaseContentNegotiation):
        """Negotiation that accepts any format: scrapers request formats that Django REST framework does not support."""

        def select_parser(self, request: Any, parsers: Any) -> Any:
            return parsers[0]

        def select_renderer(self, request: Any, renderers: Any, format_suffix: Any = None) -> Any:
            return renderers[0], renderers[0].media_type

    class Metrics(GuardedView):
        """Metrics for users who may view the API."""

        content_negotiation_class = AnyFormat
        schema = None

        permission = "view"

        def get(self, request: Request, *args: Any, **kwargs: Any) -> HttpResponse:
            """Return the metrics."""
            return exposition(request)

    return Metrics.as_view()


app_name: Final = "delayq_metrics"
urlpatterns: Final = [path("", metrics, name="metrics")]

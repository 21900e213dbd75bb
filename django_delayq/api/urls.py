"""URLs of the HTTP API: ``path("delayq/", include("django_delayq.api.urls"))``."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, Final

from django.urls import URLPattern, path, register_converter
from django.urls.converters import PathConverter

from .base import ApiView
from .consuming import Consuming
from .history import History
from .jobs import Jobs, Morgue
from .limits import JobLimits
from .operations import Deployment, Health, NotFoundView, Recurring, Workers
from .queues import Queues

app_name: Final = "delayq"


class AnythingConverter(PathConverter):
    """Converter like ``path`` that also matches newlines: ``path`` stops at one, and the URL would match nothing."""

    regex = r"(?s:.+)"


register_converter(AnythingConverter, "delayq_any")


def _routes() -> dict[str, tuple[type[ApiView], dict[str, str]]]:
    """Return address → view and its handlers. Ids and names may contain slashes, so addresses with verbs come first."""
    found: dict[str, tuple[type[ApiView], dict[str, str]]] = {}
    for view in (Queues, JobLimits, Jobs, Morgue, Consuming, Workers, Recurring, Deployment, History, Health):
        for name, handler in vars(view).items():
            if hasattr(handler, "operation"):
                method, address = handler.operation.route.split()
                found.setdefault(address, (view, {}))[1][method.lower()] = name
    return dict(sorted(found.items(), key=lambda one: one[0].endswith("}")))


def _pattern(address: str) -> str:
    return address.replace("{queue}", "<queue>").replace("{", "<delayq_any:").replace("}", ">")


ROUTES: Final = _routes()


def _metrics() -> list[URLPattern]:
    """Return the URL for Prometheus where ``prometheus_client`` is installed."""
    if find_spec("prometheus_client") is None:
        return []
    from ..metrics.urls import metrics

    return [path("metrics", metrics, name="metrics")]


urlpatterns: Final[list[Any]] = [
    *(path(_pattern(address), view.as_view(handlers)) for address, (view, handlers) in ROUTES.items()),
    *_metrics(),
    # Unknown paths get a problem response, too, behind the same authentication.
    path("", NotFoundView.as_view(), name="nothing"),
    path("<delayq_any:rest>", NotFoundView.as_view(), name="nothing"),
]

"""URLs of the HTTP API: ``path("delayq/", include("django_delayq.api.urls"))``."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from django.urls import URLPattern, include, path

from .views import consuming, health, history, jobs, morgue, producers, queues, recurring, schema, stats, workers
from .views.not_found import NotFoundView

app_name: Final = "delayq"
_v1: Final = [
    *queues.urlpatterns,
    *producers.urlpatterns,
    *recurring.urlpatterns,
    *consuming.urlpatterns,
    *morgue.urlpatterns,
    *jobs.urlpatterns,
    *workers.urlpatterns,
    *stats.urlpatterns,
    *history.urlpatterns,
    *schema.urlpatterns,
]


def _metrics() -> list[URLPattern]:
    """Return the URL for Prometheus where ``prometheus_client`` is installed."""
    if find_spec("prometheus_client") is None:
        return []
    from ..metrics.urls import metrics

    return [path("metrics", metrics, name="metrics")]


urlpatterns: Final = [
    path("v1/", include(_v1)),
    *health.urlpatterns,
    *_metrics(),
    # Unknown paths get a problem response, too, behind the same authentication.
    path("", NotFoundView.as_view(), name="nothing"),
    path("<delayq_any:rest>", NotFoundView.as_view(), name="nothing"),
]

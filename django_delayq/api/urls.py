"""Addresses of the HTTP API: ``path("delayq/", include("django_delayq.api.urls"))``."""

from __future__ import annotations

from typing import Final

from django.urls import include, path

from .views import consuming, health, jobs, morgue, queues, schema, stats, workers
from .views.nothing import Nothing

app_name: Final = "delayq"
_v1: Final = [
    *queues.urlpatterns,
    *consuming.urlpatterns,
    *morgue.urlpatterns,
    *jobs.urlpatterns,
    *workers.urlpatterns,
    *stats.urlpatterns,
    *schema.urlpatterns,
]
urlpatterns: Final = [
    path("v1/", include(_v1)),
    *health.urlpatterns,
    # What is no address is answered in the same way as everything else, behind the same door.
    path("<path:rest>", Nothing.as_view(), name="nothing"),
]

"""URL of the metrics alone: ``path("metrics", include("django_delayq.metrics.urls"))``.

``django_delayq.api.urls`` already includes it.
"""

from __future__ import annotations

from typing import Final

from django.urls import path

from .views import metrics

app_name: Final = "delayq_metrics"
urlpatterns: Final = [path("", metrics, name="metrics")]

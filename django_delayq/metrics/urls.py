"""The metrics by themselves: ``path("metrics", include("django_delayq.metrics.urls"))``.

Whoever includes ``django_delayq.api.urls`` has them there already.
"""

from __future__ import annotations

from typing import Final

from django.urls import path

from .views import metrics

app_name: Final = "delayq_metrics"
urlpatterns: Final = [path("", metrics, name="metrics")]

"""URLs of a project that has the metrics and no API."""

from django.urls import include, path

urlpatterns = [path("metrics", include("django_delayq.metrics.urls"))]

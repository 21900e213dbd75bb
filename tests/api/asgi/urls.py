"""The API, and a look behind it."""

from django.urls import include, path

from .watched import handlers, waits

urlpatterns = [path("delayq/", include("django_delayq.api.urls")), path("waits", waits), path("handlers", handlers)]

"""URLs with Grape's interface beside the HTTP API, as a project that wants it has them."""

from django.urls import include, path

from tests.urls import urlpatterns as _others

urlpatterns = [
    path("delayq/grape/", include("django_delayq.api.grape.urls")),
    *_others,
]

"""Addresses of Grape's interface: ``path("grape/", include("django_delayq.api.grape.urls"))``."""

from __future__ import annotations

from typing import Final

from django.urls import include, path

from . import jobs, tubes
from .base import NotThere

app_name: Final = "delayq_grape"
_api: Final = [*jobs.urlpatterns, *tubes.urlpatterns, path("<path:rest>", NotThere.as_view(), name="not_there")]
urlpatterns: Final = [path("api/", include(_api))]

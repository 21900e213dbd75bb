"""Its one page."""

from django.urls import path

from .telemetry import pay

urlpatterns = [path("pay", pay)]

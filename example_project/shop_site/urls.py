"""URLs: the shop at the root, Django's admin (with the queue's pages) and the queue's HTTP API."""

from __future__ import annotations

from django.contrib import admin
from django.templatetags.static import static
from django.urls import include, path
from django.views.generic import RedirectView

urlpatterns = [
    path("admin/", admin.site.urls),
    path("delayq/", include("django_delayq.api.urls")),
    path("favicon.ico", RedirectView.as_view(url=static("shop/icon.svg"))),  # browsers request it in the admin
    path("", include("shop.urls")),
]

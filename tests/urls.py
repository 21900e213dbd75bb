"""URLs of the test project: the admin, and the HTTP API with everything in it."""

from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("admin/", admin.site.urls),
    path("delayq/", include("django_delayq.api.urls")),
]

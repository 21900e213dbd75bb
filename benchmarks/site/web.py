"""HTTP API, and an empty view with the same authentication: the cost of a request without a queue."""

from __future__ import annotations

from typing import Any

from django.urls import include, path
from rest_framework.response import Response

from django_delayq.api.base import ApiView, operation


class Empty(ApiView):
    """View that only authenticates and authorises."""

    @operation("POST empty", "produce")
    def empty(self, request: Any) -> Response:
        """Return an empty object."""
        return Response({})


urlpatterns = [path("empty", Empty.as_view({"post": "empty"})), path("delayq/", include("django_delayq.api.urls"))]

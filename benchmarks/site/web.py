"""The HTTP API, and a view behind the same door that does nothing: what a request costs before there is any queue."""

from __future__ import annotations

from typing import Any, ClassVar

from django.urls import include, path
from rest_framework.response import Response

from django_delayq.api.base import ApiView


class Empty(ApiView):
    """Who is it, may they; nothing else."""

    actions: ClassVar[dict[str, str]] = {"POST": "produce"}

    def post(self, request: Any) -> Response:
        """Nothing."""
        return Response({})


urlpatterns = [path("empty", Empty.as_view()), path("delayq/", include("django_delayq.api.urls"))]

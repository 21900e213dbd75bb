"""Endpoint of the OpenAPI document."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from django.urls import path
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiExample, OpenApiResponse
from rest_framework.request import Request
from rest_framework.response import Response

from ..base import ApiView
from ..describe import operation
from ..openapi import document
from ..serializers.base import Resource

_HERE: Final = "v1/openapi.json"


class Schema(ApiView):
    """Route ``openapi.json``: the OpenAPI document."""

    tag = "schema"
    actions: ClassVar = {"GET": "view"}

    @operation(
        "openapi",
        "This document",
        returns=OpenApiResponse(OpenApiTypes.OBJECT, "the document"),
        examples=[
            OpenApiExample(
                "The beginning",
                {"openapi": "3.0.3", "info": {"title": "django_delayq"}},
                response_only=True,
                status_codes=["200"],
            ),
        ],
        text="OpenAPI 3.0, for writers and generators of clients.",
    )
    def get(self, request: Request) -> Response:
        """Return the document, its server URL being the path under which the project included this API."""
        self.read_query(request, Resource)
        # The path as the client requested it, with any prefix added by a proxy or the project.
        return Response(document(request.path.removesuffix(_HERE)))


urlpatterns: Final[list[Any]] = [path("openapi.json", Schema.as_view(), name="openapi")]

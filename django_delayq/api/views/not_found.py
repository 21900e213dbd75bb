"""Fallback view for unknown API paths."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.exceptions import NotFound
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request

from ..base import ApiView


@extend_schema(exclude=True)
class NotFoundView(ApiView):
    """404 for authenticated users; others get 401 or 403."""

    permission_classes = (IsAuthenticated,)
    throttle_classes = ()

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Raise NotFound for every method."""
        super().initial(request, *args, **kwargs)
        raise NotFound("there is nothing at this address; GET v1/openapi.json lists the addresses")

"""``@extend_schema`` for the views of this package."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from drf_spectacular import utils
from drf_spectacular.openapi import AutoSchema

F = TypeVar("F", bound=Callable[..., Any])


def extend_schema(**said: Any) -> Callable[[F], F]:
    """Return drf-spectacular's ``extend_schema`` decorator for a view or a view method; it takes the same arguments.

    drf-spectacular's own decorator builds on the project's ``DEFAULT_SCHEMA_CLASS``, which may belong to another
    package.
    """
    decorate = utils.extend_schema(**said)

    def apply(method: F) -> F:
        if isinstance(method, type):
            return decorate(method)
        method.schema = AutoSchema  # type: ignore[attr-defined]
        try:
            return decorate(method)
        finally:
            del method.schema  # type: ignore[attr-defined]

    return apply

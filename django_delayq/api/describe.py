"""Description of operations for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from drf_spectacular import utils
from drf_spectacular.openapi import AutoSchema

F = TypeVar("F", bound=Callable[..., Any])


class ApiSchema(AutoSchema):
    """Schema of our views, each of which names the group of its operations."""

    def get_tags(self) -> list[str]:
        """Return the group of the operation in the OpenAPI document, which its view names."""
        view: Any = self.view
        return [view.tag]


def operation(
    name: str,
    summary: str,
    *,
    reads: Any = None,
    returns: Any = None,
    query: Any = None,
    text: str | None = None,
    examples: Any = None,
) -> Callable[[F], F]:
    """Return a decorator that describes a method of a view. Errors that all operations have are added elsewhere.

    Args:
        name: id of the operation.
        summary: what it does, in a line.
        reads: serializer of the request body.
        returns: serializer of the response, or a serializer for each status; None = nothing is returned.
        query: serializer of the query.
        text: the description; None = the docstring of the method.
        examples: in place of those of the serializers.
    """
    responses = returns if isinstance(returns, Mapping) else {200: returns}
    decorate = utils.extend_schema(
        operation_id=name,
        summary=summary,
        request=reads,
        responses=responses,
        parameters=None if query is None else [query],
        description=text,
        examples=examples,
    )

    def apply(method: F) -> F:
        # drf-spectacular's decorator builds on the project's DEFAULT_SCHEMA_CLASS, which may be of another package.
        method.schema = ApiSchema  # type: ignore[attr-defined]
        try:
            return decorate(method)
        finally:
            del method.schema  # type: ignore[attr-defined]

    return apply

"""Base view of the API: JSON bodies with limits, validated requests, stored responses, and their description.

A handler says with :func:`operation` what it requires, reads and returns. Its name is the id of the operation in the
OpenAPI document; the first line of its docstring is the summary there, the rest the description.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeVar

import uritemplate
from django.http import HttpResponse
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse
from rest_framework.exceptions import PermissionDenied, ValidationError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import ViewSetMixin

from .. import connections
from ..access import outside_transactions, problems
from ..access.views import GuardedView, may_use
from ..core.inputs import short
from ..core.queue import Queue
from . import idempotency, responses
from .fields import Described, Entries, Resource, texts_of
from .parsing import LimitedJSONParser, check_head

F = TypeVar("F", bound=Callable[..., Any])

_NAME: Final = {"type": "string", "minLength": 1, "maxLength": 255}
#: path parameter → its description and schema
_IN_PATHS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "queue": ("name of the queue", {"type": "string", "pattern": "^[A-Za-z][A-Za-z0-9_.-]{0,63}$"}),
    "id": ("the job's id, percent-encoded; slashes may be left as they are", _NAME),
    "task": ("name of the recurring task, percent-encoded; slashes may be left as they are", _NAME),
    "worker": ("name of the worker, as in the list of workers", _NAME),
}
_KEY: Final = OpenApiParameter(
    idempotency.HEADER,
    {"type": "string", "pattern": "^[!-~]{1,255}$"},
    OpenApiParameter.HEADER,
    description="A unique text for this request, such as a UUID. A repeated request with the same key and body is not "
    "executed again; it gets the first response.",
)
_PROBLEM: Final = OpenApiResponse(responses.Problem, description="An error; `code` says which, see the list above.")


@dataclass(frozen=True, slots=True)
class operation:
    """Decorator for the handlers of an :class:`ApiView`.

    Attributes:
        route: method and address ("GET v1/queues/{queue}").
        permission: view, produce, consume, operate or admin; "" = the view is open to everybody.
        reads: serializer of the request body.
        returns: serializer of the response, or a serializer for each status; None = nothing is returned.
        query: serializer of the query.
    """

    route: str
    permission: str
    reads: Any = None
    returns: Any = None
    query: type[Resource] | None = None

    def __call__(self, handler: F) -> F:
        """Return the handler, described by this."""
        handler.__dict__["operation"] = self
        return handler


class ApiSchema(AutoSchema):
    """Description of the operations, from what their handlers say."""

    @property
    def _operation(self) -> operation:
        found: operation = self.view.described  # type: ignore[attr-defined]
        return found

    def get_operation_id(self) -> str:
        """Return the name of the handler."""
        return str(self.view.action)  # type: ignore[attr-defined]

    def get_tags(self) -> list[str]:
        """Return the group of the operation, which its view names."""
        return [self.view.tag]  # type: ignore[attr-defined]

    def get_summary(self) -> str:
        """Return the first line of the docstring."""
        return self._texts()[0].removesuffix(".")

    def get_description(self) -> str:  # type: ignore[override]
        """Return the rest of the docstring, and the permission."""
        permission = self._operation.permission
        return f"{self._texts()[2]}\n\n{f'Permission: `{permission}`.' if permission else 'Open to everybody.'}".strip()

    def _texts(self) -> tuple[str, str, str]:
        return (inspect.getdoc(getattr(self.view, self.get_operation_id())) or "").partition("\n\n")

    def get_extensions(self) -> dict[str, Any]:
        """Return the permission as an extension."""
        return {"x-permission": self._operation.permission} if self._operation.permission else {}

    def get_override_parameters(self) -> list[Any]:
        """Return the query, the names in the address, and the key of a POST."""
        query = self._operation.query
        parameters: list[Any] = [] if query is None else [query]
        for name in uritemplate.variables(self.path):
            text, schema = _IN_PATHS[str(name)]
            parameters.append(OpenApiParameter(str(name), schema, OpenApiParameter.PATH, description=text))
        return [*parameters, _KEY] if self.method == "POST" else parameters

    def get_request_serializer(self) -> Any:
        """Return what the handler reads."""
        return self._operation.reads

    def get_response_serializers(self) -> Any:
        """Return what the handler returns, and the form of every error."""
        returns = self._operation.returns
        return {**(returns if isinstance(returns, dict) else {200: returns}), ("default", problems.PROBLEM): _PROBLEM}

    def _get_request_body(self, direction: Any = "request") -> Any:
        body = super()._get_request_body(direction)  # type: ignore[no-untyped-call]
        if body is not None:
            body["required"] = self._needs_body()
        return body

    def _needs_body(self) -> bool:
        try:
            self._operation.reads.read({})
        except (AttributeError, ValidationError):
            return True
        return False

    def _map_serializer(self, serializer: Any, direction: Any, bypass_extensions: bool = False) -> Any:
        schema = super()._map_serializer(serializer, direction, bypass_extensions)  # type: ignore[no-untyped-call]
        if isinstance(serializer, Described):
            schema["description"] = texts_of(type(serializer))[0]
        if isinstance(serializer, Resource) and direction == "request":
            schema["additionalProperties"] = False
        return schema

    def _map_serializer_field(self, field: Any, direction: Any, bypass_extensions: bool = False) -> Any:
        schema = super()._map_serializer_field(field, direction, bypass_extensions)  # type: ignore[no-untyped-call]
        if isinstance(field, Entries):
            entry: Any = field.child
            return {**schema, "minItems": 1, "maxItems": entry.most or 1000}
        if schema.get("type") == "integer":
            schema.setdefault("format", "int64")
        return schema


class ApiView(ViewSetMixin, GuardedView):
    """Base view of the API. Requests and responses are JSON only."""

    parser_classes = (LimitedJSONParser,)
    schema = ApiSchema()
    #: group of its operations in the OpenAPI document
    tag: ClassVar[str] = ""
    _record: idempotency.IdempotencyRecord | None = None

    @classmethod
    def as_view(cls, actions: Any = None, **initkwargs: Any) -> Any:
        """Return the view function for these handlers, which the mixin makes without :meth:`GuardedView.as_view`."""
        return outside_transactions(super().as_view(actions, **initkwargs))

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Check the caller, the permission and the rate, then look for a stored response."""
        check_head(request)
        super().initial(request, *args, **kwargs)
        permission = self.permission_of(request)
        for name in self.queues_of_body(request) if permission else ():
            if not may_use(request, str(permission), name):
                raise PermissionDenied(f"you may not {permission} in queue {short(name)}")
        self._record = idempotency.begin(request)

    @property
    def described(self) -> Any:
        """Description of the request's handler; None for an unsupported method, and for OPTIONS."""
        return getattr(getattr(self, self.action or "", None), "operation", None)

    def permission_of(self, request: Request) -> str | None:
        """Return the permission this request requires; None for OPTIONS and unsupported methods."""
        return None if self.described is None else self.described.permission

    def queues_of_body(self, request: Request) -> Sequence[str]:
        """Return the queues that a request names otherwise than by its address: the ``allow`` rule is called for each.

        A view whose requests are about these alone leaves "" out of :meth:`queues_of_address`.
        """
        return ()

    def handle_exception(self, exc: Exception) -> HttpResponse:  # type: ignore[override]
        """Return a response for every error, or the stored response for a repeated key."""
        if isinstance(exc, idempotency.Replayed):
            return exc.response
        try:
            return super().handle_exception(exc)
        except Exception:  # a bug: Django responds, and the key may be used again
            if self._record is not None:
                self._record.drop()
            raise

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        """Store the response if its request carried a key."""
        finalized = super().finalize_response(request, response, *args, **kwargs)
        if self._record is not None and isinstance(response, Response):
            self._record.keep(response)
        return finalized

    def read(self, request: Request) -> Any:
        """Return the validated request body. An empty body is an empty object.

        Raises:
            ValidationError: the body is invalid.
        """
        data = request.data
        return self.described.reads.read(
            {} if data is None or data == {} else data
        )  # without a body it is an empty QueryDict

    def read_query(self, request: Request) -> Any:
        """Return the validated query parameters; raises like :meth:`read`."""
        return (self.described.query or Resource).read_texts(request.query_params.dict())

    def queue(self, name: str) -> Queue:
        """Return the queue named in the URL.

        Raises:
            Problem: there is no such queue.
        """
        # The registry counts its changes under the name "", so it must not be looked up as a queue.
        queue = connections.hurried_broker().existing(name) if name else None
        if queue is None:
            raise problems.queue_not_found(name[:64])
        return queue

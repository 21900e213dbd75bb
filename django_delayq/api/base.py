"""Base view of the API: JSON bodies with limits, validated requests, stored responses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from django.http import HttpResponse
from rest_framework.exceptions import PermissionDenied
from rest_framework.request import Request
from rest_framework.response import Response

from .. import connections
from ..access import problems
from ..access.permissions import may_use
from ..access.views import GuardedView
from ..core.inputs import short
from ..core.queue import Queue
from . import idempotency
from .describe import ApiSchema
from .parsing import LimitedJSONParser, check_head
from .serializers.base import Resource


class ApiView(GuardedView):
    """Base view of the API. Requests and responses are JSON only."""

    parser_classes = (LimitedJSONParser,)
    schema = ApiSchema()
    #: group of its operations in the OpenAPI document
    tag: ClassVar[str] = ""
    _record: idempotency.IdempotencyRecord | None = None

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Check the caller, the permission and the rate, then look for a stored response."""
        check_head(request)
        super().initial(request, *args, **kwargs)
        action = self.action_of(request)
        for name in self.named_queues(request) if action else ():
            if not may_use(request, action or "", name):
                raise PermissionDenied(f"you may not {action} in queue {short(name)}")
        self._record = idempotency.begin(request)

    def named_queues(self, request: Request) -> Sequence[str]:
        """Return the queues named in the request body; the project's ``allow`` rule is checked for each."""
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

    def read(self, request: Request, kind: type[Resource]) -> dict[str, Any]:
        """Return the validated request body. An empty body is an empty object.

        Raises:
            ValidationError: the body is invalid.
        """
        data = request.data
        body = {} if data is None or (data == {} and not isinstance(data, list)) else data
        return kind.read(body)

    def read_query(self, request: Request, kind: type[Resource]) -> dict[str, Any]:
        """Return the validated query parameters; raises like :meth:`read`."""
        return kind.read({name: request.query_params[name] for name in request.query_params})

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

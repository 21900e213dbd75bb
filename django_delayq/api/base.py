"""Base view, base form and authentication of the API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from django.apps import apps
from django.db import connections as databases
from django.db import transaction
from drf_spectacular.openapi import AutoSchema
from rest_framework import serializers
from rest_framework.exceptions import PermissionDenied
from rest_framework.renderers import JSONRenderer
from rest_framework.response import Response
from rest_framework.views import APIView

from ..core.inputs import short
from ..core.queue import Queue
from ..settings.conf import SETTING, conf
from ..settings.loading import load
from . import brokers, idempotency, problems
from .parsing import LimitedJSONParser, check_head
from .permissions import ActionThrottle, MayDo, may_use

if TYPE_CHECKING:
    from django.http import HttpResponse
    from rest_framework.authentication import BaseAuthentication
    from rest_framework.request import Request
    from rest_framework.throttling import BaseThrottle


class ApiView(APIView):
    """Base view whose methods each require one action (see ``actions``). Requests and responses are JSON only.

    Views run outside the project's transactions: the work is committed when the response is sent.
    """

    #: HTTP method → view, produce, consume, operate or admin
    actions: ClassVar[Mapping[str, str]] = {}
    parser_classes = (LimitedJSONParser,)
    renderer_classes = (JSONRenderer,)
    permission_classes: Sequence[Any] = (MayDo,)
    throttle_classes: Sequence[type[BaseThrottle]] = (ActionThrottle,)
    versioning_class = None
    schema = AutoSchema()
    _kept: idempotency.Kept | None = None

    @classmethod
    def as_view(cls, **initkwargs: Any) -> Any:
        """Return the view function, exempt from ``ATOMIC_REQUESTS``."""
        return outside_transactions(super().as_view(**initkwargs))

    def action_of(self, request: Request) -> str | None:
        """Return the action this request requires; None for an unsupported method."""
        method = "GET" if request.method == "HEAD" else request.method or ""
        return self.actions.get(method)

    def get_authenticators(self) -> list[BaseAuthentication]:
        """Return the authenticators of ``API["authentication"]``; by default tokens (where installed) and sessions."""
        return [one() for one in authentication_classes()]

    def get_exception_handler(self) -> Any:
        """Return the handler that turns exceptions into problem details."""
        return problems.handle

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Check the caller, the permission and the rate, then look for a stored response."""
        check_head(request)
        super().initial(request, *args, **kwargs)
        action = self.action_of(request)
        for name in self.named_queues(request) if action else ():
            if not may_use(request, action or "", name):
                raise PermissionDenied(f"you may not {action} in queue {short(name)}")
        self._kept = idempotency.begin(request)

    def named_queues(self, request: Request) -> Sequence[str]:
        """Return the queues named in the request body; the project's ``allow`` rule is checked for each."""
        return ()

    def options(self, request: Any, *args: Any, **kwargs: Any) -> Response:
        """Return an empty response with the allowed methods in ``Allow``."""
        return Response(status=204)

    def handle_exception(self, exc: Exception) -> HttpResponse:  # type: ignore[override]
        """Return a response for every error, or the stored response for a repeated key."""
        if isinstance(exc, idempotency.Replayed):
            return exc.response
        try:
            return super().handle_exception(exc)
        except Exception:  # a bug: Django responds, and the key may be used again
            if self._kept is not None:
                self._kept.drop()
            raise

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        """Store the response if its request carried a key, and forbid caching."""
        response.setdefault("Cache-Control", "no-store")
        found = super().finalize_response(request, response, *args, **kwargs)
        if self._kept is not None and isinstance(response, Response):
            self._kept.keep(response)
        return found

    def read(self, request: Request, form: type[Body]) -> dict[str, Any]:
        """Return the validated request body. An empty body is an empty object.

        Raises:
            ValidationError: the body is invalid.
        """
        given = request.data
        checked = form(data={} if given is None or (given == {} and not isinstance(given, list)) else given)
        checked.is_valid(raise_exception=True)
        return dict(checked.validated_data)

    def read_query(self, request: Request, form: type[Body]) -> dict[str, Any]:
        """Return the validated query parameters; raises like :meth:`read`."""
        checked = form(data={name: request.query_params[name] for name in request.query_params})
        checked.is_valid(raise_exception=True)
        return dict(checked.validated_data)

    def queue(self, name: str) -> Queue:
        """Return the queue named in the URL.

        Raises:
            Problem: there is no such queue.
        """
        # The registry counts its changes under the name "", so it must not be looked up as a queue.
        found = brokers.broker().existing(name) if name else None
        if found is None:
            raise problems.queue_not_found(name[:64])
        return found


def outside_transactions(view: Any) -> Any:
    """Return the view, exempt from ``ATOMIC_REQUESTS`` of every database."""
    for alias in databases:
        view = transaction.non_atomic_requests(using=alias)(view)
    return view


class Body(serializers.Serializer[Any]):
    """Form for request bodies and queries. An unknown member is an error: most often it is misspelled."""

    def to_internal_value(self, data: Any) -> Any:
        """Return the validated values."""
        if isinstance(data, Mapping):
            unknown = [name for name in data if name not in self.fields]
            if unknown:
                known = ", ".join(self.fields)
                raise serializers.ValidationError(
                    {
                        str(name)[:60]: [f"there is no such member; known are: {known or 'none'}"]
                        for name in unknown[:10]
                    }
                )
        return super().to_internal_value(data)


def authentication_classes() -> list[type[BaseAuthentication]]:
    """Return the classes that authenticate users.

    Raises:
        Misconfigured: a class of ``API["authentication"]`` cannot be imported.
    """
    paths = conf().api.authentication
    if paths is None:
        # Tokens first: the first class decides whether an anonymous caller gets 401 with its scheme, or 403.
        token = ("rest_framework.authentication.TokenAuthentication",)
        paths = (
            *(token if apps.is_installed("rest_framework.authtoken") else ()),
            "rest_framework.authentication.SessionAuthentication",
        )
    return [load(f"{SETTING}['API']['authentication']", path) for path in paths]

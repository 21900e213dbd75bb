"""What every view of the API shares."""

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
    """A view whose methods each ask for one action; see ``actions``. It answers and is asked in JSON only.

    A request is never inside a transaction of the project's: what it asks for is done when its answer is given.
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
        """The view as an address takes it."""
        return outside_transactions(super().as_view(**initkwargs))

    def action_of(self, request: Request) -> str | None:
        """What this request asks to be allowed; None for a method that there is not."""
        method = "GET" if request.method == "HEAD" else request.method or ""
        return self.actions.get(method)

    def get_authenticators(self) -> list[BaseAuthentication]:
        """Those of ``API["authentication"]``, else tokens (where they are installed) and sessions."""
        return [one() for one in authentication_classes()]

    def get_exception_handler(self) -> Any:
        """Problem details."""
        return problems.handle

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Check the caller, the permission and the rate; only then look for an answer that was given before."""
        check_head(request)
        super().initial(request, *args, **kwargs)
        action = self.action_of(request)
        for name in self.named_queues(request) if action else ():
            if not may_use(request, action or "", name):
                raise PermissionDenied(f"you may not {action} in queue {short(name)}")
        self._kept = idempotency.begin(request)

    def named_queues(self, request: Request) -> Sequence[str]:
        """Return the queues that the body of this request names; the project's rule is asked for each."""
        return ()

    def options(self, request: Any, *args: Any, **kwargs: Any) -> Response:
        """The methods of this address, in ``Allow``."""
        return Response(status=204)

    def handle_exception(self, exc: Exception) -> HttpResponse:  # type: ignore[override]
        """An answer for every error, and the one that was given before to the same key."""
        if isinstance(exc, idempotency.Replayed):
            return exc.response
        try:
            return super().handle_exception(exc)
        except Exception:  # a fault of ours: Django answers, and this key is free again
            if self._kept is not None:
                self._kept.drop()
            raise

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        """Keeps the answer, if its request carried a key; nothing of this API is for caches."""
        response.setdefault("Cache-Control", "no-store")
        found = super().finalize_response(request, response, *args, **kwargs)
        if self._kept is not None and isinstance(response, Response):
            self._kept.keep(response)
        return found

    def read(self, request: Request, form: type[Body]) -> dict[str, Any]:
        """The body of the request, checked. An empty one is an empty object.

        Raises:
            ValidationError: it is not what it should be.
        """
        given = request.data
        checked = form(data={} if given is None or (given == {} and not isinstance(given, list)) else given)
        checked.is_valid(raise_exception=True)
        return dict(checked.validated_data)

    def read_query(self, request: Request, form: type[Body]) -> dict[str, Any]:
        """The same for the query of the address."""
        checked = form(data={name: request.query_params[name] for name in request.query_params})
        checked.is_valid(raise_exception=True)
        return dict(checked.validated_data)

    def queue(self, name: str) -> Queue:
        """The queue of an address.

        Raises:
            Problem: there is none.
        """
        # The registry counts its changes under the name "", which no queue has.
        found = brokers.broker().existing(name) if name else None
        if found is None:
            raise problems.queue_not_found(name[:64])
        return found


def outside_transactions(view: Any) -> Any:
    """A view that ``ATOMIC_REQUESTS`` of no database says anything about."""
    for alias in databases:
        view = transaction.non_atomic_requests(using=alias)(view)
    return view


class Body(serializers.Serializer[Any]):
    """What a request may say. A member that is not known is an error: most often it is misspelled."""

    def to_internal_value(self, data: Any) -> Any:
        """The checked values."""
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
    """How users are recognised.

    Raises:
        Misconfigured: a class of ``API["authentication"]`` cannot be imported.
    """
    paths = conf().api.authentication
    if paths is None:
        # Tokens first: the first one decides whether a stranger is told 401 with its scheme, or 403.
        token = ("rest_framework.authentication.TokenAuthentication",)
        paths = (
            *(token if apps.is_installed("rest_framework.authtoken") else ()),
            "rest_framework.authentication.SessionAuthentication",
        )
    return [load(f"{SETTING}['API']['authentication']", path) for path in paths]

"""Base view that admits only users with the permission of its action."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from django.apps import apps
from rest_framework.authentication import BaseAuthentication
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.throttling import BaseThrottle
from rest_framework.views import APIView

from ..settings.conf import SETTING, conf, load_object
from . import problems
from .exempt import outside_transactions
from .permissions import ActionThrottle, MayDo


class GuardedView(APIView):
    """Base view whose methods each require one action (see ``actions``). Errors are problem details in JSON.

    Views run outside the project's transactions: the work is committed when the response is sent.
    """

    #: HTTP method → view, produce, consume, operate or admin
    actions: ClassVar[Mapping[str, str]] = {}
    #: True if the queues are not in the URL: the view itself checks the project's ``allow`` rule for each
    names_queues: ClassVar[bool] = False
    renderer_classes = (JSONRenderer,)
    permission_classes: Sequence[Any] = (MayDo,)
    throttle_classes: Sequence[type[BaseThrottle]] = (ActionThrottle,)
    versioning_class = None

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

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the response, which nothing on the way may cache."""
        response.setdefault("Cache-Control", "no-store")
        return super().finalize_response(request, response, *args, **kwargs)

    def options(self, request: Any, *args: Any, **kwargs: Any) -> Response:
        """Return an empty response with the allowed methods in ``Allow``."""
        return Response(status=204)


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
    return [load_object(f"{SETTING}['API']['authentication']", path) for path in paths]

"""Base view that admits only users with the permission of its handler, as often as the project allows."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from django.apps import apps
from rest_framework.authentication import BaseAuthentication
from rest_framework.permissions import BasePermission
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.throttling import BaseThrottle, ScopedRateThrottle
from rest_framework.views import APIView

from ..settings.conf import SETTING, conf, load_function, load_object
from . import outside_transactions, problems

logger: Final = logging.getLogger("django_delayq.api")


def allows() -> Callable[..., bool] | None:
    """Return the project's permission function, if ``API["allow"]`` names one."""
    path = conf().api.allow
    return None if path is None else load_function(f"{SETTING}['API']['allow']", path)


def may_use(request: Request, permission: str, queue: str) -> bool:
    """Return the verdict of ``API["allow"]`` for this user, permission and queue; True if there is no such rule."""
    allow = allows()
    if allow is None:
        return True
    verdict: object = allow(request, permission, queue)
    if isinstance(verdict, bool):
        return verdict
    if inspect.iscoroutine(verdict):
        verdict.close()
    logger.error(
        "%s['API']['allow']: %s gave %s in place of True or False, so everything is refused; make it a plain function "
        "that returns one of them",
        SETTING,
        conf().api.allow,
        type(verdict).__name__,
    )
    return False


def identity_of(user: Any) -> bytes:
    """Return bytes that identify the user uniquely."""
    kind = user.__class__  # of a lazy user, too
    who = getattr(user, "pk", None)
    return f"{kind.__module__}.{kind.__qualname__}:{user if who is None else who}".encode()


class MayDo(BasePermission):
    """Permission of authenticated users with what the handler requires, unless the project's ``allow`` rule objects."""

    def has_permission(self, request: Request, view: Any) -> bool:
        """Return True if the request is allowed, as far as its address names the queue."""
        user: Any = request.user
        if user is None or not user.is_authenticated or not user.is_active:
            return False
        permission = view.permission_of(request)
        if permission is None:
            return True  # unsupported method: the response is 405, not 403
        if not user.has_perm(f"django_delayq.api_{permission}"):
            return False
        return all(may_use(request, permission, queue) for queue in view.queues_of_address(request))


class ActionThrottle(ScopedRateThrottle):
    """Throttle of ``API["throttle"]``: a rate per permission and user."""

    def allow_request(self, request: Request, view: Any) -> bool:
        """Return True if the request is within the rate."""
        permission = view.permission_of(request)
        rate = conf().api.throttle.get(permission or "")
        if rate is None:
            return True
        self.scope = f"delayq_{permission}"
        self.rate = rate
        self.num_requests, self.duration = self.parse_rate(rate)
        # Skips ScopedRateThrottle, which would look up the rate in the project's own settings.
        return super(ScopedRateThrottle, self).allow_request(request, view)


class GuardedView(APIView):
    """Base view that requires a permission for each request. Errors are problem details in JSON.

    Views run outside the project's transactions: the work is committed when the response is sent.
    """

    renderer_classes = (JSONRenderer,)
    permission_classes: Sequence[Any] = (MayDo,)
    throttle_classes: Sequence[type[BaseThrottle]] = (ActionThrottle,)
    versioning_class = None
    #: permission of a view that only shows something
    permission = ""

    @classmethod
    def as_view(cls, *args: Any, **initkwargs: Any) -> Any:
        """Return the view function, exempt from ``ATOMIC_REQUESTS``."""
        return outside_transactions(super().as_view(*args, **initkwargs))

    def permission_of(self, request: Request) -> str | None:
        """Return the permission this request requires; None for OPTIONS and unsupported methods."""
        return self.permission if request.method in ("GET", "HEAD") else None

    def queues_of_address(self, request: Request) -> Sequence[str]:
        """Return the queue of the address, "" if it names none: the project's ``allow`` rule is called for it."""
        return (self.kwargs.get("queue", ""),)

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

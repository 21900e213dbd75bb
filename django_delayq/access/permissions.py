"""Permissions and throttling: each route requires one of five actions, each with a permission of its own."""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Final

from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.throttling import ScopedRateThrottle

from ..settings.conf import SETTING, conf, load_function

logger: Final = logging.getLogger("django_delayq.api")

#: results of calls that have not run yet; they are truthy, so they would count as a yes
_NOT_RUN: Final = (Awaitable, AsyncIterator, Iterator)


def allows() -> Callable[..., bool] | None:
    """Return the project's permission function, if ``API["allow"]`` names one."""
    path = conf().api.allow
    return None if path is None else load_function(f"{SETTING}['API']['allow']", path)


def identity_of(user: Any) -> bytes:
    """Return bytes that identify the user uniquely."""
    kind = user.__class__  # of a lazy user, too
    who = getattr(user, "pk", None)
    return f"{kind.__module__}.{kind.__qualname__}:{user if who is None else who}".encode()


class MayDo(BasePermission):
    """Permission of authenticated users with the view's action, unless the project's ``allow`` rule objects.

    The view is a :class:`.GuardedView`.
    """

    def has_permission(self, request: Request, view: Any) -> bool:
        """Return True if the request is allowed, as far as its URL names the queue."""
        user: Any = request.user
        if user is None or not user.is_authenticated or not user.is_active:
            return False
        action = view.action_of(request)
        if action is None:
            return True  # unsupported method: the response is 405, not 403
        if not user.has_perm(f"django_delayq.api_{action}"):
            return False
        if view.names_queues:
            return True  # they are checked one by one; see ApiView.named_queues()
        return may_use(request, action, view.kwargs.get("queue", ""))


def may_use(request: Request, action: str, queue: str) -> bool:
    """Return the verdict of ``API["allow"]`` for this user, action and queue; True if there is no such rule."""
    allow = allows()
    if allow is None:
        return True
    answer: object = allow(request, action, queue)
    if not isinstance(answer, _NOT_RUN):
        return bool(answer)
    if inspect.iscoroutine(answer):
        answer.close()
    logger.error(
        "%s['API']['allow']: %s gave %s in place of an answer, so everything is refused; make it a plain "
        "function that returns True or False",
        SETTING,
        conf().api.allow,
        type(answer).__name__,
    )
    return False


class ActionThrottle(ScopedRateThrottle):
    """Throttle of ``API["throttle"]``: a rate per action and user. The view is a :class:`.GuardedView`."""

    def allow_request(self, request: Request, view: Any) -> bool:
        """Return True if the request is within the rate."""
        action = view.action_of(request)
        rate = conf().api.throttle.get(action or "")
        if rate is None:
            return True
        self.scope = f"delayq_{action}"
        self.rate = rate
        self.num_requests, self.duration = self.parse_rate(rate)
        # Skips ScopedRateThrottle, which would look up the rate in the project's own settings.
        return super(ScopedRateThrottle, self).allow_request(request, view)

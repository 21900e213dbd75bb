"""What the views of Grape's interface share: who gets in, what a query says, what errors look like."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from rest_framework.authentication import TokenAuthentication
from rest_framework.exceptions import NotFound
from rest_framework.permissions import IsAuthenticated
from rest_framework.views import APIView

from ...conf import SETTING, conf
from ...core.errors import InvalidJob, Misconfigured
from ...core.inputs import check_id
from ...core.queue import Queue
from ...core.times import delay_ms_of
from .. import brokers, problems
from ..base import ApiView, authentication_classes
from ..describe import extend_schema
from ..permissions import may_use
from . import errors

if TYPE_CHECKING:
    from rest_framework.authentication import BaseAuthentication
    from rest_framework.request import Request
    from rest_framework.response import Response

_TUBE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
_LONGEST_TUBE: Final = 64
_LONG: Final = re.compile(r"[+-]?[0-9]{1,19}")
#: ms; far more than is ever allowed, and not too much for a timedelta
_FAR: Final = 10**15
#: Grape's shortest lease
SHORTEST_TTR_MS: Final = 1000


class GrapeView(ApiView):
    """A view of Grape's interface. Its parameters are in the query; a tube that they name is a queue of kind pull."""

    def get_authenticators(self) -> list[BaseAuthentication]:
        """Tokens only. Whatever a browser sends by itself must not count, because GET consume changes something."""
        return [one() for one in authentication_classes() if issubclass(one, TokenAuthentication)]

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Who is it, may they, not too often. An Idempotency-Key is not looked at: Grape has none."""
        if not request.authenticators:
            raise Misconfigured(f"Grape's interface needs tokens: add 'rest_framework.authtoken' to INSTALLED_APPS, or "
                                f"a subclass of TokenAuthentication to {SETTING}['API']['authentication']")  # fmt: skip
        APIView.initial(self, request, *args, **kwargs)

    def get_exception_handler(self) -> Any:
        """Grape's errors."""
        return handle

    def tube_name(self, request: Request, given: str | None = None) -> str:
        """The tube's name, if one can have it and the caller may use it.

        Raises:
            GrapeError: it cannot be one. PermissionDenied: the project's own rule objects.
        """
        name = request.query_params.get("tube", "") if given is None else given
        if not name:
            raise errors.GrapeError(errors.TUBE_EMPTY, "tube name is empty")
        if len(name) > _LONGEST_TUBE:
            raise errors.GrapeError(errors.TUBE_TOO_LONG, f"tube name is longer than {_LONGEST_TUBE} characters")
        if not _TUBE.fullmatch(name):
            raise errors.GrapeError(errors.TUBE_INVALID, "tube name is not letters, digits, '_', '.' and '-', "
                                                         "beginning with a letter")  # fmt: skip
        if not may_use(request, self.action_of(request) or "", name):
            self.permission_denied(request, f"you may not use tube {name!r}")
        return name

    def tube(self, request: Request, given: str | None = None) -> Queue:
        """The queue that the request is about.

        Raises:
            GrapeError: there is none, or it is none of raw bytes.
        """
        name = self.tube_name(request, given)
        found = brokers.broker().existing(name)
        if found is None:
            raise errors.GrapeError(errors.TUBE_UNKNOWN, f"unknown tube '{name}'")
        if found.kind != "pull":
            raise errors.GrapeError(errors.TUBE_UNKNOWN, f"queue '{name}' is not of kind pull, so it is no tube")
        return found


def handle(error: Exception, context: Mapping[str, Any]) -> Response | None:
    """The answer to an exception of a view; None for a fault of ours."""
    problem = problems.problem_of(error)
    return None if problem is None else errors.told(problem, authenticate=getattr(error, "auth_header", ""))


def job_id(request: Request) -> str:
    """The job that the request is about.

    Raises:
        GrapeError: there is none, or no job can have this id.
    """
    given = request.query_params.get("jid", "")
    if not given:
        raise errors.GrapeError(errors.JOB_ID_EMPTY, "job id is empty")
    try:
        return check_id(given)
    except InvalidJob as error:
        raise errors.GrapeError(errors.JOB_ID_EMPTY, str(error)) from None


def dtr_ms(request: Request) -> int:
    """The delay that is asked for; 0 if none is.

    Raises:
        GrapeError: it is no number, or too far away.
    """
    return _span(request, "dtr", errors.DTR_INVALID, 0)


def ttr_ms(request: Request) -> int:
    """The lease that is asked for, at least Grape's shortest.

    Raises:
        GrapeError: it is no number, or too long.
    """
    return _span(request, "ttr", errors.TTR_INVALID, SHORTEST_TTR_MS)


def how_many(request: Request, most: int) -> int:
    """``max``: 1 unless told. As in Grape, what is no number is not complained about."""
    given = request.query_params.get("max", "")
    return max(1, min(most, int(given))) if _LONG.fullmatch(given) else 1


def _span(request: Request, name: str, code: int, least: int) -> int:
    given = request.query_params.get(name, "0")
    if not _LONG.fullmatch(given):
        raise errors.GrapeError(code, f"job {name} is invalid")
    try:
        return delay_ms_of(
            timedelta(milliseconds=max(least, min(_FAR, int(given)))), what=name, allow_far=conf().allow_far
        )
    except InvalidJob as error:
        raise errors.GrapeError(code, f"job {name} is invalid: {error}") from None


@extend_schema(exclude=True)
class NotThere(GrapeView):
    """What is none of Grape's addresses."""

    permission_classes = (IsAuthenticated,)
    throttle_classes = ()

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Whatever the method."""
        super().initial(request, *args, **kwargs)
        raise NotFound(f"invalid path: {request.path[:200]}")

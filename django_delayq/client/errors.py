"""Exceptions of the client: one class for each kind of error that a program may want to handle separately."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final


class ApiError(Exception):
    """Error response, or no response at all.

    Attributes:
        status: HTTP status; 0 if there was no response.
        code: stable identifier of the error ("queue_full", …).
        detail: readable description of the error and what to do next.
        errors: (JSON pointer into the request's body, description of the error there).
        retry_after: seconds after which a retry is worthwhile, None if unknown.
        done: for a call that sends several requests: the results of those before this one.
    """

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        errors: Sequence[tuple[str, str]] = (),
        retry_after: float | None = None,
    ) -> None:
        super().__init__(f"{detail} [{status} {code}]" if status else f"{detail} [{code}]")
        self.status = status
        self.code = code
        self.detail = detail
        self.errors = tuple(errors)
        self.retry_after = retry_after
        self.done: list[Any] = []


class Invalid(ApiError):
    """Invalid request (400, 413, 415, 422). Nothing was done."""


class NotAuthenticated(ApiError):
    """Missing or wrong token."""


class PermissionDenied(ApiError):
    """Missing permission of the token's user."""


class NotFound(ApiError):
    """Unknown queue, job, worker or address."""


class QueueNotFound(NotFound):
    """Unknown queue."""


class JobNotFound(NotFound):
    """Unknown job, or a job that no longer exists."""


class Conflict(ApiError):
    """Conflict with the current state (409)."""


class IdTaken(Conflict):
    """Id of a live job of another task, or of any live job with ``on_conflict="error"``."""


class QueueNotEmpty(Conflict):
    """Queue that still holds jobs or morgue records; empty it first, or delete it with ``force``."""


class TryLater(ApiError):
    """Valid request that the server cannot handle now; see :attr:`retry_after`."""


class QueueFull(TryLater):
    """Queue that has reached its limit. Nothing was stored."""


class QueuePaused(TryLater):
    """Queue that is paused for new jobs until it is resumed. Nothing was stored."""


class Throttled(TryLater):
    """Too many requests of this user."""


class Unavailable(TryLater):
    """No response from the queue or the server. A request that changes something may have been executed."""


class NotConfirmed(Unavailable):
    """Job that is stored, but that replicas or disks did not confirm in time. The same call under its id is safe."""


_BY_CODE: Final[dict[str, type[ApiError]]] = {
    "not_authenticated": NotAuthenticated,
    "permission_denied": PermissionDenied,
    "queue_not_found": QueueNotFound,
    "job_not_found": JobNotFound,
    "id_taken": IdTaken,
    "queue_not_empty": QueueNotEmpty,
    "queue_full": QueueFull,
    "queue_paused": QueuePaused,
    "not_confirmed": NotConfirmed,
    "throttled": Throttled,
    "idempotency_in_progress": TryLater,
}
#: for codes that this version does not know, and for responses of proxies between client and server
_BY_STATUS: Final[dict[int, type[ApiError]]] = {
    **dict.fromkeys((400, 413, 415, 422), Invalid),
    401: NotAuthenticated,
    403: PermissionDenied,
    404: NotFound,
    409: Conflict,
    429: Throttled,
    **dict.fromkeys((502, 503, 504), Unavailable),
}


def error_of(status: int, problem: object, retry_after: float | None) -> ApiError:
    """Return the exception for an error response; ``problem`` is its JSON, of any form."""
    members: Mapping[str, Any] = problem if isinstance(problem, Mapping) else {}
    code = str(members.get("code") or f"http_{status}")
    detail = str(members.get("detail") or f"the server answered {status} without an explanation")
    # A proxy may send members of the same names in another form.
    listed = members.get("errors")
    errors = [
        (str(one.get("pointer", "")), str(one.get("detail", "")))
        for one in (listed if isinstance(listed, list) else ())
        if isinstance(one, Mapping)
    ]
    wait = members.get("retry_after")
    if isinstance(wait, (int, float)) and not isinstance(wait, bool) and wait >= 0:
        retry_after = float(wait)
    kind = _BY_CODE.get(code) or _BY_STATUS.get(status, ApiError)
    return kind(status, code, detail, errors=errors, retry_after=retry_after)

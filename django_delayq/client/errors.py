"""Exceptions of the client: one class for each kind of error that a program may want to handle separately."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

#: code, or status for codes that this version does not know and for responses of proxies → class
_CLASSES: Final[dict[str | int, type[ApiError]]] = {}


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

    def __init_subclass__(cls, answers: Sequence[str | int] = ()) -> None:
        _CLASSES.update(dict.fromkeys(answers, cls))


class Invalid(ApiError, answers=(400, 413, 415, 422)):
    """Invalid request (400, 413, 415, 422). Nothing was done."""


class NotAuthenticated(ApiError, answers=("not_authenticated", 401)):
    """Missing or wrong token."""


class PermissionDenied(ApiError, answers=("permission_denied", 403)):
    """Missing permission of the token's user."""


class NotFound(ApiError, answers=(404,)):
    """Unknown queue, job, worker or address."""


class QueueNotFound(NotFound, answers=("queue_not_found",)):
    """Unknown queue."""


class JobNotFound(NotFound, answers=("job_not_found",)):
    """Unknown job, or a job that no longer exists."""


class Conflict(ApiError, answers=(409,)):
    """Conflict with the current state (409)."""


class IdTaken(Conflict, answers=("id_taken",)):
    """Id of a live job of another task, or of any live job with ``on_conflict="error"``."""


class QueueNotEmpty(Conflict, answers=("queue_not_empty",)):
    """Queue that still holds jobs or morgue records; empty it first, or delete it with ``force``."""


class TryLater(ApiError, answers=("idempotency_in_progress",)):
    """Valid request that the server cannot handle now; see :attr:`retry_after`."""


class QueueFull(TryLater, answers=("queue_full",)):
    """Queue that has reached its limit. Nothing was stored."""


class QueuePaused(TryLater, answers=("queue_paused",)):
    """Queue that is paused for new jobs until it is resumed. Nothing was stored."""


class Throttled(TryLater, answers=("throttled", 429)):
    """Too many requests of this user."""


class Unavailable(TryLater, answers=(502, 503, 504)):
    """No response from the queue or the server. A request that changes something may have been executed."""


class NotConfirmed(Unavailable, answers=("not_confirmed",)):
    """Job that is stored, but that replicas or disks did not confirm in time. The same call under its id is safe."""


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
    kind = _CLASSES.get(code) or _CLASSES.get(status, ApiError)
    return kind(status, code, detail, errors=errors, retry_after=retry_after)

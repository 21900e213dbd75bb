"""What the client raises: one class for each kind of answer that a program may want to tell apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final


class ApiError(Exception):
    """The server refused, or did not answer.

    Attributes:
        status: HTTP status; 0 if there was no answer.
        code: what is wrong, in a word that stays the same ("queue_full", …).
        detail: what is wrong and what to do next, for people.
        errors: (JSON pointer into the request's body, what is wrong there).
        retry_after: seconds after which it is worth asking again, None if nothing is known.
        done: of a call that sends several requests: the results of those before this one.
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
    """The request says something that cannot be (400, 413, 415, 422). Nothing was done."""


class NotAuthenticated(ApiError):
    """Who is it? The token is missing or wrong."""


class PermissionDenied(ApiError):
    """The token's user may not do this."""


class NotFound(ApiError):
    """There is no such queue, job, worker or address."""


class QueueNotFound(NotFound):
    """There is no such queue."""


class JobNotFound(NotFound):
    """There is no such job (any more)."""


class Conflict(ApiError):
    """It cannot be done as things are now (409)."""


class IdTaken(Conflict):
    """The id belongs to a live job of another task, or ``on_conflict="error"`` met a live job."""


class QueueNotEmpty(Conflict):
    """The queue holds jobs or graves; empty it first, or delete it with ``force``."""


class TryLater(ApiError):
    """Nothing is wrong with the request; see :attr:`retry_after`."""


class QueueFull(TryLater):
    """The queue reached its limit. Nothing was stored."""


class QueuePaused(TryLater):
    """The queue takes no new jobs until somebody resumes it. Nothing was stored."""


class Throttled(TryLater):
    """Too many requests of this user."""


class Unavailable(TryLater):
    """The queue, or the server, does not answer. What changes something may have been carried out."""


_BY_CODE: Final[dict[str, type[ApiError]]] = {
    "not_authenticated": NotAuthenticated,
    "permission_denied": PermissionDenied,
    "queue_not_found": QueueNotFound,
    "job_not_found": JobNotFound,
    "id_taken": IdTaken,
    "queue_not_empty": QueueNotEmpty,
    "queue_full": QueueFull,
    "queue_paused": QueuePaused,
    "throttled": Throttled,
    "idempotency_in_progress": TryLater,
}
#: for codes that this version does not know, and for answers of somebody between us and the server
_BY_STATUS: Final[dict[int, type[ApiError]]] = {
    400: Invalid,
    401: NotAuthenticated,
    403: PermissionDenied,
    404: NotFound,
    409: Conflict,
    413: Invalid,
    415: Invalid,
    422: Invalid,
    429: Throttled,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
}


def error_of(status: int, problem: object, retry_after: float | None) -> ApiError:
    """The exception for an answer that is an error; ``problem`` is its JSON, whatever it is."""
    told: Mapping[str, Any] = problem if isinstance(problem, Mapping) else {}
    code = str(told.get("code") or f"http_{status}")
    detail = str(told.get("detail") or f"the server answered {status} without saying why")
    # Somebody between us and the server may have a form of his own for what is called like ours.
    listed = told.get("errors")
    errors = [
        (str(one.get("pointer", "")), str(one.get("detail", "")))
        for one in (listed if isinstance(listed, list) else ())
        if isinstance(one, Mapping)
    ]
    wait = told.get("retry_after")
    if isinstance(wait, (int, float)) and not isinstance(wait, bool) and wait >= 0:
        retry_after = float(wait)
    kind = _BY_CODE.get(code) or _BY_STATUS.get(status, ApiError)
    return kind(status, code, detail, errors=errors, retry_after=retry_after)

"""Errors as problem details (RFC 9457): ``application/problem+json`` with a stable ``code``."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

from django.core.exceptions import PermissionDenied
from django.db import InterfaceError, OperationalError
from django.http import Http404
from redis.exceptions import RedisError
from rest_framework import exceptions
from rest_framework.response import Response

from ..core.errors import (
    DelayQError,
    IdTaken,
    InvalidJob,
    Misconfigured,
    NotConfirmed,
    QueueFull,
    QueueNotEmpty,
    QueuePaused,
    QueueUnavailable,
)
from ..core.inputs import one_line

logger: Final = logging.getLogger("django_delayq.api")

#: default seconds after which the request may be retried
RETRY_AFTER: Final = 5
PROBLEM: Final = "application/problem+json"
#: detail for all methods, with the store that is away; the second sentence does not concern requests that only read
UNAVAILABLE: Final = (
    "{} does not answer now; retry. A request that changes something may have been carried out: send it "
    "with the same Idempotency-Key, if it had one"
)
NOT_CONFIRMED: Final = (
    "the job is stored, but replicas or disks did not confirm it in time; send the request again with the same id or "
    "Idempotency-Key"
)
#: how the core names the option for Python and the command line → how the API names it
_FORCE: Final = ("--force (force=True)", "?force=true")
#: code → (status, meaning); codes are stable
CODES: Final[dict[str, tuple[int, str]]] = {
    "invalid": (400, "the request is invalid; `errors` has the place of each mistake; nothing was changed"),
    "malformed": (400, "the body is not JSON"),
    "too_deep": (400, "the JSON is nested too deep"),
    "not_authenticated": (401, "no credentials, or wrong ones"),
    "permission_denied": (403, "the user may not do this, or not in this queue"),
    "not_found": (404, "the address, worker, dump or recurring task does not exist"),
    "queue_not_found": (404, "the queue does not exist"),
    "job_not_found": (404, "the job does not exist, or has ended"),
    "task_not_found": (404, "no task of this name may be scheduled over HTTP"),
    "method_not_allowed": (405, "the address does not have this method"),
    "not_acceptable": (406, "responses are JSON"),
    "conflict": (409, "the present state does not allow it"),
    "id_taken": (409, "the id belongs to a live job of another task, or `on_conflict` is `error`"),
    "queue_not_empty": (409, "the queue has jobs or morgue records"),
    "set_in_settings": (409, "the project's settings define this"),
    "idempotency_in_progress": (409, "a request with the same key is in progress"),
    "length_required": (411, "the request has no Content-Length"),
    "too_large": (413, "the body has too many bytes"),
    "unsupported_media_type": (415, "bodies are `application/json`"),
    "idempotency_mismatch": (422, "the key was used for another request"),
    "queue_full": (429, "the queue reached its limit; nothing was stored"),
    "throttled": (429, "too many requests of this user"),
    "queue_paused": (503, "the queue takes no new jobs; nothing was stored"),
    "not_confirmed": (503, "the job is stored, but replicas or disks did not confirm it in time"),
    "unavailable": (503, "Redis or the database does not answer, as `detail` says; a change may have been made"),
}
#: codes of Django REST framework → ours, where they differ
_CODES: Final = {"parse_error": "malformed", "authentication_failed": "not_authenticated"}


class Problem(exceptions.APIException):
    """Error with its own status and code. Its texts are single lines, whatever the request contained.

    Args:
        code: one of :data:`CODES`, which has the status.
        detail: what is wrong, and what to do next.
        errors: (JSON pointer into the request's body, what is wrong there).
        retry_after: seconds.
    """

    def __init__(
        self, code: str, detail: str, *, errors: Sequence[tuple[str, str]] = (), retry_after: float | None = None
    ) -> None:
        super().__init__(one_line(detail), code)
        self.status_code = CODES[code][0] if code in CODES else 500
        self.code = code
        self.errors = tuple((one_line(pointer), one_line(text)) for pointer, text in errors)
        self.retry_after = retry_after


def invalid(detail: str, *errors: tuple[str, str]) -> Problem:
    """Return a 400 problem: the request is invalid, and nothing was done."""
    return Problem("invalid", detail, errors=errors)


def queue_not_found(name: str) -> Problem:
    """Return a 404 problem: there is no such queue."""
    return Problem("queue_not_found", f"there is no queue {name!r}; GET v1/queues lists those that there are")


def job_not_found(queue: str, ident: str) -> Problem:
    """Return a 404 problem: there is no such job. Completed jobs do not exist either."""
    return Problem("job_not_found", f"queue {queue!r} has no job {ident!r} (any more)")


def handle(error: Exception, context: Mapping[str, Any]) -> Response | None:
    """Return the response to an exception of a view; None for a bug, which Django handles and logs as usual."""
    problem = problem_of(error)
    if problem is None:
        return None
    if problem.status_code == 503:
        request = context["request"]
        logger.warning("%s %s: %s", one_line(request.method), one_line(request.path), problem.detail)
    return answer(problem, authenticate=getattr(error, "auth_header", ""))


def answer(problem: Problem, *, authenticate: str = "") -> Response:
    """Return a response with a problem (RFC 9457) as its JSON body."""
    data: dict[str, Any] = {
        "type": f"urn:django-delayq:problem:{problem.code}",
        "title": HTTPStatus(problem.status_code).phrase,
        "status": problem.status_code,
        "detail": str(problem.detail),
        "code": problem.code,
    }
    if problem.errors:
        data["errors"] = [{"pointer": pointer, "detail": detail} for pointer, detail in problem.errors]
    headers = {}
    if problem.retry_after is not None:
        data["retry_after"] = problem.retry_after
        headers["Retry-After"] = str(max(1, round(problem.retry_after)))
    if authenticate:
        headers["WWW-Authenticate"] = authenticate
    return Response(data, status=problem.status_code, headers=headers, content_type=PROBLEM)


def problem_of(error: Exception) -> Problem | None:
    """Return the problem document of an exception; None for a bug."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, exceptions.ValidationError):
        lines = list(_flatten("", error.detail))
        return invalid("; ".join(_format_line(*one) for one in lines[:3]), *lines[:50])
    if isinstance(error, exceptions.APIException):
        code = _CODES.get(error.default_code, error.default_code)
        problem = Problem(code if code in CODES else "error", str(error.detail))
        problem.status_code, problem.retry_after = error.status_code, getattr(error, "wait", None)
        return problem
    if isinstance(error, Http404):
        return Problem("not_found", str(error) or "there is nothing at this address")
    if isinstance(error, PermissionDenied):
        return Problem("permission_denied", str(error) or "you may not do this")
    return _problem_of_queue(error)


def _problem_of_queue(error: Exception) -> Problem | None:
    match error:
        case InvalidJob():
            return invalid(str(error))
        case IdTaken():
            return Problem("id_taken", str(error))
        case QueueNotEmpty():
            return Problem("queue_not_empty", str(error).replace(*_FORCE))
        case QueueFull():
            return Problem("queue_full", str(error), retry_after=RETRY_AFTER)
        case QueuePaused():
            return Problem("queue_paused", str(error), retry_after=RETRY_AFTER)
        case NotConfirmed():
            logger.warning("a job was stored and not confirmed: %s", error)
            return Problem("not_confirmed", NOT_CONFIRMED, retry_after=RETRY_AFTER)
        case QueueUnavailable() | RedisError():
            # The text may name the server, which callers must not learn; the log has it.
            logger.warning("Redis does not answer: %s", error)
            return Problem("unavailable", UNAVAILABLE.format("Redis"), retry_after=RETRY_AFTER)
        case OperationalError() | InterfaceError():
            logger.warning("the database does not answer: %s", error)
            return Problem("unavailable", UNAVAILABLE.format("the database"), retry_after=RETRY_AFTER)
        case Misconfigured():
            logger.error("the queue cannot be used: %s", error)
            return Problem("unavailable", "the queue is not set up; the reason is in the server's log", retry_after=60)
        case DelayQError():
            return Problem("conflict", str(error))
    return None


def _flatten(pointer: str, detail: Any) -> Iterator[tuple[str, str]]:
    """Yield DRF's errors of each field as (JSON pointer, text)."""
    if isinstance(detail, Mapping):
        for name, inner in detail.items():
            yield from _flatten(pointer if name == "non_field_errors" else f"{pointer}/{pointer_token(name)}", inner)
    elif isinstance(detail, list):
        for place, inner in enumerate(detail):
            yield from _flatten(f"{pointer}/{place}" if isinstance(inner, (Mapping, list)) else pointer, inner)
    else:
        yield pointer, str(detail)


def _format_line(pointer: str, text: str) -> str:
    return f"{pointer}: {text}" if pointer else text  # the body as a whole has no pointer


def pointer_token(name: object) -> str:
    """Return the name of a member as a part of a JSON pointer."""
    return str(name).replace("~", "~0").replace("/", "~1")

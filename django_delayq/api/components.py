"""Parts of the OpenAPI document common to all operations: error codes, responses, parameters, the description."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Final

from ..access.problems import PROBLEM, UNAVAILABLE

#: code → (status, meaning); codes are stable
CODES: Final[dict[str, tuple[int, str]]] = {
    "invalid": (400, "the request says something that cannot be; `errors` tells where; nothing was done"),
    "malformed": (400, "the body is not JSON"),
    "too_deep": (400, "the JSON is nested too deep"),
    "not_authenticated": (401, "no credentials, or wrong ones"),
    "permission_denied": (403, "the user may not do this, or not in this queue"),
    "not_found": (404, "there is no such address, worker or dump"),
    "queue_not_found": (404, "there is no such queue"),
    "job_not_found": (404, "there is no such job (any more)"),
    "task_not_found": (404, "no task of this name may be scheduled over HTTP"),
    "method_not_allowed": (405, "the address has other methods"),
    "not_acceptable": (406, "answers are JSON"),
    "conflict": (409, "it cannot be done as things are now"),
    "id_taken": (409, "the id belongs to a live job of another task, or `on_conflict` is `error`"),
    "queue_not_empty": (409, "the queue holds jobs or graves"),
    "set_in_settings": (409, "the project's settings decide this"),
    "idempotency_in_progress": (409, "a request with the same key has not been answered yet"),
    "length_required": (411, "the request does not say how long its body is"),
    "too_large": (413, "the body has too many bytes"),
    "unsupported_media_type": (415, "bodies are `application/json`"),
    "idempotency_mismatch": (422, "the key belonged to another request"),
    "queue_full": (429, "the queue reached its limit; nothing was stored"),
    "throttled": (429, "too many requests of this user"),
    "queue_paused": (503, "the queue takes no new jobs; nothing was stored"),
    "unavailable": (503, "Redis or the database does not answer; what changes something may have been carried out"),
}

_RETRY_AFTER: Final = {
    "description": "seconds after which it is worth asking again",
    "schema": {"type": "integer", "minimum": 1},
}


@dataclass(frozen=True, slots=True)
class Answer:
    """Error response shared by many operations."""

    text: str
    codes: tuple[str, ...]
    detail: str
    headers: Mapping[str, Any] | None = None

    def component(self, schema: str) -> dict[str, Any]:
        """Return this response as an entry of ``components/responses``."""
        known = "\n".join(f"* `{code}`: {CODES[code][1]}" for code in self.codes)
        made: dict[str, Any] = {
            "description": f"{self.text}\n\n{known}",
            "content": {PROBLEM: {"schema": {"$ref": schema}, "examples": {self.codes[0]: {"value": self.example()}}}},
        }
        return made | ({"headers": dict(self.headers)} if self.headers else {})

    def example(self) -> dict[str, Any]:
        """Return an example of this problem."""
        code = self.codes[0]
        status = CODES[code][0]
        made: dict[str, Any] = {
            "type": f"urn:django-delayq:problem:{code}",
            "title": self.text,
            "status": status,
            "detail": self.detail,
            "code": code,
        }
        return made | ({"retry_after": 5} if self.headers and "Retry-After" in self.headers else {})


#: component name → response
ANSWERS: Final[dict[str, Answer]] = {
    "DelayqBadRequest": Answer(
        "Bad Request", ("invalid", "malformed", "too_deep"), "/delay: A valid number is required."
    ),
    "DelayqUnauthorized": Answer(
        "Unauthorized",
        ("not_authenticated",),
        "Authentication credentials were not provided.",
        {"WWW-Authenticate": {"description": "how to come in", "schema": {"type": "string"}}},
    ),
    "DelayqForbidden": Answer(
        "Forbidden", ("permission_denied",), "You do not have permission to perform this action."
    ),
    "DelayqNotFound": Answer(
        "Not Found",
        ("queue_not_found", "job_not_found", "task_not_found", "not_found"),
        "there is no queue 'mial'; GET v1/queues lists those that there are",
    ),
    "DelayqMethod": Answer("Method Not Allowed", ("method_not_allowed",), 'Method "PUT" not allowed.'),
    "DelayqNotAcceptable": Answer(
        "Not Acceptable", ("not_acceptable",), "Could not satisfy the request Accept header."
    ),
    "DelayqConflict": Answer(
        "Conflict",
        ("conflict", "id_taken", "queue_not_empty", "set_in_settings", "idempotency_in_progress"),
        "it cannot be done now",
    ),
    "DelayqLength": Answer("Length Required", ("length_required",), "send a Content-Length"),
    "DelayqTooLarge": Answer(
        "Request Entity Too Large",
        ("too_large",),
        "the body has more than 4194304 bytes; send several smaller requests",
    ),
    "DelayqUnsupported": Answer(
        "Unsupported Media Type", ("unsupported_media_type",), 'Unsupported media type "text/plain" in request.'
    ),
    "DelayqMismatch": Answer(
        "Unprocessable Entity", ("idempotency_mismatch",), "this Idempotency-Key belonged to another request"
    ),
    "DelayqTooMany": Answer(
        "Too Many Requests",
        ("queue_full", "throttled"),
        "queue 'mail' is full; try again later",
        {"Retry-After": _RETRY_AFTER},
    ),
    "DelayqUnavailable": Answer(
        "Service Unavailable",
        ("unavailable", "queue_paused"),
        UNAVAILABLE,
        {"Retry-After": _RETRY_AFTER},
    ),
}

IDEMPOTENCY_KEY: Final[dict[str, Any]] = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "Any text of your own for this one request, say a UUID. Sent again with the same key and body, the "
    "request is not carried out again: it gets the answer that it got before.",
    "schema": {"type": "string", "pattern": "^[!-~]{1,255}$"},
    "example": "8e03978e-40d5-43e8-bc93-6894a57f9324",
}
_QUEUE: Final[dict[str, Any]] = {
    "description": "name of the queue",
    "schema": {"type": "string", "pattern": "^[A-Za-z][A-Za-z0-9_.-]{0,63}$"},
    "example": "mail",
}
#: path parameter name → its description
PATH_PARAMETERS: Final[dict[str, dict[str, Any]]] = {
    "queue": _QUEUE,
    "id": {
        "description": "the job's id, percent-encoded; it may hold slashes, which may stand for themselves",
        "schema": {"type": "string", "minLength": 1, "maxLength": 255},
        "example": "order-5",
    },
    "worker": {
        "description": "name of the worker, as the list has it",
        "schema": {"type": "string", "minLength": 1, "maxLength": 255},
        "example": "web1-4711",
    },
}


def answers_of(path: str, method: str) -> Iterator[tuple[str, str]]:
    """Yield the common errors of an operation as (status, component name)."""
    yield "400", "DelayqBadRequest"
    yield "401", "DelayqUnauthorized"
    yield "403", "DelayqForbidden"
    yield "405", "DelayqMethod"
    yield "406", "DelayqNotAcceptable"
    yield "429", "DelayqTooMany"
    yield "503", "DelayqUnavailable"
    if "{" in path or "/reserve" in path:
        yield "404", "DelayqNotFound"
    if method in ("post", "patch", "delete"):
        yield "409", "DelayqConflict"
        yield "411", "DelayqLength"
        yield "413", "DelayqTooLarge"
        yield "415", "DelayqUnsupported"
    if method == "post":
        yield "422", "DelayqMismatch"


def _health(
    name: str, summary: str, text: str, example: Mapping[str, Any], states: Mapping[str, str]
) -> dict[str, Any]:
    """Return the path item of a health check, which needs no credentials."""
    word: dict[str, Any] = {"type": "string", "enum": ["ok", "away"]}
    schema = {"type": "object", "properties": dict.fromkeys(example, word), "required": list(example)}
    answers = {
        status: {
            "description": said,
            "content": {
                "application/json": {
                    "schema": schema,
                    "examples": {"now": {"value": {**example, **({} if status == "200" else _AWAY)}}},
                }
            },
        }
        for status, said in states.items()
    }
    return {
        "get": {
            "operationId": name,
            "summary": summary,
            "description": text,
            "tags": ["health"],
            "security": [],
            "responses": answers,
        }
    }


#: operation id of the metrics endpoint
METRICS: Final = "metrics"
_AWAY: Final = {"status": "away", "redis": "away"}
HEALTH: Final[dict[str, Any]] = {
    "/healthz": _health(
        "healthz", "Does the process live?", "Nobody else is asked.", {"status": "ok"}, {"200": "It does."}
    ),
    "/readyz": _health(
        "readyz",
        "Can it work?",
        "Asks Redis, and the databases that have an outbox.",
        {"status": "ok", "redis": "ok", "database": "ok"},
        {"200": "It can.", "503": "It cannot now."},
    ),
}

_SCRAPED: Final = "# HELP delayq_up 1: Redis answered.\n# TYPE delayq_up gauge\ndelayq_up 1.0\n"
_METRICS: Final[dict[str, Any]] = {
    "/metrics": {
        "get": {
            "operationId": METRICS,
            "summary": "Everything that Prometheus asks for",
            "description": "In the format of Prometheus, or of OpenMetrics if that is accepted. While Redis is away "
            '`delayq_up` is 0, and nothing else is said. With `METRICS["public"]` nobody is asked who it is.\n\n'
            "Permission: `view`.",
            "tags": ["figures"],
            "x-permission": "view",
            "responses": {
                "200": {
                    "description": "the metrics",
                    "content": {
                        "text/plain": {
                            "schema": {"type": "string"},
                            "examples": {"the beginning": {"value": _SCRAPED}},
                        },
                        "application/openmetrics-text": {"schema": {"type": "string"}},
                    },
                },
                **{
                    status: {"$ref": f"#/components/responses/{name}"}
                    for status, name in (
                        ("400", "DelayqBadRequest"),
                        ("401", "DelayqUnauthorized"),
                        ("403", "DelayqForbidden"),
                        ("429", "DelayqTooMany"),
                        ("503", "DelayqUnavailable"),
                    )
                },
            },
        }
    },
}


def plain_paths() -> dict[str, Any]:
    """Return the paths of plain Django views, which the generator does not find.

    ``/metrics`` is included only where ``prometheus_client`` is installed.
    """
    return HEALTH if find_spec("prometheus_client") is None else {**HEALTH, **_METRICS}


def _codes() -> str:
    rows = "\n".join(f"| `{code}` | {status} | {text} |" for code, (status, text) in CODES.items())
    return f"| code | status | meaning |\n|---|---|---|\n{rows}"


DESCRIPTION: Final = f"""\
Delayed jobs for programs in any language.

**Credentials.** `Authorization: Token …`, or a session with its CSRF token. Each operation asks for one of the
permissions view, produce, consume, operate and admin.

**Times.** Answers have ISO 8601 in UTC with milliseconds. Requests have `delay` in seconds, or `at` as ISO 8601 with an
offset or as Unix seconds. Spans are seconds.

**Bodies** are JSON objects. A member that is not known is refused: most often it is misspelled.

**Errors** are problem details (RFC 9457), `application/problem+json`. Decide by `code`. Methods that an address does
not have are answered with 405.

{_codes()}

**Trying again.** 429 and 503 say in `Retry-After` when. Send the same `Idempotency-Key` with it, and the request is
carried out once.

**Pull queues** (kind `pull`) hold raw bytes: `body` where they are UTF-8 text, `body_base64` else. Queues of kind
`python` hold calls of tasks, of which only those with `@task(api=True)` may be produced here.
"""
TAGS: Final[dict[str, str]] = {
    "queues": "Queues and their policies.",
    "jobs": "Put jobs in, look at them, move them.",
    "consuming": "Take due jobs, and say how they ended.",
    "morgue": "Jobs that wait for a person.",
    "workers": "Processes that run tasks.",
    "figures": "How much lies where, and everything that is known.",
    "history": "What became of runs, hour by hour, and what the next day brings.",
    "health": "For load balancers.",
    "schema": "This document.",
}

"""Parts of the OpenAPI document common to all operations: error codes, responses, parameters, the description."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
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

#: code → detail in the example of its status
_EXAMPLES: Final = {
    "invalid": "/delay: A valid number is required.",
    "not_authenticated": "Authentication credentials were not provided.",
    "permission_denied": "You do not have permission to perform this action.",
    "queue_not_found": "there is no queue 'mial'; GET v1/queues lists those that there are",
    "method_not_allowed": 'Method "PUT" not allowed.',
    "not_acceptable": "Could not satisfy the request Accept header.",
    "conflict": "it cannot be done now",
    "length_required": "send a Content-Length",
    "too_large": "the body has more than 4194304 bytes; send several smaller requests",
    "unsupported_media_type": 'Unsupported media type "text/plain" in request.',
    "idempotency_mismatch": "this Idempotency-Key belonged to another request",
    "queue_full": "queue 'mail' is full; try again later",
    "unavailable": UNAVAILABLE,
}
_RETRY_AFTER: Final = {
    "Retry-After": {
        "description": "seconds after which it is worth asking again",
        "schema": {"type": "integer", "minimum": 1},
    }
}
#: status → headers of the response
_HEADERS: Final[dict[int, dict[str, Any]]] = {
    401: {"WWW-Authenticate": {"description": "how to come in", "schema": {"type": "string"}}},
    429: _RETRY_AFTER,
    503: _RETRY_AFTER,
}


def error_responses(schema: str) -> dict[str, Any]:
    """Return the errors that many operations have, one for each status, for ``components/responses``."""
    return {error_name(CODES[code][0]): _error_response(code, schema) for code in _EXAMPLES}


def error_name(status: int | str) -> str:
    """Return the name of the component of an error."""
    return f"DelayqError{status}"


def error_reference(status: str) -> dict[str, str]:
    """Return the reference to the component of an error."""
    return {"$ref": f"#/components/responses/{error_name(status)}"}


def _error_response(code: str, schema: str) -> dict[str, Any]:
    status = CODES[code][0]
    phrase, headers = HTTPStatus(status).phrase, _HEADERS.get(status, {})
    known = "\n".join(f"* `{name}`: {text}" for name, (its, text) in CODES.items() if its == status)
    example = {
        "type": f"urn:django-delayq:problem:{code}",
        "title": phrase,
        "status": status,
        "detail": _EXAMPLES[code],
        "code": code,
        **({"retry_after": 5} if "Retry-After" in headers else {}),
    }
    return {
        "description": f"{phrase}\n\n{known}",
        "content": {PROBLEM: {"schema": {"$ref": schema}, "examples": {code: {"value": example}}}},
        **({"headers": headers} if headers else {}),
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


def errors_of(path: str, method: str) -> list[str]:
    """Return the statuses of the errors that an operation may have."""
    found = ["400", "401", "403", "405", "406", "429", "503"]
    if "{" in path or "/reserve" in path:
        found.append("404")
    if method in ("post", "patch", "delete"):
        found += ["409", "411", "413", "415"]
    return [*found, "422"] if method == "post" else found


def _health(
    name: str, summary: str, text: str, example: Mapping[str, Any], states: Mapping[str, str]
) -> dict[str, Any]:
    """Return the path item of a health check, which needs no credentials."""
    word: dict[str, Any] = {"type": "string", "enum": ["ok", "away"]}
    schema = {"type": "object", "properties": dict.fromkeys(example, word), "required": list(example)}
    answers = {
        status: {
            "description": text_of_status,
            "content": {
                "application/json": {
                    "schema": schema,
                    "examples": {"now": {"value": {**example, **({} if status == "200" else _AWAY)}}},
                }
            },
        }
        for status, text_of_status in states.items()
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
                **{status: error_reference(status) for status in ("401", "403", "429", "503")},
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

"""Parts of the OpenAPI document common to all operations: error codes, responses, parameters, the description."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from importlib.util import find_spec
from typing import Any, Final

from ..access.problems import PROBLEM, UNAVAILABLE

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

#: code → detail in the example of its status
_EXAMPLES: Final = {
    "invalid": "/delay: A valid number is required.",
    "not_authenticated": "Authentication credentials were not provided.",
    "permission_denied": "You do not have permission to perform this action.",
    "queue_not_found": "there is no queue 'mial'; GET v1/queues lists those that there are",
    "method_not_allowed": 'Method "PUT" not allowed.',
    "not_acceptable": "Could not satisfy the request Accept header.",
    "conflict": "the job is running",
    "length_required": "send a Content-Length",
    "too_large": "the body has more than 4194304 bytes; send several smaller requests",
    "unsupported_media_type": 'Unsupported media type "text/plain" in request.',
    "idempotency_mismatch": "this Idempotency-Key was used for another request",
    "queue_full": "queue 'mail' is full; try again later",
    "unavailable": UNAVAILABLE.format("Redis"),
}
_RETRY_AFTER: Final = {
    "Retry-After": {
        "description": "seconds after which to send the request again",
        "schema": {"type": "integer", "minimum": 1},
    }
}
#: status → headers of the response
_HEADERS: Final[dict[int, dict[str, Any]]] = {
    401: {"WWW-Authenticate": {"description": "how to authenticate", "schema": {"type": "string"}}},
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
    codes = "\n".join(f"* `{name}`: {text}" for name, (its, text) in CODES.items() if its == status)
    example = {
        "type": f"urn:django-delayq:problem:{code}",
        "title": phrase,
        "status": status,
        "detail": _EXAMPLES[code],
        "code": code,
        **({"retry_after": 5} if "Retry-After" in headers else {}),
    }
    return {
        "description": f"{phrase}\n\n{codes}",
        "content": {PROBLEM: {"schema": {"$ref": schema}, "examples": {code: {"value": example}}}},
        **({"headers": headers} if headers else {}),
    }


IDEMPOTENCY_KEY: Final[dict[str, Any]] = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "A unique text for this request, such as a UUID. A repeated request with the same key and body is "
    "not executed again; it gets the first response.",
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
        "description": "the job's id, percent-encoded; slashes may be left as they are",
        "schema": {"type": "string", "minLength": 1, "maxLength": 255},
        "example": "order-5",
    },
    "task": {
        "description": "name of the recurring task, percent-encoded; slashes may be left as they are",
        "schema": {"type": "string", "minLength": 1, "maxLength": 255},
        "example": "shop.tasks.nightly",
    },
    "worker": {
        "description": "name of the worker, as in the list of workers",
        "schema": {"type": "string", "minLength": 1, "maxLength": 255},
        "example": "web1-4711",
    },
}


def errors_of(path: str, method: str) -> list[str]:
    """Return the statuses of the errors that an operation may have."""
    statuses = ["400", "401", "403", "405", "406", "429", "503"]
    if "{" in path or "/reserve" in path:
        statuses.append("404")
    if method in ("post", "patch", "delete"):
        statuses += ["409", "411", "413", "415"]
    return [*statuses, "422"] if method == "post" else statuses


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
        "healthz", "Liveness of the process", "Checks nothing else.", {"status": "ok"}, {"200": "The process is alive."}
    ),
    "/readyz": _health(
        "readyz",
        "Readiness of the process",
        "Checks Redis and the databases that have an outbox.",
        {"status": "ok", "redis": "ok", "database": "ok"},
        {"200": "Ready.", "503": "Not ready now."},
    ),
}

_SCRAPED: Final = "# HELP delayq_up 1: Redis answered.\n# TYPE delayq_up gauge\ndelayq_up 1.0\n"
_METRICS: Final[dict[str, Any]] = {
    "/metrics": {
        "get": {
            "operationId": METRICS,
            "summary": "Metrics for Prometheus",
            "description": "In the format of Prometheus, or of OpenMetrics if the request accepts it. While Redis is "
            'unavailable, `delayq_up` is 0 and nothing else is exported. With `METRICS["public"]` no credentials are '
            "needed.\n\n"
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

**Credentials.** `Authorization: Token …`, or a session with its CSRF token. Each operation needs one of the
permissions view, produce, consume, operate and admin.

**Times.** Responses have ISO 8601 in UTC with milliseconds. Requests have `delay` in seconds, or `at` as ISO 8601 with
an offset or as Unix seconds. Spans are seconds.

**Bodies** are JSON objects. Unknown members are refused, because most of them are misspelled.

**Errors** are problem details (RFC 9457), `application/problem+json`. Programs should compare `code`. A method that
an address does not have gets 405.

{_codes()}

**Retries.** 429 and 503 have a `Retry-After`. A request that is repeated with the same `Idempotency-Key` is executed
once.

**Pull queues** (kind `pull`) hold raw bytes: `body` if they are UTF-8 text, else `body_base64`. Queues of kind
`python` hold calls of tasks, of which only those with `@task(api=True)` may be produced here.
"""
TAGS: Final[dict[str, str]] = {
    "queues": "Queues and their policies.",
    "jobs": "Schedule, list, show, cancel and reschedule jobs.",
    "consuming": "Reserve due jobs, and settle them.",
    "morgue": "Jobs that nothing retries; a person decides.",
    "workers": "Worker processes and commands to them.",
    "figures": "Counts and status of the whole deployment.",
    "history": "Attempts by hour, pipeline runs, and the forecast of the next day.",
    "health": "For load balancers.",
    "schema": "This document.",
}

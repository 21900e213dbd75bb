"""Which click a line of the log comes from: an id for each request that travels with the jobs that it schedules.

``DELAYQ["CONTEXT"]`` names :data:`request_id`, so it has the same value in the worker as in the request that asked for
the job, and in the jobs that this job schedules.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextvars import ContextVar
from uuid import uuid4

from django.http import HttpRequest, HttpResponse

HEADER = "X-Request-ID"
request_id: ContextVar[str] = ContextVar("request_id", default="")


def new_request_id() -> str:
    """Begin a request: from here on everything happens because of it."""
    request_id.set(uuid4().hex[:8])
    return request_id.get()


def mark_requests(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    """Middleware: give each request an id, and tell the browser."""

    def middleware(request: HttpRequest) -> HttpResponse:
        mark = new_request_id()
        response = get_response(request)
        response[HEADER] = mark
        return response

    return middleware


class RequestFilter(logging.Filter):
    """Lets every record pass, and gives it the id of the request that it belongs to."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.request_id = request_id.get() or "-"
        return True

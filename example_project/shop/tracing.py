"""Request ids for the log: an id for each request, which is passed on to the jobs that it schedules.

``DELAYQ["CONTEXT"]`` names :data:`request_id`, so it has the same value in the worker as in the request that scheduled
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
    """Start a request: everything logged from here on carries its id."""
    request_id.set(uuid4().hex[:8])
    return request_id.get()


def mark_requests(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    """Give each request an id, and return it in a response header (middleware)."""

    def middleware(request: HttpRequest) -> HttpResponse:
        mark = new_request_id()
        response = get_response(request)
        response[HEADER] = mark
        return response

    return middleware


class RequestFilter(logging.Filter):
    """Filter that accepts every record and adds the id of its request."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.request_id = request_id.get() or "-"
        return True

"""OpenTelemetry, as a project would set it up: for each process, and around each request."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable

from django.http import HttpRequest, HttpResponse
from opentelemetry import propagate, trace
from opentelemetry.context import attach, detach
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
from opentelemetry.trace import SpanKind

from django_delayq import schedule

from .tasks import remind


def start() -> None:
    """Spans of this process go into the file that the environment names, one JSON object in each line."""
    out = open(os.environ["SPANS"], "a", buffering=1)  # noqa: SIM115 - for the life of the process
    atexit.register(out.close)
    provider = TracerProvider(resource=Resource.create({"service.name": "site", "process.pid": os.getpid()}))
    exporter = ConsoleSpanExporter(out=out, formatter=lambda span: span.to_json(indent=None) + "\n")
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=60_000))
    trace.set_tracer_provider(provider)


def traced(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    """Middleware: what opentelemetry-instrumentation-django does."""

    def middleware(request: HttpRequest) -> HttpResponse:
        token = attach(propagate.extract({name.lower(): value for name, value in request.headers.items()}))
        name = f"{request.method} {request.path}"
        try:
            with trace.get_tracer("site").start_as_current_span(name, kind=SpanKind.SERVER):
                return get_response(request)
        finally:
            detach(token)

    return middleware


def pay(request: HttpRequest) -> HttpResponse:
    """A view that schedules."""
    schedule(remind, 5, delay=0.2)
    return HttpResponse("ok")

"""Spans and attributes common to the traces of schedule calls and of attempts."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from opentelemetry import propagate, trace
from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.metrics import Histogram, Meter
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode

from ..worker.record import class_of

logger: Final = logging.getLogger("django_delayq.metrics.tracing")

NAME: Final = "django_delayq"
SYSTEM: Final = "delayq"
Attributes = dict[str, Any]
#: seconds; the buckets of the conventions, and larger ones for long jobs
_BOUNDS: Final = (
    0.005,
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    30.0,
    60.0,
    300.0,
    1800.0,
)


def duration_histogram(meter: Meter, name: str, description: str) -> Histogram:
    """Return a histogram of seconds."""
    return meter.create_histogram(name, "s", description, explicit_bucket_boundaries_advisory=_BOUNDS)


@contextmanager
def span_around(
    tracer: trace.Tracer,
    name: str,
    parent: Context | None,
    kind: SpanKind,
    attributes: Attributes,
    links: Sequence[Link],
) -> Iterator[Span]:
    """Open a span in ``parent`` (None = the current context) for the duration of the block."""
    span: Span = trace.INVALID_SPAN
    with suppress_errors():
        span = tracer.start_span(name, parent, kind, attributes, links)
    inside = parent if span is trace.INVALID_SPAN else trace.set_span_in_context(span, parent)
    token = attach(get_current() if inside is None else inside)
    try:
        yield span
    finally:
        detach(token)
        with suppress_errors():
            span.end()


@contextmanager
def suppress_errors() -> Iterator[None]:
    """Log and suppress errors of instrumentation, so that they cannot fail the job.

    They come from a sampler, processor or propagator of the project, or an exception that cannot be printed. A time
    limit that strikes here is not an ``Exception`` and passes through.
    """
    try:
        yield
    except Exception:
        logger.exception("a trace or a measurement is incomplete")


def span_context_of(context: Context) -> trace.SpanContext:
    """Return the span context in a context; it is invalid if there is none."""
    return trace.get_current_span(context).get_span_context()


def origin_in(given: Mapping[str, Any]) -> Context:
    """Return the trace context stored in a job's context, or an empty one if it is invalid.

    Any caller may have written it, so only texts are passed to the propagator, and errors are logged instead of raised.
    """
    try:
        return propagate.extract({name: text for name, text in given.items() if isinstance(text, str)}, Context())
    except Exception:
        logger.exception("the trace context of a job cannot be read; its attempt starts a new trace")
        return Context()


def common_attributes(queue: str, task: str, operation: str, kind: str) -> Attributes:
    """Return the attributes that spans and metrics of a task have."""
    return {
        "messaging.system": SYSTEM,
        "messaging.destination.name": queue,
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
        "delayq.task": task,
    }


def record_error(span: Span, error: BaseException) -> str:
    """Record an error on its span and return its ``error.type``."""
    name, kind = class_of(error), type(error).__name__
    with suppress_errors():
        if span.is_recording():
            span.set_attribute("error.type", name)
            span.set_status(Status(StatusCode.ERROR, kind))  # in case the text of the error cannot be read
            span.record_exception(error)
            span.set_status(Status(StatusCode.ERROR, f"{kind}: {error}"))
    return name

"""OpenTelemetry traces from the request over the delay to the attempt.

::

    DELAYQ = {
        "SCHEDULE_MIDDLEWARE": ["django_delayq.metrics.tracing.schedule"],
        "MIDDLEWARE": ["django_delayq.metrics.tracing.run"],
    }

A schedule call is a span of its own. The trace context (``traceparent`` and any other headers of the project's
propagator) is stored in the job's context. Each attempt is a child span, so a job has one trace id however long its
delay is. Tail sampling decides about a trace long before a job due tomorrow runs; for such collectors there is
:func:`run_linked`, whose traces begin with the attempt and link to the schedule call.

Both middlewares also record metrics of this process, named by OpenTelemetry's semantic conventions for messaging. Only
the OpenTelemetry API package is required: without an SDK nothing is recorded and nothing is written into jobs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

try:
    from opentelemetry import metrics, propagate, trace
    from opentelemetry.context import Context, attach, detach, get_current
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode
except ImportError as error:
    raise ImportError("traces need the API package of OpenTelemetry: pip install 'django-delayq[otel]'") from error

from .. import __version__
from ..core.verdicts import PartialFailure, Verdict
from ..scheduling.verbs import JobHandle
from ..worker.record import class_of

if TYPE_CHECKING:
    from opentelemetry.metrics import Histogram, Meter

    from ..core.job import Job
    from ..scheduling.build import Chain, Scheduling
    from ..worker.attempt import Attempt
    from ..worker.hooks import Call

logger: Final = logging.getLogger(__name__)

NAME: Final = "django_delayq"
Attributes = dict[str, Any]
#: parent of a span (None = the current context), and its links
Origin = tuple[Context | None, Sequence[Link]]
#: seconds; the buckets of the conventions, and larger ones for long jobs
_BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 30, 60, 300, 1800)


def _duration_histogram(meter: Meter, name: str, description: str) -> Histogram:
    """Return a histogram of seconds."""
    return meter.create_histogram(name, "s", description, explicit_bucket_boundaries_advisory=_BOUNDS)


@contextmanager
def _span(
    name: str, kind: SpanKind, origin: Origin, duration: Histogram, measured: Attributes, more: Attributes
) -> Iterator[Span]:
    """Open a span for the block, and record how long it took and how it ended.

    Args:
        measured: attributes of the span and of the duration; an error adds its ``error.type``.
        more: further attributes of the span.
    """
    parent, links = origin
    span: Span = trace.INVALID_SPAN
    with _suppress_errors():
        span = trace.get_tracer(NAME, __version__).start_span(name, parent, kind, measured | more, links)
    inside = parent if span is trace.INVALID_SPAN else trace.set_span_in_context(span, parent)
    token, began = attach(get_current() if inside is None else inside), time.perf_counter()
    try:
        try:
            yield span
        except BaseException as error:
            if _is_verdict(error):
                _record_verdict(span, error)
            else:
                measured["error.type"] = _record_error(span, error)
            raise
        finally:
            with _suppress_errors():
                duration.record(time.perf_counter() - began, measured)
    finally:
        detach(token)
        with _suppress_errors():
            span.end()


@contextmanager
def _suppress_errors() -> Iterator[None]:
    """Log and suppress errors of instrumentation, so that they cannot fail the job.

    They come from a sampler, processor or propagator of the project, or an exception that cannot be printed. A time
    limit that strikes here is not an ``Exception`` and passes through.
    """
    try:
        yield
    except Exception:
        logger.exception("a trace or a measurement is incomplete")


def _span_context_of(context: Context) -> trace.SpanContext:
    """Return the span context in a context; it is invalid if there is none."""
    return trace.get_current_span(context).get_span_context()


def _origin_in(given: Mapping[str, Any]) -> Context:
    """Return the trace context stored in a job's context, or an empty one if it is invalid.

    Any caller may have written it, so only texts are passed to the propagator, and errors are logged instead of raised.
    """
    try:
        return propagate.extract({name: text for name, text in given.items() if isinstance(text, str)}, Context())
    except Exception:
        logger.exception("the trace context of a job cannot be read; its attempt starts a new trace")
        return Context()


def _common_attributes(queue: str, task: str, operation: str, kind: str) -> Attributes:
    """Return the attributes that spans and metrics of a task have."""
    return {
        "messaging.system": "delayq",
        "messaging.destination.name": queue,
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
        "delayq.task": task,
    }


def _record_error(span: Span, error: BaseException) -> str:
    """Record an error on its span and return its ``error.type``."""
    name, kind = class_of(error), type(error).__name__
    with _suppress_errors():
        if span.is_recording():
            span.set_attribute("error.type", name)
            span.set_status(Status(StatusCode.ERROR, kind))  # in case the text of the error cannot be read
            span.record_exception(error)
            span.set_status(Status(StatusCode.ERROR, f"{kind}: {error}"))
    return name


# -- the schedule call -----------------------------------------------------------------------------------------------


def schedule(next: Chain) -> Chain:
    """Schedule middleware with a span "schedule <task>" around the call, whose trace the job continues.

    The entries of ``schedule_many`` get no spans of their own; their jobs continue the trace of the caller.
    """
    meter = metrics.get_meter(NAME, __version__)
    sent = meter.create_counter(
        "messaging.client.sent.messages", "{message}", "Number of messages producer attempted to send to the broker."
    )
    duration = _duration_histogram(
        meter,
        "messaging.client.operation.duration",
        "Duration of messaging operation initiated by a producer or consumer client.",
    )

    def call(scheduling: Scheduling) -> Any:
        measured = _common_attributes(_queue_of(scheduling), scheduling.task.name, "schedule", "send")
        if scheduling.many:
            _inject(scheduling)
            with _suppress_errors():
                sent.add(1, measured)
            return next(scheduling)
        name, origin = f"schedule {scheduling.task.name}", _parent_of(scheduling.options)
        try:
            with _span(name, SpanKind.PRODUCER, origin, duration, measured, {}) as span:
                _inject(scheduling)
                handle = next(scheduling)
                with _suppress_errors():
                    _record_outcome(span, handle)
        finally:
            with _suppress_errors():
                sent.add(1, measured)
        return handle

    return call


def _queue_of(scheduling: Scheduling) -> str:
    queue = scheduling.options.get("queue")
    return queue if isinstance(queue, str) else scheduling.task.options.queue


def _parent_of(options: Mapping[str, Any]) -> Origin:
    """Return the parent context and links of a schedule call.

    The parent is the current span, else the one named in the call's ``context``, such as a trace sent in the body of an
    API request. If both exist, the latter becomes a link.
    """
    stored = options.get("context")
    if not isinstance(stored, Mapping):
        return None, ()
    named = _origin_in(stored)
    caller, current = _span_context_of(named), trace.get_current_span().get_span_context()
    if not caller.is_valid:
        return None, ()
    if not current.is_valid:
        return named, ()
    return None, () if caller.span_id == current.span_id else (Link(caller),)


def _inject(scheduling: Scheduling) -> None:
    """Store the current trace context in the job's context, in a copy of the caller's dict."""
    stored = scheduling.options.get("context")
    if stored is not None and not isinstance(stored, Mapping):
        return  # rejected later, with a better message
    if scheduling.many and stored and _span_context_of(_origin_in(stored)).is_valid:
        return  # the entry has no span of its own, so its trace stays the parent
    carrier: dict[str, str] = {}
    if trace.get_current_span().get_span_context().is_valid:
        with _suppress_errors():
            propagate.inject(carrier)
    if carrier:
        scheduling.options["context"] = {**(stored or {}), **carrier}


def _record_outcome(span: Span, handle: Any) -> None:
    if span.is_recording() and isinstance(handle, JobHandle):  # an inner middleware may return something else
        span.set_attributes(
            {
                "messaging.message.id": handle.id,
                "messaging.destination.name": handle.queue,
                "delayq.outcome": str(handle.outcome),
                "delayq.delay": max(0.0, round(handle.due.timestamp() - time.time(), 3)),
            }
        )


# -- the run ---------------------------------------------------------------------------------------------------------


def run(next: Call) -> Call:
    """Run middleware with a span "run <task>" for each attempt, in the trace of the schedule call.

    An attempt that takes several jobs together continues the trace of the first and links to the others.
    """
    return _middleware(next, linked=False)


def run_linked(next: Call) -> Call:
    """Run middleware like :func:`run` that starts a new trace for each attempt and links to the schedule calls."""
    return _middleware(next, linked=True)


def _middleware(next: Call, *, linked: bool) -> Call:
    meter = metrics.get_meter(NAME, __version__)
    consumed = meter.create_counter(
        "messaging.client.consumed.messages", "{message}", "Number of messages that were delivered to the application."
    )
    duration = _duration_histogram(meter, "messaging.process.duration", "Duration of processing operation.")
    lateness = _duration_histogram(meter, "delayq.start_lateness", "From the due time to the start of each attempt.")

    def call(run: Attempt) -> Any:
        jobs = [part.job for part in run.live] or [run.job]
        measured = _common_attributes(run.job.queue, run.job.task, "run", "process")
        with _suppress_errors():
            for job in jobs:
                lateness.record(_lateness(run, job), measured)
            consumed.add(len(jobs), measured)
        name, origin = f"run {run.job.task}", _origin(jobs, linked=linked)
        with _span(name, SpanKind.CONSUMER, origin, duration, measured, _run_attributes(run, jobs)):
            return next(run)

    return call


def _origin(jobs: Sequence[Job], *, linked: bool) -> Origin:
    """Return the parent context of an attempt, and its links."""
    origins = [_origin_in(job.context) for job in jobs]
    valid = [origin for origin in origins if _span_context_of(origin).is_valid] or origins[:1]
    links = [Link(_span_context_of(one)) for one in (valid if linked else valid[1:]) if _span_context_of(one).is_valid]
    # A context without a span starts a new trace; the rest of the context (baggage) stays.
    return trace.set_span_in_context(trace.INVALID_SPAN, valid[0]) if linked else valid[0], links


def _lateness(run: Attempt, job: Job) -> float:
    return max(0.0, (run.started_ms - job.due_ms) / 1000)


def _run_attributes(run: Attempt, jobs: Sequence[Job]) -> Attributes:
    job = jobs[0]
    attributes: Attributes = {
        "delayq.attempt": job.failures + 1,
        "delayq.reserves": job.reserves,
        "delayq.lateness": _lateness(run, job),
    }
    if run.members:
        return {**attributes, "messaging.batch.message_count": len(jobs)}
    return {**attributes, "messaging.message.id": job.id, "delayq.key": job.key.hex()}


def _is_verdict(error: BaseException) -> bool:
    """Return True for a verdict of the handler, which is not an error. A partially failed batch is one."""
    return isinstance(error, Verdict) and not isinstance(error, PartialFailure)


def _record_verdict(span: Span, error: BaseException) -> None:
    span.set_attribute("delayq.verdict", type(error).__name__.lower())
    if error.args and isinstance(error.args[0], str) and error.args[0]:
        span.set_attribute("delayq.reason", error.args[0])


def flush(seconds: float = 2.0) -> None:
    """Export what an SDK has not exported yet, at the end of a process that runs no exit handlers."""
    for provider in (trace.get_tracer_provider(), metrics.get_meter_provider()):
        force: Callable[[int], object] | None = getattr(provider, "force_flush", None)
        if force is not None:
            force(int(seconds * 1000))

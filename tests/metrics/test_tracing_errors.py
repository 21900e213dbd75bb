"""Errors in traces: of jobs, of calls, and of the telemetry itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from django_delayq import InvalidJob, connections, get_job, schedule
from django_delayq.core.codec import encode_args
from django_delayq.core.job import NewJob, new_id
from django_delayq.metrics import tracing

from .deeds import fall, note, seen, unite
from .tracing_stage import attributes, names, span, tracer

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_partial_failure_is_an_error(traced: InMemorySpanExporter, work_off: Callable[..., None]) -> None:
    for name in ("good", "bad"):
        schedule(unite, id=name, payload=1)
    work_off()
    assert span(traced, "run measured.unite").status.status_code == StatusCode.ERROR


def test_a_context_that_names_no_trace_harms_nobody(
    traced: InMemorySpanExporter, work_off: Callable[..., None]
) -> None:
    queue = connections.broker().queue("notes")
    for broken in ({"traceparent": 5}, {"traceparent": "00-xyz"}, {"traceparent": None}, {}):
        options = json.dumps({"context": broken}).encode()
        queue.schedule(NewJob(new_id(), "measured.note", encode_args(("one",), {}), delay_ms=0, options=options))
    work_off()
    assert [word for word, *_ in seen] == ["one"] * 4
    assert [one.parent for one in traced.get_finished_spans()] == [None] * 4


def test_a_refused_call_is_an_error_of_its_span(traced: InMemorySpanExporter) -> None:
    with pytest.raises(InvalidJob):
        schedule(note, "one", context="no dict")
    asked = span(traced, "schedule measured.note")
    assert asked.status.status_code == StatusCode.ERROR
    assert attributes(asked)["error.type"] == "django_delayq.core.errors.InvalidJob"


def test_without_the_middlewares_jobs_are_as_ever(spans: InMemorySpanExporter, delayq: Any) -> None:
    with tracer.start_as_current_span("request"):
        handle = schedule(note, "one", delay=60)
    stored = get_job(handle)
    assert stored is not None
    assert dict(stored.job.context) == {}


class Clumsy:
    """A tracer whose spans cannot begin, or not end, as a sampler or a processor of the project may have it."""

    def __init__(self, how: str) -> None:
        self.how = how

    def start_span(self, *args: Any, **options: Any) -> Any:
        if self.how == "begin":
            raise LookupError("no sampler")
        found = tracer.start_span(*args, **options)
        end = found.end

        def fail() -> None:
            end()
            raise LookupError("no processor")

        found.end = fail  # type: ignore[method-assign]
        return found


@pytest.mark.parametrize("how", ["begin", "end"])
def test_telemetry_that_breaks_fails_neither_the_call_nor_the_job(
    traced: InMemorySpanExporter, work_off: Callable[..., None], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(tracing.trace, "get_tracer", lambda *name: Clumsy(how))
    connections.close_broker()
    handle = schedule(note, "one")
    work_off()
    assert [word for word, *_ in seen] == ["one"]
    counters = connections.broker().inspector.counts("notes").counters
    assert (handle.outcome, counters["acked"], counters.get("failed", 0)) == ("created", 1, 0)
    assert not trace.get_current_span().get_span_context().is_valid


def test_an_error_without_words_stays_the_error_that_it_is(
    traced: InMemorySpanExporter, work_off: Callable[..., None]
) -> None:
    handle = schedule(fall, "speechless", max_attempts=1)
    work_off()
    buried = get_job(handle)
    assert buried is not None
    assert buried.error_class == "tests.metrics.deeds.Speechless"
    assert attributes(span(traced, "run measured.fall"))["error.type"] == "tests.metrics.deeds.Speechless"
    assert span(traced, "run measured.fall").status.status_code == StatusCode.ERROR


def test_flushing_hands_over_what_a_batch_processor_holds(spans: InMemorySpanExporter) -> None:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = trace.get_tracer_provider()
    assert isinstance(provider, TracerProvider)
    late = InMemorySpanExporter()
    processor = BatchSpanProcessor(late, schedule_delay_millis=3_600_000)
    provider.add_span_processor(processor)
    tracer.start_span("held").end()
    before = names(late)
    tracing.flush()
    assert (before, names(late)) == ([], ["held"])
    processor.shutdown()

"""A trace from the request over the delay to the run, with the SDK, a real Redis and a worker of this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import transaction
from opentelemetry import baggage, context, metrics as otel_metrics, propagate, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from django_delayq import Queue, get_job, schedule, schedule_many
from tests.support.api_caller import Caller
from tests.support.worker_stage import eventually

from .deeds import fall, first, later, note, seen, unite
from .tracing_stage import attributes, link_ids, names, span, trace_ids, traceparent, tracer

THEIRS = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


pytestmark = pytest.mark.django_db(transaction=True)


def test_a_trace_goes_from_the_request_over_the_delay_to_the_run(
    traced: InMemorySpanExporter, work_off: Callable[..., None]
) -> None:
    with tracer.start_as_current_span("GET /pay"):
        handle = schedule(note, "paid", delay=0.5)
    work_off_after(handle, work_off)
    request, asked, ran = (span(traced, name) for name in ("GET /pay", "schedule measured.note", "run measured.note"))
    assert len(trace_ids(traced)) == 1
    assert (asked.parent.span_id, ran.parent.span_id) == (request.context.span_id, asked.context.span_id)
    assert (asked.kind, ran.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert ran.start_time - asked.start_time >= 495_000_000
    assert seen == [("paid", f"{request.context.trace_id:032x}", None)]
    said = attributes(asked)
    assert 0 < said.pop("delayq.delay") <= 0.5
    assert said == {
        "messaging.system": "delayq",
        "messaging.destination.name": "notes",
        "messaging.operation.name": "schedule",
        "messaging.operation.type": "send",
        "messaging.message.id": handle.id,
        "delayq.task": "measured.note",
        "delayq.outcome": "created",
    }
    said = attributes(ran)
    assert 0 <= said.pop("delayq.lateness") < 10
    assert len(said.pop("delayq.key")) == 32
    assert said == {
        "messaging.system": "delayq",
        "messaging.destination.name": "notes",
        "messaging.operation.name": "run",
        "messaging.operation.type": "process",
        "messaging.message.id": handle.id,
        "delayq.task": "measured.note",
        "delayq.attempt": 1,
        "delayq.reserves": 1,
    }


def work_off_after(handle: Any, work_off: Callable[..., None]) -> None:
    """A worker that runs dry does not wait for what is due later, so ask Redis until it is due."""
    eventually(lambda: handle.state() == "ready", "the job became due")
    work_off()


def test_a_job_that_a_run_schedules_continues_its_trace(
    traced: InMemorySpanExporter, work_off: Callable[..., None]
) -> None:
    schedule(first)
    work_off()
    work_off()  # the first worker may have run dry before the second job was there
    assert sorted(names(traced)) == sorted(
        ["schedule measured.first", "run measured.first", "schedule measured.note", "run measured.note"]
    )
    assert len(trace_ids(traced)) == 1
    inner = span(traced, "schedule measured.note")
    assert inner.parent.span_id == span(traced, "run measured.first").context.span_id
    assert [word for word, *_ in seen] == ["first", "second"]


def test_a_coroutine_runs_inside_its_span_with_the_baggage_of_the_caller(
    traced: InMemorySpanExporter, work_off: Callable[..., None]
) -> None:
    token = context.attach(baggage.set_baggage("tenant", "acme"))
    schedule(later)
    context.detach(token)
    work_off()
    assert seen == [("async", f"{span(traced, 'run measured.later').context.trace_id:032x}", "acme")]


def test_every_attempt_is_a_span_of_the_same_trace(traced: InMemorySpanExporter, work_off: Callable[..., None]) -> None:
    schedule(fall, "error")
    work_off()
    runs = [one for one in traced.get_finished_spans() if one.name == "run measured.fall"]
    assert [attributes(one)["delayq.attempt"] for one in runs] == [1, 2, 3, 4, 5]
    assert len(trace_ids(traced)) == 1
    assert {one.status.status_code for one in runs} == {StatusCode.ERROR}
    assert {one.status.description for one in runs} == {"ZeroDivisionError: by zero"}
    assert {attributes(one)["error.type"] for one in runs} == {"ZeroDivisionError"}
    assert [event.name for event in runs[0].events] == ["exception"]


def test_a_verdict_is_no_error(traced: InMemorySpanExporter, work_off: Callable[..., None]) -> None:
    for way, reason in (("retry", "not yet"), ("release", "somebody is at it"), ("bury", "hopeless")):
        traced.clear()
        schedule(fall, way)
        work_off()
        ran = span(traced, "run measured.fall")
        assert (ran.status.status_code, list(ran.events)) == (StatusCode.UNSET, [])
        assert (attributes(ran)["delayq.verdict"], attributes(ran)["delayq.reason"]) == (way, reason)


def test_a_run_of_several_jobs_continues_the_first_and_links_to_the_others(
    traced: InMemorySpanExporter, work_off: Callable[..., None]
) -> None:
    for number in range(3):
        schedule(unite, id=number, payload=number)
    asked = [one.context for one in traced.get_finished_spans()]
    work_off()
    ran = span(traced, "run measured.unite")
    assert attributes(ran)["messaging.batch.message_count"] == 3
    assert "messaging.message.id" not in attributes(ran)
    assert {ran.parent.span_id, *link_ids(ran)} == {one.span_id for one in asked}
    assert len(ran.links) == 2


def test_linked_runs_begin_traces_of_their_own_and_keep_the_baggage(
    traced: InMemorySpanExporter, work_off: Callable[..., None], settings: Any
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "MIDDLEWARE": ["django_delayq.metrics.tracing.run_linked"]}
    token = context.attach(baggage.set_baggage("tenant", "acme"))
    schedule(note, "one")
    context.detach(token)
    work_off()
    asked, ran = span(traced, "schedule measured.note"), span(traced, "run measured.note")
    assert ran.parent is None
    assert ran.context.trace_id != asked.context.trace_id
    assert link_ids(ran) == [asked.context.span_id]
    assert [tenant for _, _, tenant in seen] == ["acme"]


def test_entries_of_schedule_many_continue_the_callers_trace_without_spans_of_their_own(
    traced: InMemorySpanExporter, work_off: Callable[..., None]
) -> None:
    with tracer.start_as_current_span("import") as importing:
        schedule_many(note, [{"args": ["a"]}, {"args": ["b"], "context": {"mine": 1}}])
    work_off()
    assert sorted(names(traced)) == ["import", "run measured.note", "run measured.note"]
    runs = [one for one in traced.get_finished_spans() if one.name == "run measured.note"]
    assert {one.parent.span_id for one in runs} == {importing.get_span_context().span_id}


def test_after_a_commit_the_trace_is_the_same(traced: InMemorySpanExporter, work_off: Callable[..., None]) -> None:
    with tracer.start_as_current_span("request"), transaction.atomic():
        schedule(note, "one")
    work_off()
    assert len(trace_ids(traced)) == 1
    assert attributes(span(traced, "schedule measured.note"))["delayq.outcome"] == "on_commit"


def test_the_callers_own_context_stays_as_it_is_and_travels_along(traced: InMemorySpanExporter) -> None:
    mine = {"order": 5}
    handle = schedule(note, "one", delay=60, context=mine)
    stored = get_job(handle)
    assert stored is not None
    asked = span(traced, "schedule measured.note").context
    assert mine == {"order": 5}
    assert stored.job.context == {"order": 5, "traceparent": traceparent(asked)}


def test_a_trace_that_the_call_names_itself_is_continued(
    traced: InMemorySpanExporter, work_off: Callable[..., None]
) -> None:
    schedule(note, "one", context={"traceparent": THEIRS})
    work_off()
    assert {f"{number:032x}" for number in trace_ids(traced)} == {THEIRS.split("-")[1]}
    assert f"{span(traced, 'schedule measured.note').parent.span_id:016x}" == THEIRS.split("-")[2]


def test_beside_a_span_of_our_own_the_trace_that_the_call_names_is_linked_or_that_of_an_entry_continued(
    traced: InMemorySpanExporter, work_off: Callable[..., None]
) -> None:
    with tracer.start_as_current_span("request") as ours:
        schedule(note, "one", context={"traceparent": THEIRS}, delay=60)
        schedule_many(note, [{"args": ["a"], "context": {"traceparent": THEIRS}}])
    work_off()
    assert f"{span(traced, 'run measured.note').context.trace_id:032x}" == THEIRS.split("-")[1]
    asked = span(traced, "schedule measured.note")
    assert asked.parent.span_id == ours.get_span_context().span_id
    assert [f"{number:016x}" for number in link_ids(asked)] == [THEIRS.split("-")[2]]


def test_a_trace_header_of_a_request_reaches_the_jobs_of_the_http_api(
    traced: InMemorySpanExporter,
    work_off: Callable[..., None],
    settings: Any,
    api: Caller,
) -> None:
    settings.MIDDLEWARE = ["tests.metrics.site.telemetry.traced", *settings.MIDDLEWARE]
    schedule(note, "makes the queue")
    traced.clear()
    status, answer = api.post("v1/queues/notes/jobs", {"task": "measured.note", "args": ["one"]}, traceparent=THEIRS)
    work_off("notes")
    assert status == 201, answer
    theirs = [one for one in traced.get_finished_spans() if f"{one.context.trace_id:032x}" == THEIRS.split("-")[1]]
    assert [one.name for one in theirs] == [
        "schedule measured.note",
        "POST /delayq/v1/queues/notes/jobs",
        "run measured.note",
    ]
    assert attributes(theirs[0])["messaging.message.id"] == answer["id"]


def test_a_program_names_its_trace_in_the_body_of_the_http_api(
    traced: InMemorySpanExporter, work_off: Callable[..., None], api: Caller
) -> None:
    schedule(note, "makes the queue")
    work_off("notes")
    job = {"task": "measured.note", "args": ["one"], "context": {"traceparent": THEIRS}}
    for body in (job, {"jobs": [job]}):
        traced.clear()
        status, answer = api.post("v1/queues/notes/jobs", body)
        work_off("notes")
        assert status in (200, 201), answer
        assert {f"{number:032x}" for number in trace_ids(traced)} == {THEIRS.split("-")[1]}


def test_raw_jobs_carry_what_their_sender_puts_into_their_context(traced: InMemorySpanExporter, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"raw": {"kind": "pull"}}}
    carrier: dict[str, str] = {}
    with tracer.start_as_current_span("sender") as sender:
        propagate.inject(carrier)
    Queue("raw").put(b"bytes", context=carrier)
    (held,) = Queue("raw").reserve()
    continued = trace.get_current_span(propagate.extract(held.context)).get_span_context()
    held.ack()
    assert continued.trace_id == sender.get_span_context().trace_id


def test_what_a_process_does_is_measured_in_the_words_of_the_conventions(
    traced: InMemorySpanExporter, work_off: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    monkeypatch.setattr(otel_metrics, "get_meter", lambda name, version: provider.get_meter(name, version))
    schedule(note, "one")
    schedule(fall, "error", max_attempts=1)
    work_off()
    points: dict[tuple[str, ...], Any] = {}
    data = reader.get_metrics_data()
    for metric in data.resource_metrics[0].scope_metrics[0].metrics:
        for point in metric.data.data_points:
            said = dict(point.attributes)
            key = (metric.name, said["delayq.task"], *filter(None, [said.get("error.type")]))
            points[key] = getattr(point, "count", None) or getattr(point, "value", None)
    provider.shutdown()
    assert points == {
        ("messaging.client.sent.messages", "measured.note"): 1,
        ("messaging.client.sent.messages", "measured.fall"): 1,
        ("messaging.client.operation.duration", "measured.note"): 1,
        ("messaging.client.operation.duration", "measured.fall"): 1,
        ("messaging.client.consumed.messages", "measured.note"): 1,
        ("messaging.client.consumed.messages", "measured.fall"): 1,
        ("messaging.process.duration", "measured.note"): 1,
        ("messaging.process.duration", "measured.fall", "ZeroDivisionError"): 1,
        ("delayq.start_lateness", "measured.note"): 1,
        ("delayq.start_lateness", "measured.fall"): 1,
    }

"""Tasks for the tests of metrics and traces, and the names of samples."""

from __future__ import annotations

from typing import Any

from opentelemetry import baggage, trace

from django_delayq import Bury, PartialFailure, Release, Retry, schedule, task
from django_delayq.metrics.definitions import Metric

#: what handlers saw, in the order of their runs
seen: list[Any] = []


def _see(word: str) -> None:
    seen.append((word, f"{trace.get_current_span().get_span_context().trace_id:032x}", baggage.get_baggage("tenant")))


@task(name="measured.note", queue="notes", max_attempts=5, retry_in=0, api=True)
def note(text: str = "") -> None:
    _see(text)


class Speechless(Exception):
    """An error without words."""

    def __str__(self) -> str:
        raise RecursionError("what was it?")


@task(name="measured.fall", queue="notes", max_attempts=5, retry_in=0)
def fall(way: str) -> None:
    verdicts: dict[str, Exception] = {
        "retry": Retry("not yet", delay=3600),
        "release": Release("somebody is at it", delay=3600),
        "bury": Bury("hopeless"),
        "error": ZeroDivisionError("by zero"),
        "speechless": Speechless(),
    }
    raise verdicts[way]


@task(name="measured.first", queue="notes")
def first() -> None:
    _see("first")
    schedule(note, "second")


@task(name="measured.later", queue="notes")
async def later() -> None:
    _see("async")


@task(name="measured.unite", queue="united", merge=True, batch_size=10, retry_in=3600)
def unite(payloads_by_id: dict[str, list[Any]]) -> None:
    _see("united")
    if "bad" in payloads_by_id:
        raise PartialFailure({"bad": ValueError("bad")})


def samples_of(metric: Metric) -> tuple[str, ...]:
    """Return the names under which the values of a metric are exported to Prometheus."""
    parts = ("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",)
    return tuple(f"{metric.name}{part}" for part in parts)

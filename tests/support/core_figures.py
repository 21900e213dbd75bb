"""Counters, depths, permits and results: data that a deployment keeps beside its jobs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, TypeVar
from unittest import mock

import pytest

from django_delayq import limits
from django_delayq.backends.results import Record as ResultRecord, read as read_result, write as write_result
from django_delayq.core import Broker, figures
from django_delayq.core.figures import BUCKETS_MS, DepthPoint, Figures, Histogram, Tally, read_depths, record_depths
from django_delayq.core.limits import Answer, Ask, Limiter, Place
from django_delayq.core.options import Limits
from django_delayq.core.outcomes import Offer
from django_delayq.core.registry import ShardSet
from django_delayq.core.task import Registry
from django_delayq.limits import LimitsPage, LimitStatus

from .core_stored import permits_key


def taken_permits(broker: Broker, limit: str) -> int:
    """Return how many permits of a limit are taken."""
    return int(broker.client.zcount(permits_key(broker.prefix, limit), f"({broker.now_ms()}", "+inf"))


def ask_permits(
    broker: Broker, limits: Mapping[str, int | Limits], jobs: int, place: Place = ("q", 0), ms: int = 60_000
) -> Answer:
    """Ask the limiter for permits of jobs of a shard; ``limits`` have their totals, or are whole limits."""
    offer = Offer(b"\0\1\0\5", "work", jobs, ms, 0)
    each = {name: one if isinstance(one, Limits) else Limits(one) for name, one in limits.items()}
    return Limiter(broker.registry).call([Ask.of(place, offer, jobs, each)])


def read_limits(
    queues: Sequence[ShardSet], of_queue: Limits | None, tasks: Registry, *, lanes: int = limits.LANES, **options: Any
) -> list[LimitsPage]:
    """Return pages of limits of a project whose settings limit every queue like this and that has these tasks."""
    project = SimpleNamespace(queue=lambda name: SimpleNamespace(limits=of_queue))
    with mock.patch.multiple(limits, conf=lambda: project, registry=tasks, LANES=lanes):
        return limits.pages(queues, **options)


def permits_end_in_ms(broker: Broker, limit: str) -> list[float]:
    """Return in how many ms the permits of a limit end, the first one first."""
    ends = broker.client.zrange(permits_key(broker.prefix, limit), 0, -1, withscores=True)
    return [end - broker.now_ms() for _, end in ends]


@contextlib.contextmanager
def watch_grants() -> Iterator[dict[bytes, float]]:
    """Record when permits are granted in this process and not given back unused, us on the limiter's clock."""
    found: dict[bytes, float] = {}
    call = Limiter.call

    def watched(limiter: Limiter, *asks: Any, **options: Any) -> Answer:
        for _, permits in options.get("unused", ()):
            for permit in permits:
                found.pop(permit, None)
        answer = call(limiter, *asks, **options)
        for grant in filter(None, answer.grants):
            found.update(dict.fromkeys(grant.permits, grant.at_us))
        return answer

    with mock.patch.object(Limiter, "call", watched):
        yield found


def highest_level(moments: Iterable[float], interval: float) -> float:
    """Return the highest level of a bucket that starts fill and time empties: starts at once beside the rate."""
    highest = level = before = 0.0
    for at in sorted(moments):
        level = max(0.0, level - (at - before) / interval) + 1
        highest, before = max(highest, level), at
    return highest


def remind_again() -> None:
    """Let the next call that leaves counters out be logged, however short ago the last one was."""
    figures._reminded_at = -figures._REMIND


K = TypeVar("K")


def added(one: Figures, other: Figures) -> Figures:
    """Return the counters that Redis has after both were added."""

    def both(mine: Mapping[K, Histogram], more: Mapping[K, Histogram]) -> dict[K, Histogram]:
        return {name: mine.get(name, Histogram()) + more.get(name, Histogram()) for name in {**mine, **more}}

    names = {**one.counts, **other.counts}
    return Figures(
        both(one.lateness, other.lateness),
        both(one.run, other.run),
        both(one.script, other.script),
        {name: one.counts.get(name, 0) + other.counts.get(name, 0) for name in names},
    )


def without(figures: Figures, queue: str) -> Figures:
    """Return the same counters without those of a queue."""
    lateness = {name: histogram for name, histogram in figures.lateness.items() if name != queue}
    run = {name: histogram for name, histogram in figures.run.items() if name[0] != queue}
    return Figures(lateness, run, figures.script, figures.counts)


def store_violations(broker: Broker, number: int, at_ms: int = 1) -> None:
    """Store what a check of the whole deployment found."""
    broker.note_figures(Figures(counts={("fsck", "violations"): number, ("fsck", "at_ms"): at_ms}), replace=True)


def set_pace(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let counters be sent so many seconds after the first of them, and again after a failure."""
    monkeypatch.setattr(figures, "PACE", seconds)
    monkeypatch.setattr(figures, "_RETRY_SECONDS", seconds)


def flush_now(counters: Tally) -> None:
    """Let the scheduled flush happen now, in this thread."""
    assert counters._timer is not None
    counters._timer.cancel()
    counters._timer = threading.current_thread()  # type: ignore[assignment]
    counters._flush_on_time()


def is_scheduled(counters: Tally) -> bool:
    """Return True if a timer will send the counters."""
    return isinstance(counters._timer, threading.Timer)

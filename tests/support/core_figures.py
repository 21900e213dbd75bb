"""Counters, depths, permits and results: data that a deployment keeps beside its jobs."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TypeVar

import pytest

from django_delayq.backends.results import Record as ResultRecord
from django_delayq.backends.results import Results
from django_delayq.core import Broker, figures
from django_delayq.core.figures import DepthPoint, Figures, Histogram, Tally, read_depths, record_depths
from django_delayq.core.permits import Holding as PermitHolding
from django_delayq.core.permits import change as change_permits
from django_delayq.core.permits import read as read_permits

__all__ = [
    "DepthPoint",
    "Figures",
    "Histogram",
    "PermitHolding",
    "ResultRecord",
    "Results",
    "Tally",
    "added",
    "change_permits",
    "flush_now",
    "is_scheduled",
    "read_depths",
    "read_permits",
    "record_depths",
    "remind_again",
    "set_pace",
    "store_violations",
    "without",
]


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

"""Counters, depths, permits and results: data that a deployment keeps beside its jobs."""

from __future__ import annotations

import threading

import pytest

from django_delayq.core import figures, tally
from django_delayq.core.depths import DepthSample
from django_delayq.core.depths import read as read_depths
from django_delayq.core.depths import record as record_depths
from django_delayq.core.permits import Holding as PermitHolding
from django_delayq.core.permits import change as change_permits
from django_delayq.core.permits import read as read_permits
from django_delayq.core.results import ResultRecord, Results
from django_delayq.core.tally import MOST_NAMES, Tally
from django_delayq.core.timings import Figures, Histogram

__all__ = [
    "MOST_NAMES",
    "DepthSample",
    "Figures",
    "Histogram",
    "PermitHolding",
    "ResultRecord",
    "Results",
    "Tally",
    "change_permits",
    "flush_now",
    "is_scheduled",
    "read_depths",
    "read_permits",
    "record_depths",
    "remind_again",
    "set_pace",
]


def remind_again() -> None:
    """Let the next call that leaves counters out be logged, however short ago the last one was."""
    figures._reminded_at = -figures._REMIND


def set_pace(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let counters be sent so many seconds after the first of them."""
    monkeypatch.setattr(tally, "PACE", seconds)


def flush_now(counters: Tally) -> None:
    """Let the scheduled flush happen now, in this thread."""
    assert counters._timer is not None
    counters._timer.cancel()
    counters._timer = threading.current_thread()  # type: ignore[assignment]
    counters._flush_on_time()


def is_scheduled(counters: Tally) -> bool:
    """Return True if a timer will send the counters."""
    return isinstance(counters._timer, threading.Timer)

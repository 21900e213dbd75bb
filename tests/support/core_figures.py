"""Counters, depths, permits and results: data that a deployment keeps beside its jobs."""

from __future__ import annotations

from django_delayq.core import figures
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
    "read_depths",
    "read_permits",
    "record_depths",
    "remind_again",
]


def remind_again() -> None:
    """Let the next call that leaves counters out be logged, however short ago the last one was."""
    figures._reminded_at = -figures._REMIND

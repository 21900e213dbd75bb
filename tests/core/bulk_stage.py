"""Shared set-up of the tests of bulk operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from django_delayq.core import NewJob, Payload, Queue, bury, fail
from django_delayq.core.bulk import (
    act_in_shard,
    cancel_all,
    delete_failed,
    discard_all,
    discard_many,
    kick_all,
    kick_many,
    kill_failed,
    run_all_now,
)
from django_delayq.core.filtered_bulk import CANCEL, RUN_NOW, change_matching
from django_delayq.core.operations.actions import cancel as cancel_action
from django_delayq.core.operations.actions import cancel_selected, reschedule_selected, retry_failed
from django_delayq.core.operations.actions import reschedule as reschedule_action
from django_delayq.core.operations.columns import Part, read_columns, read_entries
from django_delayq.core.operations.job_filter import JobFilter
from django_delayq.core.operations.search import search
from django_delayq.core.operations.selection import CHUNK as SELECTED_AT_ONCE
from tests.support.core_values import new_key

from .stage import Stage

__all__ = [
    "CANCEL",
    "RUN_NOW",
    "SELECTED_AT_ONCE",
    "JobFilter",
    "Part",
    "ProgressLog",
    "act_in_shard",
    "bury_all",
    "cancel_action",
    "cancel_all",
    "cancel_selected",
    "change_matching",
    "delete_failed",
    "discard_all",
    "discard_many",
    "everything_in_morgue",
    "fail_all",
    "kick_all",
    "kick_many",
    "kill_failed",
    "merged_jobs",
    "read_columns",
    "read_entries",
    "reschedule_action",
    "reschedule_selected",
    "retry_failed",
    "run_all_now",
    "search",
]


def merged_jobs(ids: int, payloads: int) -> Iterator[NewJob]:
    for number in range(payloads):
        for ident in range(ids):
            payload = Payload(b"%d of m%d" % (number, ident), str(number), new_key())
            yield NewJob(f"m{ident}", "sync", payload=payload, on_conflict="merge", due_policy="keep")


def fail_all(stage: Stage, **options: object) -> None:
    for number in stage.queue.numbers:
        while jobs := stage.take(250, number=number):
            assert all(stage.settle(*(fail(job, 1, 2, delay_ms=60_000, **options) for job in jobs)))  # type: ignore[arg-type]


def bury_all(queue: Queue) -> None:
    for number in queue.numbers:
        while jobs := queue.reserve(number, 250, worker="w").jobs:
            assert all(queue.settle([bury(job, 1, 2, reason="why") for job in jobs]))


def everything_in_morgue(stage: Stage, n: int) -> None:
    stage.queue.schedule_many(NewJob(f"j{number}", "work") for number in range(n))
    bury_all(stage.queue)


class ProgressLog:
    """Progress callback that records its calls and runs ``act`` at each of them."""

    def __init__(self, act: Callable[[], object] = lambda: None) -> None:
        self.steps: list[tuple[int, int]] = []
        self.act = act

    def __call__(self, seen: int, total: int) -> None:
        self.steps.append((seen, total))
        self.act()

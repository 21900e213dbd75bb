"""Shared set-up of the tests of bulk operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from django_delayq.core.job import NewJob, Payload, new_key
from django_delayq.core.queue import Queue
from django_delayq.core.settlement import bury, fail

from .stage import Stage


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

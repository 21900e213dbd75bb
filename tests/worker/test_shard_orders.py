"""Weights, schedulers and splitters of a worker that serves several queues of a real Redis."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any
from zlib import crc32

import pytest

from django_delayq import current_job
from django_delayq.core import Broker, NewJob, new_id
from django_delayq.worker.scheduler import DueShard
from tests.support.worker_stage import config_of_settings, eventually, put, registry_of, run_dry

AB = ("a", "b")
Place = tuple[str, int]


def run_order(broker: Broker, jobs: int, queues: tuple[str, ...] = AB, **changes: Any) -> str:
    """Let a worker run that many jobs of each queue; return their queues in the order of their runs."""
    ran: list[str] = []

    def work() -> None:
        ran.append(current_job().queue)

    for queue in queues:
        broker.queue(queue).count_many(NewJob(new_id(), "work") for _ in range(jobs))
    run_dry(broker, registry_of(work), queues=queues, **{"prefetch_ms": 0.0, **changes})
    assert len(ran) == jobs * len(queues)
    return "".join(ran)


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
@pytest.mark.parametrize(("a", "b"), [(1, 1), (3, 1), (1, 4)])
def test_runs_are_shared_by_the_weights_of_the_queues(broker: Broker, threads: int, a: int, b: int) -> None:
    ran = run_order(broker, 200, threads=threads, weights={"a": float(a), "b": float(b)})
    first = ran[:200]  # both have jobs left
    assert first.count("a") == pytest.approx(200 * a / (a + b), abs=2 * threads * max(a, b))


def test_jobs_that_travel_in_batches_are_shared_by_the_weights_too(broker: Broker) -> None:
    ran = run_order(broker, 4000, weights={"a": 3.0, "b": 1.0}, prefetch_ms=50.0)
    assert ran[:4000].count("a") == pytest.approx(3000, abs=600)


def test_seq_takes_turns_whatever_the_weights(broker: Broker) -> None:
    ran = run_order(broker, 50, ("a", "b", "c"), threads=1, scheduler="seq", weights={"a": 20.0})
    assert ran == "abc" * 50


def test_lag_goes_to_the_shard_that_is_overdue_longest(broker: Broker) -> None:
    delays = {"a": 1500, "b": 900, "c": 1200}
    ran: list[str] = []

    def occupy(until: float) -> None:
        eventually(lambda: time.time() > until)

    def work() -> None:
        ran.append(current_job().queue)

    for queue, delay_ms in delays.items():
        put(broker, "work", queue=queue, delay_ms=delay_ms)
    put(broker, "occupy", time.time() + 1.6, queue="d")  # the worker has looked at the others before
    order = {"queues": ("a", "b", "c", "d"), "threads": 1, "prefetch_ms": 0.0, "weights": {"a": 20.0}}
    run_dry(broker, registry_of(occupy, work), scheduler="lag", **order)
    assert ran == ["b", "c", "a"]


class Turns:
    """A scheduler of a project's own, with state."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, due: Sequence[DueShard]) -> DueShard:
        self.calls += 1
        return due[self.calls % len(due)]


def test_a_scheduler_that_counts_is_called_for_reserves_only(broker: Broker) -> None:
    turns = Turns()
    ran = run_order(broker, 50, threads=1, scheduler=turns)
    assert ran[:98] in ("ab" * 49, "ba" * 49) and turns.calls < 110


# -- splitters


def backwards(places: Sequence[Place], name: str, index: int) -> list[Place]:
    """A splitter of a project's own; it leaves out shard 0."""
    return [place for place in reversed(places) if place[1]]


def test_a_worker_visits_shards_in_the_order_of_the_projects_splitter(broker: Broker, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "WORKER": {"splitter": f"{__name__}.backwards"}}
    splitter = config_of_settings().splitter
    assert splitter is backwards
    visited: list[Place] = []

    def work() -> None:
        job = current_job()
        visited.append((job.queue, crc32(job.id.encode()) % 3))

    for queue in AB:
        broker.queue(queue, shards=3).count_many(NewJob(str(n), "work") for n in range(90))
    run_dry(broker, registry_of(work), queues=AB, threads=1, prefetch_ms=0.0, splitter=splitter)
    round_trip = [("b", 2), ("b", 1), ("a", 2), ("a", 1), ("a", 0), ("b", 0)]
    assert visited[:60] == round_trip * 10, "what the splitter leaves out is visited last"
    assert len(visited) == 180

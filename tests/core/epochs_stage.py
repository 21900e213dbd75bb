"""Shared stage of the tests of epochs: a queue in every state, callers with other layouts, processes that crash."""

from __future__ import annotations

from typing import Any

import pytest

from django_delayq.core import Broker, Job, Queue
from django_delayq.core.records.keys import MAX_SHARDS, number_of

from .stage import Stage


class Killed(Exception):
    """Raised in place of the process's death."""


def clocks(stage: Stage, epoch: int, shards: int) -> None:
    """Set the test's clock in shards that do not exist yet."""
    for place in range(shards):
        meta = stage.broker.shard("q", number_of(epoch, place)).names["meta"]
        stage.broker.client.hset(meta, "test_clock", stage.us)


def reshard(stage: Stage, shards: int) -> None:
    clocks(stage, stage.queue.layout["epoch"] + 1, shards)
    stage.broker.reshard("q", shards)


def other(broker: Broker, **options: Any) -> Broker:
    """Return the broker of another process on the same queues."""
    test_clock = broker.scripts._test_clock
    return Broker(broker.connection, prefix=broker.prefix, lease_ms=broker.lease_ms, test_clock=test_clock, **options)


def epoch_of(queue: Queue, ident: str) -> int | None:
    """Return the epoch in which an id is live; None if it is not."""
    view = queue.broker.inspector.get(queue.name, ident)
    return None if view is None or view.state == "morgue" else view.job.shard // MAX_SHARDS


def next_id(queue: Queue, number: int) -> str:
    """Return an unused id that belongs to this shard in one of the epochs."""
    return next(
        ident
        for ident in map(str, range(10**6))
        if number in queue.homes(ident) and queue.broker.inspector.get(queue.name, ident) is None
    )


def take_all(queue: Queue, worker: str = "w") -> list[Job]:
    return [job for number in queue.numbers for job in queue.reserve(number, 250, worker=worker).jobs]


def kill_after(broker: Broker, calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the process die after ``calls`` more script calls; the last one has reached Redis."""
    original, left = broker.scripts.call, [calls]

    def dying(name: str, *args: Any, **limits: Any) -> Any:
        if left[0] == 0:
            raise Killed
        left[0] -= 1
        return original(name, *args, **limits)

    monkeypatch.setattr(broker.scripts, "call", dying)

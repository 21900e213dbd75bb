"""Shared stage of the tests of epochs: a queue in every state, callers with other layouts, processes that crash."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from django_delayq.core import Broker, Inspector, Job, Queue
from tests.support.core_calls import ScriptCall, before_layout_change, watch_calls
from tests.support.core_stored import MAX_SHARDS, number_of, set_clock

from .stage import Stage


class Killed(Exception):
    """Raised in place of the process's death."""


def clocks(stage: Stage, epoch: int, shards: int) -> None:
    """Set the test's clock in shards that do not exist yet."""
    for place in range(shards):
        set_clock(stage.queue, number_of(epoch, place), stage.us)


def reshard(stage: Stage, shards: int) -> None:
    clocks(stage, stage.queue.layout["epoch"] + 1, shards)
    stage.broker.reshard("q", shards)


def other(broker: Broker, **options: Any) -> Broker:
    """Return the broker of another process on the same queues, as patient as this one."""
    options = {"lease_ms": broker.lease_ms, "test_clock": broker.scripts._test_clock, **options}
    made = Broker(broker.connection, prefix=broker.prefix, **options)
    made.takeover_seconds, made.full_seconds = broker.takeover_seconds, broker.full_seconds
    return made


def forget_queues(broker: Broker) -> None:
    """Let a broker forget the queues that it knows, like a process that begins anew."""
    broker.registry._queues.clear()


def forget_calls(queue: Queue) -> None:
    """Let the shards of a queue forget all calls, as if none could be repeated any more."""
    for number in queue.numbers:
        names = queue.shard(number).names
        queue.deployment.client.delete(names["window"], names["reply"])


def adopt_layout(broker: Broker, name: str, layout: dict[str, Any]) -> bool:
    """Let a queue adopt a layout that one of the process's threads has just read; return False if it refuses."""
    return broker.registry._install(name, layout, broker.registry._layout_of(name))


def die_before_publishing(broker: Broker, epoch: int = 1) -> AbstractContextManager[None]:
    """Make the process die in the block after it closed the old shards, before it publishes the new ones."""

    def die(layout: dict[str, Any]) -> None:
        if layout["epoch"] == epoch:
            raise Killed

    return before_layout_change(broker, die)


def epoch_of(queue: Queue, ident: str) -> int | None:
    """Return the epoch in which an id is live; None if it is not."""
    view = Inspector(queue.registry).get(queue.name, ident)
    return None if view is None or view.state == "morgue" else view.job.shard // MAX_SHARDS


def next_id(queue: Queue, number: int) -> str:
    """Return an unused id that belongs to this shard in one of the epochs."""
    return next(
        ident
        for ident in map(str, range(10**6))
        if number in queue.shards_of(ident) and Inspector(queue.registry).get(queue.name, ident) is None
    )


def take_all(queue: Queue, worker: str = "w") -> list[Job]:
    return [job for number in queue.numbers for job in queue.reserve(number, 250, worker=worker).jobs]


@contextmanager
def dies_after(broker: Broker, calls: int) -> Iterator[None]:
    """Let the process die in the block after so many calls of scripts, the last of which has reached Redis.

    Raises:
        Killed: it was about to make one more.
    """
    left = iter(range(calls))

    def die(_: ScriptCall) -> None:
        if next(left, None) is None:
            raise Killed

    with watch_calls(broker, before=die):
        yield

"""Stage of the tests of ``django_delayq.Queue``."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from django_delayq import (
    Queue,
    connections,
)
from django_delayq.pull import HeldJob
from django_delayq.pull.coordinator import coordinator_of
from tests.support.processes import wait_until

#: s; what a slow machine may need for anything that has no bound of its own
PATIENCE = 20.0
EVERY_BYTE = bytes(range(256))


def places(queue: str) -> dict[str, int]:
    """Count the jobs of a queue by place; empty places are left out."""
    counts = connections.broker().inspector.counts(queue)
    names = ("ready", "delayed", "reserved", "gated", "failed", "morgue")
    return {name: getattr(counts, name) for name in names if getattr(counts, name)}


def one(queue: Queue, **options: Any) -> HeldJob:
    (job,) = queue.reserve(**options)
    return job


def waiting(threads: int = 1) -> None:
    """Until so many threads of this process sleep until they are woken."""

    def asleep() -> bool:
        return sum(waiter.sleeping for waiter in list(coordinator_of()._waiters)) == threads

    wait_until(asleep, PATIENCE, f"{threads} waiting threads")


def listening(*names: str) -> None:
    """Until this process hears of jobs of these queues."""
    listener = coordinator_of()._listener
    wait_until(lambda: listener.listens_to(frozenset(names)), PATIENCE, "a thread that listens")


def soon(act: Callable[[], Any]) -> Any:
    """``act()`` in another thread; ``.result(…)`` is its answer."""
    pool = ThreadPoolExecutor(1)
    future = pool.submit(act)
    pool.shutdown(wait=False)
    return future

"""Lease reaper of a dispatcher, run in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django_delayq import signals
from django_delayq.core.broker import Broker
from django_delayq.core.task import registry
from django_delayq.worker.dead import Ends, LeaseReaper
from django_delayq.worker.dispatcher import ShardPoller
from django_delayq.worker.hooks import Hooks
from django_delayq.worker.loop import Loop

from .duty_stage import make_process
from .worker_stage import config


@contextmanager
def reaping(broker: Broker, *names: str, hears: bool = False) -> Iterator[None]:
    """Take back leases of these queues soon after they expire; ``hears`` = send Django's signals."""
    process = make_process(broker, settings=config(heartbeat=broker.lease_ms / 3000))
    hooks = Hooks(wants=signals.wants, notify=signals.notify) if hears else None
    reaper = LeaseReaper(Ends(registry, hooks))
    patrol = ShardPoller(process, lambda: [broker.queue(name) for name in names], None, reaper, pace=0.05)
    loops = [Loop("reaper", reaper, process.health), Loop("patrol", patrol, process.health)]
    for loop in loops:
        loop.start()
    try:
        yield
    finally:
        for loop in loops:
            loop.close()

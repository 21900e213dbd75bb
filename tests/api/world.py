"""A world with something in every place, so that calls of the API meet more than 404.

Queue "mail" (pull) and queue "orders" (python) have a delayed, a ready, a reserved, a failed and a buried job each, the
id of which is made of the queue and the place ("mail-delayed"); "crm" has merged ones. A worker is registered and has
left its stacks.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django_delayq import connections, task
from django_delayq.api import queues
from django_delayq.core.codec import encode, encode_args
from django_delayq.core.job import RAW, Job, NewJob, Payload, new_key
from django_delayq.core.outcomes import bury, fail
from django_delayq.core.queue import Queue
from django_delayq.core.task import registry

WORKER = "w1"
PLACES = ("delayed", "ready", "reserved", "failed", "morgue")
QUEUES = ("mail", "orders", "crm")
CANCEL, SYNC, SECRET = "world.cancel_order", "world.sync_customers", "world.wipe"
IDS = tuple(f"{queue}-{place}" for queue in QUEUES for place in PLACES)


@contextmanager
def tasks() -> Iterator[None]:
    """Registered as long as this lasts: one plain and one merged task for the API, one that is not for it."""

    @task(name=CANCEL, queue="orders", api=True, max_attempts=3)
    def cancel_order(order_id: int, reason: str = "") -> None:
        pass

    @task(name=SYNC, queue="crm", api=True, merge=True)
    def sync_customers(payloads: dict[str, list[Any]]) -> None:
        pass

    @task(name=SECRET, queue="orders")
    def wipe() -> None:
        pass

    made = (cancel_order, sync_customers, wipe)
    try:
        yield
    finally:
        for one in made:
            registry.remove(one)


class World:
    """Call :meth:`refresh` before each call of the API: whatever is missing is there again."""

    def __init__(self) -> None:
        #: queue → (id, lease) of the job that is reserved there
        self.leases: dict[str, tuple[str, str]] = {}

    def refresh(self) -> None:
        """Queues that take and hand out, with something in every place; a worker that was heard of just now."""
        broker = connections.broker()
        for name in QUEUES:
            queues.make(broker, name, {"kind": "pull" if name == "mail" else "python"})
            broker.resume(name)
            for place in _missing(broker.queue(name)):
                self._place(name, place)
        info = {
            "host": "web1",
            "pid": 4711,
            "queues": ["orders"],
            "threads": 2,
            "running": 1,
            "started_ms": int(time.time() * 1000),
            "dispatcher": True,
            "stopping": False,
            "rss_mib": 50,
            "jobs": [
                {
                    "slot": 0,
                    "queue": "orders",
                    "id": "orders-reserved",
                    "task": CANCEL,
                    "started_ms": int(time.time() * 1000),
                    "ids": 1,
                }
            ],
        }
        broker.announce(WORKER, info)
        broker.keep_dump(WORKER, 'Thread 1 "slot-0":\n  File "shop.py", line 7, in pay\n', time.time() * 1000)

    def _place(self, name: str, place: str) -> None:
        queue, ident = connections.broker().queue(name), f"{name}-{place}"
        queue.schedule(_new(name, ident, delay_ms=3_600_000 if place == "delayed" else 0))
        if place in ("delayed", "ready"):
            return
        batch = queue.reserve_id(ident, worker=WORKER, ttr_ms=60_000, started=True, early=True)
        for job in batch.jobs:
            if place == "reserved":
                self.leases[name] = ident, _lease(job)
            elif place == "failed":
                queue.settle([fail(job, 0, 5, delay_ms=600_000, error_class="Timeout", error=b'{"message": "slow"}')])
            else:
                queue.settle([bury(job, 0, 5, reason="no such customer")])


def _missing(queue: Queue) -> list[str]:
    """Return the places of which the job neither lives nor lies in the morgue, in one round trip."""
    with queue.deployment.client.pipeline(transaction=False) as pipe:
        for place in PLACES:
            ident = f"{queue.name}-{place}".encode()
            for names in (queue.shard(number).names for number in queue.shards_of(ident.decode())):
                pipe.hexists(names["body"], ident)
                pipe.zlexcount(names["morgue_id"], b"[" + ident + b"\0", b"(" + ident + b"\1")
        found = pipe.execute()
    each = len(found) // len(PLACES)
    return [place for at, place in enumerate(PLACES) if not any(found[at * each : (at + 1) * each])]


def _lease(job: Job) -> str:
    return f"{job.shard}.{job.token}"


def _new(queue: str, ident: str, delay_ms: int) -> NewJob:
    if queue == "mail":
        return NewJob(ident, RAW, b"Dear customer", delay_ms=delay_ms)
    if queue == "orders":
        return NewJob(ident, CANCEL, encode_args((5,), {"reason": "unpaid"}), delay_ms=delay_ms)
    payload = Payload(encode({"name": "Ada"}), "1", new_key())
    return NewJob(ident, SYNC, delay_ms=delay_ms, on_conflict="merge", payload=payload)

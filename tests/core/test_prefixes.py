"""Two deployments with PREFIXes of their own on one Redis: no verb of one touches a key of the other (row 68)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from django_delayq.core import Broker, Connection, Job, NewJob, Payload, Queue, ack, bury, fail, release
from tests.support.core_figures import store_violations
from tests.support.core_stored import assert_invariants
from tests.support.core_values import new_key

from .bulk_stage import (
    RUN_NOW,
    JobFilter,
    cancel_all,
    change,
    delete_failed,
    discard_all,
    kick_all,
    kill_failed,
    run_all_now,
)

FAR = 3_600_000
DELAYED = ("delayed", "moved", "located", "matched", "other")
READY = ("reserved", "gated", "failed", "killed", "released", "kept", "buried", "kicked", "discarded", "done")

#: PREFIXes of which one is the other's beginning, is part of a name of the other's keys, or differs in its case
PAIRS = [("north", "south"), ("shop", "shop2"), ("shop", "shop:wake"), ("shop", "SHOP"), ("shop:1", "shop:1.2")]


@pytest.fixture
def pair(connection: Connection, request: pytest.FixtureRequest) -> Iterator[tuple[Broker, Broker]]:
    one, other = (Broker(connection, prefix=prefix) for prefix in request.param)
    yield one, other
    for broker in (one, other):
        assert_invariants(broker)


def payload(data: bytes) -> dict[str, Any]:
    return {"payload": Payload(data, "1", new_key()), "on_conflict": "merge", "due_policy": "keep"}


@dataclass
class Deployment:
    """The same jobs, workers and ticks under each prefix."""

    broker: Broker

    def __post_init__(self) -> None:
        self.queue: Queue = self.broker.queue("orders", shards=2)
        for ident in DELAYED:
            self.queue.schedule(NewJob(ident, "work", delay_ms=FAR))
        self.queue.schedule(NewJob("merged", "sync", delay_ms=FAR, **payload(b"1")))
        for ident in READY:
            self.queue.schedule(NewJob(ident, "work"))
        self.jobs: dict[str, Job] = {job.id: job for job in self.reserve(20)}
        jobs = self.jobs
        failures = [fail(jobs[ident], 1, 2, delay_ms=FAR) for ident in ("failed", "killed")]
        burials = [bury(jobs[ident], 1, 2, reason="why") for ident in ("buried", "kicked", "discarded")]
        assert all(self.queue.settle([*failures, *burials]))
        self.queue.schedule(NewJob("gated", "work"))
        self.queue.first_sight("tick", "every 60 s")
        self.broker.announce("w@host:1", {"queues": ["orders"]}, tasks=["work"])
        self.broker.keep_dump("w@host:1", "stacks", self.broker.now_ms())
        store_violations(self.broker, 2)

    def reserve(self, limit: int) -> list[Job]:
        return [job for number in self.queue.numbers for job in self.queue.reserve(number, limit, worker="w").jobs]

    def use_every_verb(self) -> None:
        """Produce, consume, change, operate; at the end nothing is left."""
        self.produce()
        self.consume()
        self.change()
        self.operate()
        assert self.broker.delete_queue("orders", force=True)
        assert self.broker.queue_names() == []

    def produce(self) -> None:
        queue = self.queue
        assert queue.schedule(NewJob("fresh", "work", fresh=True)) == "created"
        assert queue.schedule(NewJob("other", "work", delay_ms=FAR)) == "replaced"
        assert queue.schedule(NewJob("merged", "sync", delay_ms=FAR, **payload(b"2"))) == "merged"
        assert queue.count_many(NewJob(str(n), "work", delay_ms=FAR) for n in range(9)) == {"created": 9}
        assert queue.skip_tick("tick", "every 60 s", 60_000) is False
        assert queue.schedule_tick(NewJob("tick", "work"), 120_000) == "created"

    def consume(self) -> None:
        queue, jobs = self.queue, self.jobs
        assert queue.touch([jobs["kept"], jobs["gated"]]) == ["held", "held"]
        assert queue.take_over([jobs["kept"]], "another") == []
        assert queue.settle([ack(jobs["done"], 1, 2), release(jobs["released"], delay_ms=FAR)]) == [True, True]
        (early,) = queue.reserve_id("delayed", worker="w", early=True).jobs
        settled, _ = queue.settle_reserve(queue.shard_of(early.id), [ack(early, 1, 2)], 5, worker="w")
        assert settled == [True]
        for number in queue.numbers:
            queue.tick(number)
            queue.expired(number)
            queue.marks(number)

    def change(self) -> None:
        queue = self.queue
        assert queue.reschedule("moved", delay_ms=FAR) and queue.run_now("moved")
        assert queue.cancel("located") == "cancelled"
        assert queue.cancel("gated") == "stopping"
        assert queue.kick("kicked", delay_ms=FAR) == "kicked"
        assert queue.discard("discarded")
        where = JobFilter(prefix="matched")
        assert change(queue, RUN_NOW, where).counts == {"moved": 1}

    def operate(self) -> None:
        queue, broker = self.queue, self.broker
        kill_failed(queue)
        run_all_now(queue)
        kick_all(queue)
        delete_failed(queue)
        cancel_all(queue)
        discard_all(queue)
        broker.pause("orders", seconds=60)
        broker.resume("orders")
        broker.limit("orders", max_length=100, morgue_max=5)
        broker.pause_producers()
        broker.resume_producers()
        broker.reshard("orders", 3)
        broker.tell_worker("w@host:1", "stop")
        broker.forget("w@host:1")
        store_violations(broker, 3)


def contents(broker: Broker, other: Broker) -> dict[bytes, bytes]:
    """Each key of the deployment, whatever its name; those of the other one are known by their beginnings."""
    foreign = tuple(
        f"{start}{other.prefix}{end}".encode() for start, end in (("{", "}:"), ("", ":{"), ("", ":wake:orders"))
    )
    return {key: broker.client.dump(key) for key in broker.client.scan_iter("*") if not key.startswith(foreign)}


@pytest.mark.one_server("every key of the server is looked at")
@pytest.mark.parametrize("pair", [*PAIRS, *(pair[::-1] for pair in PAIRS)], indirect=True, ids="-".join)
def test_every_verb_under_one_prefix_leaves_the_keys_of_another_as_they_are(pair: tuple[Broker, Broker]) -> None:
    one, other = (Deployment(broker) for broker in pair)
    before = contents(other.broker, one.broker)
    assert len(before) > 20
    one.use_every_verb()
    assert contents(other.broker, one.broker) == before
    assert other.broker.queue_names() == ["orders"]
    other.use_every_verb()

"""Deployment in which every verb of the core is called: producers, consumers, operators, observers, bulk loads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django_delayq.core import Broker, Job, NewJob, Payload, Queue, Registry, Settlement, ack, bury, fail, release
from tests.support import core_figures as figures
from tests.support.core_calls import locate
from tests.support.core_stored import assert_invariants, digest, last_tick
from tests.support.core_values import Generation, new_key

from . import bulk_loads_stage as loads, bulk_stage as bulk

FAR = 3_600_000
DELAYED = ("delayed", "moved", "located", "matched", "other")
READY = ("reserved", "gated", "failed", "killed", "released", "kept", "buried", "kicked", "discarded", "done", "early")


def payload(data: bytes, key: bytes = b"") -> dict[str, Any]:
    return {"payload": Payload(data, "1", key or new_key()), "on_conflict": "merge", "due_policy": "keep"}


@dataclass
class Deployment:
    """A queue with a job in every state, a worker and a tick."""

    broker: Broker
    shards: int = 2

    def __post_init__(self) -> None:
        self.queue: Queue = self.broker.queue("orders", shards=self.shards)
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
        figures.store_violations(self.broker, 2)

    def reserve(self, limit: int) -> list[Job]:
        return [job for number in self.queue.numbers for job in self.queue.reserve(number, limit, worker="w").jobs]

    def use_every_verb(self) -> None:
        """Produce, consume, change, look, load, operate; at the end nothing is left."""
        for act in (self.produce, self.consume, self.change, self.look, self.load, self.await_ends, self.operate):
            act()
            assert_invariants(self.broker)
        assert self.broker.delete_queue("orders", force=True)
        assert self.broker.queue_names() == []

    def produce(self) -> None:
        queue = self.queue
        assert queue.schedule(NewJob("fresh", "work", fresh=True)) == "created"
        assert queue.schedule(NewJob("other", "work", delay_ms=FAR)) == "replaced"
        assert queue.schedule(NewJob("merged", "sync", delay_ms=FAR, **payload(b"2"))) == "merged"
        assert queue.count_many(NewJob(str(n), "work", delay_ms=FAR) for n in range(40)) == {"created": 40}
        assert queue.skip_tick("tick", "every 60 s", 60_000) is False
        assert queue.schedule_tick(NewJob("tick", "work", delay_ms=FAR), 120_000) == "created"
        assert queue.schedule_tick(NewJob("tick", "work"), 120_000) == "fired"
        assert last_tick(queue, "tick") == 120_000

    def consume(self) -> None:
        queue, jobs = self.queue, self.jobs
        assert queue.touch([jobs["kept"], jobs["gated"]]) == ["held", "held"]
        assert queue.take_over([jobs["kept"]], "another") == []
        ends = [
            ack(jobs["done"], 1, 2),
            release(jobs["released"], delay_ms=FAR),
            Settlement(jobs["early"], verb="ack_early"),
        ]
        assert queue.settle(ends) == [True] * 3
        assert queue.settle(ends) == [False] * 3
        assert [job.id for number in queue.numbers for job in queue.begun(number)] == ["early"]
        assert queue.settle([Settlement(jobs["early"], 1, 2, verb="record")]) == [True]
        (early,) = queue.reserve_id("delayed", worker="w", early=True).jobs
        settled, _ = queue.settle_reserve(queue.shard_of(early.id), [ack(early, 1, 2)], 5, worker="w")
        assert settled == [True]
        for number in queue.numbers:
            assert not queue.tick(number).expired
            assert queue.expired(number) == []
        waker = self.broker.waker(["orders"])
        waker.interrupt()
        waker.close()

    def change(self) -> None:
        queue = self.queue
        assert queue.reschedule("moved", delay_ms=FAR) and queue.run_now("moved")
        assert queue.cancel("located") == "cancelled"
        assert queue.cancel("gated") == "stopping"
        assert queue.kick("kicked", delay_ms=FAR) == "kicked"
        assert queue.discard("discarded")
        where = bulk.JobFilter(prefix="matched")
        assert bulk.change(queue, bulk.RUN_NOW, where).counts == {"moved": 1}
        killed = queue.shard_of("killed"), [("killed", self.jobs["killed"].key)]
        assert bulk.act_in_shard(queue, *killed, bulk.retry_failed(FAR)) == ["retried"]

    def look(self) -> None:
        """Read jobs and figures in every way."""
        broker, inspector = self.broker, self.broker.inspector
        (counts,) = inspector.all_counts()
        assert (counts.morgue, counts.failed, counts.gated) == (1, 2, 0)
        found, cursor = [], ""
        while cursor or not found:
            page = inspector.page("orders", "waiting", cursor=cursor, limit=7)
            found += [view.id for view in page.jobs]
            cursor = page.cursor
        assert len(found) == len(set(found)) == counts.delayed + counts.ready
        parts = [bulk.Part("orders", number, "waiting") for number in self.queue.numbers]
        read = [ident for part in parts for some in bulk.read_jobs(broker, part) for ident in some["id"]]
        assert sorted(read) == sorted(found)
        assert [payload.data for payload in inspector.payloads("orders", "merged")] == [b"1", b"2"]
        assert locate(self.queue, "kept", Generation((self.jobs["kept"].key,))) == "live"
        assert broker.tell_worker("w@host:1", "dump")
        assert list(broker.announce("w@host:1", {}).commands) == ["dump"]
        broker.note_figures(figures.Figures(counts={("redis_error", "transient"): 2}))
        assert broker.figures().counts["redis_error", "transient"] == 2
        now_ms = broker.now_ms()
        figures.record_depths(broker, {"orders": figures.DepthPoint(ready=3)}, now_ms)
        assert [point.ready for point in figures.read_depths(broker, ["orders"], now_ms)["orders"]] == [3]
        (grant,) = figures.ask_permits(broker, {"task:work": 1}, 2, ("orders", self.queue.numbers[0])).grants
        assert grant is not None and grant.jobs == figures.taken_permits(broker, "task:work") == 1
        figures.Limiter(broker.registry).give_back(grant.permits)
        assert [page.due for page in figures.read_limits([self.queue], None, Registry())] == [0]
        figures.write_result(broker, "a", "create", 60_000, {"head": "{}"})
        assert figures.read_result(broker, "a") == figures.ResultRecord("{}", workers=[], errors=[])

    def load(self) -> None:
        """Write a bulk load twice."""
        load = loads.open_load(self.broker, "nightly", "orders")
        limits = loads.BulkLoadLimits(per_second=1e6)
        for _ in range(2):
            assert loads.write(self.broker, load, loads.rows(60), limits) == {"created": 60}
        assert loads.counted(self.broker, loads.close_load(self.broker, load)) == {"created": 60}
        assert loads.open_load(self.broker, "nightly", "orders").closed

    def await_ends(self) -> None:
        """Send durable jobs, plain and merged, twice, end them, and collect their completions."""
        queue, keys = self.queue, {f"durable-{n}": new_key(durable=True) for n in range(30)}
        news = [
            NewJob(ident, "work", key=key) if n % 2 else NewJob(ident, "sync", **payload(b"p", key))
            for n, (ident, key) in enumerate(keys.items())
        ]
        late = self.broker.now_ms() - 60_000
        assert queue.schedule_many(news, not_after_ms=late) == ["late"] * 30
        assert queue.schedule_many(news) == ["created"] * 30
        assert queue.schedule_many(news) == ["known"] * 30
        generations = [(ident, key, digest(b"p")) for ident, key in keys.items()]
        assert queue.knows(generations) == [True] * 30
        held = [job for job in self.reserve(250) if job.id in keys]
        ends = {job.id: "buried" if place % 2 else "done" for place, job in enumerate(held)}
        makers = {"done": lambda job: ack(job, 1, 2), "buried": lambda job: bury(job, 1, 2, reason="why")}
        assert all(queue.settle([makers[ends[job.id]](job) for job in held]))
        heard = {}
        for number in queue.numbers:
            marks = queue.marks(number)
            assert queue.tick(number).marks == len(marks)
            heard |= {mark.key: mark.end for mark in marks}
            assert queue.marks(number, marks) == []
        assert heard == {keys[ident]: end for ident, end in ends.items()}
        bulk.discard_all(queue)
        for number in queue.numbers:
            queue.marks(number, queue.marks(number), 0)

    def operate(self) -> None:
        queue, broker = self.queue, self.broker
        bulk.kill_failed(queue)
        bulk.run_all_now(queue)
        bulk.kick_all(queue)
        bulk.delete_failed(queue)
        bulk.cancel_all(queue)
        bulk.discard_all(queue)
        broker.pause("orders", seconds=60)
        broker.resume("orders")
        broker.limit("orders", max_length=100, morgue_max=5)
        broker.pause_producers()
        assert set(queue.schedule_many(NewJob(f"paused{n}", "work") for n in range(40))) == {"paused"}
        broker.resume_producers()
        assert queue.schedule(NewJob("old", "work")) == "created"
        (job,) = queue.reserve_id("old", worker="w").jobs
        assert queue.settle([bury(job, 1, 2, reason="why")]) == [True]
        broker.reshard("orders", 3 if self.shards < 3 else 2)
        assert queue.kick("old", delay_ms=FAR) == "kicked", "from the old epoch into the new one"
        broker.epochs.retire("orders")
        broker.tell_worker("w@host:1", "stop")
        broker.forget("w@host:1")
        figures.store_violations(broker, 3)

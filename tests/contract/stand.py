"""One queue on any broker, with a clock that only the test moves, and the world as anybody may see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django_delayq.core.broker import Broker
from django_delayq.core.job import Generation, Job, NewJob, Payload, new_key
from django_delayq.core.job_view import JobView
from django_delayq.core.outcomes import Batch, Settlement, ack, bury, fail, release
from django_delayq.testing.redis import MemoryBroker

T0 = 1_700_000_000_000  # Unix ms, from which worlds count
LEASE = 15_000


class Stand:
    """``put``, ``add``, ``take`` … act; ``world`` is all that can be asked for, in one comparable value."""

    def __init__(self, broker: Broker, *, shards: int = 1, name: str = "q") -> None:
        self.broker = broker
        self.name = name
        self.queue = broker.queue(name, shards=shards)
        self.ms = T0
        #: what was scheduled: ids, and what names the jobs
        self.made: list[tuple[str, Generation]] = []
        self.wait(0)

    @property
    def in_memory(self) -> bool:
        return isinstance(self.broker, MemoryBroker)

    def wait(self, ms: int) -> None:
        self.ms += ms
        if isinstance(self.broker, MemoryBroker):
            self.broker.clock.set(self.ms)
            return
        for number in self.queue.numbers:
            self.broker.client.hset(self.queue.shard(number).names["meta"], "test_clock", self.ms * 1000)

    # -- acts --------------------------------------------------------------------------------------------------------

    def new(self, ident: str, *, at: int | None = None, task: str = "work", **options: Any) -> NewJob:
        if at is not None:
            options |= {"due_ms": T0 + at, "delay_ms": None}
        return NewJob(ident, task, **options)

    def put(self, ident: str, **options: Any) -> str:
        return self.queue.schedule(self.new(ident, **options))

    def merged(self, ident: str, data: bytes, score: str = "0", *, key: bytes = b"", **options: Any) -> NewJob:
        options = {"on_conflict": "merge", "due_policy": "keep", "task": "sync"} | options
        return self.new(ident, payload=Payload(data, score, key or new_key()), **options)

    def add(self, ident: str, data: bytes, score: str = "0", **options: Any) -> str:
        return self.queue.schedule(self.merged(ident, data, score, **options))

    def batch(self, n: int = 100, *, number: int = 0, worker: str = "w", **options: Any) -> Batch:
        return self.queue.reserve(number, n, worker=worker, **options)

    def take(self, n: int = 100) -> list[Job]:
        return [job for number in self.queue.numbers for job in self.batch(n, number=number).jobs]

    def take_one(self) -> Job:
        (job,) = self.take()
        return job

    def settle(self, *settlements: Settlement) -> list[bool]:
        return self.queue.settle(settlements)

    def done(self, *jobs: Job) -> list[bool]:
        return self.settle(*(ack(job, 1, 2) for job in jobs))

    def failed(self, job: Job, delay_ms: int = 0, **options: Any) -> bool:
        return self.settle(_with(fail(job, 1, 2, delay_ms=delay_ms, error=b'{"message":"no"}'), options))[0]

    def released(self, job: Job, delay_ms: int | None = None, **options: Any) -> bool:
        return self.settle(_with(release(job, delay_ms=delay_ms), options))[0]

    def buried(self, job: Job, reason: str = "buried", **options: Any) -> bool:
        return self.settle(_with(bury(job, 1, 2, reason=reason, error_class="E"), options))[0]

    def in_morgue(self, ident: str, **options: Any) -> bytes:
        self.put(ident, **options)
        job = next(job for job in self.take() if job.id == ident)
        assert self.buried(job)
        return job.key

    # -- looks -------------------------------------------------------------------------------------------------------

    def world(self) -> dict[str, Any]:
        """Return all that the inspector reports, without keys and tokens, which are random."""
        inspector = self.broker.inspector
        counts = inspector.counts(self.name)

        def page(place: str, by: str = "") -> list[JobView]:
            return inspector.page(self.name, place, by, limit=250).jobs

        waiting, reserved, failed, morgue = map(page, ("waiting", "reserved", "failed", "morgue"))
        return {
            "lives": {view.id: self._seen(view) for view in sorted([*waiting, *reserved], key=lambda view: view.id)},
            "waiting": _by(waiting, lambda view: view.due_ms),
            "reserved": [view.id for view in reserved],
            "failed": _by(failed, lambda view: view.job.failed_at_ms),
            "by failures": [view.id for view in page("failed", "failures")],
            "morgue": _by(morgue, lambda view: view.buried_ms or 0),
            "graves": sorted((self._seen(view) for view in morgue), key=str),
            "counts": (counts.ready, counts.delayed, counts.reserved, counts.gated, counts.failed, counts.morgue),
            "quarantine": counts.quarantine,
            "counters": {name: n for name, n in sorted(counts.counters.items()) if n},
            "lag": counts.lag_seconds,
        }

    def _seen(self, view: JobView) -> dict[str, Any]:
        job = view.job
        found = self.broker.inspector.payloads(self.name, view.id) if view.state != "morgue" else view.payloads
        gated = view.gated
        return {
            "id": view.id,
            "state": view.state,
            "task": job.task,
            "args": job.args,
            "options": job.options_json,
            "priority": job.priority,
            "merged": job.merged,
            "due": view.due_ms - T0,
            "failures": job.failures,
            "reserves": job.reserves,
            "crashes": job.crashes,
            "own crashes": job.own_crashes,
            "quarantined": job.quarantined,
            "flags": job.flags,
            "worker": job.worker,
            "postponed": (job.postponed_for, job.postponed_at_ms and job.postponed_at_ms - T0),
            "failed at": job.failed_at_ms and job.failed_at_ms - T0,
            "error": view.error,
            "history": view.history,
            "deadline": view.deadline_ms and view.deadline_ms - T0,
            "buried": view.buried_ms and view.buried_ms - T0,
            "outcome": view.outcome,
            "reason": view.reason,
            "error class": view.error_class,
            "payloads": [(payload.data, payload.score) for payload in found],
            "count": view.payload_count,
            "gated": gated and (gated.task, gated.args, gated.priority, gated.due_ms - T0),
            "gated due": view.gated_due_ms and view.gated_due_ms - T0,
        }

    def short(self) -> dict[str, list[str]]:
        """The same as a picture for people."""
        world = self.world()
        lines = {
            "waiting": [f"{ident} {world['lives'][ident]['due']:+d}" for ident in world["waiting"]],
            "reserved": world["reserved"],
            "gated": [f"{ident} {live['gated due']:+d}" for ident, live in world["lives"].items() if live["gated"]],
            "payloads": [
                f"{ident}: " + " ".join(data.decode() for data, _ in live["payloads"])
                for ident, live in world["lives"].items()
                if live["merged"]
            ],
            "failed": [f"{ident} x{world['lives'][ident]['failures']}" for ident in world["failed"]],
            "morgue": [f"{grave['id']} {grave['outcome']}" for grave in world["graves"]],
        }
        return {place: found for place, found in lines.items() if found}


Make = Callable[..., Stand]


def _by(views: list[JobView], moment: Callable[[JobView], int]) -> list[str]:
    """Ids by time; among shards equal milliseconds have no order, inside of one they have."""
    return [view.id for view in sorted(views, key=lambda view: (moment(view), view.job.shard))]


def _with(settlement: Settlement, options: dict[str, Any]) -> Settlement:
    for name, value in options.items():
        setattr(settlement, name, value)
    return settlement

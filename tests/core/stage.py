"""Queue with a clock that only the test moves, and a compact text picture of its contents."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from django_delayq.core import (
    Batch,
    Broker,
    Job,
    JobView,
    NewJob,
    Payload,
    Queue,
    Settlement,
    ack,
    bury,
    fail,
    release as give_back,
)
from tests.support.core_values import STARTED, STOPPING, UNCLEAR, UNRENEWED, AttemptOutcome, new_key

from .world import raw, read_world

T0 = 1_700_000_000_000  # the moment, Unix ms, from which the pictures count
LEASE = 15_000
FLAGS = {STARTED: "started", UNRENEWED: "unrenewed", STOPPING: "stopping", UNCLEAR: "unclear"}


class Stage:
    """Queue under test: ``put`` schedules, ``take`` reserves, ``done`` etc. settle, ``picture`` shows the contents."""

    def __init__(self, broker: Broker, *, shards: int = 1, name: str = "q", clock: bool = True) -> None:
        self.broker = broker
        self.queue: Queue = broker.queue(name, shards=shards)
        self.us = T0 * 1000
        self.clock = clock
        #: whether what is put in is durable from now on
        self.durable = False
        self._set()

    def _set(self) -> None:
        for number in self.queue.numbers if self.clock else ():
            self.broker.client.hset(self.queue.shard(number).names["meta"], "test_clock", self.us)

    def wait(self, ms: float) -> None:
        """Move the clock (back, if negative)."""
        self.us += int(ms * 1000)
        self._set()

    def key(self, name: str, number: int = 0) -> bytes:
        return self.queue.shard(number).names[name]

    # -- acts --------------------------------------------------------------------------------------------------------

    def put(self, ident: str, *, at: int | None = None, task: str = "work", **options: Any) -> str:
        """Schedule a plain job; ``at`` is in ms after T0."""
        if at is not None:
            options |= {"due_ms": T0 + at, "delay_ms": None}
        if self.durable and options.get("payload") is None:
            options.setdefault("key", new_key(durable=True))
        return self.queue.schedule(NewJob(ident, task, **options))

    def add(
        self, ident: str, data: bytes, score: str = "0", *, at: int | None = None, task: str = "sync", **options: Any
    ) -> str:
        """Schedule a payload of a merged job."""
        options = {"on_conflict": "merge", "due_policy": "keep"} | options
        return self.put(ident, at=at, task=task, payload=Payload(data, score, new_key(durable=self.durable)), **options)

    def add_many(self, ident: str, number: int) -> list[NewJob]:
        """Schedule payloads 000, 001 … of a merged job, in the order of their scores."""
        payloads = (Payload(b"%03d" % n, str(n), new_key()) for n in range(number))
        news = [NewJob(ident, "sync", on_conflict="merge", due_policy="keep", payload=one) for one in payloads]
        assert set(self.queue.schedule_many(news)) <= {"created", "merged"}
        return news

    def batch(self, n: int = 100, *, worker: str = "w", number: int = 0, **options: Any) -> Batch:
        return self.queue.reserve(number, n, worker=worker, **options)

    def take(self, n: int = 100, *, worker: str = "w", number: int = 0) -> list[Job]:
        return self.batch(n, worker=worker, number=number).jobs

    def take_one(self, *, worker: str = "w", number: int = 0) -> Job:
        (job,) = self.take(worker=worker, number=number)
        return job

    def take_lost(self, *, worker: str = "heir", number: int = 0) -> list[Job]:
        """Take over what dead workers held."""
        return self.queue.take_over(self.queue.expired(number), worker)

    def settle(self, *settlements: Settlement) -> list[bool]:
        return self.queue.settle(settlements)

    def done(self, *jobs: Job) -> list[bool]:
        return self.settle(*(ack(job, 1, 2) for job in jobs))

    def failed(self, job: Job, delay_ms: int = 0, **options: Any) -> bool:
        return self.settle(fail(job, 1, 2, delay_ms=delay_ms, **options))[0]

    def released(self, job: Job, delay_ms: int | None = None, **options: Any) -> bool:
        return self.settle(give_back(job, delay_ms=delay_ms, **options))[0]

    def buried(self, job: Job, reason: str = "buried", **options: Any) -> bool:
        return self.settle(bury(job, 1, 2, reason=reason, **options))[0]

    def in_morgue(self, ident: str, **options: Any) -> bytes:
        """Bury a new job; return its key."""
        self.add(ident, **options) if "data" in options else self.put(ident, **options)
        job = next(job for job in self.take(number=self.queue.shard_of(ident)) if job.id == ident)
        assert self.buried(job)
        return job.key

    def taken_marks(self) -> dict[bytes, str]:
        """Collect and delete all completions; return their ends by key."""
        taken: dict[bytes, str] = {}
        for number in self.queue.numbers:
            while marks := self.queue.marks(number):
                taken |= {mark.key: mark.end for mark in marks}
                self.queue.marks(number, marks, 0)
        return taken

    # -- looks -------------------------------------------------------------------------------------------------------

    def picture(self) -> dict[str, list[str]]:
        """Return the contents of all places in order; empty places are left out."""
        drawn: dict[str, list[str]] = {}
        for number in self.queue.numbers:
            for place, lines in self._draw(read_world(self.queue, number)).items():
                drawn.setdefault(place, []).extend(lines)
        return {place: lines for place, lines in drawn.items() if lines}

    def _draw(self, world: dict[str, Any]) -> dict[str, list[str]]:
        lives = world["lives"]

        def flags(ident: str) -> str:
            words = [word for flag, word in FLAGS.items() if lives[ident]["flags"] & flag]
            return "".join(f" {word}" for word in [*words, *(["quarantined"] if lives[ident]["quarantined"] else [])])

        def payloads(ident: str) -> str:
            def listed(which: str) -> str:
                return " ".join(payload.data.decode() for payload in lives[ident][which])

            return f"{ident}: " + " | ".join(filter(None, (listed("running"), listed("waiting"))))

        return {
            "waiting": [
                f"{i} {d - T0:+.0f}{flags(i)}" + (f" p{p}" if p not in (4, 8) else "") for p, i, d in world["waiting"]
            ],
            "reserved": [f"{i} by {lives[i]['worker']} until {d - T0:+.0f}{flags(i)}" for d, i in world["reserved"]],
            "gated": [f"{i} {live['gate'][0] - T0:+.0f}" for i, live in sorted(lives.items()) if live["gate"]],
            "payloads": [payloads(i) for i, live in sorted(lives.items()) if live["content"].merged],
            "failed": [f"{i} x{n}" for i, n, _ in world["failed"]],
            "morgue": [f"{i} {world['graves'][i, key]['outcome']}" for (i, key), _ in world["morgue"]],
        }

    def view(self, ident: str) -> JobView:
        found = self.broker.inspector.get(self.queue.name, ident)
        assert found is not None
        return found

    def counters(self) -> dict[str, int]:
        return self.broker.inspector.counts(self.queue.name).counters

    def wake_list(self) -> list[bytes]:
        found: list[bytes] = self.broker.client.lrange(f"{self.broker.prefix}:wake:{self.queue.name}", 0, -1)
        return found

    def shard_is_empty(self, number: int = 0) -> bool:
        """Return True if no key of any job is left."""
        return not [key for key in raw(self.broker) if f".{number}}}" in key]


def data_of(job: Job) -> list[bytes]:
    return [payload.data for payload in job.payloads]


def oldest_buried(stage: Stage, job: Job, **options: Any) -> bool:
    """Settle a job whose attempts are exhausted: bury its oldest payload."""
    exhausted = replace(bury(job, 1, 2, reason="exhausted", outcome=AttemptOutcome.EXHAUSTED), oldest=True, **options)
    return stage.settle(exhausted)[0]

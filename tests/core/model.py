"""Model of a queue: every verb in plain Python, without Redis, written from the semantics table of the design.

This is the specification that the real thing is compared with (``test_model.py``). Time is given to each verb in µs;
a due time is ``(ms, arrival)``, so that equal milliseconds stay in the order in which they were asked for.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import replace
from typing import Any
from zlib import crc32

from django_delayq.core import Job, Payload, Settlement

from .model_values import (
    POSTPONED,
    STARTED,
    STOPPING,
    UNCLEAR,
    UNRENEWED,
    Burial,
    Due,
    Grave,
    Item,
    Lease,
    Live,
    better,
    one_more,
)
from .model_waiting import WaitingJobs


class ModelShard(WaitingJobs):
    """Model of one shard. Every verb returns the same as that of the real shard."""

    # -- settle ------------------------------------------------------------------------------------------------------

    def settle(self, settlements: list[Settlement]) -> list[bool]:
        with self.marking():
            answers = [self._settle(settlement) for settlement in settlements]
        self.count("late", answers.count(False))
        return answers

    def _settle(self, s: Settlement) -> bool:
        if s.verb == "record":
            return self._record(s)
        live = self.lives.get(s.job.id)
        if live is None or live.lease is None or live.lease.token != s.job.token:
            return False
        if s.timed_out or s.outcome == "timeout":
            live.counts = one_more(live.counts, "timeouts")
        if s.verb == "ack":
            self.count("acked")
            self._end(s.job.id, live)
        elif s.verb == "ack_early":
            began = self.job(s.job.id, live, live.lease.worker)
            self.begun[s.job.token, s.job.id] = replace(began, deadline_ms=self.now_ms, error=live.error)
            self._end(s.job.id, live)
        elif live.flags & STOPPING:
            self.count("cancelled")
            self._end(s.job.id, live)
        elif s.verb == "expire":
            self.count("expired")
            self._end(s.job.id, live)
        elif s.verb == "bury":
            self._bury(s, live)
        elif live.gate and not live.content.merged:
            self.count("superseded")
            self._end(s.job.id, live)
        elif s.verb == "fail":
            self._fail(s, live)
        else:
            self.count("released")
            if s.priority is not None:
                live.content = replace(live.content, priority=s.priority)
            live.flags = live.flags | UNCLEAR if s.unclear else live.flags & ~UNCLEAR
            live.flags = live.flags | POSTPONED if s.postpone else live.flags & ~(POSTPONED if s.began else 0)
            self._wait_again(s, live, live.due if s.delay_ms is None else self.at(self.now_ms + s.delay_ms))
        return True

    def _record(self, s: Settlement) -> bool:
        """Record how an attempt ended whose job was acked when it began; only the first end counts."""
        is_open = self.begun.pop((s.job.token, s.job.id), None) is not None
        self.count("acked" if s.outcome == "succeeded" else s.outcome, by=is_open)
        return is_open or not s.once

    def expire_late(self, jobs: list[Job]) -> list[Job]:
        """End jobs that were handed out too late to be of use; return the others."""
        late = [job for job in jobs if self.now_us / 1000 > latest_start_ms(job)]
        if late:
            self.settle([Settlement(job, verb="expire", event=False) for job in late])
        return [job for job in jobs if job not in late]

    def _end(self, ident: str, live: Live) -> None:
        """Delete a finished job; the content gated behind it becomes a new job."""
        del self.lives[ident]
        if live.gate:
            due, content = live.gate
            self.lives[ident] = Live(content, due, waiting=live.waiting)

    def _fail(self, s: Settlement, live: Live) -> None:
        self.count(s.outcome)
        live.failures += 1
        live.crashes += s.outcome == "crashed"
        live.own_crashes += s.own_crash
        live.flags &= ~(UNCLEAR | POSTPONED)
        live.failed_at_ms, live.error = self.now_ms, s.error
        self._wait_again(s, live, self.at(self.now_ms + (s.delay_ms or 0)))
        live.failed_arrival = next(self.arrivals)

    def _bury(self, s: Settlement, live: Live) -> None:
        self.count("buried")
        live.failures += s.outcome != "undecodable"
        live.crashes += s.outcome == "poison"
        items = live.running
        content = live.content
        if s.oldest and items:
            data, oldest = min(items.items(), key=lambda item: item[1].order)
            items = {data: oldest}
            content = replace(content, key=oldest.payload.key)
            del live.running[data]
        self.put_in_morgue(s.job.id, replace(live, content=content), items, s)
        if s.oldest and live.running:
            self._try_rest(s, live)
        else:
            self._end(s.job.id, live)

    def put_in_morgue(self, ident: str, live: Live, items: dict[bytes, Item], why: Burial) -> None:
        """Make the record of a job, with some of its payloads."""
        released = max(0, live.reserves - live.failures - (why.outcome == "undecodable"))
        self.graves[ident, live.content.key] = Grave(
            live.content,
            int(live.due[0]),
            self.at(self.now_ms),
            live.failures,
            live.reserves,
            live.crashes,
            one_more(replace(live.counts, releases=live.counts.releases + released), "buries"),
            why.outcome,
            why.reason,
            why.error_class,
            why.error,
            tuple(sorted(items.values(), key=lambda item: item.order)),
        )

    def _try_rest(self, s: Settlement, live: Live) -> None:
        """Make the other payloads of the attempt a new generation, merged with the gated content and due now."""
        old = live.content.key
        key = bytes((old[0] & 0x7F,)) + old[1:7] + hashlib.sha1(old).digest()[7:16]
        self._unite(s, live)
        self.lives[s.job.id] = Live(replace(live.content, key=key), self.at(self.now_ms), waiting=live.waiting)

    @staticmethod
    def _unite(s: Settlement, live: Live) -> None:
        for data, item in live.running.items():
            twin = live.waiting.get(data)
            live.waiting[data] = better(item, twin, s.score_policy) if twin else item
        if live.gate:
            live.content = replace(live.content, priority=live.gate[1].priority)

    def _wait_again(self, s: Settlement, live: Live, due: Due) -> None:
        """Let the same content wait again, merged with the gated content, at the earlier due time of both."""
        self._unite(s, live)
        due = min(due, live.gate[0]) if live.gate and not s.inherit else due
        if live.flags & POSTPONED:
            before = live.postponed
            reason = s.reason if s.postpone or not before else before[0]
            since_ms = before[1] if before and before[0] == reason else self.now_ms
            live.postponed = reason, since_ms, live.due, due
        else:
            live.postponed = None
        live.due = due
        live.lease, live.gate, live.running = None, None, {}
        live.flags &= ~(STARTED | UNRENEWED)
        live.quarantined = s.quarantine

    # -- heartbeat ---------------------------------------------------------------------------------------------------

    def touch(self, job: Job, started: bool) -> str:
        live = self.lives.get(job.id)
        if live is None or live.lease is None or live.lease.token != job.token:
            return "lost"
        live.lease.deadline_ms = self.now_ms + self.lease_ms
        live.flags |= STARTED if started else 0
        return "stopping" if live.flags & STOPPING else "held"

    # -- dispatcher --------------------------------------------------------------------------------------------------

    def expired(self) -> list[str]:
        """Return the ids with expired leases, by deadline."""
        ran_out = [
            (live.lease.deadline_ms, i)
            for i, live in self.lives.items()
            if live.lease and live.lease.deadline_ms <= self.now_ms
        ]
        return [] if self.held_back else [ident for _, ident in sorted(ran_out)]

    def take_over(self, jobs: list[Job], worker: str) -> list[Job]:
        """Give jobs to another holder if these hold them, and their leases ran out."""
        ran_out = set(self.expired())
        lost = [job for job in jobs if job.id in ran_out and self._lease_of(job.id).token == job.token]
        if lost:
            self.token = max(self.token + 1, self.now_us)
        for job in lost:
            live = self.lives[job.id]
            live.lease = Lease(self.token, worker, self.now_ms + self.lease_ms)
            live.counts = one_more(live.counts, "timeouts")
        return [self.job(job.id, self.lives[job.id], job.worker) for job in lost]

    def _lease_of(self, ident: str) -> Lease:
        lease = self.lives[ident].lease
        assert lease
        return lease

    def tick(self, hold: bool) -> tuple[Any, ...]:
        if hold:
            self.hold_ms = self.now_ms + self.lease_ms
            self.held_back = True
        deadline = min((live.lease.deadline_ms for live in self.lives.values() if live.lease), default=None)
        return (
            self.now_us / 1000,
            self.handed_out_ms("others"),
            deadline,
            deadline is not None and deadline <= self.now_ms,
            self.held_back,
        )

    # -- the whole world ---------------------------------------------------------------------------------------------

    def world(self) -> dict[str, Any]:
        """Return the whole state, in the form in which ``world.py`` reads it back from Redis."""
        failed = sorted(
            ((live.failed_at_ms, live.failed_arrival), i) for i, live in self.lives.items() if live.failures
        )
        buried = sorted((grave.buried, name) for name, grave in self.graves.items())
        return {
            "waiting": [(place, ident, due[0]) for place, due, ident in self.all_waiting()],
            "reserved": sorted((live.lease.deadline_ms, i) for i, live in self.lives.items() if live.lease),
            "lives": {ident: self._seen(live) for ident, live in self.lives.items()},
            "failed": [(ident, self.lives[ident].failures, ms) for (ms, _), ident in failed],
            "morgue": [(name, due[0]) for due, name in buried],
            "graves": {name: self._seen_grave(grave) for name, grave in self.graves.items()},
            "marks": dict(self.marks),
            "counters": dict(self.counters),
            "token": self.token,
            "hold_ms": self.hold_ms,
        }

    @staticmethod
    def _seen(live: Live) -> dict[str, Any]:
        def ordered(items: dict[bytes, Item]) -> list[Payload]:
            return [item.payload for item in sorted(items.values(), key=lambda item: item.order)]

        return {
            "content": live.content,
            "failures": live.failures,
            "reserves": live.reserves,
            "crashes": live.crashes,
            "counts": live.counts,
            "own_crashes": live.own_crashes,
            "quarantined": live.quarantined,
            "flags": live.flags,
            "failed_at_ms": live.failed_at_ms,
            "error": live.error,
            "postponed": live.postponed[:2] if live.postponed else ("", 0),
            "token": live.lease.token if live.lease else 0,
            "worker": live.lease.worker if live.lease else "",
            "old_due_ms": live.due[0] if live.lease else 0,
            "gate": (live.gate[0][0], live.gate[1]) if live.gate else None,
            "waiting": ordered(live.waiting),
            "running": ordered(live.running),
        }

    @staticmethod
    def _seen_grave(grave: Grave) -> dict[str, Any]:
        return {
            "content": grave.content,
            "due_ms": grave.due_ms,
            "buried_ms": grave.buried[0],
            "failures": grave.failures,
            "reserves": grave.reserves,
            "crashes": grave.crashes,
            "counts": grave.counts,
            "outcome": grave.outcome,
            "reason": grave.reason,
            "error_class": grave.error_class,
            "error": grave.error,
            "payloads": [item.payload for item in grave.items],
        }


def latest_start_ms(job: Job) -> float:
    """Return the last moment at which a start of a job is of use."""
    options = json.loads(job.options_json or "{}")
    latest: float = min(options.get("expires_ms", math.inf), job.due_ms + options.get("expires_in_ms", math.inf))
    return latest


def shard_of(ident: str, shards: int) -> int:
    """Return the shard of an id, by Lowkiq's rule."""
    return crc32(ident.encode()) % shards

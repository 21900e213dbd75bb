"""Model of a queue: every verb in plain Python, without Redis, written from the semantics table of the design.

This is the specification that the real thing is compared with (``test_model.py``). Time is given to each verb in µs;
a due time is ``(ms, arrival)``, so that equal milliseconds stay in the order in which they were asked for.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from zlib import crc32

from django_delayq.core.job import (
    POSTPONED,
    PRIORITIES,
    STARTED,
    STOPPING,
    UNCLEAR,
    Job,
    NewJob,
    Payload,
    Settlement,
    is_durable,
)
from django_delayq.core.shards import Which

Due = tuple[float, float]


@dataclass(frozen=True)
class Content:
    """Content of one generation of an id."""

    key: bytes
    task: str
    merged: bool
    args: bytes
    options: bytes
    priority: int


@dataclass(frozen=True)
class Item:
    """Payload with the moment of its arrival."""

    payload: Payload
    arrival: int

    @property
    def order(self) -> tuple[float, int]:
        return float(self.payload.score), self.arrival


@dataclass
class Lease:
    token: int
    worker: str
    deadline_ms: int


@dataclass
class Live:
    """Live id. ``waiting`` are the payloads of the next attempt, ``running`` those of the present one."""

    content: Content
    due: Due
    failures: int = 0
    reserves: int = 0
    crashes: int = 0
    flags: int = 0
    failed_at_ms: int = 0
    failed_arrival: int = 0
    error: bytes = b""
    lease: Lease | None = None
    gate: tuple[Due, Content] | None = None
    waiting: dict[bytes, Item] = field(default_factory=dict)
    running: dict[bytes, Item] = field(default_factory=dict)
    own_crashes: int = 0
    quarantined: bool = False
    #: of a job whose run could not begin: the reason, since when (ms), the due time before, and the one that it got
    postponed: tuple[str, int, Due, Due] | None = None

    @property
    def waits_in(self) -> int:
        return PRIORITIES if self.quarantined else self.content.priority


@dataclass(frozen=True)
class Grave:
    content: Content
    due_ms: int
    buried: Due
    failures: int
    reserves: int
    crashes: int
    outcome: str
    reason: str
    error_class: str
    error: bytes
    items: tuple[Item, ...]


def better(old: Item, new: Item, policy: str) -> Item:
    """Return the one of two equal payloads to keep, with the durable key of the other if it has none itself."""
    a, b = float(old.payload.score), float(new.payload.score)
    wins = {"min": b < a, "max": b > a, "first": False, "last": True}[policy]
    stays, goes = (new, old) if wins else (old, new)
    inherits = is_durable(goes.payload.key) and not is_durable(stays.payload.key)
    return replace(stays, payload=replace(stays.payload, key=goes.payload.key)) if inherits else stays


def add(items: dict[bytes, Item], new: Item, policy: str = "min") -> None:
    old = items.get(new.payload.data)
    items[new.payload.data] = new if old is None else better(old, new, policy)


def admitted(items: dict[bytes, Item], new: Item, job: NewJob) -> dict[bytes, Item] | str:
    """Return the waiting payloads after one more arrived under the job's policies; or the outcome of a rejection."""
    united = dict(items)
    add(united, new, job.score_policy)
    if len(united) <= job.max_payloads:
        return united
    if job.payloads == "all":
        return united if new.payload.data in items else "full"
    ordered = sorted(united.values(), key=lambda item: item.order)
    kept = ordered[-job.max_payloads :] if job.payloads == "last" else ordered[: job.max_payloads]
    return {item.payload.data: item for item in kept} if united[new.payload.data] in kept else "ignored"


class ModelShard:
    """Model of one shard. Every verb returns the same as that of the real shard."""

    def __init__(self, queue: str, number: int, lease_ms: int) -> None:
        self.queue, self.number, self.lease_ms = queue, number, lease_ms
        self.lives: dict[str, Live] = {}
        self.graves: dict[tuple[str, bytes], Grave] = {}
        #: durable key -> how its generation ended
        self.marks: dict[bytes, str] = {}
        self.counters: dict[str, int] = {}
        self.clock_us = self.token = self.hold_ms = 0
        self.seen_before = (0, 0)
        self.arrivals = itertools.count(1)

    # -- time --------------------------------------------------------------------------------------------------------

    def see(self, us: int, *, keep: bool = True) -> int:
        """Set the time to that of the clock; return it in ms.

        The time stops while the clock is behind by less than a lease; a larger step back starts the reaper hold.
        """
        hold_ms = self.hold_ms
        self.seen_before = self.clock_us, self.hold_ms
        if self.clock_us - us > self.lease_ms * 1000:
            hold_ms = us // 1000 + self.lease_ms
        else:
            us = max(us, self.clock_us)
        if keep:
            self.clock_us, self.hold_ms = us, hold_ms
        self.now_us, self.now_ms, self.held_back = us, us // 1000, us // 1000 < hold_ms
        return self.now_ms

    def at(self, ms: float) -> Due:
        return ms, next(self.arrivals)

    def count(self, name: str, by: int = 1) -> None:
        if by:
            self.counters[name] = self.counters.get(name, 0) + by

    # -- marks -------------------------------------------------------------------------------------------------------

    def durable(self) -> dict[bytes, str]:
        """Return the place of every durable generation or payload: live or buried."""

        def found(place: str, content: Content, items: Iterable[Item]) -> Iterator[tuple[bytes, str]]:
            for key in [item.payload.key for item in items] if content.merged else [content.key]:
                if is_durable(key):
                    yield key, place

        places: dict[bytes, str] = {}
        for grave in self.graves.values():
            places.update(found("buried", grave.content, grave.items))
        for live in self.lives.values():
            places.update(found("live", live.content, (*live.waiting.values(), *live.running.values())))
            if live.gate and not live.content.merged:
                places.update(found("live", live.gate[1], ()))
        return places

    @contextmanager
    def marking(self) -> Iterator[dict[bytes, str]]:
        """Record the completions of the block: keys that are gone afterwards are done, moved ones get their new place.

        Keys that arrive during the block must be added to the yielded dictionary.
        """
        before = self.durable()
        yield before
        after = self.durable()
        for key, place in before.items():
            if after.get(key) != place:
                self.marks[key] = after.get(key, "done")

    def knows(self, key: bytes) -> bool:
        return key in self.marks or key in self.durable()

    def forget(self, key: bytes, end: str) -> None:
        if self.marks.get(key) == end:
            del self.marks[key]

    # -- schedule ----------------------------------------------------------------------------------------------------

    def schedule(self, news: list[NewJob], *, late: bool = False) -> list[str]:
        outcomes = ["late" if late else self._ask_for(new) for new in news]
        idle = outcomes.count("late") + outcomes.count("known")
        if idle == len(outcomes):
            self.clock_us, self.hold_ms = self.seen_before
        self.count("created", outcomes.count("created"))
        self.count("refused", outcomes.count("full"))
        self.count("changed", len(outcomes) - outcomes.count("created") - outcomes.count("full") - idle)
        return outcomes

    def _ask_for(self, new: NewJob) -> str:
        key = new.payload.key if new.payload else new.key
        if not is_durable(key):
            return self._schedule_marking(new, ())
        return "known" if self.knows(key) else self._schedule_marking(new, (key,))

    def _schedule_marking(self, new: NewJob, keys: Iterable[bytes]) -> str:
        with self.marking() as before:
            outcome = self._schedule(new)
            if outcome in ("created", "merged", "replaced", "gated"):
                before.update(dict.fromkeys(keys, "live"))
        return outcome

    def _schedule(self, new: NewJob) -> str:
        content = Content(new.key, new.task, new.payload is not None, new.args, new.options, new.priority)
        live = self.lives.get(new.id)
        if live is not None:
            if (live.content.task, live.content.merged) != (content.task, content.merged):
                return "taken"
            if new.on_conflict in ("ignore", "error"):
                return "ignored" if new.on_conflict == "ignore" else "exists"
        due = self.at(self.now_ms + (new.delay_ms or 0) if new.due_ms is None else new.due_ms)
        waiting: dict[bytes, Item] | str = {}
        if new.payload:
            before = live.waiting if live and new.on_conflict == "merge" else {}
            waiting = admitted(before, self._item(new.payload), new)
        if isinstance(waiting, str):
            return waiting
        if live is None:
            live = self.lives[new.id] = Live(content, due)
            outcome = "created"
        elif live.lease:
            outcome = self._gate(live, new, content, due)
        else:
            outcome = self._change_waiting(live, new, content, due)
        live.waiting = waiting
        return outcome

    def _item(self, payload: Payload) -> Item:
        scored = payload if payload.score else replace(payload, score=f"{self.now_us / 1e6:.6f}")
        return Item(scored, next(self.arrivals))

    def _gate(self, live: Live, new: NewJob, content: Content, due: Due) -> str:
        if live.gate:
            gated_due, gated = live.gate
            due = self._choose(new.due_policy, gated_due, due, None)
            if new.on_conflict == "merge":
                content = replace(gated, priority=content.priority)
        live.gate = due, content
        return "gated"

    def _change_waiting(self, live: Live, new: NewJob, content: Content, due: Due) -> str:
        live.due = self._choose(new.due_policy, live.due, due, live)
        if new.on_conflict == "merge":
            live.content = replace(live.content, priority=content.priority)
            return "merged"
        live.content = content
        if new.reset_retries:
            self._forget(live)
        return "replaced"

    @staticmethod
    def _choose(policy: str, current: Due, due: Due, live: Live | None) -> Due:
        if policy == "keep" and live and live.failures:
            soonest = (live.failed_at_ms + min(live.failures, 60) * 1000, 0)
            return max(min(current, due), min(current, soonest))
        return {
            "keep": current,
            "inherit": current,
            "replace": due,
            "earliest": min(current, due),
            "latest": max(current, due),
        }[policy]

    @staticmethod
    def _forget(live: Live) -> None:
        live.failures = live.reserves = live.crashes = live.own_crashes = live.flags = live.failed_at_ms = 0
        live.quarantined = False
        live.error, live.postponed = b"", None

    # -- reserve -----------------------------------------------------------------------------------------------------

    def waiting(self, which: Which = "all") -> list[tuple[int, Due, str]]:
        """Return the waiting ids in the order of their reservation: class, due, id."""
        found = sorted((live.waits_in, live.due, i) for i, live in self.lives.items() if not live.lease)
        return found if which == "all" else [one for one in found if (one[0] == PRIORITIES) == (which == "quarantined")]

    def next_due_ms(self, which: Which = "all") -> float | None:
        return min((due[0] for _, due, _ in self.waiting(which)), default=None)

    def reserve(self, limit: int, worker: str, which: Which = "all") -> tuple[list[Job], int]:
        """Reserve due jobs; return them and their token (0 if there are none)."""
        idents = [ident for _, due, ident in self.waiting(which) if due[0] <= self.now_ms][:limit]
        if not idents:
            return [], 0
        self.token = max(self.token + 1, self.now_us)
        for ident in idents:
            live = self.lives[ident]
            live.lease = Lease(self.token, worker, self.now_ms + self.lease_ms)
            live.reserves += 1
            live.flags &= ~STARTED
            if live.postponed and live.postponed[3] == live.due:
                live.due = live.postponed[2]
            live.running, live.waiting = live.waiting, {}
        self.count("reserved", len(idents))
        return self.handed_out(self.token, worker), self.token

    def handed_out(self, token: int, worker: str) -> list[Job]:
        """Return the jobs that a token still holds, as their holder sees them (unordered). Their leases start now."""
        held = {i: live for i, live in self.lives.items() if live.lease and live.lease.token == token}
        for live in held.values():
            assert live.lease
            live.lease.deadline_ms = self.now_ms + self.lease_ms
        return [self.job(i, live, worker) for i, live in held.items()]

    def job(self, ident: str, live: Live, worker: str) -> Job:
        c, lease = live.content, live.lease
        reason, since_ms = live.postponed[:2] if live.postponed else ("", 0)
        payloads = tuple(item.payload for item in sorted(live.running.values(), key=lambda item: item.order))
        return Job(
            self.queue,
            self.number,
            ident,
            c.task,
            c.key,
            c.args,
            c.options,
            c.priority,
            int(live.due[0]),
            lease.token if lease else 0,
            live.failures,
            live.reserves,
            live.crashes,
            live.flags,
            live.failed_at_ms,
            0,
            worker,
            b"",
            payloads,
            c.merged,
            live.own_crashes,
            live.quarantined,
            since_ms,
            reason,
        )

    # -- settle ------------------------------------------------------------------------------------------------------

    def settle(self, settlements: list[Settlement]) -> list[bool]:
        with self.marking():
            answers = [self._settle(settlement) for settlement in settlements]
        self.count("late", answers.count(False))
        return answers

    def _settle(self, s: Settlement) -> bool:
        if s.verb == "record":
            return s.guard != "expired"  # no run began early here, so none has an open end
        live = self.lives.get(s.job.id)
        if live is None or live.lease is None or live.lease.token != s.job.token:
            return False
        if s.guard == "expired" and (live.lease.deadline_ms > self.now_ms or self.held_back):
            return False
        if s.verb == "ack":
            self.count("acked")
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
            live.flags = live.flags | UNCLEAR if s.unclear else live.flags & ~UNCLEAR
            live.flags = live.flags | POSTPONED if s.postpone else live.flags & ~(POSTPONED if s.began else 0)
            self._wait_again(s, live, live.due if s.delay_ms is None else self.at(self.now_ms + s.delay_ms))
        return True

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
        items = sorted(live.running.values(), key=lambda item: item.order)
        content = live.content
        if s.oldest and items:
            items = items[:1]
            content = replace(content, key=items[0].payload.key)
            del live.running[items[0].payload.data]
        self.graves[s.job.id, content.key] = Grave(
            content,
            int(live.due[0]),
            self.at(self.now_ms),
            live.failures,
            live.reserves,
            live.crashes,
            s.outcome,
            s.reason,
            s.error_class,
            s.error,
            tuple(items),
        )
        if s.oldest and live.running:
            self._try_rest(s, live)
        else:
            self._end(s.job.id, live)

    def _try_rest(self, s: Settlement, live: Live) -> None:
        """Make the other payloads of the attempt a new generation, merged with the gated content and due now."""
        key = hashlib.sha1(live.content.key).digest()[:16]
        key = bytes((key[0] & 0x7F,)) + key[1:]
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
        live.flags &= ~STARTED
        live.quarantined = s.quarantine

    # -- what callers and operators ask for --------------------------------------------------------------------------

    def touch(self, job: Job, started: bool) -> str:
        live = self.lives.get(job.id)
        if live is None or live.lease is None or live.lease.token != job.token:
            return "lost"
        live.lease.deadline_ms = self.now_ms + self.lease_ms
        live.flags |= STARTED if started else 0
        return "stopping" if live.flags & STOPPING else "held"

    def cancel(self, ident: str, task: str) -> str:
        with self.marking():
            return self._cancel(ident, task)

    def _cancel(self, ident: str, task: str) -> str:
        live = self.lives.get(ident)
        if live is None:
            return ""
        if task and task != live.content.task:
            return "taken"
        if live.lease:
            live.flags |= STOPPING
            live.gate = None
            live.waiting.clear()
            return "stopping"
        del self.lives[ident]
        self.count("cancelled")
        return "cancelled"

    def reschedule(self, ident: str, task: str, due_ms: int | None, delay_ms: int | None) -> str:
        live = self.lives.get(ident)
        if live is None:
            return ""
        if task and task != live.content.task:
            return "taken"
        due = self.at(self.now_ms + (delay_ms or 0) if due_ms is None else due_ms)
        if not live.lease:
            live.due = due
        elif live.gate:
            live.gate = due, live.gate[1]
        else:
            return ""
        return "moved"

    def grave_of(self, ident: str, key: bytes) -> tuple[str, bytes] | None:
        mine = {name: grave.buried for name, grave in self.graves.items() if name[0] == ident and key in (b"", name[1])}
        return max(mine, key=mine.__getitem__, default=None)

    def kick(self, ident: str, key: bytes, delay_ms: int, replacing: bool) -> str:
        name = self.grave_of(ident, key)
        if name is None:
            return ""
        with self.marking():
            return self._kick(name, delay_ms, replacing)

    def _kick(self, name: tuple[str, bytes], delay_ms: int, replacing: bool) -> str:
        ident = name[0]
        grave, live = self.graves[name], self.lives.get(ident)
        content = grave.content
        if live and (
            (live.content.task, live.content.merged) != (content.task, content.merged)
            or not (content.merged or replacing)
        ):
            return "live"
        due = self.at(self.now_ms + delay_ms)
        if live is None:
            live = self.lives[ident] = Live(content, due)
        elif live.lease:
            if live.gate and content.merged:
                due, content = min(due, live.gate[0]), live.gate[1]
            live.gate = due, content
        else:
            live.due = min(due, live.due) if content.merged else due
            live.content = live.content if content.merged else content
            self._forget(live)
        for item in grave.items:
            add(live.waiting, item)
        del self.graves[name]
        self.count("kicked")
        return "kicked"

    def discard(self, ident: str, key: bytes) -> str:
        name = self.grave_of(ident, key)
        if name is None:
            return "0"
        with self.marking():
            del self.graves[name]
        self.count("discarded")
        return "1"

    # -- dispatcher --------------------------------------------------------------------------------------------------

    def expired(self) -> list[str]:
        """Return the ids with expired leases, by deadline."""
        ran_out = [
            (live.lease.deadline_ms, i)
            for i, live in self.lives.items()
            if live.lease and live.lease.deadline_ms <= self.now_ms
        ]
        return [] if self.held_back else [ident for _, ident in sorted(ran_out)]

    def tick(self, hold: bool) -> tuple[Any, ...]:
        if hold:
            self.hold_ms = self.now_ms + self.lease_ms
            self.held_back = True
        deadline = min((live.lease.deadline_ms for live in self.lives.values() if live.lease), default=None)
        return (
            self.now_us / 1000,
            self.next_due_ms("others"),
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
            "waiting": [(priority, ident, due[0]) for priority, due, ident in self.waiting()],
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
            "outcome": grave.outcome,
            "reason": grave.reason,
            "error_class": grave.error_class,
            "error": grave.error,
            "payloads": [item.payload for item in grave.items],
        }


def shard_of(ident: str, shards: int) -> int:
    """Return the shard of an id, by Lowkiq's rule."""
    return crc32(ident.encode()) % shards

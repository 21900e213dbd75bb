"""Model of a shard, first part: its clock, its marks, and the jobs that wait until they are reserved."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from django_delayq.core import Job, NewJob, Payload

from .model_rules import Pauses
from .model_values import (
    PRIORITIES,
    STARTED,
    UNRENEWED,
    Content,
    Due,
    Grave,
    Item,
    JobCounts,
    Lease,
    Limits,
    Live,
    Which,
    admitted,
    is_durable,
)

#: jobs and their token
Reserved = tuple[list[Job], int]
REFUSALS = frozenset({"taken", "exists", "full", "paused"})


class WaitingJobs:
    """Model of a shard with the verbs ``schedule`` and ``reserve``. Base of :class:`.model.ModelShard`."""

    def __init__(self, queue: str, number: int, lease_ms: int) -> None:
        self.queue, self.number, self.lease_ms = queue, number, lease_ms
        self.lives: dict[str, Live] = {}
        self.graves: dict[tuple[str, bytes], Grave] = {}
        #: durable key -> how its generation ended
        self.marks: dict[bytes, str] = {}
        #: token and id of attempts that began with an early ack, whose end is not recorded -> the job
        self.begun: dict[tuple[int, str], Job] = {}
        self.counters: dict[str, int] = {}
        self.pauses = Pauses()
        #: numbers of the tasks, as their names are sorted by Redis
        self.codes: dict[str, bytes] = {}
        #: how many more ids may live in the queue, of which this is one shard
        self.room = math.inf
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

    def forget_mark(self, key: bytes, end: str) -> None:
        if self.marks.get(key) == end:
            del self.marks[key]

    # -- schedule ----------------------------------------------------------------------------------------------------

    def schedule(self, news: list[NewJob], *, late: bool = False) -> list[str]:
        outcomes = ["late" if late else self._ask_for(new) for new in news]
        idle = outcomes.count("late") + outcomes.count("known")
        if idle == len(outcomes):
            self.clock_us, self.hold_ms = self.seen_before
        self.count("created", outcomes.count("created"))
        refused = outcomes.count("full") + outcomes.count("paused")
        self.count("refused", refused)
        self.count("changed", len(outcomes) - outcomes.count("created") - refused - idle)
        return outcomes

    def schedule_together(self, news: list[NewJob]) -> list[str]:
        """Store all jobs; or none if one is refused, or if the new ones do not fit into the queue together."""
        trial = copy.copy(self)
        trial.room, trial.lives = math.inf, copy.deepcopy(self.lives)
        trial.counters, trial.marks = {}, dict(self.marks)
        outcomes = trial.schedule(news)
        do_not_fit = 0 < outcomes.count("created") > self.room
        if not do_not_fit and not REFUSALS.intersection(outcomes):
            return self.schedule(news)
        self.count("refused", len(news))

        def answer(new: NewJob, outcome: str) -> str:
            if outcome in REFUSALS or (outcome == "ignored" and new.on_conflict == "ignore"):
                return outcome
            return "full" if do_not_fit and outcome == "created" else "withheld"

        return [answer(new, outcome) for new, outcome in zip(news, outcomes, strict=True)]

    def _ask_for(self, new: NewJob) -> str:
        key = new.payload.key if new.payload else new.key
        if is_durable(key) and self.knows(key):
            return "known"
        if self.pauses.refuses(self.now_ms):
            return "paused"
        return self._schedule_marking(new, (key,) if is_durable(key) else ())

    def _schedule_marking(self, new: NewJob, keys: Iterable[bytes]) -> str:
        with self.marking() as before:
            outcome = self._schedule(new)
            if outcome in ("created", "merged", "replaced", "gated"):
                before.update(dict.fromkeys(keys, "live"))
        return outcome

    def _schedule(self, new: NewJob) -> str:
        merged, laned = new.payload is not None, bool(new.group)
        content = Content(new.key, new.task, merged, new.args, new.options, new.priority, laned, new.group)
        live = self.lives.get(new.id)
        if live is not None:
            if (live.content.task, live.content.merged) != (content.task, content.merged):
                return "taken"
            if new.on_conflict in ("ignore", "error"):
                return "ignored" if new.on_conflict == "ignore" else "exists"
        elif self.room <= 0:
            return "full"
        due = self.at(self.now_ms + (new.delay_ms or 0) if new.due_ms is None else new.due_ms)
        waiting: dict[bytes, Item] | str = {}
        if new.payload:
            before = live.waiting if live and new.on_conflict == "merge" else {}
            waiting = admitted(before, self._item(new.payload), new)
        if isinstance(waiting, str):
            return waiting
        if live is None:
            live = self.lives[new.id] = Live(content, due)
            self.room -= 1
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
            self.forget_failures(live)
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
    def forget_failures(live: Live) -> None:
        live.counts = JobCounts()
        live.failures = live.reserves = live.crashes = live.own_crashes = live.flags = live.failed_at_ms = 0
        live.quarantined = False
        live.error, live.postponed = b"", None

    # -- reserve -----------------------------------------------------------------------------------------------------

    def waiting(self, which: Which = "all") -> list[tuple[int, Due, str]]:
        """Return the waiting ids in the order of their reservation: class, due, id."""
        found = sorted((live.own_class, live.due, i) for i, live in self.lives.items() if not live.lease)
        return found if which == "all" else [one for one in found if (one[0] == PRIORITIES) == (which == "quarantined")]

    def all_waiting(self) -> list[tuple[int, Due, str]]:
        """Return them by the sets in which they wait: those in lanes come last."""
        return sorted((live.waits_in, live.due, i) for i, live in self.lives.items() if not live.lease)

    def lanes(self) -> dict[tuple[str, int], list[str]]:
        """Return the waiting ids of each lane, by task and class."""
        found: dict[tuple[str, int], list[str]] = {}
        for own_class, _, ident in self.waiting():
            content = self.lives[ident].content
            if content.laned:
                found.setdefault((content.task, own_class), []).append(ident)
        return found

    def set_laned(self, idents: Iterable[str], is_laned: bool) -> None:
        for ident in idents:
            self.lives[ident].content = replace(self.lives[ident].content, laned=is_laned)

    def next_due_ms(self, which: Which = "all", *, laned: bool | None = None) -> float | None:
        """Return when the next job is due; ``laned``: of those in lanes, or of the others."""
        wanted = [one for one in self.waiting(which) if laned in (None, self.lives[one[2]].content.laned)]
        return min((due[0] for _, due, _ in wanted), default=None)

    def handed_out_ms(self, which: Which = "all") -> float | None:
        """Return when the next job may be handed out; None: no job waits, or the queue is paused without an end."""
        return self.pauses.handed_out_ms(self.next_due_ms(which), self.now_ms)

    def _due(self, limit: int, which: Which, limits: Limits | None, granted: list[str]) -> list[str]:
        """Return the due jobs that are handed out.

        Those of limited tasks that are met before join their lanes. A caller without limits gets those in lanes, behind
        the others of their class. Granted jobs are handed out beside so many others.
        """
        idents, limit = list(granted), limit + len(granted)
        due = [one for one in self.waiting(which) if one[1][0] <= self.now_ms]
        for own_class in sorted({own_class for own_class, _, _ in due}):
            for ident in [ident for cls, _, ident in due if cls == own_class]:
                content = self.lives[ident].content
                if len(idents) >= limit:
                    break
                if limits and content.task in limits.limited:
                    self.set_laned([ident], True)
                elif not content.laned:
                    idents.append(ident)
            while limits is None and (shares := self._shares(own_class, limit - len(idents), idents)):
                idents += shares
        return idents

    def _shares(self, own_class: int, room: int, taken: list[str]) -> list[str]:
        """Return due jobs in lanes of a class: as many of each lane as of the others."""
        found: list[str] = []
        lanes = {
            task: [one for one in idents if one not in taken and self.lives[one].due[0] <= self.now_ms]
            for (task, cls), idents in self.lanes().items()
            if cls == own_class
        }
        due = sorted((self.lives[idents[0]].due[0], self.codes[task], task) for task, idents in lanes.items() if idents)
        lots = min(len(due), room)
        for number, (_, _, task) in enumerate(due[:room]):
            share = lanes[task][: math.ceil(room / max(1, lots - number))]
            found += share
            room -= len(share)
        return found

    def reserve(self, limit: int, worker: str, which: Which = "all", limits: Limits | None = None) -> Reserved:
        """Reserve due jobs; return them and their token (0 if nothing is due).

        Args:
            limits: what the caller says of them; None = it knows none.
        """
        if self.pauses.holds_back(self.now_ms):
            return [], 0
        granted: list[str] = []
        if limits and limits.granted:
            lane = self.lanes().get(limits.lane, [])
            granted = [ident for ident in lane if self.lives[ident].due[0] <= self.now_ms][: limits.granted]
        first = self.next_due_ms(which, laned=False if limits else None)  # a caller with limits passes lanes over
        if (limits and limits.granted) or (limit and first is not None and first <= self.now_ms):
            return self.lease(self._due(limit, which, limits, granted), worker), self.token
        return [], 0

    def reserve_one(
        self, ident: str, worker: str, *, early: bool, started: bool = False, ttr_ms: int | None = None
    ) -> tuple[list[Job], int]:
        """Reserve the job of an id if it waits and is due, whatever its limits.

        Args:
            early: also before it is due.
            started, ttr_ms: of a holder without a heartbeat: it has begun, and has the job for so long.
        """
        live = self.lives.get(ident)
        if live is None or live.lease:
            return [], 0
        if self.pauses.holds_back(self.now_ms) or not (early or live.due[0] <= self.now_ms):
            return [], 0
        return self.lease([ident], worker, started=started, ttr_ms=ttr_ms), self.token

    def lease(self, idents: list[str], worker: str, *, started: bool = False, ttr_ms: int | None = None) -> list[Job]:
        """Lease jobs under a new token, and return them as their holder sees them."""
        self.token = max(self.token + 1, self.now_us)
        for ident in idents:
            live = self.lives[ident]
            live.lease = Lease(self.token, worker, self.now_ms + self.lease_ms)
            live.reserves += 1
            live.flags = live.flags & ~(STARTED | UNRENEWED) | (STARTED | UNRENEWED if started else 0)
            if live.postponed and live.postponed[3] == live.due:
                live.due = live.postponed[2]
            live.running, live.waiting = live.waiting, {}
        self.count("reserved", len(idents))
        return self.handed_out(self.token, worker, ttr_ms)

    def handed_out(self, token: int, worker: str, ttr_ms: int | None = None) -> list[Job]:
        """Return the jobs that a token still holds, as their holder sees them (unordered). Their leases start now."""
        held = {i: live for i, live in self.lives.items() if live.lease and live.lease.token == token}
        for live in held.values():
            assert live.lease
            live.lease.deadline_ms = self.now_ms + (ttr_ms or self.lease_ms)
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
            live.counts,
            group=c.group,
        )

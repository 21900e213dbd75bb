"""Stage of limits: callers that reserve, ask and return permits step by step, and a count of what limits allow.

The count has only the numbers of the limits and what was granted, and none of the limiter's own records.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from django_delayq.core import Job, Queue
from django_delayq.core.options import Limits
from tests.support.core_figures import Limiter, highest_level
from tests.support.core_stored import Answer, Ask, Grant, LaneNotes, Offer, Place, Unused

#: us after which a shard asks again, if nobody wakes it
RETRY_US = 5_000_000


class LimitBook:
    """Count of starts, pauses and refunds of each limit, and what its numbers allow now."""

    def __init__(self, limiter: Limiter, now_us: Callable[[], int]) -> None:
        self.limiter = limiter
        self._now_us = now_us
        #: of each limit, its numbers from a moment on
        self.history: dict[str, list[tuple[int, Limits]]] = {}
        #: of each limit, its starts: permit -> when it was granted; used = a job was handed out
        self._granted: dict[str, dict[bytes, int]] = {}
        self._used: dict[str, list[int]] = {}
        #: when the starts of a limit would be over, if none was given back, us
        self._ahead: dict[str, float] = {}
        #: of each limit, when the last starts were granted, us
        self._last: dict[str, float] = {}
        self._paused: dict[str, int] = {}
        #: until then permits may be lost, or a call to those that wait, us
        self.lossy_us = 0

    def numbers(self, name: str) -> Limits:
        return self.history[name][-1][1]

    def set(self, name: str, numbers: Limits) -> None:
        """Set the numbers of a limit from now on; its rate begins anew."""
        self.history.setdefault(name, []).append((self._now_us(), numbers))
        self._granted[name], self._used[name] = {}, []
        self._ahead.pop(name, None)

    def pause(self, name: str, ms: int) -> None:
        self._paused[name] = max(self._paused.get(name, 0), self._now_us() + ms * 1000)

    def lose(self, us: int) -> None:
        """Note that permits, or a call to those that wait, may be lost for so long."""
        self.lossy_us = max(self.lossy_us, self._now_us() + us)

    def give_back(self, unused: Iterable[Unused]) -> None:
        for grant, permits in unused:
            for name in grant.limits:
                known = [permit for permit in permits if self._granted.get(name, {}).pop(permit, None)]
                interval = self.numbers(name).interval_us
                if known and interval:  # what is given back is less by the time to the last start
                    self._ahead[name] -= max(0, len(known) * interval - (self._last[name] - grant.at_us))

    def call(self, asks: list[Ask], **said: Any) -> Answer:
        """Call the limiter and count what it grants."""
        answer, now_us = self.limiter.call(asks, **said), self._now_us()
        assert answer.at_us == now_us
        for grant in filter(None, answer.grants):
            for name in grant.limits:
                assert self._paused.get(name, 0) <= now_us, f"{name} is paused, and grants"
                self._granted.setdefault(name, {}).update(dict.fromkeys(grant.permits, now_us))
                if interval := self.numbers(name).interval_us:
                    self._last[name] = now_us
                    self._ahead[name] = max(now_us, self._ahead.get(name, 0)) + grant.jobs * interval
        return answer

    def start(self, job: Job, grant: Grant | None) -> int:
        """Count the start of a job that is handed out; return when it was granted, us."""
        moments = {name: self._granted.get(name, {}).get(job.permit) for name in (grant.limits if grant else ())}
        for name, at_us in moments.items():
            if at_us is not None:  # else the limit was set since
                self._used.setdefault(name, []).append(at_us)
                self._check_rate(name)
        return min(filter(None, moments.values()), default=self._now_us())

    def _check_rate(self, name: str) -> None:
        """Assert that the burst, and one start for each interval, were never exceeded in any window."""
        rate = self.numbers(name)
        if not rate.interval_us:
            return
        level = highest_level(self._used[name], rate.interval_us)
        assert level <= rate.burst + 1e-4, f"too many starts of {name}: {sorted(self._used[name])}"

    def forbids(self, name: str, leases: int) -> bool:
        """Return True if a limit with so many leases allows no further start now."""
        limit, now_us = self.numbers(name), self._now_us()
        if self._paused.get(name, 0) > now_us or (limit.total and leases >= limit.total):
            return True
        ahead = self._ahead.get(name, 0) - now_us
        return bool(limit.interval_us) and ahead > (limit.burst - 1) * (limit.interval_us or 0)

    def check_leases(self, name: str, granted_us: list[int]) -> None:
        """Assert that the limit has allowed so many leases at some moment since the first of them was granted."""
        if granted_us:
            entries = self.history[name]
            ends = [at_us for at_us, _ in entries[1:]] + [math.inf]
            since = [one for (_, one), end_us in zip(entries, ends, strict=True) if end_us >= min(granted_us)]
            most = max(one.total or math.inf for one in since)
            assert len(granted_us) <= most, f"{len(granted_us)} leases of {name}, which allows {most}"


@dataclass(eq=False)
class Caller:
    """Process that reserves: what it knows and has not said yet."""

    name: str
    notes: dict[Place, LaneNotes] = field(default_factory=dict)
    offers: list[tuple[Place, Offer]] = field(default_factory=list)
    ended: list[bytes] = field(default_factory=list)
    unused: list[Unused] = field(default_factory=list)
    idle: list[str] = field(default_factory=list)

    def reserve(
        self, queue: Queue, number: int, room: int, *, tasks: list[str], whole: bool
    ) -> list[tuple[Job, Grant | None]]:
        """Tell a shard the limiter's answer, and take what it hands out and offers; return each job with its grant."""
        place = queue.name, number
        notes = self.notes.pop(place, None) or LaneNotes()
        if not room:
            self.unused += [grant.unused() for grant in notes.grants]
            notes.grants = []
        notes.tasks, notes.whole, notes.most = tasks, whole, max(room, 1)
        batch = queue.reserve(number, room, worker=self.name, lanes=notes.pack())
        granted = {permit: grant for grant in notes.grants for permit in grant.permits}
        used = {job.permit for job in batch.jobs}
        self.unused += [unused for grant in notes.grants if (unused := grant.unused(used))[1]]
        self.idle += [block.limit for block in notes.blocks if not block.ms and block.scope in batch.idle]
        self.offers += [(place, offer) for offer in batch.offers]
        return [(job, granted.get(job.permit)) for job in batch.jobs]

    def exchange(
        self, book: LimitBook, limits_of: Callable[[str, Offer], dict[str, Any]], *, twice: bool = False
    ) -> None:
        """Ask for permits and return others. ``twice``: the reply is lost, and the call is sent again."""
        asks = {}
        for place, offer in self.offers:
            limits = limits_of(place[0], offer)
            if limits:
                asks[Ask.of(place, offer, offer.jobs, limits)] = place
            else:
                self._note(place).grants.append(Grant(offer, offer.jobs))
        book.give_back(self.unused)
        said: dict[str, Any] = {"release": self.ended, "unused": self.unused, "pass_on": self.idle}
        answer = book.call(list(asks), **said)
        if twice and asks:
            assert book.limiter.call(list(asks), **said) == answer
        elif twice:
            book.lose(RETRY_US)  # the first reply named those to wake
            answer = book.call([], **said)
        self.offers, self.ended, self.unused, self.idle = [], [], [], []
        for place, grant, block in zip(asks.values(), answer.grants, answer.blocks, strict=True):
            if grant is not None:
                self._note(place).grants.append(grant)
            if block is not None:
                self._note(place).blocks.append(block)
        book.limiter.free(answer)

    def _note(self, place: Place) -> LaneNotes:
        return self.notes.setdefault(place, LaneNotes())

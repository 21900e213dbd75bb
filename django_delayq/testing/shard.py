"""One shard in memory: its records and its indexes. The verbs that change them are in the modules beside this one."""

from __future__ import annotations

import heapq
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from ..core.job import PRIORITIES, STARTED, UNRENEWED, Job, is_durable
from ..core.records.layout import CLOSING, PAUSED_OUT, WEIGHTED
from ..core.settled import End
from ..core.shards import Which
from .payloads import TAKE_BYTES, ordered, take
from .state import CLASSES, PER_MS, Content, Due, Grave, Item, Lease, Live, Rules, ms_of

if TYPE_CHECKING:
    from .times import Clock

#: the classes of the jobs that a reserve hands out
SERVED: Final[dict[Which, Sequence[int]]] = {
    "all": range(CLASSES),
    "others": range(PRIORITIES),
    "quarantined": (PRIORITIES,),
}

GraveName = tuple[str, bytes]


class Shard:
    """The records of one shard. Its caller holds the broker's lock."""

    def __init__(self, queue: str, number: int, lease_ms: int, clock: Clock, arrivals: Iterator[int]) -> None:
        self.queue = queue
        self.number = number
        self.lease_ms = lease_ms
        self.lives: dict[str, Live] = {}
        #: ids of the reserved ones among them
        self.held: set[str] = set()
        self.graves: dict[GraveName, Grave] = {}
        self.counters: Counter[str] = Counter()
        self.rules = Rules()
        self.token = 0
        #: until then nothing is taken from its holder
        self.hold_ms = 0
        #: id -> its last tick; id -> since when which schedule is known
        self.ticks: dict[str, int] = {}
        self.sights: dict[str, tuple[str, int]] = {}
        #: (token, id) of jobs that were acked before their runs began, and whose end is not stored yet
        self.begun: set[tuple[int, str]] = set()
        #: durable key -> how its generation ended (done, buried, live), and a stamp
        self.settled: dict[bytes, tuple[End, int]] = {}
        self.born = os.urandom(16)
        self._has_durable = False
        self._clock = clock
        self._arrivals = arrivals
        self._heads: list[list[tuple[int, str]]] = [[] for _ in range(CLASSES)]

    # -- time and places ---------------------------------------------------------------------------------------------

    @property
    def now_us(self) -> int:
        """The broker's clock."""
        return self._clock.us

    @property
    def now_ms(self) -> int:
        """The broker's clock."""
        return self._clock.us // 1000

    def place(self, ms: int) -> int:
        """The last place of a millisecond, as far as it is taken."""
        return ms * PER_MS + next(self._arrivals) % PER_MS

    def due(self, ms: int) -> Due:
        """Content is due then, from now on."""
        return Due(self.place(ms), self.now_ms)

    def count(self, name: str, by: int = 1) -> None:
        """One more of them."""
        if by:
            self.counters[name] += by

    def arrival(self) -> int:
        """Later than all before."""
        return next(self._arrivals)

    # -- waiting jobs ------------------------------------------------------------------------------------------------

    def wait(self, ident: str, live: Live) -> None:
        """The job waits: call it whenever its due time or priority changed, or it was given back."""
        self.lives[ident] = live
        self.held.discard(ident)
        heapq.heappush(self._heads[live.waits_in], (live.due.place, ident))

    def drop(self, ident: str) -> None:
        """Nothing lives under the id any more."""
        del self.lives[ident]
        self.held.discard(ident)

    def first(self, class_: int) -> tuple[int, str] | None:
        """Place and id of the first waiting job of a class."""
        heap = self._heads[class_]
        while heap:
            place, ident = heap[0]
            live = self.lives.get(ident)
            if live is not None and live.lease is None and live.due.place == place and live.waits_in == class_:
                return heap[0]
            heapq.heappop(heap)  # what was pushed before something changed
        return None

    def head(self, classes: Sequence[int] = range(CLASSES)) -> int | None:
        """The place of the job that is due first, of all or of some classes."""
        places = [first[0] for class_ in classes if (first := self.first(class_))]
        return min(places, default=None)

    def next_due_ms(self, which: Which = "all") -> int | None:
        """When the next job is due."""
        head = self.head(SERVED[which])
        return None if head is None else ms_of(head)

    def waiting(self, class_: int | None = None) -> list[tuple[int, str]]:
        """Places and ids of waiting jobs, in order; of one class, or of all."""
        return sorted(
            (live.due.place, ident)
            for ident, live in self.lives.items()
            if live.lease is None and class_ in (None, live.waits_in)
        )

    # -- reserve -----------------------------------------------------------------------------------------------------

    def reserve(
        self, limit: int, worker: str, ttr_ms: int | None = None, *, started: bool = False, which: Which = "all"
    ) -> list[Job]:
        """The due jobs that are handed out now, the most urgent class first."""
        if self.rules.flags & PAUSED_OUT or limit <= 0 or (self.next_due_ms(which) or PER_MS**3) > self.now_ms:
            return []
        token = self._new_token()
        jobs: list[Job] = []
        room = TAKE_BYTES
        for class_ in self._order_of_classes(token, SERVED[which]):
            while len(jobs) < limit and (first := self.first(class_)) and ms_of(first[0]) <= self.now_ms:
                job, size = self._hand_out(first[1], token, worker, ttr_ms, started, room)
                jobs.append(job)
                room -= size
        self.count("reserved", len(jobs))
        return jobs

    def reserve_one(
        self, ident: str, worker: str, ttr_ms: int | None = None, *, started: bool = False, early: bool = False
    ) -> list[Job]:
        """The job of an id, if it waits here and is due (or wanted early)."""
        live = self.lives.get(ident)
        if live is None or live.lease is not None or self.rules.flags & PAUSED_OUT:
            return []
        if not early and live.due.ms > self.now_ms:
            return []
        self.count("reserved")
        return [self._hand_out(ident, self._new_token(), worker, ttr_ms, started, TAKE_BYTES)[0]]

    def _new_token(self) -> int:
        self.token = max(self.token + 1, self.now_us)
        return self.token

    def _order_of_classes(self, token: int, classes: Sequence[int]) -> list[int]:
        order = [class_ for class_ in classes if self.first(class_)]
        if self.rules.flags & WEIGHTED and len(order) > 1:
            lot = (token % 65536 * 40503) % 65536 / 65536 * (2 ** len(order) - 1)
            for place in range(len(order)):
                lot -= 2 ** (len(order) - 1 - place)
                if lot < 0 or place == len(order) - 1:
                    order.insert(0, order.pop(place))
                    break
        return order

    def _hand_out(
        self, ident: str, token: int, worker: str, ttr_ms: int | None, started: bool, room: int
    ) -> tuple[Job, int]:
        live, size = self.lives[ident], 0
        self.held.add(ident)
        live.lease = Lease(token, worker, self.now_ms + (self.lease_ms if ttr_ms is None else ttr_ms))
        live.reserves = min(live.reserves + 1, 65535)
        at_once = STARTED | UNRENEWED
        live.flags = live.flags | at_once if started else live.flags & ~at_once
        if live.postponed is not None and live.postponed.to.place == live.due.place:
            live.due = live.postponed.due
        if live.content.merged:
            live.running, size = take(live.waiting, room)
            live.left = bool(live.waiting)
        job = self.job(ident, live)
        job.payloads = tuple(item.payload for item in live.running.values())
        job.error = b""
        job.deadline_ms = 0
        return job, size

    def job(self, ident: str, live: Live) -> Job:
        """A live job as its holder sees it, but for its payloads."""
        c, lease = live.content, live.lease
        job = Job(
            self.queue,
            self.number,
            ident,
            c.task,
            c.key,
            c.args,
            c.options,
            c.priority,
            live.due.ms,
            lease.token if lease else 0,
            live.failures,
            live.reserves,
            live.crashes,
            live.flags,
            ms_of(live.failed_at),
            lease.deadline_ms if lease else 0,
            lease.worker if lease else "",
            live.error,
            (),
            c.merged,
            live.own_crashes,
            live.quarantined,
        )
        if live.postponed is not None:
            job.postponed_for, job.postponed_at_ms = live.postponed.reason, live.postponed.since_ms
        return job

    def leases(self, *, only_expired: bool = False) -> list[Job]:
        """The reserved jobs, by the end of their leases; none has run out during a reaper hold."""
        if only_expired and self.now_ms < self.hold_ms:
            return []
        found = [self.job(ident, self.lives[ident]) for ident in self.held]
        if only_expired:
            found = [job for job in found if job.deadline_ms <= self.now_ms]
        return sorted(found, key=lambda job: (job.deadline_ms, job.id))

    @property
    def closing(self) -> bool:
        """Whether it takes no new ids."""
        return bool(self.rules.flags & CLOSING)

    # -- the morgue --------------------------------------------------------------------------------------------------

    def find_grave(self, ident: str, key: bytes) -> GraveName | None:
        """The named generation, or the one of the id that was buried last."""
        mine = [name for name in self.graves if name[0] == ident and key in (b"", name[1])]
        return max(mine, key=lambda name: self.graves[name].buried, default=None)

    def dig(self, ident: str, grave: Grave) -> None:
        """One more record; the oldest ones go, if these are too many or too old for the rules."""
        self.graves[ident, grave.content.key] = grave
        self.trim_graves(2)

    def trim_graves(self, most: int) -> None:
        """Drops the oldest records, as far as the rules say so."""
        rules, trimmed = self.rules, 0
        excess = len(self.graves) - rules.morgue_max if rules.morgue_max else 0
        if excess <= 0 and not rules.morgue_ttl_ms:
            return
        for name, grave in sorted(self.graves.items(), key=lambda entry: entry[1].buried)[:most]:
            is_old = rules.morgue_ttl_ms > 0 and ms_of(grave.buried) <= self.now_ms - rules.morgue_ttl_ms
            if trimmed >= excess and not is_old:
                break
            del self.graves[name]
            trimmed += 1
            for key in _keys_of(grave.content, grave.items):
                self._mark(key, "done")
        self.count("trimmed", trimmed)

    # -- durable jobs ------------------------------------------------------------------------------------------------

    @contextmanager
    def marking(self, idents: Sequence[str], put: Iterable[bytes] = ()) -> Iterator[None]:
        """Around a verb: marks how the durable generations of these ids end in it.

        Args:
            put: keys that come in; one that is not here afterwards was absorbed by an equal payload.
        """
        put = [key for key in put if is_durable(key)]
        if put:
            self._has_durable = True
        if not self._has_durable:
            yield
            return
        before = self._whereabouts(idents)
        yield
        after = self._whereabouts(idents)
        for key in (*before, *put):
            now = after.get(key)
            if now is None:
                self._mark(key, "done")
            elif now != before.get(key, now):
                self._mark(key, now)

    def knows(self, ident: str, key: bytes) -> bool:
        """Whether a durable generation, or payload, is here, or ended and its mark was not taken yet."""
        return key in self.settled or key in self._whereabouts([ident])

    def _whereabouts(self, idents: Sequence[str]) -> dict[bytes, End]:
        """Durable key -> live or buried."""
        found: dict[bytes, End] = {}
        wanted = set(idents)
        for (ident, _), grave in self.graves.items():
            if ident in wanted:
                found.update((key, "buried") for key in _keys_of(grave.content, grave.items))
        for ident in wanted:
            live = self.lives.get(ident)
            if live is not None:
                items = (*live.running.values(), *live.waiting.values())
                found.update((key, "live") for key in _keys_of(live.content, items))
                if live.gate is not None and not live.gate.content.merged:
                    found.update((key, "live") for key in _keys_of(live.gate.content, ()))
        return found

    def _mark(self, key: bytes, end: End) -> None:
        if is_durable(key):
            self.settled[key] = end, self.place(self.now_ms) // 1000


def _keys_of(content: Content, items: Iterable[Item]) -> list[bytes]:
    keys = [item.payload.key for item in items] if content.merged else [content.key]
    return [key for key in keys if is_durable(key)]


def in_order(items: Iterable[Item]) -> tuple[Item, ...]:
    """A tuple of payloads in their order."""
    return tuple(ordered(items))

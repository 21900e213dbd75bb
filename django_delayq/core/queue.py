"""The hot path: one method for each verb that moves jobs.

The delivery promise is kept here and in the scripts: at least once under the durability of the Redis in use; never
before its due time on Redis's clock; at most one live lease per id; a holder that lost its lease changes nothing,
because every settling verb checks the fencing token first. Every call carries a fresh request id, so that the client
library may send it again after a lost reply: the second time it gets the first reply and changes nothing.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar
from zlib import crc32

from . import layout as layouts
from . import rehome, rules
from .chunks import CHUNK as CHUNK
from .chunks import MOVED, ChunkSender
from .epochs import Patience
from .errors import DelayQError, IdTaken, InvalidJob, QueueFull, QueuePaused
from .frames import BrokenJob, bad_id, pack_new, pack_settlement, pack_touch, unpack_batch, unpack_leases
from .job import MAX_ID_BYTES, Job, NewJob, Settlement, bury, expire
from .keys import MAX_SHARDS, Shard, number_of
from .layout import Layout
from .scripts import clear_errors

if TYPE_CHECKING:
    from .broker import Broker

_OUTCOMES: Final = {"c": "created", "m": "merged", "r": "replaced", "i": "ignored", "g": "gated", "e": "exists",
                    "t": "taken", "f": "full", "p": "paused", "v": "moved", "d": "fired"}  # fmt: skip
T = TypeVar("T")
_TOUCHED: Final = {"h": "held", "s": "stopping", "l": "lost"}
MOVED_REPLY: Final = MOVED.encode()
_TICK: Final = struct.Struct("<dddBB")


@dataclass(slots=True)
class Batch:
    """What a reserve handed out. ``next_due_ms`` is the time until the shard's next due job: None = nothing waits.

    ``expired`` counts jobs that were taken out because they came too late to be of use.
    """

    jobs: list[Job] = field(default_factory=list)
    broken: list[BrokenJob] = field(default_factory=list)
    next_due_ms: float | None = None
    now_ms: float = 0
    expired: int = 0

    @property
    def taken(self) -> int:
        """How many jobs left the shard's due set, handed out or not."""
        return len(self.jobs) + len(self.broken) + self.expired


@dataclass(frozen=True, slots=True)
class Tick:
    """A dispatcher's look at a shard, all in Redis time (ms)."""

    now_ms: float
    next_due_ms: float | None
    next_deadline_ms: float | None
    expired: bool
    held_back: bool


def _request() -> bytes:
    return os.urandom(16)


def _check_id(ident: str) -> None:
    encoded = ident.encode()
    if not 0 < len(encoded) <= MAX_ID_BYTES or b"\0" in encoded:
        raise bad_id(encoded)


class Queue:
    """A named stream of jobs. Get one from :meth:`Broker.queue`; all methods may be called from any thread.

    Every method raises :class:`QueueUnavailable` when Redis cannot be reached or refuses to work for now.
    """

    def __init__(self, broker: Broker, name: str, layout: Layout) -> None:
        self.broker = broker
        self.name = name
        self._shards: dict[int, Shard] = {}
        self.install(layout)

    def __repr__(self) -> str:
        return f"<Queue {self.name!r}, shards={self.shards}>"

    def install(self, layout: Layout) -> None:
        """Takes over what the registry says of the queue now."""
        epochs = layouts.epochs_of(layout)
        numbers = tuple(number_of(epoch, place) for epoch, shards in epochs for place in range(shards))
        # What somebody still holds a number of stays known.
        self._shards = {**self._shards, **{number: self.broker.shard(self.name, number) for number in numbers
                                           if number not in self._shards}}  # fmt: skip
        self.layout = layout
        self.kind: str = layout["kind"]
        #: numbers of all shards that may hold something, those of older epochs first; none of a deleted queue
        self.numbers = numbers
        #: (epoch, shards) of these
        self.epochs = epochs

    @property
    def shards(self) -> int:
        """Number of shards of the present epoch."""
        return int(self.layout["shards"])

    @property
    def deleted(self) -> bool:
        """Whether the queue was deleted, as far as is known here."""
        return layouts.is_deleted(self.layout)

    def shard_of(self, ident: str) -> int:
        """Number of the shard in which new jobs of this id lie."""
        layout = self.layout
        return number_of(layout["epoch"], crc32(ident.encode()) % layout["shards"])

    def shard(self, number: int) -> Shard:
        """Keys and constants of a shard, whatever its epoch."""
        known = self._shards.get(number)
        return known if known is not None else self.broker.shard(self.name, number)

    # -- schedule ----------------------------------------------------------------------------------------------------

    def schedule(self, new: NewJob) -> str:
        """Puts one job in.

        Returns:
            created, merged, replaced, ignored or gated.

        Raises:
            IdTaken: the live job of this id belongs to another task, or ``on_conflict="error"`` met a live job.
            InvalidJob: the id is empty or longer than 255 bytes.
            QueueFull: the queue or the id has no room, or Redis has no memory left.
            QueuePaused: the queue takes no new jobs now.
        """
        outcome = self._schedule_one(new)
        if outcome in ("full", "paused"):
            raise self._refusal(outcome, new)
        if outcome == "taken":
            raise IdTaken(f"id {new.id!r} in queue {self.name!r} belongs to a live job of another task; "
                          f"give {new.task!r} ids of its own")  # fmt: skip
        if outcome == "exists":
            raise IdTaken(f"a job with id {new.id!r} already lives in queue {self.name!r}; "
                          "use on_conflict='replace' or 'ignore', or cancel it first")  # fmt: skip
        return outcome

    def _refusal(self, outcome: str, new: NewJob) -> DelayQError:
        if outcome == "paused":
            return QueuePaused(f"queue {self.name!r} is paused for new jobs; resume it, or try again later")
        if new.payload is not None:
            return QueueFull(f"queue {self.name!r} has reached its max_length, or id {new.id!r} its max_payloads "
                             f"({new.max_payloads}); let the workers catch up, or raise the limit")  # fmt: skip
        return QueueFull(f"queue {self.name!r} has reached its max_length; let the workers catch up, or raise it")

    def schedule_tick(self, new: NewJob, tick_ms: int) -> str:
        """:meth:`schedule`, but for each id and tick only the first call of all processes puts anything in.

        Args:
            tick_ms: Unix ms. A tick at or before the last one of this id counts as fired.

        Returns:
            An outcome of :meth:`schedule_many`, or fired: this tick was there before.
        """
        return self._schedule_one(new, b"%d" % tick_ms)

    def last_tick(self, ident: str) -> int | None:
        """The last tick of an id that was put in by :meth:`schedule_tick`, Unix ms."""
        with clear_errors():
            said = [self.broker.client.hget(self.shard(number).names["meta"], f"tick:{ident}")
                    for number in self.homes(ident)]  # fmt: skip
        return max((int(tick) for tick in said if tick is not None), default=None)

    def first_sight(self, ident: str, schedule: str) -> int:
        """Since when ticks of this id are to be fired: the first call with a schedule says "from now on" for all.

        Args:
            schedule: the task's schedule as text. Another one than before is new, whatever was fired earlier.

        Returns:
            Unix ms. Ticks up to it were fired, or lie before the schedule was first seen.
        """
        since = int(self.call("sight", self.shard_of(ident), ident.encode(), schedule.encode()))
        return max(since, self.last_tick(ident) or 0) if len(self.epochs) > 1 else since

    def schedule_many(self, news: Iterable[NewJob]) -> list[str]:
        """Puts many jobs in, in chunks of at most 250 of one shard.

        Returns:
            For each job in the order given: created, merged, replaced, ignored, gated, taken (the id belongs to a
            live job of another task), exists (``on_conflict="error"`` met a live job), full or paused.
        """
        outcomes: dict[int, str] = {}
        for places, done in ChunkSender(self).send(news):
            outcomes.update(zip(places, done, strict=True))
        return [_OUTCOMES[outcomes[place]] for place in range(len(outcomes))]

    def count_many(self, news: Iterable[NewJob]) -> dict[str, int]:
        """:meth:`schedule_many` for any number of jobs, even without end: how many had which outcome."""
        letters: dict[str, int] = {}
        for _, done in ChunkSender(self).send(news):
            for letter in set(done):
                letters[letter] = letters.get(letter, 0) + done.count(letter)
        return {_OUTCOMES[letter]: n for letter, n in letters.items()}

    def _schedule_one(self, new: NewJob, tick: bytes | None = None) -> str:
        entry = pack_new(new)
        if new.fresh and new.payload is None and tick is None:
            keys = self.shard(self.shard_of(new.id)).fresh_keys[new.priority]
            if self.broker.scripts.call("schedule_fresh", keys, _request(), b"", entry):
                return "created"

        def ask(number: int) -> str | None:
            words = (entry, b"0") if tick is None else (entry, b"0", tick)
            letter: str = self.call("schedule", number, *words).decode()
            return None if letter == MOVED else letter

        letter = self.visit(new.id, ask, create=True, fresh=new.fresh)
        return _OUTCOMES[letter or MOVED]

    # -- where an id may live ----------------------------------------------------------------------------------------

    def homes(self, ident: str) -> tuple[int, ...]:
        """Numbers of the shards in which jobs of this id may lie, those of older epochs first."""
        crc = crc32(ident.encode())
        return tuple(number_of(epoch, crc % shards) for epoch, shards in self.epochs) or (self.shard_of(ident),)

    def reload(self) -> bool:
        """Reads the layout again; whether the queue has other shards now than were known here."""
        before = self.epochs
        self.broker.read_layout(self.name)
        return self.epochs != before

    def visit(self, ident: str, ask: Callable[[int], T | None], *, create: bool = False,
               fresh: bool = False) -> T | None:  # fmt: skip
        """Asks the shards in which an id may live, the oldest first, until one knows (:mod:`.epochs` tells why).

        Args:
            ask: called with the number of a shard; None means that the shard is closed and the id not live in it.
            create: bring a deleted queue back.
            fresh: the id was made just now, so it lives nowhere.

        Returns:
            The answer; None when the queue was deleted.
        """
        asked: set[int] = set()
        patience: Patience | None = None
        while True:
            homes = self.homes(ident)
            for number in homes[-1:] if fresh else homes:
                if number not in asked:
                    answer = ask(number)
                    if answer is not None:
                        return answer
                    asked.add(number)
            patience = patience or Patience()
            if not self.broker.epochs.meet(self, homes[-1] // MAX_SHARDS, patience, create=create):
                return None

    # -- reserve and settle ------------------------------------------------------------------------------------------

    def reserve(self, number: int, limit: int, *, worker: str, request: bytes | None = None, ttr_ms: int | None = None,
                started: bool = False) -> Batch:  # fmt: skip
        """Takes up to ``limit`` (1 … 250) due jobs of a shard under one lease.

        Args:
            number: the shard.
            worker: name of the holder.
            request: the request id of an earlier call whose reply was lost: the same jobs are handed out again.
            ttr_ms: how long the lease lasts; None = as long as the broker's leases.
            started: the holder has no heartbeat that could say later that a run has begun: it counts as begun now.
        """
        ttr = b"" if ttr_ms is None else b"%d" % ttr_ms
        frame = self.call("reserve", number, worker.encode(), min(limit, CHUNK), ttr, b"1" if started else b"0", b"",
                           b"0", request=request)  # fmt: skip
        return self._batch(frame, number, worker)

    def reserve_id(self, ident: str, *, worker: str, ttr_ms: int | None = None, started: bool = False,
                   early: bool = False) -> Batch:  # fmt: skip
        """Takes one waiting job by its id; an empty batch when none is due under it.

        Args:
            early: also before its due time.
            worker, ttr_ms, started: see :meth:`reserve`.
        """
        ttr = b"" if ttr_ms is None else b"%d" % ttr_ms

        def ask(number: int) -> Batch | None:
            frame = self.call("reserve", number, worker.encode(), 1, ttr, b"1" if started else b"0", ident.encode(),
                               b"1" if early else b"0")  # fmt: skip
            return None if frame == MOVED_REPLY else self._batch(frame, number, worker)

        return self.visit(ident, ask) or Batch()

    def settle_reserve(self, number: int, settlements: Sequence[Settlement], limit: int, *, worker: str,
                       request: bytes | None = None) -> tuple[list[bool], Batch]:  # fmt: skip
        """Settles finished jobs of a shard and reserves its next ones, in one move when all are acks.

        Returns:
            Whether each settlement counted (see :meth:`settle`), and the batch.
        """
        acks = [s for s in settlements if s.verb == "ack"][:CHUNK]
        rest = [s for s in settlements if s.verb != "ack"] + [s for s in settlements if s.verb == "ack"][CHUNK:]
        counted = dict(zip(map(id, rest), self.settle(rest), strict=True)) if rest else {}
        frame = b"".join(map(pack_settlement, acks))
        answers, batch = self.call("ack_reserve", number, worker.encode(), frame, min(limit, CHUNK), request=request)
        counted.update((id(s), answer == 49) for s, answer in zip(acks, answers, strict=True))
        return [counted[id(s)] for s in settlements], self._batch(batch, number, worker)

    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        """Carries settlements out, each by its own verb: ack, fail, release, bury, expire or record.

        Returns:
            For each, whether it counted. False: the lease was lost (or, with ``guard="expired"``, is not over yet)
            and nothing was changed. A record always counts: it asks nobody.
        """
        groups: dict[tuple[int, str], list[int]] = {}
        for place, settlement in enumerate(settlements):
            groups.setdefault((settlement.job.shard, settlement.verb), []).append(place)
        counted = [False] * len(settlements)
        for (number, verb), places in groups.items():
            for start in range(0, len(places), CHUNK):
                chunk = places[start : start + CHUNK]
                frame = b"".join(pack_settlement(settlements[place]) for place in chunk)
                worker = settlements[chunk[0]].job.worker
                answers = self.call(verb, number, worker.encode(), frame)
                for place, answer in zip(chunk, answers, strict=True):
                    counted[place] = answer == 49
        return counted

    def touch(self, jobs: Sequence[Job], started: Container[tuple[str, int]] = (), *,
              ttr_ms: int | None = None) -> list[str]:  # fmt: skip
        """Extends the leases of held jobs to one full lease from now.

        Args:
            jobs: the held jobs.
            ttr_ms: how long the lease lasts from now; None = as long as the broker's leases.
            started: (id, token) of those whose handler has begun: from now on a crash counts against them.

        Returns:
            For each: held, stopping (held, but cancelled) or lost.
        """
        places: dict[int, list[int]] = {}
        for place, job in enumerate(jobs):
            places.setdefault(job.shard, []).append(place)
        answers = ["lost"] * len(jobs)
        ttr = b"" if ttr_ms is None else b"%d" % ttr_ms
        for number, mine in places.items():
            for start in range(0, len(mine), CHUNK):
                chunk = mine[start : start + CHUNK]
                frame = b"".join(
                    pack_touch(jobs[place], started=(jobs[place].id, jobs[place].token) in started) for place in chunk
                )
                for place, letter in zip(chunk, self.call("touch", number, frame, ttr).decode(), strict=True):
                    answers[place] = _TOUCHED[letter]
        return answers

    def _batch(self, frame: bytes, number: int, worker: str) -> Batch:
        jobs, broken, now_us, next_due = unpack_batch(frame, self.name, number, worker)
        if broken:
            self.settle([
                bury(item.job, 0, 0, reason="undecodable", outcome="undecodable", error_class="Undecodable",
                     error=item.error.encode())
                for item in broken
            ])  # fmt: skip
        late = [job for job in jobs if job.options_json and job.has_expired(now_us / 1000)]
        if late:
            self.settle([expire(job) for job in late])
            gone = {job.id for job in late}
            jobs = [job for job in jobs if job.id not in gone]
        wait = None if next_due < 0 else max(0.0, next_due // 1000 - now_us / 1000)
        return Batch(jobs, broken, wait, now_us / 1000, len(late))

    # -- what callers and operators ask for --------------------------------------------------------------------------

    def cancel(self, ident: str, *, task: str = "") -> str:
        """Takes a waiting job out; marks a running one so that it does not come back.

        Returns:
            cancelled, stopping (it is running) or "" (there is no live job).

        Raises:
            IdTaken: the live job of this id belongs to a task other than ``task``.
        """
        return self._answer("cancel", ident, task)

    def reschedule(self, ident: str, *, due_ms: int | None = None, delay_ms: int | None = None, task: str = "") -> bool:
        """Moves the due time of what waits under an id (of what is gated, while a run goes on).

        Args:
            due_ms: Unix ms; or
            delay_ms: ms from now, on Redis's clock.

        Raises:
            InvalidJob: neither or both are given.
            IdTaken: the live job of this id belongs to a task other than ``task``.
        """
        if (due_ms is None) == (delay_ms is None):
            raise InvalidJob("give either a delay or a due time")
        ms, relative = (delay_ms, b"1") if due_ms is None else (due_ms, b"0")
        return self._answer("reschedule", ident, task, ms, relative) == "moved"

    def run_now(self, ident: str, *, task: str = "") -> bool:
        """Makes a waiting job due now; one that is overdue keeps its place.

        Raises:
            IdTaken: the live job of this id belongs to a task other than ``task``.
        """
        return self._answer("reschedule", ident, task, 0, b"now") == "moved"

    def kick(self, ident: str, *, key: bytes | None = None, delay_ms: int = 0, replace: bool = False) -> str:
        """Brings a job back from the morgue, with its failures forgotten.

        Args:
            key: which generation; None = the one that was buried last.
            replace: take the place of a live plain job of the same id.

        Returns:
            kicked, live (a live job stands in the way) or "" (no such record).
        """
        _check_id(ident)
        return rehome.kick(self, ident, key or b"", delay_ms, replace=replace)

    def discard(self, ident: str, *, key: bytes | None = None) -> bool:
        """Throws a job out of the morgue; False when it is not there."""
        _check_id(ident)
        return rehome.discard(self, ident, key or b"")

    def _answer(self, verb: str, ident: str, task: str, *args: object) -> str:
        reply = self._of(verb, ident, ident.encode(), task.encode(), *args).decode()
        if reply == "taken":
            raise IdTaken(f"id {ident!r} in queue {self.name!r} belongs to a live job of another task, not to {task!r}")
        return reply

    def rule(self, number: int, *, clear: int = 0, put: int = 0, max_length: int | None = None,
             morgue_max: int | None = None, morgue_ttl_ms: int | None = None) -> int:  # fmt: skip
        """Orders how a shard behaves from now on (``lua/rule.lua``); None leaves a limit as it is, 0 takes it away.

        Returns:
            The shard's last fencing token.
        """
        limits = [b"" if limit is None else b"%d" % limit for limit in (max_length, morgue_max, morgue_ttl_ms)]
        return int(self.call("rule", number, clear, put, *limits))

    # -- leases of others --------------------------------------------------------------------------------------------

    def tick(self, number: int, *, hold: bool = False) -> Tick:
        """A dispatcher's look at a shard; wakes a consumer when due work waits, gives back rules that were lost.

        Args:
            hold: arm the reaper hold: for one lease nothing is taken from its holder, because holders may have been
                unable to extend their leases (an outage, a clock that jumped).
        """
        frame = self.call("tick", number, b"1" if hold else b"0")
        now_us, due, deadline, expired, held_back = _TICK.unpack_from(frame)
        if not rules.are_kept(self, number, frame[_TICK.size :]):
            rules.restore(self)
        return Tick(now_us / 1000, None if due < 0 else due // 1000, None if deadline < 0 else deadline,
                    bool(expired), bool(held_back))  # fmt: skip

    def expired(self, number: int, limit: int = CHUNK) -> list[Job]:
        """Jobs of a shard whose lease ran out; none during a reaper hold. Settle them with ``guard="expired"``."""
        return self._leases(number, 0, min(limit, CHUNK), only_expired=True)

    def held_by(self, worker: str) -> Iterator[Job]:
        """All jobs that a worker holds, over all shards. Meant for a worker that is dead and takes no more."""
        for number in self.numbers:
            yield from [job for job in self.leases(number) if job.worker == worker]

    def leases(self, number: int) -> list[Job]:
        """All reserved jobs of a shard, by the end of their lease; read in chunks, so not one moment's picture."""
        jobs: dict[str, Job] = {}
        offset = 0
        while chunk := self._leases(number, offset, CHUNK, only_expired=False):
            jobs.update((job.id, job) for job in chunk)
            # Leases that end meanwhile shift the rest forward: stepping back one chunk's tail would not help, so the
            # next chunk begins where this one did not reach, and what slipped through is seen next time.
            offset += len(chunk)
        return list(jobs.values())

    def _leases(self, number: int, offset: int, limit: int, *, only_expired: bool) -> list[Job]:
        frame = self.call("leases", number, offset, limit, b"1" if only_expired else b"0")
        return unpack_leases(frame, self.name, number)

    # -- plumbing ----------------------------------------------------------------------------------------------------

    def _of(self, verb: str, ident: str, *args: object) -> bytes:
        """Calls a verb of one id where that lives; nothing (``b""``) where the queue was deleted."""
        _check_id(ident)

        def ask(number: int) -> bytes | None:
            reply: bytes = self.call(verb, number, *args)
            return None if reply == MOVED_REPLY else reply

        return self.visit(ident, ask) or b""

    def call(self, script: str, number: int, *args: object, request: bytes | None = None) -> Any:
        """Runs a script on a shard. ``request``: the id of the call, if it is not a new one."""
        shard = self.shard(number)
        request = _request() if request is None else request
        return self.broker.scripts.call(script, shard.keys, request, shard.constants, *args)

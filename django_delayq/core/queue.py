"""The hot path: one method for each verb that moves jobs.

The delivery promise is kept here and in the scripts: at least once under the durability of the Redis in use; never
before its due time on Redis's clock; at most one live lease per id; a holder that lost its lease changes nothing,
because every settling verb checks the fencing token first. Every call carries a fresh request id, so that the client
library may send it again after a lost reply: the second time it gets the first reply and changes nothing.
"""

from __future__ import annotations

import os
import struct
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from .errors import IdTaken, InvalidJob
from .frames import BrokenJob, bad_id, pack_new, pack_settlement, pack_touch, unpack_batch, unpack_leases
from .job import MAX_ID_BYTES, Job, NewJob, Settlement, bury
from .keys import Shard

if TYPE_CHECKING:
    from .broker import Broker

CHUNK: Final = 250
CHUNK_BYTES: Final = 1 << 20
IN_FLIGHT: Final = 2
_OUTCOMES: Final = {"c": "created", "m": "merged", "r": "replaced", "i": "ignored", "g": "gated", "e": "exists",
                    "t": "taken"}  # fmt: skip
_TOUCHED: Final = {"h": "held", "s": "stopping", "l": "lost"}
_TICK: Final = struct.Struct("<dddBB")


class _Packer:
    """Collects the entries of one shard until they make a chunk."""

    __slots__ = ("_entries", "_size", "places")

    def __init__(self) -> None:
        self.places: list[int] = []
        self._entries: list[bytes] = []
        self._size = 0

    def add(self, place: int, entry: bytes) -> bool:
        """Whether the chunk is full now."""
        self.places.append(place)
        self._entries.append(entry)
        self._size += len(entry)
        return len(self.places) == CHUNK or self._size >= CHUNK_BYTES

    def take(self) -> tuple[list[int], bytes]:
        """The places and the frame of the chunk; begins a new one."""
        places, frame = self.places, b"".join(self._entries)
        self.places, self._entries, self._size = [], [], 0
        return places, frame


@dataclass(slots=True)
class Batch:
    """What a reserve handed out. ``next_due_ms`` is the time until the shard's next due job: None = nothing waits."""

    jobs: list[Job] = field(default_factory=list)
    broken: list[BrokenJob] = field(default_factory=list)
    next_due_ms: float | None = None
    now_ms: float = 0


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


class Queue:
    """A named stream of jobs. Get one from :meth:`Broker.queue`; all methods may be called from any thread.

    Every method raises :class:`QueueUnavailable` when Redis cannot be reached or refuses to work for now.
    """

    def __init__(self, broker: Broker, name: str, shards: Sequence[Shard], layout: dict[str, Any]) -> None:
        self.broker = broker
        self.name = name
        self.layout = layout
        self.kind: str = layout["kind"]
        self._shards = tuple(shards)

    def __repr__(self) -> str:
        return f"<Queue {self.name!r}, shards={self.shards}>"

    @property
    def shards(self) -> int:
        """Number of shards."""
        return len(self._shards)

    def shard_of(self, ident: str) -> int:
        """Number of the shard in which jobs of this id lie."""
        return crc32(ident.encode()) % len(self._shards)

    def shard(self, number: int) -> Shard:
        """Keys and constants of a shard, for the inspector and fsck."""
        return self._shards[number]

    # -- schedule ----------------------------------------------------------------------------------------------------

    def schedule(self, new: NewJob) -> str:
        """Puts one job in.

        Returns:
            created, merged, replaced, ignored or gated.

        Raises:
            IdTaken: the live job of this id belongs to another task, or ``on_conflict="error"`` met a live job.
            InvalidJob: the id is empty or longer than 255 bytes.
            QueueFull: Redis has no memory left.
        """
        outcome = self._schedule_one(self.shard_of(new.id), new)
        if outcome == "taken":
            raise IdTaken(f"id {new.id!r} in queue {self.name!r} belongs to a live job of another task; "
                          f"give {new.task!r} ids of its own")  # fmt: skip
        if outcome == "exists":
            raise IdTaken(f"a job with id {new.id!r} already lives in queue {self.name!r}; "
                          "use on_conflict='replace' or 'ignore', or cancel it first")  # fmt: skip
        return outcome

    def schedule_many(self, news: Iterable[NewJob]) -> list[str]:
        """Puts many jobs in, in chunks of at most 250 of one shard.

        Returns:
            For each job in the order given: created, merged, replaced, ignored, gated, taken (the id belongs to a
            live job of another task) or exists (``on_conflict="error"`` met a live job).
        """
        outcomes: dict[int, str] = {}
        for places, done in self._schedule_chunks(news):
            outcomes.update(zip(places, done, strict=True))
        return [_OUTCOMES[outcomes[place]] for place in range(len(outcomes))]

    def count_many(self, news: Iterable[NewJob]) -> dict[str, int]:
        """:meth:`schedule_many` for any number of jobs, even without end: how many had which outcome."""
        letters: dict[str, int] = {}
        for _, done in self._schedule_chunks(news):
            for letter in set(done):
                letters[letter] = letters.get(letter, 0) + done.count(letter)
        return {_OUTCOMES[letter]: n for letter, n in letters.items()}

    def _schedule_chunks(self, news: Iterable[NewJob]) -> Iterator[tuple[list[int], str]]:
        """Places and outcomes of each chunk. Redis works on one chunk while the next one is packed."""
        packers = [_Packer() for _ in self._shards]
        on_the_way: deque[tuple[list[int], Callable[[], bytes]]] = deque()

        def send(number: int) -> None:
            places, frame = packers[number].take()
            shard = self._shards[number]
            reply = self.broker.scripts.begin("schedule", shard.keys, _request(), shard.constants, frame, b"1")
            on_the_way.append((places, reply))

        try:
            for place, new in enumerate(news):
                number = self.shard_of(new.id)
                if packers[number].add(place, pack_new(new)):
                    send(number)
                    if len(on_the_way) > IN_FLIGHT:
                        places, reply = on_the_way.popleft()
                        yield places, reply().decode()
            for number, packer in enumerate(packers):
                if packer.places:
                    send(number)
        finally:
            # Also when the caller's iterable broke off: what was sent has happened, and the lines must be read empty.
            rest = [(places, reply().decode()) for places, reply in on_the_way]
        yield from rest

    def _schedule_one(self, number: int, new: NewJob) -> str:
        entry, request = pack_new(new), _request()
        if new.fresh and new.payload is None:
            keys = self._shards[number].fresh_keys[new.priority]
            if self.broker.scripts.call("schedule_fresh", keys, request, b"", entry):
                return "created"
        return _OUTCOMES[self._call("schedule", number, entry, b"0", request=request).decode()]

    # -- reserve and settle ------------------------------------------------------------------------------------------

    def reserve(self, number: int, limit: int, *, worker: str, request: bytes | None = None) -> Batch:
        """Takes up to ``limit`` (1 … 250) due jobs of a shard under one lease.

        Args:
            number: the shard.
            worker: name of the holder.
            request: the request id of an earlier call whose reply was lost: the same jobs are handed out again.
        """
        frame = self._call("reserve", number, worker.encode(), min(limit, CHUNK), request=request)
        return self._batch(frame, number, worker)

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
        answers, batch = self._call("ack_reserve", number, worker.encode(), frame, min(limit, CHUNK), request=request)
        counted.update((id(s), answer == 49) for s, answer in zip(acks, answers, strict=True))
        return [counted[id(s)] for s in settlements], self._batch(batch, number, worker)

    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        """Carries settlements out, each by its own verb: ack, fail, release or bury.

        Returns:
            For each, whether it counted. False: the lease was lost (or, with ``guard="expired"``, is not over yet)
            and nothing was changed.
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
                answers = self._call(verb, number, worker.encode(), frame)
                for place, answer in zip(chunk, answers, strict=True):
                    counted[place] = answer == 49
        return counted

    def touch(self, jobs: Sequence[Job], started: Container[tuple[str, int]] = ()) -> list[str]:
        """Extends the leases of held jobs to one full lease from now.

        Args:
            jobs: the held jobs.
            started: (id, token) of those whose handler has begun: from now on a crash counts against them.

        Returns:
            For each: held, stopping (held, but cancelled) or lost.
        """
        places: dict[int, list[int]] = {}
        for place, job in enumerate(jobs):
            places.setdefault(job.shard, []).append(place)
        answers = ["lost"] * len(jobs)
        for number, mine in places.items():
            for start in range(0, len(mine), CHUNK):
                chunk = mine[start : start + CHUNK]
                frame = b"".join(
                    pack_touch(jobs[place], started=(jobs[place].id, jobs[place].token) in started) for place in chunk
                )
                for place, letter in zip(chunk, self._call("touch", number, frame).decode(), strict=True):
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
        wait = None if next_due < 0 else max(0.0, next_due // 1000 - now_us / 1000)
        return Batch(jobs, broken, wait, now_us / 1000)

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
        return self._of("kick", ident, ident.encode(), key or b"", delay_ms, b"1" if replace else b"0").decode()

    def discard(self, ident: str, *, key: bytes | None = None) -> bool:
        """Throws a job out of the morgue; False when it is not there."""
        return self._of("discard", ident, ident.encode(), key or b"") == b"1"

    def _answer(self, verb: str, ident: str, task: str, *args: object) -> str:
        reply = self._of(verb, ident, ident.encode(), task.encode(), *args).decode()
        if reply == "taken":
            raise IdTaken(f"id {ident!r} in queue {self.name!r} belongs to a live job of another task, not to {task!r}")
        return reply

    # -- leases of others --------------------------------------------------------------------------------------------

    def tick(self, number: int, *, hold: bool = False) -> Tick:
        """A dispatcher's look at a shard; wakes a consumer when due work waits.

        Args:
            hold: arm the reaper hold: for one lease nothing is taken from its holder, because holders may have been
                unable to extend their leases (an outage, a clock that jumped).
        """
        now_us, due, deadline, expired, held_back = _TICK.unpack(self._call("tick", number, b"1" if hold else b"0"))
        return Tick(now_us / 1000, None if due < 0 else due // 1000, None if deadline < 0 else deadline,
                    bool(expired), bool(held_back))  # fmt: skip

    def expired(self, number: int, limit: int = CHUNK) -> list[Job]:
        """Jobs of a shard whose lease ran out; none during a reaper hold. Settle them with ``guard="expired"``."""
        return self._leases(number, 0, min(limit, CHUNK), only_expired=True)

    def held_by(self, worker: str) -> Iterator[Job]:
        """All jobs that a worker holds, over all shards. Meant for a worker that is dead and takes no more."""
        for number in range(self.shards):
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
        frame = self._call("leases", number, offset, limit, b"1" if only_expired else b"0")
        return unpack_leases(frame, self.name, number)

    # -- plumbing ----------------------------------------------------------------------------------------------------

    def _of(self, verb: str, ident: str, *args: object) -> bytes:
        encoded = ident.encode()
        if not 0 < len(encoded) <= MAX_ID_BYTES or b"\0" in encoded:
            raise bad_id(encoded)
        reply: bytes = self._call(verb, self.shard_of(ident), *args)
        return reply

    def _call(self, script: str, number: int, *args: object, request: bytes | None = None) -> Any:
        shard = self._shards[number]
        return self.broker.scripts.call(script, shard.keys, request or _request(), shard.constants, *args)

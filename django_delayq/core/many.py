"""Sender of many jobs: they are packed into chunks of one shard, sent together, and sent again where a shard refused.

The next chunks are packed while Redis works on those that were sent. An id comes once among the chunks that are sent
together, and its next job waits until they are done, so the jobs of an id keep their order.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, TypeAlias
from zlib import crc32

from .errors import InvalidJob, NotConfirmed
from .job import NewJob, request_for
from .outcomes import CLOSED_LETTER, FULL_LETTER, ID_FULL_LETTER, UNCHANGED_LETTERS, ScheduleOutcome
from .quotas import RoomSearch
from .records.frames import CHUNK, entry_of, pack_deadline, packer
from .records.keys import MAX_SHARDS, number_of
from .redis.scripts import Call, SentCalls
from .registry import ShardSet
from .resharding import EpochWalk

#: bytes of jobs that fill a chunk
CHUNK_BYTES: Final = 1 << 20
#: full chunks that are sent together, and those with one wait for a confirmation
TOGETHER: Final = 1
TOGETHER_CONFIRMED: Final = 64
#: jobs, and their bytes, that are sent together although no chunk is full
MOST_JOBS: Final = 20_000
MOST_BYTES: Final = 4 << 20
#: first and longest pause between two attempts to find room, seconds
SHORTEST_PAUSE: Final = 0.02
LONGEST_PAUSE: Final = 1.0
#: letters of jobs that found the queue, or their id, full
_NO_ROOM: Final = frozenset((FULL_LETTER, ID_FULL_LETTER))
#: outcomes whose reply carries the key of a generation, if requested
_WITH_KEY: Final = frozenset("mig")
_AGAIN: Final = (
    "repeat the call only if its jobs have ids of your own (others would be stored twice), and look at the replicas "
    "and the disk of Redis"
)

#: place among the given jobs, the job, its packed form
_Entry: TypeAlias = tuple[int, NewJob, bytes]
#: places, and a letter of ``schedule.lua`` for each
Answer: TypeAlias = tuple[list[int], str]


@dataclass(slots=True, eq=False)
class _Chunk:
    """Jobs of one shard, stored by one call."""

    number: int
    entries: list[_Entry] = field(default_factory=list)
    size: int = 0
    call: Call = field(init=False)
    #: True if the reply is that of an earlier call
    is_repeated: bool = False

    def add(self, entry: _Entry) -> bool:
        """Add an entry; return True if the chunk is full."""
        self.entries.append(entry)
        self.size += len(entry[2])
        return len(self.entries) == CHUNK or self.size >= CHUNK_BYTES

    @property
    def news(self) -> list[NewJob]:
        """The jobs."""
        return [new for _, new, _ in self.entries]

    @property
    def ids(self) -> set[str]:
        """Ids given by callers."""
        return {new.id for _, new, _ in self.entries if not new.fresh}


class JobSender:
    """Sender of any number of jobs in one call.

    Args:
        together: store the jobs of a shard, all of them in one call, all or none (see :func:`check_together`).
    """

    def __init__(self, queue: ShardSet, not_after_ms: float | None = None, *, together: bool = False) -> None:
        self._queue = queue
        self._scripts = queue.deployment.scripts
        self._together = together
        self._options = (pack_deadline(not_after_ms), b"1" if together else b"")
        self._room = RoomWait()
        self.unconfirmed = _Unconfirmed()
        self._most = TOGETHER if queue.deployment.connection.confirmation is None else TOGETHER_CONFIRMED

    def send(self, news: Iterable[NewJob]) -> Iterator[Answer]:
        """Send the jobs; yield places and outcomes (letters of ``schedule.lua``) of one chunk after another.

        A missing confirmation stops nothing; ask ``unconfirmed`` for it when all jobs were sent.
        """
        pack, news = packer(), check_together(news) if self._together else news
        batches = self._batches((place, new, pack(entry_of(new))) for place, new in enumerate(news))
        chunks = next(batches, None)
        while chunks:
            sent = self._send(chunks)
            try:
                later = next(batches, None)
            finally:
                sent.read_once()
            sent.read()
            yield from self._settle(chunks)
            chunks = later

    # -- pack --------------------------------------------------------------------------------------------------------

    def _batches(self, entries: Iterable[_Entry], epoch: tuple[int, int] | None = None) -> Iterator[list[_Chunk]]:
        """Yield chunks that are to be sent together.

        Args:
            epoch: number and shards; None = the oldest epoch in which the id may live.
        """
        batch: list[_Chunk] = []
        open_ones: dict[int, _Chunk] = {}
        ids, full, jobs, size, epochs = set[str](), 0, 0, 0, self._queue.epochs
        for entry in entries:
            new = entry[1]
            if new.id in ids:
                yield batch
                batch, open_ones, ids, full, jobs, size, epochs = [], {}, set(), 0, 0, 0, self._queue.epochs
            if epoch or epochs:
                number, shards = epoch or epochs[-1 if new.fresh and not new.durable else 0]
                number = number_of(number, crc32(new.id.encode()) % shards)
            else:  # the queue is deleted: this shard refuses the job, and the queue is created again
                number = self._queue.shard_of(new.id)
            chunk = open_ones.get(number)
            if chunk is None:
                chunk = open_ones[number] = _Chunk(number)
                batch.append(chunk)
            jobs, size = jobs + 1, size + len(entry[2])
            if chunk.add(entry) and not self._together:
                full += 1
                ids |= open_ones.pop(number).ids
            if (full == self._most or jobs == MOST_JOBS or size >= MOST_BYTES) and not self._together:
                yield batch
                batch, open_ones, ids, full, jobs, size, epochs = [], {}, set(), 0, 0, 0, self._queue.epochs
        if batch:
            yield batch

    # -- send --------------------------------------------------------------------------------------------------------

    def _send(self, chunks: Sequence[_Chunk], *, last: bool = False) -> SentCalls:
        """Send chunks; ``last``: a refusal is final, so a repetition of the call is to get the same."""
        for chunk in chunks:
            shard, news = self._queue.shard(chunk.number), chunk.news
            frame = b"".join([packed for _, _, packed in chunk.entries])
            args = (request_for(news), shard.constants, frame, b"1", b"", *self._options, b"1" if last else b"")
            chunk.call = Call("schedule", shard.keys, args, confirm=self._is_confirmed(chunk))
        return self._scripts.send_many([chunk.call for chunk in chunks])

    def _is_confirmed(self, chunk: _Chunk) -> bool:
        """Return True if a job of the chunk has to be confirmed, and its node has confirmed in time so far."""
        queue = self._queue
        if queue.deployment.connection.confirmation is None or not any(queue.is_confirmed(new) for new in chunk.news):
            return False
        return self._scripts.node(queue.shard(chunk.number).keys) not in self.unconfirmed.nodes

    # -- sort the outcomes -------------------------------------------------------------------------------------------

    def _settle(self, chunks: Sequence[_Chunk], walk: EpochWalk | None = None) -> Iterator[Answer]:
        """Yield the outcomes of chunks that were sent; send jobs again that a closed shard, or a full one, refused."""
        walk = walk or EpochWalk(self._queue, lambda: self._queue.epochs, create=True)
        moved: dict[int, list[_Entry]] = {}
        for chunk in chunks:
            letters = self._find_room(chunk, self._read(chunk))
            if CLOSED_LETTER in letters:
                answers = list(zip(chunk.entries, letters, strict=True))
                closed = [entry for entry, letter in answers if letter == CLOSED_LETTER]
                moved.setdefault(chunk.number // MAX_SHARDS, []).extend(closed)
                final = {entry[0]: letter for entry, letter in answers if letter != CLOSED_LETTER}
                yield list(final), "".join(final.values())
            else:
                yield [place for place, _, _ in chunk.entries], letters
        for epoch, entries in moved.items():
            for later in self._batches(entries, walk.after(epoch)):
                self._send(later).read()
                yield from self._settle(later, walk)

    def _read(self, chunk: _Chunk) -> str:
        """Return the outcome letters of a chunk; note what its reply says besides."""
        reply, end = chunk.call.reply, 1 + len(chunk.entries)
        chunk.is_repeated = reply[:1] == b"1"
        letters, keys = str(reply[1:end], "ascii"), reply[end:]
        if keys:
            joined = [new for new, letter in zip(chunk.news, letters, strict=True) if letter in _WITH_KEY]
            for place, new in enumerate(joined):
                new.joined = keys[16 * place : 16 * place + 16]
        if self._queue.deployment.connection.confirmation is not None:
            self._note_unconfirmed(chunk, letters)
        return letters

    def _note_unconfirmed(self, chunk: _Chunk, letters: str) -> None:
        call = chunk.call
        if call.missing is not None:
            self.unconfirmed.missed(self._scripts.node(call.keys), call.missing)
        elif call.confirm:
            return
        for (place, new, _), letter in zip(chunk.entries, letters, strict=True):
            if letter not in UNCHANGED_LETTERS and self._queue.is_confirmed(new):
                self.unconfirmed.places.add(place)

    def _find_room(self, chunk: _Chunk, letters: str) -> str:
        """Send jobs that found their shard full again, while the queue has room elsewhere; return all letters.

        Then wait for room, if their callers do, for as long as those want to wait. A call that was made before gets the
        reply that was stored then, so a remainder gets its own without a search.
        """
        search, found, again, news = RoomSearch(self._queue), list(letters), chunk, chunk.news
        left: Iterable[int] = range(len(found))
        while refused := [place for place in left if found[place] in _NO_ROOM]:
            full = [place for place in refused if found[place] == FULL_LETTER]
            late = [place for place in refused if self._together or news[place].room_ms]
            is_last, least = False, len(full) if self._together else 1
            if full and (again.is_repeated or search.find(chunk.number, len(full), least=least)):
                places = full
            elif late and self._room.rest(max(new.room_ms for new in news)):
                places = left = late
                search = RoomSearch(self._queue)
            elif 0 < len(full) < len(found) and all(new.repeatable for new in news):
                places, is_last = full, True  # a repetition of the call is to find these refusals
            else:
                break
            again = chunk if self._together else _Chunk(chunk.number, [chunk.entries[place] for place in places])
            self._send([again], last=is_last).read()
            letters = self._read(again)
            for place, letter in zip(range(len(found)) if self._together else places, letters, strict=True):
                found[place] = letter
            if not _NO_ROOM.issuperset(letters):
                self._room.progress()
            elif is_last or again.is_repeated:
                break
        return "".join(found)


class _Unconfirmed:
    """Jobs of one call whose confirmation is missing.

    A missing confirmation must not keep back the jobs behind it: nobody would send them. So it is kept until all jobs
    were sent, and a node that has not confirmed in time is not waited for again.
    """

    def __init__(self) -> None:
        #: nodes that have not confirmed in time
        self.nodes: set[int] = set()
        #: places of the jobs that are stored and not confirmed
        self.places: set[int] = set()
        self._first: NotConfirmed | None = None

    def missed(self, node: int, error: NotConfirmed) -> None:
        """Note that a node has not confirmed in time."""
        self._first = self._first or error
        self.nodes.add(node)

    def check(self, counts: Mapping[str, int], outcomes: Sequence[ScheduleOutcome] = ()) -> None:
        """Raise the error if a job is not confirmed.

        Raises:
            NotConfirmed: see there.
        """
        if not (self._first and self.places):
            return
        listed = ", ".join(f"{number} {outcome}" for outcome, number in counts.items())
        error = NotConfirmed(
            f"all jobs of the call were sent ({listed}), but {self._first.reason}: {len(self.places)} of them are in "
            f"Redis and may be lost with it; {_AGAIN}",
            reason=self._first.reason,
        )
        error.counts, error.outcomes, error.unconfirmed = counts, outcomes, self.places
        raise error from self._first


class RoomWait:
    """Wait of a producer for room in a full queue, with growing pauses, at most for ``room_ms`` without progress.

    After a wait in vain no further one is begun.
    """

    def __init__(self) -> None:
        self._is_over = False
        self._until: float | None = None
        self._pause = SHORTEST_PAUSE

    def rest(self, room_ms: int) -> bool:
        """Pause before the next attempt; return False, without a pause, when the time is over."""
        now = time.monotonic()
        if self._until is None:
            self._until = now + room_ms / 1000
        self._is_over = self._is_over or now >= self._until
        if not self._is_over:
            time.sleep(min(self._pause * random.uniform(0.5, 1.0), self._until - now))
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
        return not self._is_over

    def progress(self) -> None:
        """Begin anew, because some job was accepted."""
        self._until, self._pause = None, SHORTEST_PAUSE


def check_together(news: Iterable[NewJob], *, durable: bool = False) -> list[NewJob]:
    """Return the jobs of a call that stores, of each shard, all of its jobs or none.

    Args:
        news: the jobs.
        durable: a row is to be written for one of them.

    Raises:
        InvalidJob: they are too many for one script call, or one of them is durable.
    """
    jobs = list(islice(news, CHUNK + 1))
    if len(jobs) > CHUNK:
        raise InvalidJob(f"all_or_none is for up to {CHUNK} jobs; send several calls")
    if durable or any(job.durable for job in jobs):
        raise InvalidJob(
            "all_or_none is not for durable jobs, which the relay stores one by one; leave one of both out"
        )
    return jobs

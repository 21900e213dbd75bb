"""Sender of many jobs, packed into chunks of one shard."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeAlias
from zlib import crc32

from ..errors import QueueUnavailable
from ..job import NewJob, request_for
from ..records.keys import number_of
from ..records.schedule_frames import CHUNK, pack_deadline, pack_new
from ..redis.ordered import in_order
from ..redis.scripts import Reply
from ..schedule_outcome import CLOSED_LETTER, FULL_LETTER, ID_FULL_LETTER
from .chunks import CHUNK_BYTES, IN_FLIGHT, ChunkSender
from .confirmed_calls import TOGETHER, ConfirmedCall, ConfirmedCalls
from .quotas import RoomSearch
from .room import RoomWait

if TYPE_CHECKING:
    from ..records.layout import Epochs
    from .sender import Sender

#: outcomes whose reply carries the key of a generation, if requested
_WITH_KEY = frozenset("mig")

#: place among the given jobs, the job, its packed form
_Entry: TypeAlias = tuple[int, NewJob, bytes]
#: places, and an outcome letter for each
_Answer: TypeAlias = tuple[list[int], str]


@dataclass(slots=True, eq=False)
class _JobChunk:
    """Entries of one shard, collected until they fill a chunk."""

    number: int
    entries: list[_Entry] = field(default_factory=list)
    size: int = 0
    #: those given by callers
    ids: set[str] = field(default_factory=set)
    group: int = 0
    #: None = the deployment confirms nothing
    call: ConfirmedCall | None = None
    reply: Reply = field(init=False)

    def add(self, entry: _Entry) -> bool:
        """Add an entry; return True if the chunk is full."""
        _, new, packed = entry
        self.entries.append(entry)
        self.size += len(packed)
        if not new.fresh:
            self.ids.add(new.id)
        return len(self.entries) == CHUNK or self.size >= CHUNK_BYTES


class _Chunks(dict[int, _JobChunk]):
    """Chunks by shard."""

    def __missing__(self, number: int) -> _JobChunk:
        chunk = self[number] = _JobChunk(number)
        return chunk


def _refusal_of(chunk: _JobChunk) -> bytes:
    return FULL_LETTER.encode() * len(chunk.entries)


class JobSender:
    """Sender of any number of jobs in one call.

    If a shard gets several chunks, they go over one connection per node, so that none overtakes another
    (:mod:`..redis.ordered`).

    Args:
        keys: fill in ``NewJob.joined``.
        together: store the jobs of a shard, all of them in one call, all or none (see :func:`.check_together`).
    """

    def __init__(
        self, queue: Sender, not_after_ms: float | None = None, *, keys: bool = False, together: bool = False
    ) -> None:
        self._queue = queue
        self._keys = b"1" if keys else b""
        self._together = together
        self._scripts = queue.broker.scripts
        self._in_order = False
        self._deadline = pack_deadline(not_after_ms)
        self._unsent = _Chunks()
        self._answers: list[_Answer] = []
        #: entries that were refused because the queue was full, while their caller waits for room
        self._full: list[_Entry] = []
        self._room = RoomWait()
        #: None = the deployment confirms nothing
        self.confirmed = None if queue.broker.connection.confirmation is None else ConfirmedCalls(queue, places=keys)
        most = IN_FLIGHT if self.confirmed is None else TOGETHER
        self.chunks: ChunkSender[_JobChunk] = ChunkSender(queue, self, most)

    def send(self, news: Iterable[NewJob]) -> Iterator[_Answer]:
        """Send the jobs; yield places and outcomes (letters of ``schedule.lua``) of one chunk after another.

        A missing confirmation stops nothing; ask ``confirmed`` for it when all jobs were sent.
        """
        queue = self._queue
        epochs = queue.epochs
        try:
            for place, new in enumerate(news):
                if queue.epochs is not epochs:
                    epochs = queue.epochs
                    self._send_all()  # entries packed for the old layout must arrive before this one
                if self._put((place, new, pack_new(new)), epochs):
                    yield from self._take_answers()
                    if self._full:
                        yield from self._wait_for_room()
            self._send_all()
            yield from self._take_answers()
            yield from self._wait_for_room()
        except QueueUnavailable:
            self.chunks.drain(until=time.monotonic())  # the calls behind it are out of time, too
            raise
        finally:
            self.chunks.drain()

    def _put(self, entry: _Entry, epochs: Epochs) -> bool:
        """Put an entry into the chunk of its shard; return True if the chunk was full and is sent."""
        number = self._first_shard(entry[1], epochs)
        is_full = self._unsent[number].add(entry) and not self._together
        if is_full:
            self._keep_order()
            self._send(number)
        return is_full

    def _first_shard(self, new: NewJob, epochs: Epochs) -> int:
        """Return the oldest shard in which the id may live by these epochs."""
        if not epochs:  # the queue is deleted: this shard refuses the job, and the queue is created again
            return self._queue.shard_of(new.id)
        epoch, shards = epochs[-1 if new.fresh and not new.durable else 0]
        return number_of(epoch, crc32(new.id.encode()) % shards)

    def _keep_order(self) -> None:
        """Keep the order of chunks from here on. Most calls have few jobs and never need it."""
        if not self._in_order:
            self._in_order = True
            self._scripts = in_order(self._scripts, self._queue.broker.connection)

    def _send(self, number: int) -> None:
        chunk = self._unsent.pop(number)
        self.chunks.send((chunk,), chunk.ids)

    def _send_all(self) -> None:
        for number in list(self._unsent):
            self._send(number)
        self.chunks.finish()

    def _wait_for_room(self) -> Iterator[_Answer]:
        """Send the jobs that found the queue full again, until they are accepted or the wait is over."""
        while self._full:
            entries, self._full = self._full, []
            # When the wait is over, this attempt is the last: its refusals are final.
            self._room.rest(max(new.room_ms for _, new, _ in entries))
            epochs = self._queue.epochs
            for entry in entries:
                self._put(entry, epochs)
            self._send_all()
            if len(self._full) < len(entries):
                self._room.progress()
            yield from self._take_answers()

    def _take_answers(self) -> list[_Answer]:
        answers, self._answers = self._answers, []
        return answers

    # -- calls of the chunk sender -----------------------------------------------------------------------------------

    def begin(self, chunk: _JobChunk) -> None:
        """Begin the script call of a chunk."""
        self._call(chunk, self._scripts.begin)

    def _call(self, chunk: _JobChunk, begin: Callable[..., Reply]) -> None:
        shard, entries = self._queue.shard(chunk.number), chunk.entries
        frame = b"".join([packed for _, _, packed in entries])
        news = [new for _, new, _ in entries]
        args = (
            request_for(news),
            shard.constants,
            frame,
            b"1",
            b"",
            self._deadline,
            self._keys,
            b"1" if self._together else b"",
        )
        if self.confirmed is None:
            chunk.reply = begin("schedule", shard.keys, *args)
        else:
            chunk.call = self.confirmed.begin(news, shard.keys, args)
            chunk.reply = partial(self.confirmed.reply, chunk.call)

    def settle(self, chunk: _JobChunk) -> Iterator[tuple[_JobChunk, list[int]]]:
        """Read the reply of a chunk, and yield the places of the jobs that a closed shard refused."""
        entries, answer = chunk.entries, chunk.reply()
        letters = self._read_letters(chunk, answer)
        if self._together:
            letters = self._found_room_together(chunk, letters)
        elif FULL_LETTER in letters:
            is_repeated = (len(answer) - len(letters)) % 16 and all(new.repeatable for _, new, _ in entries)
            letters = self._found_room(chunk, letters, is_first=not is_repeated)
        if not self._room.over and (FULL_LETTER in letters or ID_FULL_LETTER in letters):
            entries, letters = self._without_full(entries, letters)
        places = [entry[0] for entry in entries]
        if CLOSED_LETTER not in letters:
            self._answers.append((places, letters))
            return
        final = [place for place, letter in zip(places, letters, strict=True) if letter != CLOSED_LETTER]
        self._answers.append((final, letters.replace(CLOSED_LETTER, "")))
        self._keep_order()
        refused = {place for place, letter in zip(places, letters, strict=True) if letter == CLOSED_LETTER}
        yield chunk, [index for index, entry in enumerate(chunk.entries) if entry[0] in refused]

    def _read_letters(self, chunk: _JobChunk, answer: bytes) -> str:
        """Read the reply of a chunk; return a letter for each of its entries."""
        entries = chunk.entries
        letters, keys = answer[: len(entries)].decode(), answer[len(entries) :]
        if self._keys:  # otherwise there may be the byte of a repeated call behind the letters
            joined = [new for (_, new, _), letter in zip(entries, letters, strict=True) if letter in _WITH_KEY]
            for place, new in enumerate(joined):
                new.joined = keys[16 * place : 16 * place + 16]
        if self.confirmed is not None and chunk.call is not None and not chunk.call.is_confirmed:
            for (place, new, _), letter in zip(entries, letters, strict=True):
                self.confirmed.note(place, new, letter)
        return letters

    def _found_room(self, chunk: _JobChunk, letters: str, *, is_first: bool) -> str:
        """Send the jobs that found their shard full again while the queue has room elsewhere; return all letters.

        Args:
            is_first: False: this call was made before, by its caller or over a connection that lost the reply. It gets
                the answers that were stored; what was not answered in the end is tried now.
        """
        search, found = RoomSearch(self._queue), list(letters)
        while full := [place for place, letter in enumerate(found) if letter == FULL_LETTER]:
            again = _JobChunk(chunk.number, [chunk.entries[place] for place in full])
            if is_first and not search.find(chunk.number, len(full)):
                self._store_refusal(chunk, again)
                break
            self._call(again, self._queue.broker.scripts.begin)
            answer = again.reply()
            for place, letter in zip(full, self._read_letters(again, answer), strict=True):
                found[place] = letter
            if not is_first and answer == _refusal_of(again) + b"\0":
                break
            is_first = is_first or not (len(answer) - len(full)) % 16
        return "".join(found)

    def _found_room_together(self, chunk: _JobChunk, letters: str) -> str:
        """Send a chunk again while the queue has room for all its new jobs elsewhere; return the letters."""
        search = RoomSearch(self._queue)
        while (full := letters.count(FULL_LETTER)) and search.find(chunk.number, full, least=full):
            self._call(chunk, self._queue.broker.scripts.begin)
            letters = self._read_letters(chunk, chunk.reply())
        return letters

    def _store_refusal(self, chunk: _JobChunk, rest: _JobChunk) -> None:
        """Let a repetition of a chunk whose reply is stored get the same refusals, unless callers wait for room."""
        news = [new for _, new, _ in chunk.entries]
        rest_of = [new for _, new, _ in rest.entries]
        is_final = self._room.over or not any(new.room_ms for new in rest_of)
        if is_final and len(rest_of) < len(news) and all(new.repeatable for new in news):
            whole, request = request_for(news), request_for(rest_of)
            self._queue.call("quota", chunk.number, 0, 0, b"refuse", _refusal_of(rest), whole, request=request)

    def _without_full(self, entries: list[_Entry], letters: str) -> tuple[list[_Entry], str]:
        """Keep the jobs whose callers wait for room; return the other entries with their letters."""
        pairs, kept = list(zip(entries, letters, strict=True)), []
        waits = self._together and any(new.room_ms for _, new, _ in entries)
        for entry, letter in pairs:
            if (letter in (FULL_LETTER, ID_FULL_LETTER) and entry[1].room_ms) or (waits and letter != CLOSED_LETTER):
                self._full.append(entry)
            else:
                kept.append((entry, letter))
        return [entry for entry, _ in kept], "".join([letter for _, letter in kept])

    def forward(self, chunk: _JobChunk, places: Sequence[int], epoch: tuple[int, int]) -> list[_JobChunk]:
        """Return chunks of a later epoch for some jobs of a chunk."""
        number, shards = epoch
        parts = _Chunks()
        for place in places:
            entry = chunk.entries[place]
            parts[number_of(number, crc32(entry[1].id.encode()) % shards)].add(entry)
        return list(parts.values())

    def epochs(self) -> Epochs:
        """Return the epochs of the queue as known now."""
        return self._queue.epochs

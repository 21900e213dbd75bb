"""Putting many jobs in: packed into chunks of one shard, two of them under way while the next one is packed."""

from __future__ import annotations

import os
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeAlias

from .epochs import Patience
from .errors import DelayQError
from .frames import pack_deadline, pack_new
from .job import NewJob
from .keys import MAX_SHARDS

if TYPE_CHECKING:
    from .queue import Queue

CHUNK: Final = 250
CHUNK_BYTES: Final = 1 << 20
IN_FLIGHT: Final = 2
MOVED: Final = "v"

#: place among the jobs given, the job, its packed form
_Entry: TypeAlias = tuple[int, NewJob, bytes]


class _Packer:
    """Collects the entries of one shard until they make a chunk."""

    __slots__ = ("_size", "entries")

    def __init__(self) -> None:
        self.entries: list[_Entry] = []
        self._size = 0

    def add(self, entry: _Entry) -> bool:
        """Whether the chunk is full now."""
        self.entries.append(entry)
        self._size += len(entry[2])
        return len(self.entries) == CHUNK or self._size >= CHUNK_BYTES

    def take(self) -> list[_Entry]:
        """The entries of the chunk; begins a new one."""
        entries, self.entries, self._size = self.entries, [], 0
        return entries


class ChunkSender:
    """One call for any number of jobs. What a closed shard sends away goes on to the next epoch's, in its order."""

    def __init__(self, queue: Queue, not_after_ms: float | None = None) -> None:
        self._queue = queue
        self._deadline = pack_deadline(not_after_ms)
        self._packers: defaultdict[int, _Packer] = defaultdict(_Packer)
        self._on_the_way: deque[tuple[int, list[_Entry], Callable[[], bytes]]] = deque()
        #: by place, the shards that sent a job away which is still on its way
        self._asked: dict[int, frozenset[int]] = {}
        self._patience: Patience | None = None

    def send(self, news: Iterable[NewJob]) -> Iterator[tuple[list[int], str]]:
        """Places and outcomes (letters of ``schedule.lua``) of one chunk after another."""
        try:
            for place, new in enumerate(news):
                self._add((place, new, pack_new(new)))
                while len(self._on_the_way) > IN_FLIGHT:
                    yield self._collect()
            while self._dispatch():
                while self._on_the_way:
                    yield self._collect()
        finally:
            # When a call or the caller's iterable broke off: what was sent has happened, the lines must be read empty.
            while self._on_the_way:
                with suppress(DelayQError):
                    self._on_the_way.popleft()[2]()

    def _add(self, entry: _Entry) -> None:
        number = self._route(entry)
        if self._packers[number].add(entry):
            self._begin(number)

    def _route(self, entry: _Entry) -> int:
        """The oldest shard in which the id may live, of those that did not send it away."""
        queue, new = self._queue, entry[1]
        fresh = new.fresh and not new.durable
        if (fresh or len(queue.epochs) == 1) and entry[0] not in self._asked:
            return queue.shard_of(new.id)
        asked = self._asked.get(entry[0], frozenset())
        while True:
            homes = queue.homes(new.id)
            for number in homes[-1:] if fresh else homes:
                if number not in asked:
                    return number
            self._patience = self._patience or Patience()
            queue.broker.epochs.meet(queue, homes[-1] // MAX_SHARDS, self._patience, create=True)

    def _begin(self, number: int) -> None:
        entries = self._packers[number].take()
        shard = self._queue.shard(number)
        frame = b"".join([entry[2] for entry in entries])
        reply = self._queue.broker.scripts.begin("schedule", shard.keys, os.urandom(16), shard.constants, frame, b"1",
                                                 b"", self._deadline)  # fmt: skip
        self._on_the_way.append((number, entries, reply))

    def _dispatch(self) -> bool:
        """Sends what is packed; whether anything was or is under way."""
        for number in [number for number, packer in self._packers.items() if packer.entries]:
            self._begin(number)
        return bool(self._on_the_way)

    def _collect(self) -> tuple[list[int], str]:
        number, entries, reply = self._on_the_way.popleft()
        letters = reply().decode()
        if MOVED in letters:
            for entry, letter in zip(entries, letters, strict=True):
                if letter == MOVED:
                    self._asked[entry[0]] = self._asked.get(entry[0], frozenset()) | {number}
                    self._add(entry)
            entries = [entry for entry, letter in zip(entries, letters, strict=True) if letter != MOVED]
            letters = letters.replace(MOVED, "")
        else:
            self._patience = None
        places = [entry[0] for entry in entries]
        if self._asked:
            for place in places:
                self._asked.pop(place, None)
        return places, letters

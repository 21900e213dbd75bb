"""Sender of many jobs, packed into chunks of one shard; two chunks are in flight while the next one is packed."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from ..errors import DelayQError, QueueUnavailable
from ..job import NewJob
from ..operations.resharding import Patience
from ..records.frames import pack_deadline, pack_new
from ..records.keys import MAX_SHARDS
from ..redis.ordered import in_order
from ..redis.scripts import Reply
from ..requests import request_for
from ..schedule_outcome import MOVED_LETTER

if TYPE_CHECKING:
    from .sender import Sender

CHUNK: Final = 250
CHUNK_BYTES: Final = 1 << 20
IN_FLIGHT: Final = 2
#: outcomes whose reply carries the key of a generation, if requested
_WITH_KEY: Final = frozenset("mig")

#: place among the given jobs, the job, its packed form
_Entry: TypeAlias = tuple[int, NewJob, bytes]
#: places, and an outcome letter for each
_Answer: TypeAlias = tuple[list[int], str]


class _Packer:
    """Collector of the entries of one shard until they fill a chunk."""

    __slots__ = ("_size", "entries")

    def __init__(self) -> None:
        self.entries: list[_Entry] = []
        self._size = 0

    def add(self, entry: _Entry) -> bool:
        """Add an entry; return True if the chunk is full."""
        self.entries.append(entry)
        self._size += len(entry[2])
        return len(self.entries) == CHUNK or self._size >= CHUNK_BYTES

    def take(self) -> list[_Entry]:
        """Return the entries of the chunk and begin a new one."""
        entries, self.entries, self._size = self.entries, [], 0
        return entries


class _Sent(NamedTuple):
    """Chunk in flight."""

    number: int
    entries: list[_Entry]
    ids: set[str]
    reply: Reply


class ChunkSender:
    """Sender of any number of jobs in one call. Jobs refused by a closed shard go to the next epoch, in order.

    If a shard gets several chunks, they go over one connection per node, so that none overtakes another
    (:mod:`..redis.ordered`). Chunks that share an id also wait for each other: the first may have to be sent again when
    the second is already done.

    Args:
        keys: fill in ``NewJob.joined``.
    """

    def __init__(self, queue: Sender, not_after_ms: float | None = None, *, keys: bool = False) -> None:
        self._queue = queue
        self._keys = b"1" if keys else b""
        self._scripts = queue.broker.scripts
        self._in_order = False
        self._deadline = pack_deadline(not_after_ms)
        self._packers: defaultdict[int, _Packer] = defaultdict(_Packer)
        self._on_the_way: deque[_Sent] = deque()
        #: entries that were refused by a closed shard and are not packed again yet
        self._moved: deque[_Entry] = deque()
        #: by place of an unfinished job, the shards that refused it
        self._asked: dict[int, frozenset[int]] = {}
        self._patience: Patience | None = None

    def send(self, news: Iterable[NewJob]) -> Iterator[_Answer]:
        """Send the jobs; yield places and outcomes (letters of ``schedule.lua``) of one chunk after another."""
        queue, packers = self._queue, self._packers
        layout = queue.layout
        try:
            for place, new in enumerate(news):
                if queue.layout is not layout:
                    layout = queue.layout
                    yield from self._all()  # entries packed for the old layout must arrive before this one
                entry = place, new, pack_new(new)
                number = self._route(entry)
                if packers[number].add(entry):
                    self._keep_order()
                    yield from self._send(number)
                    yield from self._send_moved()
            yield from self._all()
        except QueueUnavailable:
            self._drain(until=time.monotonic())  # entries behind it are out of time, too
            raise
        finally:
            self._drain()

    def _route(self, entry: _Entry) -> int:
        """Return the oldest shard in which the id may live and that has not refused it."""
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

    def _keep_order(self) -> None:
        """Keep the order of chunks from here on. Most calls have few jobs and never need it."""
        if not self._in_order:
            self._in_order = True
            self._scripts = in_order(self._scripts, self._queue.broker.connection)

    def _send(self, number: int) -> Iterator[_Answer]:
        """Send the entries packed for a shard; yield replies that had to be collected first."""
        entries = self._packers[number].take()
        shard = self._queue.shard(number)
        frame = b"".join([entry[2] for entry in entries])
        ids = {new.id for _, new, _ in entries if not new.fresh}
        while any(not ids.isdisjoint(sent.ids) for sent in self._on_the_way):
            yield self._collect()
        request = request_for([new for _, new, _ in entries])
        reply = self._scripts.begin(
            "schedule", shard.keys, request, shard.constants, frame, b"1", b"", self._deadline, self._keys
        )
        self._on_the_way.append(_Sent(number, entries, ids, reply))
        while len(self._on_the_way) > IN_FLIGHT:
            yield self._collect()

    def _send_moved(self) -> Iterator[_Answer]:
        """Pack refused entries again, and send the chunks that become full. Entries refused meanwhile come last."""
        if self._moved:
            self._keep_order()
        while self._moved:
            entry = self._moved.popleft()
            number = self._route(entry)
            if self._packers[number].add(entry):
                yield from self._send(number)

    def _all(self) -> Iterator[_Answer]:
        """Send everything, until no reply is outstanding."""
        while True:
            for number in [number for number, packer in self._packers.items() if packer.entries]:
                yield from self._send(number)
            while self._on_the_way:
                yield self._collect()
            if not self._moved:
                return
            yield from self._send_moved()

    def _drain(self, until: float | None = None) -> None:
        """Read outstanding replies after an error or an interrupted iterable, so that connections are clean."""
        while self._on_the_way:
            with suppress(DelayQError):
                self._on_the_way.popleft().reply(until)

    def _collect(self) -> _Answer:
        number, entries, _, reply = self._on_the_way.popleft()
        answer = reply()
        letters, keys = answer[: len(entries)].decode(), answer[len(entries) :]
        if keys:
            met = [entry[1] for entry, letter in zip(entries, letters, strict=True) if letter in _WITH_KEY]
            for place, new in enumerate(met):
                new.joined = keys[16 * place : 16 * place + 16]
        if MOVED_LETTER in letters:
            for entry, letter in zip(entries, letters, strict=True):
                if letter == MOVED_LETTER:
                    self._asked[entry[0]] = self._asked.get(entry[0], frozenset()) | {number}
                    self._moved.append(entry)
            entries = [entry for entry, letter in zip(entries, letters, strict=True) if letter != MOVED_LETTER]
            letters = letters.replace(MOVED_LETTER, "")
        else:
            self._patience = None
        places = [entry[0] for entry in entries]
        if self._asked:
            for place in places:
                self._asked.pop(place, None)
        return places, letters

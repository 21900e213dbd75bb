"""Writer of a bulk load: collects rows into chunks that are the same in every try, and sends each of them once.

The ledger beside a shard recognises a chunk that was written before (:mod:`.bulk_loads`). Rows that the queue cannot
take now are retried here, within the limits of the load, so every chunk that is settled has a final outcome for each of
its rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final
from zlib import crc32

from ..broker import Broker
from ..errors import DelayQError, QueueFull, QueuePaused
from ..job import NewJob
from ..layouts import Epochs, Layout
from ..outcomes import CLOSED_LETTER, FULL_LETTER, OF_LETTER, ScheduleOutcome
from ..records.bulk_load_frames import NO_CODE, Frame, LoadEntry, Rows, Shape, entry_of, with_keys
from ..records.keys import MAX_SHARDS, number_of
from ..redis.scripts import Call, SentCalls, clear_errors
from ..resharding import EpochWalk
from .bulk_load_limits import BulkLoadLimits, BulkLoadWait, Throttle
from .bulk_loads import CLOSED_FIELD, OPEN, BulkLoad, check_stored, epochs_of, groups_of, ledger_key, read_load
from .many import CHUNK_BYTES
from .quotas import RoomSearch

#: reply of a closed ledger
_LEDGER_CLOSED_LETTER: Final = "X"
#: maximum number of refused ids that are listed
MAX_LISTED: Final = 100
#: chunks that are sent together
TOGETHER: Final = 4


class BulkLoadClosed(DelayQError):
    """Refusal because the bulk load was closed during this sender's work; nothing of this chunk was written."""

    def __init__(self, load: BulkLoad) -> None:
        super().__init__(
            f"bulk load {load.id!r} was closed or forgotten, so nothing more is written for it; begin a new bulk load "
            "for the missing rows"
        )


@dataclass(slots=True)
class Written:
    """Outcomes of the rows of one sender. Chunks that were written before count with their original outcomes."""

    counts: Counter[str] = field(default_factory=Counter)
    #: (id, outcome) of the first rows that were refused for good
    refused: list[tuple[str, str]] = field(default_factory=list)

    def add(self, ident: bytes, outcome: ScheduleOutcome) -> None:
        """Add the outcome of a row."""
        self.counts[outcome] += 1
        if outcome.is_final_refusal and len(self.refused) < MAX_LISTED:
            self.refused.append((ident.decode(errors="replace"), outcome))


@dataclass(slots=True, eq=False)
class LoadChunk:
    """Rows of a bulk load that one script call writes to one shard."""

    number: int
    #: with the keys in the bodies
    shape: Shape
    group: int
    rows: Rows
    frame: Frame
    digest: bytes
    #: True if the chunk was not yet counted against the rate
    unpaid: bool
    #: None = its epoch is retired, so nothing is written there
    call: Call | None = field(init=False)


class LedgerCalls:
    """Calls of one sender of a bulk load.

    Chunks are collected and sent together; the next ones are collected while Redis works on those. An id comes once
    among the chunks that are sent together, and its next row waits until they are done.

    Args:
        broker: the target.
        load: an open bulk load.
        limits: see there.
        stop: called during waits; true = give up waiting.
    """

    def __init__(self, broker: Broker, load: BulkLoad, limits: BulkLoadLimits, stop: Callable[[], bool]) -> None:
        if load.state != OPEN:
            raise BulkLoadClosed(load)
        self._broker = broker
        self._load = load
        self._limits = limits
        self._throttle = Throttle(broker, load, limits, stop)
        self._stop = stop
        self.queue = broker.queue(load.queue)
        self.queue.reload()  # this process may have an old layout
        #: the layout that was read last, and the epochs that the load may reach by it
        self._layout: Layout | None = None
        self._epochs = load.epochs
        self.groups = groups_of(load)
        #: number of chunks made with this digest; half a byte for each job
        self._times: dict[bytes, int] = {}
        #: key of the ledger beside a shard
        self._ledgers: dict[int, bytes] = {}
        #: code of a task in a shard
        self._codes: dict[tuple[int, bytes], bytes] = {}
        #: digests of the chunks that are stored, by ledger
        self.stored: dict[bytes, list[bytes]] = {}
        self.written = Written()
        #: chunks that are not sent yet
        self._collected: list[LoadChunk] = []
        #: those whose replies are not read yet
        self._sent: tuple[list[LoadChunk], SentCalls] | None = None

    def send(self, shape: Shape, group: int, rows: Rows, ids: Set[bytes]) -> None:
        """Send rows with these ids, all of one group: ids of different groups differ."""
        if any(chunk.group == group and not ids.isdisjoint(chunk.rows.ids) for chunk in self._collected):
            self._send_collected()
        self._collected += self._divide(shape, group, rows, self._load.epochs[0], None)
        if len(self._collected) >= TOGETHER:
            self._send_collected()

    def finish(self) -> None:
        """Send what is left, and wait for every reply."""
        self._send_collected()
        self._settle_sent()

    def abandon(self) -> None:
        """Read the outstanding replies, so that the connections are clean."""
        if self._sent is not None:
            self._sent[1].read_once()
        self._collected, self._sent = [], None

    def _send_collected(self) -> None:
        self._settle_sent()
        chunks, self._collected = self._collected, []
        if chunks:
            self._sent = chunks, self._send(chunks)

    def _settle_sent(self) -> None:
        if self._sent is not None:
            chunks, sent = self._sent
            self._settle(chunks, sent)
            self._sent = None

    # -- chunks --------------------------------------------------------------------------------------------------------

    def _divide(
        self, shape: Shape, group: int, rows: Rows, epoch: tuple[int, int], origin: LoadChunk | None
    ) -> list[LoadChunk]:
        """Divide rows by shard. The same rows make the same chunks in every try; most often one shard gets all."""
        number, shards = epoch
        if self.groups % shards == 0:
            by_place = {crc32(rows.ids[0]) % shards: rows}
        else:
            places: dict[int, list[int]] = {}
            for row, ident in enumerate(rows.ids):
                places.setdefault(crc32(ident) % shards, []).append(row)
            by_place = {place: rows.pick(mine) for place, mine in places.items()}
        return [
            self._chunk(number_of(number, place), shape, group, mine, origin)
            for place, mine in sorted(by_place.items())
        ]

    def _chunk(self, number: int, shape: Shape, group: int, rows: Rows, origin: LoadChunk | None) -> LoadChunk:
        frame = Frame.of(shape, rows)
        digest = self._new_digest(frame, rows) if origin is None else frame.digest(rows.bodies, origin.digest)
        if not shape.keyed:
            shape, rows = replace(shape, keyed=True), rows.keyed(self._load.id, digest)
        return LoadChunk(number, shape, group, rows, frame, digest, origin is None or origin.unpaid)

    def _new_digest(self, frame: Frame, rows: Rows) -> bytes:
        """Return a digest that is unique within this sender.

        Input given twice is written twice, because other rows may lie between.
        """
        digest = frame.digest(rows.bodies)
        times = self._times.get(digest, 0)
        self._times[digest] = times + 1
        return frame.digest(rows.bodies, b"%d" % times) if times else digest

    # -- calls ---------------------------------------------------------------------------------------------------------

    def _send(self, chunks: Sequence[LoadChunk]) -> SentCalls:
        for chunk in chunks:
            chunk.call = self._call_of(chunk)
        return self._broker.scripts.send_many([chunk.call for chunk in chunks if chunk.call is not None])

    def _call_of(self, chunk: LoadChunk) -> Call | None:
        number, ledger = chunk.number, self._ledger_of(chunk)
        epoch, epochs = number // MAX_SHARDS, self.queue.epochs
        if all(epoch != other for other, _ in epochs):
            return None
        if chunk.unpaid and epoch == epochs[-1][0]:
            # An older epoch refuses nearly all rows. They count against the rate in the epoch that accepts them, unless
            # they are written there already.
            self._throttle.hold(len(chunk.rows), ledger, chunk.digest)
            chunk.unpaid = False
        shard = self.queue.shard(number)
        frame = chunk.frame.packed(chunk.rows.bodies, self._code_of(number, chunk.shape.task))
        return Call("bulk", (*shard.keys, ledger), (b"", shard.constants, frame, chunk.digest, self._load.id))

    def _ledger_of(self, chunk: LoadChunk) -> bytes:
        ledger = self._ledgers.get(chunk.number)
        if ledger is None:
            ledger = self._ledgers[chunk.number] = ledger_key(self._broker, self._load, chunk.number)
        return ledger

    def _code_of(self, number: int, task: bytes) -> bytes:
        code = self._codes.get((number, task))
        if code is None:
            with clear_errors():
                stored = self._broker.client.hget(self.queue.shard(number).names["task"], task)
            if not stored:
                return NO_CODE
            code = self._codes[number, task] = int(stored).to_bytes(2, "little")
        return code

    def _read_ledger(self, ledger: bytes, digest: bytes) -> bytes:
        """Return the outcomes of a chunk of a retired epoch: those in the ledger, or else "moved"."""
        with clear_errors():
            closed, letters = self._broker.client.hmget(ledger, [CLOSED_FIELD, digest])
        return _LEDGER_CLOSED_LETTER.encode() if closed else letters or CLOSED_LETTER.encode()

    # -- replies -------------------------------------------------------------------------------------------------------

    def _settle(self, chunks: Sequence[LoadChunk], sent: SentCalls, walk: EpochWalk | None = None) -> None:
        """Read the replies of chunks; retry rows that the queue cannot take now, and forward those of closed shards."""
        walk = walk or EpochWalk(self.queue, self.epochs, create=True)
        error = self._read(sent)
        for chunk in chunks:
            for part, moved in self._settle_chunk(chunk, error):
                epoch = walk.after(chunk.number // MAX_SHARDS)
                if epoch is not None:  # always: a deleted queue is re-created
                    later = self._divide(part.shape, part.group, part.rows.pick(moved), epoch, part)
                    self._settle(later, self._send(later), walk)

    def _settle_chunk(self, chunk: LoadChunk, error: QueueFull | None) -> Iterator[tuple[LoadChunk, list[int]]]:
        wait: BulkLoadWait | None = None
        search = RoomSearch(self.queue)
        while True:
            letters = self._letters_of(chunk)
            refused, moved = self._sort_out(chunk, letters)
            if len(chunk.rows) not in (len(refused), len(moved)):
                self.stored.setdefault(self._ledgers[chunk.number], []).append(chunk.digest)
            if moved:
                yield chunk, moved
            if not refused:
                return
            if len(refused) < len(chunk.rows):
                search, wait = RoomSearch(self.queue), None  # there is progress, or a result of an earlier try
                chunk = self._chunk(chunk.number, chunk.shape, chunk.group, chunk.rows.pick(refused), chunk)
            elif error or FULL_LETTER not in letters or not search.find(chunk.number, len(refused)):
                search, wait = RoomSearch(self.queue), wait or BulkLoadWait(self._limits.patience, self._stop)
                wait.rest(error or self._refusal(OF_LETTER[letters[0]]))
            error = self._read(self._send([chunk]))

    def _read(self, sent: SentCalls) -> QueueFull | None:
        """Read the replies; return the error if Redis had no memory left."""
        try:
            sent.read()
        except QueueFull as error:
            return error
        return None

    def _letters_of(self, chunk: LoadChunk) -> str:
        """Return the outcome letters of a chunk, a single one for all rows alike."""
        if chunk.call is None:
            letters = self._read_ledger(self._ledgers[chunk.number], chunk.digest).decode()
        else:
            letters = FULL_LETTER if chunk.call.failed else chunk.call.reply.decode()
        if letters == _LEDGER_CLOSED_LETTER:
            raise BulkLoadClosed(self._load)
        return letters

    def _sort_out(self, chunk: LoadChunk, letters: str) -> tuple[Sequence[int], list[int]]:
        """Count final outcomes. Return the places of rows to retry, and of rows that a closed shard refused."""
        rows = chunk.rows
        if len(letters) == 1:
            of_all = OF_LETTER[letters]
            if of_all.is_refusal_for_now:
                return range(len(rows)), []
            if of_all.is_final and not of_all.is_final_refusal:
                self.written.counts[of_all] += len(rows)
                return (), []
            letters *= len(rows)
        refused, moved = [], []
        for place, letter in zip(range(len(rows)), letters, strict=True):
            outcome = OF_LETTER[letter]
            if outcome.is_refusal_for_now:
                refused.append(place)
            elif outcome is ScheduleOutcome.CLOSED:
                moved.append(place)
            else:
                self.written.add(rows.ids[place], outcome)
        return refused, moved

    def _refusal(self, outcome: ScheduleOutcome) -> DelayQError:
        load, queue = self._load.id, self._load.queue
        waited = f"bulk load {load!r} waited {self._limits.patience:g} s"
        if outcome is ScheduleOutcome.PAUSED:
            return QueuePaused(
                f"queue {queue!r} (or all producers) is paused for new jobs, and {waited} for it; resume the queue and "
                "then the bulk load"
            )
        return QueueFull(
            f"queue {queue!r} has reached its max_length, or a merged job its max_payloads, and {waited} for room; let "
            "the workers catch up, or raise the limit, and resume the bulk load"
        )

    def epochs(self) -> Epochs:
        """Return the epochs that a chunk may have to visit, the oldest first, retired ones included.

        The caller that closes a load reads the layout after it wrote the record: it sees a new epoch, or this sender
        sees its record.

        Raises:
            BulkLoadClosed: there is a new epoch, and the load is not open any more.
        """
        layout = self.queue.layout
        if layout is not self._layout:
            epochs = epochs_of(self._load, layout)
            if epochs != self._epochs:
                record = read_load(self._broker, self._load.id)
                if record is None or record.state != OPEN or record.opened_ms != self._load.opened_ms:
                    raise BulkLoadClosed(self._load)
            self._layout, self._epochs = layout, epochs
        return self._epochs


@dataclass(frozen=True, slots=True)
class WriterRoom:
    """Limits of what a sender collects before it sends.

    They decide which rows share a chunk, so they are the same in every try of a bulk load.
    """

    #: bytes of a chunk
    chunk_bytes: int = CHUNK_BYTES
    #: bytes of jobs that wait for their chunks to become full
    waiting_bytes: int = 64 << 20
    #: number of shapes whose chunks are collected side by side
    shapes: int = 64


#: room of a sender unless its caller says otherwise
ROOM: Final = WriterRoom()


@dataclass(slots=True)
class _Chunk:
    """Rows collected for one call."""

    rows: Rows = field(default_factory=Rows)
    ids: set[bytes] = field(default_factory=set)
    size: int = 0

    def add(self, entry: LoadEntry) -> int:
        """Add an entry; return its size in bytes."""
        ident, due_ms, body, extra = entry
        self.ids.add(ident)
        rows = self.rows
        rows.ids.append(ident)
        rows.dues.append(b"%d" % due_ms)
        rows.bodies.append(body)
        if extra:
            rows.extras.append(extra)
        size = len(body) + len(extra)
        self.size += size
        return size

    def extend(self, rows: Rows, size: int) -> bool:
        """Add several rows of the given size; return False if an id would occur twice, and add none."""
        self.ids.update(rows.ids)
        if len(self.ids) < len(self.rows) + len(rows):
            self.ids = set(self.rows.ids)
            return False
        self.rows.extend(rows)
        self.size += size
        return True


class BulkLoadWriter:
    """Sender of a bulk load. Pass entries, then call :meth:`finish`; not to be shared between threads.

    A sender that raised cannot be used again, and has written part of its input. Resume the bulk load with a new
    sender, and with the complete input.

    Args:
        broker: the target.
        load: an open bulk load.
        limits: see there.
        stop: called during waits; true = give up waiting (:class:`~.bulk_load_limits.BulkLoadStopped`).
        room: see there.

    Raises:
        BulkLoadClosed: the bulk load is closed.
    """

    def __init__(
        self,
        broker: Broker,
        load: BulkLoad,
        limits: BulkLoadLimits | None = None,
        stop: Callable[[], bool] = lambda: False,
        *,
        room: WriterRoom = ROOM,
    ) -> None:
        self.load = load
        self._room = room
        self._broker = broker
        self._calls = LedgerCalls(broker, load, limits or BulkLoadLimits(), stop)
        self._tables: dict[Shape, dict[int, _Chunk]] = {}
        self._shape: Shape | None = None
        self._table: dict[int, _Chunk] = {}
        self._waiting_bytes = 0
        self._broken = False

    @property
    def written(self) -> Written:
        """Outcomes of the rows whose replies have been read."""
        return self._calls.written

    def add(self, shape: Shape, entry: LoadEntry) -> None:
        """Add one job. Entries of one id are written in the order given.

        Raises:
            InvalidJob: an invalid id.
            BulkLoadClosed, BulkLoadStopped, QueueFull, QueuePaused, QueueUnavailable: see :meth:`finish`.
        """
        if shape is not self._shape:
            self._turn_to(shape)
        ident = entry[0]
        group = crc32(ident) % self._calls.groups
        chunk = self._table.get(group)
        if len(self._tables) > 1:
            self._send_others(group, ident)
        if chunk is None or ident in chunk.ids:  # entries of one id are written one after the other, as if sent alone
            if chunk is not None:
                self._dispatch(shape, group)
            chunk = self._table[group] = _Chunk()
        self._waiting_bytes += chunk.add(entry)
        if len(chunk.rows) >= self.load.chunk or chunk.size >= self._room.chunk_bytes:
            self._dispatch(shape, group)
        elif self._waiting_bytes >= self._room.waiting_bytes:
            self._dispatch_all()

    def add_many(self, shape: Shape, rows: Rows) -> None:
        """Add several jobs: the same chunks as with :meth:`add`, for less work.

        Raises:
            InvalidJob, BulkLoadClosed, BulkLoadStopped, QueueFull, QueuePaused, QueueUnavailable: see :meth:`add`.
        """
        if shape is not self._shape:
            self._turn_to(shape)
        if len(self._tables) > 1 or self._waiting_bytes + rows.size >= self._room.waiting_bytes:
            self._add_each(shape, rows)  # chunks may have to be sent before they are full
            return
        by_group: dict[int, list[int]] = {}
        for place, ident in enumerate(rows.ids):
            by_group.setdefault(crc32(ident) % self._calls.groups, []).append(place)
        parts = [(group, rows.pick(places)) for group, places in by_group.items()]
        for start in range(0, max(map(len, by_group.values()), default=0), self.load.chunk):
            for group, part in parts:
                self._add_part(shape, group, part.cut(start, start + self.load.chunk))

    def _add_part(self, shape: Shape, group: int, rows: Rows) -> None:
        """Add rows of one group, at most as many as fit into a chunk."""
        while rows.ids:
            chunk = self._table.get(group)
            if chunk is None:
                chunk = self._table[group] = _Chunk()
            room = self.load.chunk - len(chunk.rows)
            some, rows = rows.cut(0, room), rows.cut(room, len(rows))
            size = some.size
            if chunk.size + size >= self._room.chunk_bytes or not chunk.extend(some, size):
                self._add_each(shape, some)
                continue
            self._waiting_bytes += size
            if len(some) == room:
                self._dispatch(shape, group)

    def _add_each(self, shape: Shape, rows: Rows) -> None:
        for entry in rows.entries():
            self.add(shape, entry)

    def _turn_to(self, shape: Shape) -> None:
        if shape not in self._tables and len(self._tables) >= self._room.shapes:
            self._dispatch_all()
            self._tables.clear()
        self._shape, self._table = shape, self._tables.setdefault(shape, {})

    def _send_others(self, group: int, ident: bytes) -> None:
        """Send chunks of other shapes that contain this id first."""
        for shape, table in self._tables.items():
            if table is not self._table and group in table and ident in table[group].ids:
                self._dispatch(shape, group)

    def finish(self) -> Written:
        """Send the rest, wait for every reply, and return the outcomes of all rows.

        Raises:
            QueueFull, QueuePaused: for longer than ``BulkLoadLimits.patience``.
            QueueUnavailable: Redis cannot be reached. A resumed bulk load skips the chunks already written.
            BulkLoadClosed: the bulk load was closed meanwhile.
            ChunksLost: Redis has lost what it had stored.
            BulkLoadStopped: it was stopped while it waited.
        """
        with self._whole():
            self._dispatch_all()
            self._calls.finish()
            check_stored(self._broker, self.load, self._calls.stored)
        return self.written

    def abandon(self) -> None:
        """Read the outstanding replies, so that the connections are clean.

        Their jobs are written, or will be when the bulk load is resumed.
        """
        self._calls.abandon()

    def _dispatch_all(self) -> None:
        for shape, table in self._tables.items():
            for group in list(table):
                self._dispatch(shape, group)

    def _dispatch(self, shape: Shape, group: int) -> None:
        with self._whole():
            chunk = self._tables[shape].pop(group)
            self._waiting_bytes -= chunk.size
            self._calls.send(shape, group, chunk.rows, chunk.ids)

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """Mark the sender as broken if the block fails: jobs are lost then, so no later ones may follow."""
        if self._broken:
            raise DelayQError("this sender failed; resume the bulk load with a new sender and with the complete input")
        try:
            yield
        except BaseException:
            self._broken = True
            self.abandon()
            raise


def write_all(writer: BulkLoadWriter, news: Iterable[NewJob]) -> Written:
    """Write jobs and finish. Jobs without a key get the one derived for them in this bulk load."""
    try:
        for new in news:
            writer.add(*entry_of(with_keys(writer.load.id, new)))
    except BaseException:
        writer.abandon()
        raise
    return writer.finish()

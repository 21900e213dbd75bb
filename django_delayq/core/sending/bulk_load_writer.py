"""Writer of a bulk load: collects rows into chunks that are the same in every try, and sends them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from zlib import crc32

from ..errors import DelayQError
from ..job import NewJob
from ..records.bulk_load_frames import LoadEntry, Rows, Shape, entry_of, with_keys
from .bulk_load_limits import BulkLoadLimits
from .ledger_calls import LedgerCalls, Written
from .ledgers import check_stored
from .many import CHUNK_BYTES

if TYPE_CHECKING:
    from ..broker import Broker
    from .bulk_loads import BulkLoad


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

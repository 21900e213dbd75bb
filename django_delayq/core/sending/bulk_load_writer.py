"""Writer of the chunks of a bulk load: packed by shard, two calls in flight while the next chunk is packed."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final
from zlib import crc32

from ..errors import DelayQError, QueueFull, QueuePaused
from ..job import NewJob
from ..operations.resharding import Patience
from ..records.bulk_load_frames import NO_CODE, Entry, Frame, Rows, Shape, entry_of, with_keys
from ..records.keys import MAX_SHARDS, number_of
from ..redis.ordered import in_order
from ..redis.scripts import clear_errors
from ..schedule_outcome import MOVED_LETTER, OF_LETTER, ScheduleOutcome
from .bulk_load_limits import BulkLoadStopped, Limits, Throttle, Wait
from .bulk_loads import OPEN, BulkLoad, epochs_of, groups_of, ledger_key, read_load
from .chunks import CHUNK_BYTES, IN_FLIGHT

if TYPE_CHECKING:
    from ..broker import Broker

__all__ = [
    "BulkLoadClosed",
    "BulkLoadStopped",
    "BulkLoadWriter",
    "Entry",
    "Limits",
    "Rows",
    "Shape",
    "Written",
    "entry_of",
    "write_all",
]

_CLOSED: Final = "X"
#: maximum number of refused ids that are listed
MOST_NAMED: Final = 100
#: bytes of jobs that wait for their chunks to become full
MOST_WAITING: Final = 64 << 20
#: number of shapes whose chunks are collected side by side
MOST_SHAPES: Final = 64


class BulkLoadClosed(DelayQError):
    """Refusal because the bulk load was closed during this sender's work; nothing of this chunk was written."""


@dataclass(slots=True)
class Written:
    """Outcomes of the rows of one sender. Chunks that were written before count with their original outcomes."""

    counts: Counter[str] = field(default_factory=Counter)
    #: (id, outcome) of the first rows that were refused for good
    refused: list[tuple[str, str]] = field(default_factory=list)


@dataclass(slots=True)
class _Chunk:
    """Rows collected for one call."""

    rows: Rows = field(default_factory=Rows)
    ids: set[bytes] = field(default_factory=set)
    size: int = 0

    def add(self, entry: Entry) -> int:
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


@dataclass(slots=True)
class _Sent:
    """Call in flight."""

    number: int
    #: with the keys in the bodies
    shape: Shape
    group: int
    rows: Rows
    frame: Frame
    digest: bytes
    reply: Callable[[], bytes | None]
    #: True if the chunk was not yet counted against the rate
    unpaid: bool = False


class BulkLoadWriter:
    """Sender of a bulk load. Pass entries, then call :meth:`finish`; not to be shared between threads.

    A sender that raised cannot be used again, and has written part of its input. Resume the bulk load with a new
    sender, and with the complete input.

    Args:
        broker: the target.
        load: an open bulk load.
        limits: see there.
        stop: called during waits; true = give up waiting (:class:`RunStopped`).

    Raises:
        RunClosed: the bulk load is closed.
    """

    def __init__(
        self, broker: Broker, load: BulkLoad, limits: Limits | None = None, stop: Callable[[], bool] = lambda: False
    ) -> None:
        if load.state != OPEN:
            raise self._closed(load)
        self._broker = broker
        self.load = load
        self._limits = limits or Limits()
        self._brakes = Throttle(broker, load, self._limits, stop)
        self._stop = stop
        self._in_order = in_order(broker.scripts, broker.connection)
        self._queue = broker.queue(load.queue)
        self._queue.reload()  # this process may have an old layout
        #: epochs that a chunk may have to visit, the oldest first
        self._epochs = load.epochs
        self._groups = groups_of(load)
        self._tables: dict[Shape, dict[int, _Chunk]] = {}
        self._shape: Shape | None = None
        self._table: dict[int, _Chunk] = {}
        self._waiting = 0
        self._on_the_way: deque[_Sent] = deque()
        #: number of chunks made with this digest; half a byte for each job
        self._times: dict[bytes, int] = {}
        #: key of the ledger beside a shard
        self._ledgers: dict[int, bytes] = {}
        #: code of a task in a shard
        self._codes: dict[tuple[int, bytes], bytes] = {}
        self._broken = False
        self.written = Written()

    # -- collecting --------------------------------------------------------------------------------------------------

    def add(self, shape: Shape, entry: Entry) -> None:
        """Add one job. Entries of one id are written in the order given.

        Raises:
            InvalidJob: an invalid id.
            RunClosed, RunStopped, QueueFull, QueuePaused, QueueUnavailable: see :meth:`finish`.
        """
        if shape is not self._shape:
            self._turn_to(shape)
        ident = entry[0]
        group = crc32(ident) % self._groups
        chunk = self._table.get(group)
        if len(self._tables) > 1:
            self._send_others(group, ident)
        if chunk is None or ident in chunk.ids:  # entries of one id are written one after the other, as if sent alone
            if chunk is not None:
                self._dispatch(shape, group)
            chunk = self._table[group] = _Chunk()
        self._waiting += chunk.add(entry)
        if len(chunk.rows) >= self.load.chunk or chunk.size >= CHUNK_BYTES:
            self._dispatch(shape, group)
        elif self._waiting >= MOST_WAITING:
            self._dispatch_all()

    def add_many(self, shape: Shape, rows: Rows) -> None:
        """Add several jobs: the same chunks as with :meth:`add`, for less work.

        Raises:
            InvalidJob, RunClosed, RunStopped, QueueFull, QueuePaused, QueueUnavailable: see :meth:`add`.
        """
        if shape is not self._shape:
            self._turn_to(shape)
        if len(self._tables) > 1 or self._waiting + rows.size >= MOST_WAITING:
            self._add_each(shape, rows)  # chunks may have to be sent before they are full
            return
        by_group: dict[int, list[int]] = {}
        for place, ident in enumerate(rows.ids):
            by_group.setdefault(crc32(ident) % self._groups, []).append(place)
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
            if chunk.size + size >= CHUNK_BYTES or not chunk.extend(some, size):
                self._add_each(shape, some)
                continue
            self._waiting += size
            if len(some) == room:
                self._dispatch(shape, group)

    def _add_each(self, shape: Shape, rows: Rows) -> None:
        for entry in rows.entries():
            self.add(shape, entry)

    def _turn_to(self, shape: Shape) -> None:
        if shape not in self._tables and len(self._tables) >= MOST_SHAPES:
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
            QueueFull, QueuePaused: for longer than ``Limits.patience``.
            QueueUnavailable: Redis cannot be reached. A resumed bulk load skips the chunks already written.
            RunClosed: the bulk load was closed meanwhile.
            RunStopped: it was stopped while it waited.
        """
        with self._whole():
            self._dispatch_all()
            while self._on_the_way:
                self._collect()
        return self.written

    def abandon(self) -> None:
        """Read the outstanding replies, so that the connections are clean.

        Their jobs are written, or will be when the bulk load is resumed.
        """
        while self._on_the_way:
            with suppress(DelayQError):
                self._on_the_way.popleft().reply()

    # -- sending -----------------------------------------------------------------------------------------------------

    def _dispatch_all(self) -> None:
        for shape, table in self._tables.items():
            for group in list(table):
                self._dispatch(shape, group)

    def _dispatch(self, shape: Shape, group: int) -> None:
        with self._whole():
            chunk = self._tables[shape].pop(group)
            self._waiting -= chunk.size
            while any(sent.group == group and not chunk.ids.isdisjoint(sent.rows.ids) for sent in self._on_the_way):
                self._collect()  # earlier rows of an id may be refused now and are retried before this chunk
            self._send_to(self._epochs[0], shape, group, chunk.rows)
            while len(self._on_the_way) > IN_FLIGHT:
                self._collect()

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

    def _send_to(
        self, epoch: tuple[int, int], shape: Shape, group: int, rows: Rows, origin: _Sent | None = None
    ) -> None:
        """Send rows, split by shard. The same rows make the same chunks in every try; most often one shard gets all."""
        number, shards = epoch
        by_place: dict[int, Rows] = {}
        if self._groups % shards == 0:
            by_place[crc32(rows.ids[0]) % shards] = rows
        else:
            rows_of: dict[int, list[int]] = {}
            for row, ident in enumerate(rows.ids):
                rows_of.setdefault(crc32(ident) % shards, []).append(row)
            by_place = {place: rows.pick(some) for place, some in rows_of.items()}
        for place, mine in sorted(by_place.items()):
            sent = self._made(number_of(number, place), shape, group, mine, origin)
            self._call(sent, self._in_order.begin)
            self._on_the_way.append(sent)

    def _made(self, number: int, shape: Shape, group: int, rows: Rows, origin: _Sent | None) -> _Sent:
        frame = Frame.of(shape, rows)
        digest = self._fresh_digest(frame, rows) if origin is None else frame.digest(rows.bodies, origin.digest)
        if not shape.keyed:
            shape, rows = replace(shape, keyed=True), rows.keyed(self.load.id, digest)
        return _Sent(number, shape, group, rows, frame, digest, bytes, origin is None or origin.unpaid)

    def _fresh_digest(self, frame: Frame, rows: Rows) -> bytes:
        """Return a digest that is unique within this sender.

        Input given twice is written twice, because other rows may lie between.
        """
        digest = frame.digest(rows.bodies)
        times = self._times.get(digest, 0)
        self._times[digest] = times + 1
        return frame.digest(rows.bodies, b"%d" % times) if times else digest

    def _call(self, sent: _Sent, begin: Callable[..., Callable[[], bytes]]) -> None:
        ledger = self._ledgers.get(sent.number)
        if ledger is None:
            ledger = self._ledgers[sent.number] = ledger_key(self._broker, self.load, sent.number)
        if sent.number // MAX_SHARDS not in dict(self._queue.epochs):
            # A retired epoch, to which no chunk is written any more, whatever became of its tombstone.
            sent.reply = lambda: self._look(ledger, sent.digest)
            return
        if sent.unpaid and sent.number // MAX_SHARDS == self._queue.epochs[-1][0]:
            # An older epoch refuses nearly all rows. They count against the rate in the epoch that accepts them, unless
            # they are written there already.
            self._brakes.hold(len(sent.rows), ledger, sent.digest)
            sent.unpaid = False
        shard = self._queue.shard(sent.number)
        frame = sent.frame.packed(sent.rows.bodies, self._code_of(sent.number, sent.shape.task))
        sent.reply = begin("bulk", (*shard.keys, ledger), b"", shard.constants, frame, sent.digest, self.load.id)

    def _code_of(self, number: int, task: bytes) -> bytes:
        code = self._codes.get((number, task))
        if code is None:
            with clear_errors():
                told = self._broker.client.hget(self._queue.shard(number).names["task"], task)
            if not told:
                return NO_CODE
            code = self._codes[number, task] = int(told).to_bytes(2, "little")
        return code

    def _look(self, ledger: bytes, digest: bytes) -> bytes | None:
        with clear_errors():
            closed, known = self._broker.client.hmget(ledger, ["\0closed", digest])
        return _CLOSED.encode() if closed else known

    # -- answers -----------------------------------------------------------------------------------------------------

    def _collect(self) -> None:
        sent = self._on_the_way.popleft()
        wait: Wait | None = None
        while True:
            letters, full = self._answer(sent)
            refused = self._sort_out(sent, letters)
            if not refused.ids:
                return
            if len(refused) < len(sent.rows):
                wait = None  # there is progress, or a result of an earlier try
                sent = self._made(sent.number, sent.shape, sent.group, refused, sent)
            else:
                wait = wait or Wait(self._limits.patience, self._stop)
                wait.rest(full or self._refusal(OF_LETTER[letters[0]]))
            self._call(sent, self._broker.scripts.begin)

    def _answer(self, sent: _Sent) -> tuple[str, QueueFull | None]:
        """Return the outcome letters, a single one standing for all; and the error if Redis accepted nothing at all."""
        try:
            reply = sent.reply()
        except QueueFull as error:
            return "f", error
        letters = MOVED_LETTER if reply is None else reply.decode()
        if letters == _CLOSED:
            raise self._closed(self.load)
        return letters, None

    def _sort_out(self, sent: _Sent, letters: str) -> Rows:
        """Count final outcomes, send rows of closed shards on, and return the refused rows that have to be retried."""
        rows = sent.rows
        if len(letters) == 1:
            of_all = OF_LETTER[letters]
            if of_all.is_refusal_for_now:
                return rows
            if of_all.is_final and not of_all.is_final_refusal:
                self.written.counts[of_all] += len(rows)
                return Rows()
            letters *= len(rows)
        refused, moved = [], []
        for place, letter in zip(range(len(rows)), letters, strict=True):
            outcome = OF_LETTER[letter]
            if outcome.is_refusal_for_now:
                refused.append(place)
            elif outcome is ScheduleOutcome.MOVED:
                moved.append(place)
            else:
                self._count(rows.ids[place], outcome)
        if moved:
            self._send_to(self._epoch_behind(sent.number // MAX_SHARDS), sent.shape, sent.group, rows.pick(moved), sent)
        return rows.pick(refused)

    def _count(self, ident: bytes, outcome: ScheduleOutcome) -> None:
        self.written.counts[outcome] += 1
        if outcome.is_final_refusal and len(self.written.refused) < MOST_NAMED:
            self.written.refused.append((ident.decode(errors="replace"), outcome))

    def _epoch_behind(self, epoch: int) -> tuple[int, int]:
        patience: Patience | None = None
        while True:
            later = next((pair for pair in self._epochs if pair[0] > epoch), None)
            if later is not None:
                return later
            known, self._epochs = self._epochs, epochs_of(self._broker, self.load)
            if self._epochs != known:
                # The closing caller reads the layout after it wrote the record: it sees this epoch, or this sender sees
                # its record.
                record = read_load(self._broker, self.load.id)
                if record is None or record.state != OPEN or record.opened_ms != self.load.opened_ms:
                    raise self._closed(self.load)
            else:
                patience = patience or Patience()
                self._broker.epochs.meet(self._queue, epoch, patience, create=True)

    def _refusal(self, outcome: ScheduleOutcome) -> DelayQError:
        waited = f"bulk load {self.load.id!r} waited {self._limits.patience:g} s"
        if outcome is ScheduleOutcome.PAUSED:
            return QueuePaused(
                f"queue {self.load.queue!r} is paused for new jobs, and {waited} for it; resume the queue "
                "and then the bulk load"
            )
        return QueueFull(
            f"queue {self.load.queue!r} has reached its max_length, or a merged job its max_payloads, and "
            f"{waited} for room; let the workers catch up, or raise the limit, and resume the "
            "bulk load"
        )

    @staticmethod
    def _closed(load: BulkLoad) -> BulkLoadClosed:
        return BulkLoadClosed(
            f"bulk load {load.id!r} was closed or forgotten, so nothing more is written for it; begin a new "
            "bulk load for the missing rows"
        )


def write_all(writer: BulkLoadWriter, news: Iterable[NewJob]) -> Written:
    """Write jobs and finish. Jobs without a key get the one derived for them in this bulk load."""
    try:
        for new in news:
            writer.add(*entry_of(with_keys(writer.load.id, new)))
    except BaseException:
        writer.abandon()
        raise
    return writer.finish()

"""Writing the chunks of a run: packed by shard, two calls under way while the next chunk is packed."""

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
from ..records.keys import MAX_SHARDS, number_of
from ..records.run_frames import NO_CODE, Entry, Frame, Rows, Shape, entry_of, with_keys
from ..redis.ordered import in_order
from ..redis.scripts import clear_errors
from .chunks import CHUNK_BYTES, IN_FLIGHT
from .run_limits import Brakes, Limits, RunStopped, Wait
from .runs import OPEN, OUTCOMES, Run, epochs_of, groups_of, ledger_key, read_run

if TYPE_CHECKING:
    from ..broker import Broker

__all__ = [
    "Entry",
    "Limits",
    "Rows",
    "RunClosed",
    "RunStopped",
    "RunWriter",
    "Shape",
    "Written",
    "entry_of",
    "write_all",
]

_REFUSED: Final = "fp"
_MOVED: Final = "v"
_NAMED: Final = "et"
_CLOSED: Final = "X"
#: how many ids are named of those that came to nothing
MOST_NAMED: Final = 100
#: bytes of jobs that wait for their chunks to become full
MOST_WAITING: Final = 64 << 20
#: shapes whose chunks become full side by side
MOST_SHAPES: Final = 64


class RunClosed(DelayQError):
    """The run came to its end while this sender was still at work; nothing of this chunk was written."""


@dataclass(slots=True)
class Written:
    """What became of the rows of one sender. Of chunks that were in before it tells what it came to then."""

    counts: Counter[str] = field(default_factory=Counter)
    #: (id, outcome) of the first that were refused for good
    refused: list[tuple[str, str]] = field(default_factory=list)


@dataclass(slots=True)
class _Chunk:
    """What waits until it is enough for a call."""

    rows: Rows = field(default_factory=Rows)
    ids: set[bytes] = field(default_factory=set)
    size: int = 0

    def add(self, entry: Entry) -> int:
        """Its bytes."""
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
        """Adds several, of so many bytes; not if one of their ids is there already, or twice among them."""
        self.ids.update(rows.ids)
        if len(self.ids) < len(self.rows) + len(rows):
            self.ids = set(self.rows.ids)
            return False
        self.rows.extend(rows)
        self.size += size
        return True


@dataclass(slots=True)
class _Sent:
    """A call under way."""

    number: int
    #: with the keys in the bodies
    shape: Shape
    group: int
    rows: Rows
    frame: Frame
    digest: bytes
    reply: Callable[[], bytes | None]
    #: whether the rate has still to be kept for it
    unpaid: bool = False


class RunWriter:
    """One sender of a run. Give it entries, then :meth:`finish`; not to be shared between threads.

    A sender that raised is at its end, and has written part of what it was given: go on with the run with another one,
    and with everything from the beginning.

    Args:
        broker: where to.
        run: an open run.
        limits: see there.
        stop: asked while it waits; true = give up waiting (:class:`RunStopped`).

    Raises:
        RunClosed: the run has come to its end.
    """

    def __init__(
        self, broker: Broker, run: Run, limits: Limits | None = None, stop: Callable[[], bool] = lambda: False
    ) -> None:
        if run.state != OPEN:
            raise self._closed(run)
        self._broker = broker
        self.run = run
        self._limits = limits or Limits()
        self._brakes = Brakes(broker, run, self._limits, stop)
        self._stop = stop
        self._in_order = in_order(broker.scripts, broker.connection)
        self._queue = broker.queue(run.queue)
        self._queue.reload()  # what this process knows of it may be old
        #: those through which a chunk may have to go, the oldest first
        self._epochs = run.epochs
        self._groups = groups_of(run)
        self._tables: dict[Shape, dict[int, _Chunk]] = {}
        self._shape: Shape | None = None
        self._table: dict[int, _Chunk] = {}
        self._waiting = 0
        self._on_the_way: deque[_Sent] = deque()
        #: how often a chunk of this digest was made; half a byte for each job
        self._times: dict[bytes, int] = {}
        #: key of the ledger beside a shard
        self._ledgers: dict[int, bytes] = {}
        #: what stands for a task in a shard
        self._codes: dict[tuple[int, bytes], bytes] = {}
        self._broken = False
        self.written = Written()

    # -- collecting --------------------------------------------------------------------------------------------------

    def add(self, shape: Shape, entry: Entry) -> None:
        """One more job. What is given for one id goes in in the order in which it is given.

        Raises:
            InvalidJob: an id that cannot be one.
            RunClosed, RunStopped, QueueFull, QueuePaused, QueueUnavailable: see :meth:`finish`.
        """
        if shape is not self._shape:
            self._turn_to(shape)
        ident = entry[0]
        group = crc32(ident) % self._groups
        chunk = self._table.get(group)
        if len(self._tables) > 1:
            self._send_others(group, ident)
        if chunk is None or ident in chunk.ids:  # one after the other, as if they had come alone
            if chunk is not None:
                self._dispatch(shape, group)
            chunk = self._table[group] = _Chunk()
        self._waiting += chunk.add(entry)
        if len(chunk.rows) >= self.run.chunk or chunk.size >= CHUNK_BYTES:
            self._dispatch(shape, group)
        elif self._waiting >= MOST_WAITING:
            self._dispatch_all()

    def add_many(self, shape: Shape, rows: Rows) -> None:
        """More jobs: the same chunks as if they were added one by one, for less work.

        Raises:
            InvalidJob, RunClosed, RunStopped, QueueFull, QueuePaused, QueueUnavailable: see :meth:`add`.
        """
        if shape is not self._shape:
            self._turn_to(shape)
        if len(self._tables) > 1 or self._waiting + rows.size >= MOST_WAITING:
            self._add_each(shape, rows)  # chunks may have to go before they are full
            return
        by_group: dict[int, list[int]] = {}
        for place, ident in enumerate(rows.ids):
            by_group.setdefault(crc32(ident) % self._groups, []).append(place)
        parts = [(group, rows.pick(places)) for group, places in by_group.items()]
        for start in range(0, max(map(len, by_group.values()), default=0), self.run.chunk):
            for group, part in parts:
                self._add_part(shape, group, part.cut(start, start + self.run.chunk))

    def _add_part(self, shape: Shape, group: int, rows: Rows) -> None:
        """Some of one group, no more than a chunk takes."""
        while rows.ids:
            chunk = self._table.get(group)
            if chunk is None:
                chunk = self._table[group] = _Chunk()
            room = self.run.chunk - len(chunk.rows)
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
        """What waits for this id in chunks of another shape goes first."""
        for shape, table in self._tables.items():
            if table is not self._table and group in table and ident in table[group].ids:
                self._dispatch(shape, group)

    def finish(self) -> Written:
        """Sends the rest, waits for every answer, and tells what became of all rows.

        Raises:
            QueueFull, QueuePaused: for longer than the patience goes.
            QueueUnavailable: Redis is gone. Who goes on with the run later finds what is in.
            RunClosed: somebody closed the run meanwhile.
            RunStopped: it was told to stop while it waited.
        """
        with self._whole():
            self._dispatch_all()
            while self._on_the_way:
                self._collect()
        return self.written

    def abandon(self) -> None:
        """Reads the answers that are on their way, so that the lines are empty; their jobs are in or will be again."""
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
                self._collect()  # what was given first for an id may be refused now, and is tried again before this
            self._send_to(self._epochs[0], shape, group, chunk.rows)
            while len(self._on_the_way) > IN_FLIGHT:
                self._collect()

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """What is not done to its end has lost jobs, so nothing may follow."""
        if self._broken:
            raise DelayQError("this sender broke off; go on with the run with a new one, and with all of its input")
        try:
            yield
        except BaseException:
            self._broken = True
            self.abandon()
            raise

    def _send_to(
        self, epoch: tuple[int, int], shape: Shape, group: int, rows: Rows, origin: _Sent | None = None
    ) -> None:
        """The same rows make the same chunks, whoever sends them again. Most often they have one place."""
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
            shape, rows = replace(shape, keyed=True), rows.keyed(self.run.id, digest)
        return _Sent(number, shape, group, rows, frame, digest, bytes, origin is None or origin.unpaid)

    def _fresh_digest(self, frame: Frame, rows: Rows) -> bytes:
        """Each chunk of this sender has its own: what is given twice is done twice, since others may lie between."""
        digest = frame.digest(rows.bodies)
        times = self._times.get(digest, 0)
        self._times[digest] = times + 1
        return frame.digest(rows.bodies, b"%d" % times) if times else digest

    def _call(self, sent: _Sent, begin: Callable[..., Callable[[], bytes]]) -> None:
        ledger = self._ledgers.get(sent.number)
        if ledger is None:
            ledger = self._ledgers[sent.number] = ledger_key(self._broker, self.run, sent.number)
        if sent.number // MAX_SHARDS not in dict(self._queue.epochs):
            # Retired. Nothing is written there any more, whatever became of its tombstone.
            sent.reply = lambda: self._look(ledger, sent.digest)
            return
        if sent.unpaid and sent.number // MAX_SHARDS == self._queue.epochs[-1][0]:
            # An older epoch sends on nearly all: that is paid for where it goes to, unless it is in there.
            self._brakes.hold(len(sent.rows), ledger, sent.digest)
            sent.unpaid = False
        shard = self._queue.shard(sent.number)
        frame = sent.frame.packed(sent.rows.bodies, self._code_of(sent.number, sent.shape.task))
        sent.reply = begin("bulk", (*shard.keys, ledger), b"", shard.constants, frame, sent.digest, self.run.id)

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
                wait = None  # it goes on, or it is what was told at an earlier try
                sent = self._made(sent.number, sent.shape, sent.group, refused, sent)
            else:
                wait = wait or Wait(self._limits.patience, self._stop)
                wait.rest(full or self._refusal(letters[0]))
            self._call(sent, self._broker.scripts.begin)

    def _answer(self, sent: _Sent) -> tuple[str, QueueFull | None]:
        """The letters, one alone standing for all; and why Redis took nothing at all."""
        try:
            reply = sent.reply()
        except QueueFull as error:
            return "f", error
        letters = _MOVED if reply is None else reply.decode()
        if letters == _CLOSED:
            raise self._closed(self.run)
        return letters, None

    def _sort_out(self, sent: _Sent, letters: str) -> Rows:
        """Counts what is done and sends on what was sent away; answers what was refused and has to be tried again."""
        rows = sent.rows
        if len(letters) == 1:
            if letters in _REFUSED:
                return rows
            if letters != _MOVED and letters not in _NAMED:
                self.written.counts[OUTCOMES[letters]] += len(rows)
                return Rows()
            letters *= len(rows)
        refused, moved = [], []
        for place, letter in zip(range(len(rows)), letters, strict=True):
            if letter in _REFUSED:
                refused.append(place)
            elif letter == _MOVED:
                moved.append(place)
            else:
                self._count(rows.ids[place], letter)
        if moved:
            self._send_to(self._epoch_behind(sent.number // MAX_SHARDS), sent.shape, sent.group, rows.pick(moved), sent)
        return rows.pick(refused)

    def _count(self, ident: bytes, letter: str) -> None:
        outcome = OUTCOMES[letter]
        self.written.counts[outcome] += 1
        if letter in _NAMED and len(self.written.refused) < MOST_NAMED:
            self.written.refused.append((ident.decode(errors="replace"), outcome))

    def _epoch_behind(self, epoch: int) -> tuple[int, int]:
        patience: Patience | None = None
        while True:
            later = next((pair for pair in self._epochs if pair[0] > epoch), None)
            if later is not None:
                return later
            known, self._epochs = self._epochs, epochs_of(self._broker, self.run)
            if self._epochs != known:
                # Who closes the run reads the layout after it wrote the record: it sees this epoch, or we see that.
                record = read_run(self._broker, self.run.id)
                if record is None or record.state != OPEN or record.opened_ms != self.run.opened_ms:
                    raise self._closed(self.run)
            else:
                patience = patience or Patience()
                self._broker.epochs.meet(self._queue, epoch, patience, create=True)

    def _refusal(self, letter: str) -> DelayQError:
        waited = f"run {self.run.id!r} waited {self._limits.patience:g} s"
        if letter == "p":
            return QueuePaused(
                f"queue {self.run.queue!r} is paused for new jobs, and {waited} for it; resume it and "
                "go on with the run"
            )
        return QueueFull(
            f"queue {self.run.queue!r} has reached its max_length, or a merged job its max_payloads, and "
            f"{waited} for room; let the workers catch up, or raise the limit, and go on with the "
            "run"
        )

    @staticmethod
    def _closed(run: Run) -> RunClosed:
        return RunClosed(
            f"run {run.id!r} was closed or forgotten, so nothing more is written for it; begin a new run "
            "for what is missing"
        )


def write_all(writer: RunWriter, news: Iterable[NewJob]) -> Written:
    """Writes jobs, and finishes. Those without a key get the one that the run makes for them."""
    try:
        for new in news:
            writer.add(*entry_of(with_keys(writer.run.id, new)))
    except BaseException:
        writer.abandon()
        raise
    return writer.finish()

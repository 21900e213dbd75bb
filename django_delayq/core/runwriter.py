"""Writing the chunks of a run: packed by shard, two calls under way while the next chunk is packed."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from zlib import crc32

from .chunks import CHUNK_BYTES, IN_FLIGHT
from .epochs import Patience
from .errors import DelayQError, QueueFull, QueuePaused
from .job import NewJob
from .keys import MAX_SHARDS, number_of
from .ordered import in_order
from .runframes import NO_CODE, Entry, Frame, Shape, entry_of, with_keys
from .runlimits import Brakes, Limits, RunStopped, Wait
from .runs import OPEN, OUTCOMES, Run, epochs_of, groups_of, ledger_key, read_run
from .scripts import clear_errors

if TYPE_CHECKING:
    from .broker import Broker

__all__ = ["Entry", "Limits", "RunClosed", "RunStopped", "RunWriter", "Shape", "Written", "entry_of", "write_all"]

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
    """What waits until it is enough for a call, by id."""

    entries: dict[bytes, Entry] = field(default_factory=dict)
    size: int = 0


@dataclass(slots=True)
class _Sent:
    """A call under way."""

    number: int
    shape: Shape
    group: int
    entries: dict[bytes, Entry]
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

    def __init__(self, broker: Broker, run: Run, limits: Limits | None = None,
                 stop: Callable[[], bool] = lambda: False) -> None:  # fmt: skip
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
        if chunk is None or ident in chunk.entries:  # one after the other, as if they had come alone
            if chunk is not None:
                self._dispatch(shape, group)
            chunk = self._table[group] = _Chunk()
        chunk.entries[ident] = entry
        size = len(entry[2]) + len(entry[3])
        chunk.size += size
        self._waiting += size
        if len(chunk.entries) >= self.run.chunk or chunk.size >= CHUNK_BYTES:
            self._dispatch(shape, group)
        elif self._waiting >= MOST_WAITING:
            self._dispatch_all()

    def _turn_to(self, shape: Shape) -> None:
        if shape not in self._tables and len(self._tables) >= MOST_SHAPES:
            self._dispatch_all()
            self._tables.clear()
        self._shape, self._table = shape, self._tables.setdefault(shape, {})

    def _send_others(self, group: int, ident: bytes) -> None:
        """What waits for this id in chunks of another shape goes first."""
        for shape, table in self._tables.items():
            if table is not self._table and group in table and ident in table[group].entries:
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
            while any(sent.group == group and not chunk.entries.keys().isdisjoint(sent.entries)
                      for sent in self._on_the_way):  # fmt: skip
                self._collect()  # what was given first for an id may be refused now, and is tried again before this
            self._send_to(self._epochs[0], shape, group, chunk.entries)
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

    def _send_to(self, epoch: tuple[int, int], shape: Shape, group: int, entries: dict[bytes, Entry],
                 origin: _Sent | None = None) -> None:  # fmt: skip
        """The same entries make the same chunks, whoever sends them again. Most often they have one place."""
        number, shards = epoch
        by_place: dict[int, dict[bytes, Entry]] = {}
        if self._groups % shards == 0:
            by_place[crc32(next(iter(entries))) % shards] = entries
        else:
            for ident, entry in entries.items():
                by_place.setdefault(crc32(ident) % shards, {})[ident] = entry
        for place, mine in sorted(by_place.items()):
            sent = self._made(number_of(number, place), shape, group, mine, origin)
            self._call(sent, self._in_order.begin)
            self._on_the_way.append(sent)

    def _made(self, number: int, shape: Shape, group: int, entries: dict[bytes, Entry], origin: _Sent | None) -> _Sent:
        frame = Frame.of(shape, list(entries.values()))
        digest = self._fresh_digest(frame) if origin is None else frame.digest(origin.digest)
        return _Sent(number, shape, group, entries, frame, digest, bytes, origin is None or origin.unpaid)

    def _fresh_digest(self, frame: Frame) -> bytes:
        """Each chunk of this sender has its own: what is given twice is done twice, since others may lie between."""
        digest = frame.digest()
        times = self._times.get(digest, 0)
        self._times[digest] = times + 1
        return frame.digest(b"%d" % times) if times else digest

    def _call(self, sent: _Sent, begin: Callable[..., Callable[[], bytes]]) -> None:
        ledger = ledger_key(self._broker, self.run, sent.number)
        if sent.number // MAX_SHARDS not in dict(self._queue.epochs):
            # Retired. Nothing is written there any more, whatever became of its tombstone.
            sent.reply = lambda: self._look(ledger, sent.digest)
            return
        if sent.unpaid:
            self._brakes.hold(len(sent.entries), ledger, sent.digest)
            sent.unpaid = False
        shard = self._queue.shard(sent.number)
        frame = sent.frame.packed(self._code_of(sent.number, sent.shape.task))
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
            if not refused:
                return
            if len(refused) < len(sent.entries):
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

    def _sort_out(self, sent: _Sent, letters: str) -> dict[bytes, Entry]:
        """Counts what is done and sends on what was sent away; answers what was refused and has to be tried again."""
        if len(letters) == 1:
            if letters in _REFUSED:
                return sent.entries
            if letters != _MOVED and letters not in _NAMED:
                self.written.counts[OUTCOMES[letters]] += len(sent.entries)
                return {}
            letters *= len(sent.entries)
        refused: dict[bytes, Entry] = {}
        moved: dict[bytes, Entry] = {}
        for (ident, entry), letter in zip(sent.entries.items(), letters, strict=True):
            if letter in _REFUSED:
                refused[ident] = entry
            elif letter == _MOVED:
                moved[ident] = entry
            else:
                self._count(ident, letter)
        if moved:
            self._send_to(self._epoch_behind(sent.number // MAX_SHARDS), sent.shape, sent.group, moved, sent)
        return refused

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
                if record is None or record.state != OPEN:
                    raise self._closed(self.run)
            else:
                patience = patience or Patience()
                self._broker.epochs.meet(self._queue, epoch, patience, create=True)

    def _refusal(self, letter: str) -> DelayQError:
        waited = f"run {self.run.id!r} waited {self._limits.patience:g} s"
        if letter == "p":
            return QueuePaused(f"queue {self.run.queue!r} is paused for new jobs, and {waited} for it; resume it and "
                               "go on with the run")  # fmt: skip
        return QueueFull(f"queue {self.run.queue!r} has reached its max_length, or a merged job its max_payloads, and "
                         f"{waited} for room; let the workers catch up, or raise the limit, and go on with the "
                         "run")  # fmt: skip

    @staticmethod
    def _closed(run: Run) -> RunClosed:
        return RunClosed(f"run {run.id!r} was closed or forgotten, so nothing more is written for it; begin a new run "
                         "for what is missing")  # fmt: skip


def write_all(writer: RunWriter, news: Iterable[NewJob]) -> Written:
    """Writes jobs, and finishes. Those without a key get the one that the run makes for them."""
    try:
        for new in news:
            writer.add(*entry_of(with_keys(writer.run.id, new)))
    except BaseException:
        writer.abandon()
        raise
    return writer.finish()

"""Calls that write each chunk of a bulk load once: the ledger beside the shard recognises a chunk that was written.

Rows that the queue cannot take now are retried here, within the limits of the load. So every chunk that is settled has
a final outcome for each of its rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final
from zlib import crc32

from ..errors import DelayQError, QueueFull, QueuePaused
from ..outcomes import CLOSED_LETTER, FULL_LETTER, OF_LETTER, ScheduleOutcome
from ..records.bulk_load_frames import NO_CODE, Frame, Rows, Shape
from ..records.keys import MAX_SHARDS, number_of
from ..redis.ordered import in_order
from ..redis.scripts import Reply, clear_errors
from .bulk_load_limits import BulkLoadLimits, BulkLoadWait, Throttle
from .bulk_loads import OPEN, BulkLoad, groups_of, read_load
from .ledgers import CLOSED, epochs_of, ledger_key
from .quotas import RoomSearch

if TYPE_CHECKING:
    from ..broker import Broker
    from ..records.layout import Epochs, Layout

#: reply of a closed ledger
_LEDGER_CLOSED_LETTER: Final = "X"
#: maximum number of refused ids that are listed
MAX_LISTED: Final = 100


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
    reply: Reply = field(init=False)

    @property
    def ids(self) -> list[bytes]:
        """Ids of the rows."""
        return self.rows.ids


class LedgerCalls:
    """Calls of one sender of a bulk load.

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
        self._in_order = in_order(broker.scripts, broker.connection)
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

    # -- chunks --------------------------------------------------------------------------------------------------------

    def chunks(self, shape: Shape, group: int, rows: Rows) -> list[LoadChunk]:
        """Return the chunks that write rows to the first epoch of the load."""
        return self._divide(shape, group, rows, self._load.epochs[0], None)

    def forward(self, chunk: LoadChunk, places: Sequence[int], epoch: tuple[int, int]) -> list[LoadChunk]:
        """Return chunks of a later epoch for some rows of a chunk."""
        return self._divide(chunk.shape, chunk.group, chunk.rows.pick(places), epoch, chunk)

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

    def begin(self, chunk: LoadChunk) -> None:
        """Begin the script call of a chunk, after the calls begun before."""
        self._call(chunk, self._in_order.begin)

    def _call(self, chunk: LoadChunk, begin: Callable[..., Reply]) -> None:
        number = chunk.number
        ledger = self._ledgers.get(number)
        if ledger is None:
            ledger = self._ledgers[number] = ledger_key(self._broker, self._load, number)
        epoch, epochs = number // MAX_SHARDS, self.queue.epochs
        if all(epoch != other for other, _ in epochs):
            # A retired epoch, to which no chunk is written any more, whatever became of its tombstone.
            chunk.reply = lambda until=None: self._read_ledger(ledger, chunk.digest)
            return
        if chunk.unpaid and epoch == epochs[-1][0]:
            # An older epoch refuses nearly all rows. They count against the rate in the epoch that accepts them, unless
            # they are written there already.
            self._throttle.hold(len(chunk.rows), ledger, chunk.digest)
            chunk.unpaid = False
        shard = self.queue.shard(number)
        frame = chunk.frame.packed(chunk.rows.bodies, self._code_of(number, chunk.shape.task))
        chunk.reply = begin("bulk", (*shard.keys, ledger), b"", shard.constants, frame, chunk.digest, self._load.id)

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
            closed, letters = self._broker.client.hmget(ledger, [CLOSED, digest])
        return _LEDGER_CLOSED_LETTER.encode() if closed else letters or CLOSED_LETTER.encode()

    # -- replies -------------------------------------------------------------------------------------------------------

    def settle(self, chunk: LoadChunk) -> Iterator[tuple[LoadChunk, list[int]]]:
        """Read the reply of a chunk. Retry the rows that the queue cannot take now; yield those of closed shards."""
        wait: BulkLoadWait | None = None
        search = RoomSearch(self.queue)
        while True:
            letters, error = self._read_reply(chunk)
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
            self._call(chunk, self._broker.scripts.begin)

    def _read_reply(self, chunk: LoadChunk) -> tuple[str, QueueFull | None]:
        """Return the outcome letters, a single one for all rows alike; and the error if Redis had no memory left."""
        try:
            letters = chunk.reply().decode()
        except QueueFull as error:
            return "f", error
        if letters == _LEDGER_CLOSED_LETTER:
            raise BulkLoadClosed(self._load)
        return letters, None

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

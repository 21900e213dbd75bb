"""Resumable bulk loads: chunks that were written are not written again, whichever process resumes the load and when.

A bulk load is identified by an id that its author chose. Its record describes the input, so that the load is resumed
only with the same input; and how chunks are made, so that a second try makes the same ones. The *ledger*, a hash
beside each shard that the load writes to (``lua/bulk.lua``), records the written chunks: digest of a chunk -> its
outcomes. Checking that a job exists would not be enough: a job that was written, ran and is gone would be written, and
run, again.

Record and ledgers expire when the load was not used for 30 days (about half a byte for each job), the ledgers a day
after the record: a load that can be resumed has all of them. A sender that was left behind, for instance in a task that
Spark tried twice, finds its chunks recorded. Redis must not evict these keys, which the pipeline checks.

A ledger outlives its shard: it stays when an epoch is retired or the queue deleted. Rows meant for a closed shard move
on to the next epoch (:mod:`.resharding`), one after another, so a resumed load finds them again. Rows that the queue
cannot take now are retried, within the limits of the load.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from operator import add
from typing import Any, ClassVar, Final, TypeAlias
from zlib import crc32

from . import layouts
from .broker import Broker
from .errors import DelayQError, InvalidJob, QueueFull, QueuePaused
from .inputs import short
from .job import KEY_BYTES, NewJob, derived_key
from .layouts import Epochs
from .many import CHUNK_BYTES, RoomWait
from .outcomes import CLOSED_LETTER, FINAL_LETTERS, FULL_LETTER, OF_LETTER, ScheduleOutcome
from .quotas import RoomSearch
from .records.frames import CHUNK, fields_of, pack
from .records.keys import MAX_SHARDS, number_of
from .redis.scripts import Call, SentCalls, clear_errors
from .resharding import EpochWalk

#: version of the form of chunks and their digests; loads begun with another one cannot be resumed
FORM: Final = 4
DAY_MS: Final = 86_400_000
#: how long a load that is not used can be resumed
KEPT_MS: Final = 30 * DAY_MS
#: how much longer its ledgers stay
_MARGIN_MS: Final = DAY_MS
#: last bytes of the keys of a chunk's jobs
_PLACES: Final = tuple(place.to_bytes(4, "big") for place in range(CHUNK))
#: chunks that are sent together
_TOGETHER: Final = 4
#: calls between two checks of Redis's memory
_CALLS_PER_LOOK: Final = 25
#: chunks that are looked up in one command
_LOOKED_UP: Final = 1000
_FOR_NOW: Final = frozenset(letter for letter, outcome in OF_LETTER.items() if outcome.is_refusal_for_now)


class BulkLoadDiffers(InvalidJob):
    """Mismatch of input, queue or chunks between a resumed bulk load and its beginning."""


class ChunksLost(DelayQError):
    """Loss of chunks that Redis had stored for an open bulk load."""

    def __init__(self, load: BulkLoad, chunks: int) -> None:
        super().__init__(
            f"Redis has lost {chunks} chunks of bulk load {load.id!r} that it had stored; repeat the bulk load under "
            "its id with the same input, which stores what is missing"
        )


# -- the record --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BulkLoad:
    """Bulk load."""

    id: str
    queue: str
    #: (epoch, shards) of the queue when it was opened, which determine its chunks
    epochs: Epochs
    #: Unix ms on Redis's clock
    opened_ms: int
    #: jobs in a chunk
    chunk: int = CHUNK
    #: description of its input: names with texts or numbers
    source: tuple[tuple[str, str], ...] = ()
    #: True if everything is written
    closed: bool = False
    form: int = FORM


def open_load(
    broker: Broker, load_id: str, queue: str, *, source: Mapping[str, object] | None = None, chunk: int = CHUNK
) -> BulkLoad:
    """Open a bulk load, or resume the one of this id.

    Args:
        broker: the deployment of its queue.
        queue: created if there is none.
        source: identifies the input: names, sizes, partitions.
        chunk: most jobs of one script call, 1 … 250.

    Returns:
        The load as it was opened first; if it is closed, all its rows are written.

    Raises:
        BulkLoadDiffers: it was opened with another input, queue or chunk size.
    """
    described = tuple(sorted((str(name), str(value)) for name, value in (source or {}).items()))
    requested = BulkLoad(load_id, queue, _epochs_now(broker, queue), round(broker.now_ms()), chunk, described)
    stored = None
    while stored is None:  # between the two commands it may expire
        with clear_errors():
            key = broker.key(f"load:{load_id}")
            if broker.client.set(key, _encode(requested), nx=True, px=KEPT_MS):
                return requested
        stored = read_load(broker, load_id)
    if differences := _differences(stored, requested):
        raise BulkLoadDiffers(
            f"bulk load {load_id!r} was begun with other input or options: {'; '.join(differences)}. Repeat it as it "
            "was begun, or begin a new bulk load under another id"
        )
    keep_load(broker, stored)
    return stored


def read_load(broker: Broker, load_id: str) -> BulkLoad | None:
    """Return the bulk load of this id; None if there is none."""
    with clear_errors():
        stored = broker.client.get(broker.key(f"load:{load_id}"))
    if stored is None:
        return None
    record: dict[str, Any] = json.loads(stored)
    # A newer release may store more fields.
    values = {field.name: record[field.name] for field in fields(BulkLoad) if field.name in record}
    for name in ("epochs", "source"):
        values[name] = tuple(map(tuple, values[name]))
    return BulkLoad(**values)


def close_load(broker: Broker, load: BulkLoad) -> BulkLoad:
    """Note that a bulk load is complete, so that nothing more is written for it; return it as recorded."""
    closed = replace(load, closed=True)
    with clear_errors():
        broker.client.set(broker.key(f"load:{load.id}"), _encode(closed), xx=True, keepttl=True)
    return closed


def keep_load(broker: Broker, load: BulkLoad, ms: int = KEPT_MS) -> None:
    """Keep a bulk load for so long from now on, its ledgers first: they are to outlive its record."""
    with clear_errors():
        with broker.client.pipeline(transaction=False) as pipe:
            for key in _ledgers(broker, load):
                pipe.pexpire(key, ms + _MARGIN_MS)
            pipe.execute()
        broker.client.pexpire(broker.key(f"load:{load.id}"), ms)


def progress(broker: Broker, load: BulkLoad) -> Counter[str]:
    """Return the number of rows by outcome so far, as Redis counted them: each once, however often it was sent.

    Byte-identical chunks of two senders count as one chunk that was sent twice.
    """
    counts: Counter[str] = Counter()
    with clear_errors(), broker.client.pipeline(transaction=False) as pipe:
        for key in _ledgers(broker, load):
            pipe.hmget(key, [f"\0{letter}" for letter in FINAL_LETTERS])
        for times in pipe.execute():
            counts.update({OF_LETTER[letter]: int(n) for letter, n in zip(FINAL_LETTERS, times, strict=True) if n})
    return counts


def _epochs_now(broker: Broker, name: str) -> Epochs:
    while True:
        queue = broker.queue(name)
        queue.reload()  # this process may have an old layout
        if epochs := queue.epochs:  # otherwise it was deleted at this moment
            return epochs


def _differences(stored: BulkLoad, requested: BulkLoad) -> list[str]:
    pairs = [("queue", stored.queue, requested.queue), ("chunk", str(stored.chunk), str(requested.chunk))]
    if not stored.closed:
        pairs.append(("the form of its chunks", str(stored.form), str(requested.form)))
    before, now = dict(stored.source), dict(requested.source)
    pairs += [(name, before.get(name, "nothing"), now.get(name, "nothing")) for name in sorted({*before, *now})]
    return [f"{name} was {short(old)} and is {short(new)}" for name, old, new in pairs if old != new]


def _encode(load: BulkLoad) -> bytes:
    return json.dumps(asdict(load)).encode()


def _ledger(broker: Broker, load: BulkLoad, number: int) -> bytes:
    """Return the key of the ledger of a load beside one shard, in the shard's slot.

    A later load under the id of an expired one has other ledgers.
    """
    stem = broker.shard(load.queue, number).names["body"].removesuffix(b"body")
    return stem + b"load:%b:%d" % (load.id.encode(), load.opened_ms)


def _ledgers(broker: Broker, load: BulkLoad) -> list[bytes]:
    """Return the keys of every ledger that the load may have."""
    _, layout = broker.read_layout(load.queue)
    numbers = layouts.all_numbers(_epochs_of(load, layout))
    return [_ledger(broker, load, number) for number in numbers]


def _epochs_of(load: BulkLoad, layout: layouts.Layout | None) -> Epochs:
    """Return ``(epoch, shards)`` of every epoch that the load may have reached, oldest first, retired ones included."""
    epochs = dict(load.epochs)
    if layout is not None:
        reached = [*layout.get("past", ()), *layout.get("old", ()), *layouts.epochs_of(layout)]
        epochs |= {epoch: shards for epoch, shards in reached if epoch >= load.epochs[0][0]}
    return tuple(sorted(epochs.items()))


# -- rows --------------------------------------------------------------------------------------------------------------

#: id, due in Unix ms, body behind flags and key, kind (``lua/bulk.lua``), and of a merged job digest and record
LoadEntry: TypeAlias = tuple[bytes, int, bytes, bytes, tuple[bytes, ...]]


def entry_of(new: NewJob) -> LoadEntry:
    """Return a job as a bulk load writes it: its keys follow from its chunk, so they are the same in every try.

    Raises:
        InvalidJob: see :func:`.records.frames.pack_new`. Also if it has no due time of its own, because a delay would
            end at another moment in a second try; or if it is durable, which only the outbox supports.
    """
    if new.durable:
        raise InvalidJob("a bulk load takes no durable jobs: their rows are in the database, so schedule them there")
    if new.due_ms is None:
        raise InvalidJob(
            "a bulk load needs the moment when a job is due, because a delay would end at another moment in a second "
            "try; give due_ms"
        )
    payload = new.payload and replace(new.payload, key=bytes(KEY_BYTES))
    kind = fields_of(replace(new, key=bytes(KEY_BYTES), payload=payload))
    ident, due_ms, body = (kind.pop(name) for name in ("id", "ms", "body"))
    merged = (kind.pop("digest"), kind.pop("record")) if payload else ()
    return ident, due_ms, body[1 + KEY_BYTES :], pack({**kind, "flags": body[0]}), merged


def _pack_rows(rows: Sequence[tuple[bytes, LoadEntry]]) -> bytes:
    """Return the chunk of these rows as ``lua/bulk.lua`` takes it."""
    places, entries = zip(*rows, strict=True)
    ids, dues, bodies, kinds, merged = zip(*entries, strict=True)
    bodies = tuple(map(add, places, bodies))
    numbers = {kind: number for number, kind in enumerate(dict.fromkeys(kinds), 1)}
    which = [numbers[kind] for kind in kinds] if len(numbers) > 1 else []
    return pack((list(numbers), which, ids, dues, bodies, merged if any(merged) else []))


# -- writing -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BulkLoadLimits:
    """Limits that make a bulk load yield to other work."""

    #: jobs a second of all senders of the bulk load together; None = no limit
    per_second: float | None = None
    #: longest wait without progress for a full or paused queue, or a full Redis, seconds
    patience: float = 600.0
    #: share of Redis's ``maxmemory`` above which sending pauses; 0 = no check
    most_memory: float = 0.85


@dataclass(slots=True)
class _Waiting:
    """Rows of one group of ids that wait for their chunk to become full."""

    rows: dict[bytes, LoadEntry] = field(default_factory=dict)
    #: bytes of bodies and payloads
    size: int = 0


@dataclass(slots=True, eq=False)
class _Chunk:
    """Rows that one script call writes to one shard, each with its place.

    The digest, by which the ledger identifies it, covers its rows and the chunk of which they are the remainder. The
    keys of its jobs have a common front, and end with the place; a remainder keeps both.
    """

    number: int
    rows: list[tuple[bytes, LoadEntry]]
    packed: bytes
    digest: bytes
    front: bytes
    call: Call = field(init=False)


class BulkLoadWriter:
    """Sender of a bulk load. Pass entries, then call :meth:`finish`; not to be shared between threads.

    Rows are collected into chunks that are the same in every try, and each is sent once. Chunks are sent together; the
    next ones are collected while Redis works on those. An id comes once among the chunks that are sent together.

    After an error call :meth:`abandon`. A part of the input is written then: resume the bulk load with a new sender,
    and with the complete input.
    """

    #: bytes that fill a chunk
    chunk_bytes: ClassVar[int] = CHUNK_BYTES
    #: bytes of rows that wait for their chunks to become full
    waiting_bytes: ClassVar[int] = 64 << 20

    def __init__(self, broker: Broker, load: BulkLoad, limits: BulkLoadLimits | None = None) -> None:
        self.load = load
        #: number of rows by outcome; chunks that were written before count with their original outcomes
        self.counts: Counter[str] = Counter()
        self._broker = broker
        self._queue = broker.queue(load.queue)
        self._limits = limits or BulkLoadLimits()
        self._throttle = _Throttle(broker, load, self._limits)
        #: ids of one group most often share a shard in every epoch: the numbers of shards mostly divide each other
        self._groups = max(shards for _, shards in load.epochs)
        self._waiting: defaultdict[int, _Waiting] = defaultdict(_Waiting)
        #: number of chunks made with this digest
        self._times: Counter[bytes] = Counter()
        #: digests of the chunks that are stored, by ledger
        self._stored: defaultdict[bytes, list[bytes]] = defaultdict(list)
        #: chunks that are not sent yet, and their ids
        self._collected: list[_Chunk] = []
        self._ids: set[bytes] = set()
        #: those whose replies are not read yet
        self._sent: tuple[list[_Chunk], SentCalls] | None = None
        self._is_abandoned = False

    def add(self, entries: Iterable[LoadEntry]) -> None:
        """Add jobs. Those of one id are written in the order given.

        Raises:
            DelayQError: see :meth:`finish`.
        """
        groups, most = self._groups, self.load.chunk
        chunk_bytes = min(self.chunk_bytes, self.waiting_bytes // groups)
        for entry in entries:
            ident, _, body, _, merged = entry
            group = crc32(ident) % groups
            waiting = self._waiting[group]
            if ident in waiting.rows:  # entries of one id are written one after the other, as if sent alone
                self._dispatch(group)
                waiting = self._waiting[group]
            waiting.rows[ident] = entry
            waiting.size += len(body) + sum(map(len, merged)) if merged else len(body)
            if len(waiting.rows) >= most or waiting.size >= chunk_bytes:
                self._dispatch(group)

    def finish(self) -> Counter[str]:
        """Send the rest, wait for every reply, and return the outcomes of all rows.

        Raises:
            QueueFull, QueuePaused: for longer than ``BulkLoadLimits.patience``.
            QueueUnavailable: Redis cannot be reached. A resumed bulk load skips the chunks already written.
            ChunksLost: Redis has lost what it had stored.
        """
        if self._is_abandoned:
            raise DelayQError("this sender failed; resume the bulk load with a new sender and with the complete input")
        for group in list(self._waiting):
            self._dispatch(group)
        self._send_collected()
        self._settle_sent()
        self._check_stored()
        return self.counts

    def abandon(self) -> None:
        """Read the outstanding replies, so that the connections are clean.

        Their jobs are written, or will be when the bulk load is resumed.
        """
        self._is_abandoned = True
        if self._sent is not None:
            self._sent[1].read_once()
            self._sent = None

    def _dispatch(self, group: int) -> None:
        waiting = self._waiting.pop(group)
        if not self._ids.isdisjoint(waiting.rows):
            self._send_collected()
        self._collected += self._divide(zip(_PLACES, waiting.rows.values(), strict=False), self.load.epochs[0])
        self._ids.update(waiting.rows)
        # A load with a rate is not to be far ahead of it.
        if self._limits.per_second is not None or len(self._collected) >= _TOGETHER:
            self._send_collected()

    def _send_collected(self) -> None:
        self._settle_sent()
        chunks, self._collected, self._ids = self._collected, [], set()
        if chunks:
            self._throttle.wait()
            self._sent = chunks, self._send(chunks)

    def _settle_sent(self) -> None:
        if self._sent is not None:
            chunks, sent = self._sent
            self._settle(chunks, sent)
            self._sent = None

    def _check_stored(self) -> None:
        """Check that Redis still has the chunks that it stored: it may have gone back to an older copy since.

        Raises:
            ChunksLost: some are missing.
        """
        with clear_errors(), self._broker.client.pipeline(transaction=False) as pipe:
            for ledger, digests in self._stored.items():
                for start in range(0, len(digests), _LOOKED_UP):
                    pipe.hmget(ledger, digests[start : start + _LOOKED_UP])
            lost = sum(found.count(None) for found in pipe.execute())
        if lost:
            raise ChunksLost(self.load, lost)

    # -- chunks --------------------------------------------------------------------------------------------------------

    def _divide(
        self, rows: Iterable[tuple[bytes, LoadEntry]], epoch: tuple[int, int], origin: _Chunk | None = None
    ) -> list[_Chunk]:
        """Return chunks of these rows, by their shards in an epoch; most often one shard gets all."""
        number, shards = epoch
        by_shard: dict[int, list[tuple[bytes, LoadEntry]]] = {}
        if self._groups % shards == 0:  # the ids of a group share it
            mine = list(rows)
            by_shard[crc32(mine[0][1][0]) % shards] = mine
        else:
            for row in rows:
                by_shard.setdefault(crc32(row[1][0]) % shards, []).append(row)
        return [self._chunk(number_of(number, place), mine, origin) for place, mine in sorted(by_shard.items())]

    def _chunk(self, number: int, rows: list[tuple[bytes, LoadEntry]], origin: _Chunk | None) -> _Chunk:
        packed = _pack_rows(rows)
        if origin is not None:
            return _Chunk(number, rows, packed, _digest(origin.digest, packed), origin.front)
        digest = _digest(b"", packed)
        self._times[digest] += 1
        if (times := self._times[digest]) > 1:
            # Input given twice is written twice, because other rows may lie between.
            digest = _digest(b"%d" % times, packed)
        keys = derived_key(hashlib.blake2b(self.load.id.encode() + b"\0" + digest, digest_size=KEY_BYTES).digest())
        return _Chunk(number, rows, packed, digest, keys[:-4])

    def _send(self, chunks: Sequence[_Chunk]) -> SentCalls:
        for chunk in chunks:
            chunk.call = self._call_of(chunk)
        return self._broker.scripts.send_many([chunk.call for chunk in chunks])

    def _call_of(self, chunk: _Chunk) -> Call:
        number = chunk.number
        shard, ledger = self._queue.shard(number), _ledger(self._broker, self.load, number)
        is_retired = all(number // MAX_SHARDS != epoch for epoch, _ in self._queue.epochs)
        args = (chunk.packed, chunk.digest, self.load.id, chunk.front, int(is_retired), KEPT_MS + _MARGIN_MS)
        return Call("bulk", (*shard.keys, ledger), (b"", shard.constants, *args))

    # -- replies -------------------------------------------------------------------------------------------------------

    def _settle(self, chunks: Sequence[_Chunk], sent: SentCalls, walk: EpochWalk | None = None) -> None:
        """Read the replies of chunks; retry rows that the queue cannot take now, and forward those of closed shards."""
        walk = walk or EpochWalk(self._queue, lambda: _epochs_of(self.load, self._queue.layout), create=True)
        error = _read(sent)
        for chunk in chunks:
            for part, moved in self._store(chunk, error):
                epoch = walk.after(part.number // MAX_SHARDS)
                if epoch is not None:  # always: a deleted queue is re-created
                    later = self._divide([part.rows[place] for place in moved], epoch, part)
                    self._settle(later, self._send(later), walk)

    def _store(self, chunk: _Chunk, error: QueueFull | None) -> Iterator[tuple[_Chunk, list[int]]]:
        """Count the outcomes of a chunk that was sent, and send what the shard refused for now until it is stored.

        Yields:
            A chunk, and the places of its rows that a closed shard refused.
        """
        wait, search = RoomWait(), RoomSearch(self._queue)
        while True:
            letters = FULL_LETTER if chunk.call.failed else chunk.call.reply.decode()
            letters = letters * len(chunk.rows) if len(letters) == 1 else letters
            refused = [place for place, letter in enumerate(letters) if letter in _FOR_NOW]
            moved = [place for place, letter in enumerate(letters) if letter == CLOSED_LETTER]
            if len(letters) not in (len(refused), len(moved)):
                self._stored[chunk.call.keys[-1]].append(chunk.digest)
            for letter in set(letters).intersection(FINAL_LETTERS):
                self.counts[OF_LETTER[letter]] += letters.count(letter)
            if moved:
                yield chunk, moved
            if not refused:
                return
            if len(refused) < len(letters):  # there is progress, or a result of an earlier try
                wait, search = RoomWait(), RoomSearch(self._queue)
                chunk = self._chunk(chunk.number, [chunk.rows[place] for place in refused], chunk)
            elif error or FULL_LETTER not in letters or not search.find(chunk.number, len(refused)):
                search = RoomSearch(self._queue)
                if not wait.rest(round(1000 * self._limits.patience)):
                    raise error or self._refusal(OF_LETTER[letters[0]])
            error = _read(self._send([chunk]))

    def _refusal(self, outcome: ScheduleOutcome) -> DelayQError:
        load, queue = self.load.id, self.load.queue
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


def _digest(origin: bytes, packed: bytes) -> bytes:
    return hashlib.sha1(origin + packed, usedforsecurity=False).digest()


def _read(sent: SentCalls) -> QueueFull | None:
    """Read the replies; return the error if Redis had no memory left."""
    try:
        sent.read()
    except QueueFull as error:
        return error
    return None


# -- rate and memory ---------------------------------------------------------------------------------------------------


class _Throttle:
    """Throttle of one sender: before each call it waits for Redis's memory limit, and to keep the rate.

    The rate is one for all senders: each waits until all of them together, as the ledgers count it, have not written
    more since its own last call than the rate allows. What was written before takes nothing of it, and a sender that
    sends little leaves its part to the others.
    """

    def __init__(self, broker: Broker, load: BulkLoad, limits: BulkLoadLimits) -> None:
        self._broker = broker
        self._load = load
        self._limits = limits
        self._calls = 0
        #: when the last call was made (monotonic), and number of rows that were written before it
        self._called_at = 0.0
        self._written = math.inf

    def wait(self) -> None:
        """Wait until the next call may be made.

        Raises:
            QueueFull: memory was short for longer than ``patience``.
        """
        if self._limits.most_memory and self._calls % _CALLS_PER_LOOK == 0:
            self._wait_for_memory()
        self._calls += 1
        if (rate := self._limits.per_second) is not None:
            while True:
                now, written = time.monotonic(), progress(self._broker, self._load).total()
                early = (written - self._written) / rate - (now - self._called_at)
                if early <= 0:
                    break
                time.sleep(min(early, 1.0))
            self._called_at, self._written = now, written

    def _wait_for_memory(self) -> None:
        wait = RoomWait()
        while True:
            nodes = memory_of(self._broker).values()
            used = max(int(node["used_memory"]) / (int(node.get("maxmemory", 0)) or math.inf) for node in nodes)
            if used <= self._limits.most_memory:
                return
            if not wait.rest(round(1000 * self._limits.patience)):
                raise QueueFull(
                    f"Redis uses {used:.0%} of its maxmemory, and bulk load {self._load.id!r} stops at "
                    f"{self._limits.most_memory:.0%}; give it memory and resume the bulk load"
                )


def memory_of(broker: Broker) -> dict[str, dict[str, Any]]:
    """Return ``INFO memory`` of the server, under ""; on a cluster of each reachable master, by name (``host:port``).

    Each master may be the one that is full. An unreachable master is left out; callers that need it get its error
    later.

    Raises:
        DelayQError: no node answers.
    """
    with clear_errors():
        by_node = broker.connection.replies(partial(broker.client.info, "memory"))
    return {node.name if node else "": memory for node, memory in by_node.items()}

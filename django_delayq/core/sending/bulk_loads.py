"""Resumable bulk loads: chunks that were written are not written again, whichever process resumes the load and when.

A bulk load is identified by an id that its author chose. Its record describes the input, so that the
load is resumed only with the same input; and how chunks are made, so that a second try makes the same ones. The
*ledger*, a hash beside each shard that the load writes to (``lua/bulk.lua``), records the written chunks: digest of a
chunk -> its outcomes. Checking that a job exists would not be enough: a job that was written, ran and is gone would be
written, and run, again.

A ledger outlives its shard: it stays when an epoch is retired or the queue deleted. Rows meant for a closed shard move
on to the next epoch (:mod:`..resharding`), one after another, so a resumed load finds them again.

Closing a load removes the ledgers. A sender that was left behind, for instance in a task that Spark tried twice, finds
the load closed for another day. Closing first marks the record as closing, then reads the layout, then closes every
ledger. A sender that reaches an epoch missing in its record reads the record before it writes there, so either it finds
the load closing, or its epoch is in that layout. Forgetting a load works the same way.

Closing, forgetting and opening may run concurrently. A record is changed only by a caller that has read its present
value (``lua/swap_bulk_load.lua``), so it never goes back, neither to an earlier state nor from one load to an earlier
one of the same id. A caller that finds a step done does the next one; a caller that finds the load gone, or replaced by
another one, leaves it alone. Ledgers belong to one load only (its id and opening time), and may be closed any number of
times.

A load that is never closed keeps its ledgers (about half a byte for each job): see :func:`forget_old`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from math import lcm
from typing import Any, Final

from .. import layouts
from ..broker import Broker
from ..errors import DelayQError, InvalidJob
from ..inputs import check_int, short
from ..layouts import Epochs, Layout
from ..outcomes import OF_LETTER
from ..records.frames import CHUNK
from ..records.keys import number_of
from ..redis.scripts import clear_errors

OPEN: Final = "open"
CLOSING: Final = "closing"
CLOSED: Final = "closed"
#: being removed: it is to be treated as gone
FORGETTING: Final = "forgetting"
#: version of the format of chunks and their digests; loads begun with another one cannot be resumed
FORM: Final = 2
MAX_ID_BYTES: Final = 200
#: maximum number of groups of ids that stay together in all epochs
MAX_GROUPS: Final = 4096


class BulkLoadDiffers(InvalidJob):
    """Mismatch of input, queue or chunks between a resumed bulk load and its beginning."""


@dataclass(frozen=True, slots=True)
class BulkLoad:
    """Bulk load. Times are Unix ms on Redis's clock."""

    id: str
    queue: str
    #: (epoch, shards) of the queue when it was opened, which determine its chunks
    epochs: tuple[tuple[int, int], ...]
    opened_ms: int
    #: jobs in a chunk
    chunk: int = CHUNK
    #: description of its input: names with texts or numbers
    source: tuple[tuple[str, str], ...] = ()
    state: str = OPEN
    closed_ms: int = 0
    #: number of rows by outcome; of a closed load only, see :func:`progress`
    counts: tuple[tuple[str, int], ...] = ()
    #: version of its chunks and their digests; records without one are of the first
    form: int = 1

    @property
    def closed(self) -> bool:
        """True if it is closed."""
        return self.state == CLOSED


def open_load(
    broker: Broker, load_id: str, queue: str, *, source: Mapping[str, object] | None = None, chunk: int = CHUNK
) -> BulkLoad:
    """Open a bulk load, or resume the one of this id.

    Args:
        broker: the deployment of its queue.
        load_id: 1 to 200 bytes, without spaces.
        queue: created if there is none.
        source: identifies the input: names, sizes, partitions.
        chunk: most jobs of one script call, 1 … 250.

    Returns:
        The load as it was opened first; if it is closed, all its rows are written.

    Raises:
        InvalidJob: an invalid id or chunk size.
        BulkLoadDiffers: it was opened with another input, queue or chunk size.
    """
    _check(load_id, chunk)
    described = tuple(sorted((str(name), str(value)) for name, value in (source or {}).items()))
    requested = BulkLoad(
        load_id, queue, _epochs_now(broker, queue), round(broker.now_ms()), chunk, described, form=FORM
    )
    while True:
        with clear_errors():
            fresh = broker.client.hsetnx(broker.key("loads"), load_id, _encode(requested))
        stored = requested if fresh else read_load(broker, load_id)
        if stored is None:
            continue  # it was forgotten at this moment
        if stored.state == FORGETTING or (fresh and _has_closed_ledgers(broker, stored)):
            # The caller that is forgetting it may never finish; or a load opened in the same ms was forgotten
            # meanwhile.
            _forget(broker, stored)
            opened_ms = max(requested.opened_ms, stored.opened_ms + 1)  # for ledgers of its own
            requested = replace(requested, opened_ms=opened_ms)
            continue
        differences = list(_differences(stored, requested))
        if differences:
            raise BulkLoadDiffers(
                f"bulk load {load_id!r} was begun with other input or options: {'; '.join(differences)}. Repeat it as "
                "it was begun, or begin a new bulk load under another id"
            )
        if stored.state != CLOSING:
            return stored
        close_load(broker, stored)  # the caller that began to close it may never finish


def read_load(broker: Broker, load_id: str) -> BulkLoad | None:
    """Return the bulk load of this id; None if there is none."""
    found = _read(broker, load_id)
    return None if found is None else found[1]


def _read(broker: Broker, load_id: str) -> tuple[bytes, BulkLoad] | None:
    """Return the record of a load as stored and decoded."""
    with clear_errors():
        stored = broker.client.hget(broker.key("loads"), load_id)
    return None if stored is None else (stored, _decode(load_id, stored))


def list_loads(broker: Broker) -> list[BulkLoad]:
    """Return all recorded bulk loads, the oldest first."""
    with clear_errors():
        stored = broker.client.hgetall(broker.key("loads"))
    return sorted(
        (_decode(name.decode(), record) for name, record in stored.items()), key=lambda load: (load.opened_ms, load.id)
    )


def progress(broker: Broker, load: BulkLoad) -> Counter[str]:
    """Return the number of rows by outcome so far, as Redis counted them: each once, however often it was sent.

    Byte-identical chunks of two senders count as one chunk that was sent twice.
    """
    latest = next((record for _, record in _stages(broker, load)), load)
    if latest.closed:
        return Counter(dict(latest.counts))
    return _counts_of(broker, latest)


def close_load(broker: Broker, load: BulkLoad) -> BulkLoad:
    """Close a bulk load: forget its chunks and keep its counts in its record. Closing it again changes nothing.

    Returns:
        The load as recorded, the same for all callers that close it. If it was forgotten, no counts exist, a later load
        of the same id is left alone, and the given load is returned as closed.
    """
    for stored, record in _stages(broker, load):
        if record.closed:
            return record
        if record.state == FORGETTING:
            break
        if record.state == OPEN:
            _swap(broker, load.id, stored, replace(record, state=CLOSING))
            continue
        # The ledgers keep their counts for a day, so that another caller can finish an interrupted close.
        counts = _close_ledgers(broker, record)
        _swap(
            broker,
            load.id,
            stored,
            replace(record, state=CLOSED, closed_ms=round(broker.now_ms()), counts=tuple(sorted(counts.items()))),
        )
    return replace(load, state=CLOSED)


def forget_load(broker: Broker, load_id: str) -> bool:
    """Delete a bulk load with all its records; its jobs stay. Return False if there was none.

    An open load that is forgotten cannot be resumed, because its written chunks are no longer recorded. Its active
    senders are rejected.
    """
    load = read_load(broker, load_id)
    if load is not None:
        _forget(broker, load)
    return load is not None


def _forget(broker: Broker, load: BulkLoad) -> None:
    for stored, record in _stages(broker, load):
        if record.state == FORGETTING:
            _close_ledgers(broker, record)
            _swap(broker, load.id, stored, None)
        else:
            _swap(broker, load.id, stored, replace(record, state=FORGETTING))


def forget_old(broker: Broker, older_than_ms: int) -> list[str]:
    """Forget (:func:`forget_load`) loads closed this long ago, and open ones opened this long ago.

    The record of a closed load is small. The ledgers of loads that were interrupted and never resumed take the space.
    Choose an age at which no load is still active or will be resumed.

    Args:
        older_than_ms: the age, at least 0 ms.

    Returns:
        Their ids, the oldest first.

    Raises:
        InvalidJob: an invalid age.
    """
    before = round(broker.now_ms()) - check_int("older_than_ms", older_than_ms, 0, 1 << 53)
    old = [load for load in list_loads(broker) if (load.closed_ms or load.opened_ms) <= before]
    for load in old:
        _forget(broker, load)
    return [load.id for load in old]


def groups_of(load: BulkLoad) -> int:
    """Return the number of groups of ids, such that the ids of one group share a shard in every epoch of the load.

    Rows that one shard refuses then go to one other shard, as a whole. If that would need too many groups, it holds
    only for the younger epochs, which get most of the jobs.
    """
    groups = 1
    for _, shards in reversed(load.epochs):
        if lcm(groups, shards) <= MAX_GROUPS:
            groups = lcm(groups, shards)
    return groups


def _epochs_now(broker: Broker, name: str) -> layouts.Epochs:
    while True:
        queue = broker.queue(name)
        queue.reload()  # this process may have an old layout
        if epochs := queue.epochs:  # otherwise it was deleted at this moment
            return epochs


def _check(load_id: str, chunk: int) -> None:
    size = len(load_id.encode(errors="surrogatepass"))
    if not 0 < size <= MAX_ID_BYTES or any(one.isspace() or not one.isprintable() for one in load_id):
        raise InvalidJob(f"a bulk load's id has 1 to {MAX_ID_BYTES} bytes, none of them a space, not {short(load_id)}")
    if isinstance(chunk, bool) or not isinstance(chunk, int) or not 1 <= chunk <= CHUNK:
        raise InvalidJob(f"a chunk has 1 to {CHUNK} jobs, not {short(chunk)}")


def _differences(stored: BulkLoad, requested: BulkLoad) -> list[str]:
    pairs = [("queue", stored.queue, requested.queue), ("chunk", str(stored.chunk), str(requested.chunk))]
    if not stored.closed:
        pairs.append(("the form of its chunks", str(stored.form), str(requested.form)))
    before, now = dict(stored.source), dict(requested.source)
    pairs += [(name, before.get(name, "nothing"), now.get(name, "nothing")) for name in sorted({*before, *now})]
    return [f"{name} was {short(old)} and is {short(new)}" for name, old, new in pairs if old != new]


def _stages(broker: Broker, load: BulkLoad) -> Iterator[tuple[bytes, BulkLoad]]:
    """Yield the record of a load as stored and decoded, read again at each iteration, for as long as it exists."""
    while (found := _read(broker, load.id)) is not None and found[1].opened_ms == load.opened_ms:
        yield found


def _swap(broker: Broker, load_id: str, stored: bytes, changed: BulkLoad | None) -> None:
    """Change a record, unless it changed since ``stored`` was read; None deletes it."""
    key = broker.key("loads").encode()
    broker.scripts.call("swap_bulk_load", (key,), load_id, stored, b"" if changed is None else _encode(changed))


def _encode(load: BulkLoad) -> bytes:
    return json.dumps({name: value for name, value in asdict(load).items() if name != "id"}).encode()


def _decode(load_id: str, stored: bytes) -> BulkLoad:
    record: dict[str, Any] = json.loads(stored)
    # A newer release may store more fields.
    values = {field.name: record[field.name] for field in fields(BulkLoad) if field.name in record}
    for name in ("epochs", "source", "counts"):
        values[name] = tuple(tuple(pair) for pair in values.get(name, ()))
    return BulkLoad(load_id, **values)


# -- ledgers -----------------------------------------------------------------------------------------------------------

#: field of a closed ledger
CLOSED_FIELD: Final = "\0closed"
#: how long a closed ledger rejects senders that were left behind
CLOSED_MS: Final = 86_400_000
#: chunks that are looked up in one command
_LOOKED_UP: Final = 1000
#: letters of final outcomes: each row of a load gets one of them, once
_COUNTED: Final = tuple(letter for letter, outcome in OF_LETTER.items() if outcome.is_final)


class ChunksLost(DelayQError):
    """Loss of chunks that Redis had stored for an open bulk load."""

    def __init__(self, load: BulkLoad, chunks: int) -> None:
        super().__init__(
            f"Redis has lost {chunks} chunks of bulk load {load.id!r} that it had stored; repeat the bulk load under "
            "its id with the same input, which stores what is missing"
        )


def ledger_key(broker: Broker, load: BulkLoad, number: int) -> bytes:
    """Return the key of the ledger of a load beside one shard, in the shard's slot.

    A later load under the id of a forgotten one has other ledgers, so senders of the first do not interfere.
    """
    stem = broker.shard(load.queue, number).names["body"].removesuffix(b"body")
    return stem + b"load:%b:%d" % (load.id.encode(), load.opened_ms)


def epochs_of(load: BulkLoad, layout: Layout | None) -> Epochs:
    """Return ``(epoch, shards)`` of every epoch that the load may have reached, oldest first, retired ones included."""
    epochs = dict(load.epochs)
    if layout is not None:
        reached = [*layout.get("past", ()), *layout.get("old", ()), *layouts.epochs_of(layout)]
        epochs |= {epoch: shards for epoch, shards in reached if epoch >= load.epochs[0][0]}
    return tuple(sorted(epochs.items()))


def _counts_of(broker: Broker, load: BulkLoad) -> Counter[str]:
    """Return the number of written rows by outcome."""
    counts: Counter[str] = Counter()
    with clear_errors(), broker.client.pipeline(transaction=False) as pipe:
        for key in _keys(broker, load):
            pipe.hmget(key, [f"\0{letter}" for letter in _COUNTED])
        for fields in pipe.execute():
            _add(counts, zip(_COUNTED, fields, strict=True))
    return counts


def _close_ledgers(broker: Broker, load: BulkLoad) -> Counter[str]:
    """Close the ledgers and return their counts, whichever caller closed them first."""
    counts: Counter[str] = Counter()
    for key in _keys(broker, load):
        fields = broker.scripts.call("close_ledger", (key,), CLOSED_MS)
        _add(counts, zip((letter.decode() for letter in fields[::2]), fields[1::2], strict=True))
    return counts


def _has_closed_ledgers(broker: Broker, load: BulkLoad) -> bool:
    """Return True if the ledgers of a load are those of another, forgotten one."""
    with clear_errors():
        return bool(broker.client.hexists(ledger_key(broker, load, number_of(load.epochs[0][0], 0)), CLOSED_FIELD))


def check_stored(broker: Broker, load: BulkLoad, stored: Mapping[bytes, Sequence[bytes]]) -> None:
    """Check that Redis still has the chunks that a sender stored: it may have gone back to an older copy since.

    A closed ledger has forgotten its chunks, so none of them counts.

    Args:
        stored: digests of the chunks, by ledger.

    Raises:
        ChunksLost: some are missing.
    """
    with clear_errors(), broker.client.pipeline(transaction=False) as pipe:
        for ledger, digests in stored.items():
            for start in range(0, len(digests), _LOOKED_UP):
                pipe.hmget(ledger, [CLOSED_FIELD, *digests[start : start + _LOOKED_UP]])
        lost = sum(found.count(None) for closed, *found in pipe.execute() if not closed)
    if lost:
        raise ChunksLost(load, lost)


def _keys(broker: Broker, load: BulkLoad) -> list[bytes]:
    """Return the keys of every shard that may have a ledger of the load."""
    _, layout = broker.read_layout(load.queue)
    numbers = [number_of(epoch, place) for epoch, shards in epochs_of(load, layout) for place in range(shards)]
    return [ledger_key(broker, load, number) for number in numbers]


def _add(counts: Counter[str], fields: Iterable[tuple[str, bytes | None]]) -> None:
    counts.update({OF_LETTER[letter]: int(times) for letter, times in fields if times})

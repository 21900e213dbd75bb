"""Ledgers of bulk loads: hashes beside the shards that record the written chunks and count the outcomes of their rows.

Why a load needs them: :mod:`.bulk_loads`. Chunks are added by ``lua/bulk.lua``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from ..errors import DelayQError
from ..outcomes import OF_LETTER
from ..records import layout as layouts
from ..records.keys import number_of
from ..redis.scripts import clear_errors

if TYPE_CHECKING:
    from ..broker import Broker
    from ..records.layout import Epochs, Layout
    from .bulk_loads import BulkLoad

#: field of a closed ledger
CLOSED: Final = "\0closed"
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


def counts_of(broker: Broker, load: BulkLoad) -> Counter[str]:
    """Return the number of written rows by outcome."""
    counts: Counter[str] = Counter()
    with clear_errors(), broker.client.pipeline(transaction=False) as pipe:
        for key in _keys(broker, load):
            pipe.hmget(key, [f"\0{letter}" for letter in _COUNTED])
        for fields in pipe.execute():
            _add(counts, zip(_COUNTED, fields, strict=True))
    return counts


def close(broker: Broker, load: BulkLoad) -> Counter[str]:
    """Close the ledgers and return their counts, whichever caller closed them first."""
    counts: Counter[str] = Counter()
    for key in _keys(broker, load):
        fields = broker.scripts.call("close_ledger", (key,), CLOSED_MS)
        _add(counts, zip((letter.decode() for letter in fields[::2]), fields[1::2], strict=True))
    return counts


def is_closed(broker: Broker, load: BulkLoad) -> bool:
    """Return True if the ledgers of a load are those of another, forgotten one."""
    with clear_errors():
        return bool(broker.client.hexists(ledger_key(broker, load, number_of(load.epochs[0][0], 0)), CLOSED))


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
                pipe.hmget(ledger, [CLOSED, *digests[start : start + _LOOKED_UP]])
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

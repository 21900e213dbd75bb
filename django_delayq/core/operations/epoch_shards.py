"""Steps on all shards of an epoch: close them, read and copy their state, end them. See :mod:`.resharding`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from ..job import new_request
from ..records.keys import number_of
from ..records.layout import Epochs, all_numbers
from ..redis.scripts import clear_errors

if TYPE_CHECKING:
    from ..broker import Broker

_TICKS: Final = (b"tick:", b"sight:")


class EpochShards:
    """Shards of a queue, addressed by their numbers, also those that the present layout no longer names."""

    def __init__(self, broker: Broker, queue: str) -> None:
        self._broker = broker
        self._queue = queue

    def call(self, script: str, number: int, *args: object) -> Any:
        """Run a script on a shard."""
        shard = self._broker.shard(self._queue, number)
        return self._broker.scripts.call(script, shard.keys, new_request(), shard.constants, *args)

    def meta(self, number: int) -> dict[bytes, bytes]:
        """Return the fields of a shard's key ``meta``."""
        with clear_errors():
            meta: dict[bytes, bytes] = self._broker.client.hgetall(self._key(number, "meta"))
        return meta

    def close(self, epochs: Epochs) -> None:
        """Close the shards for new ids."""
        for number in all_numbers(epochs):
            self.call("rule", number, b"", b"1")

    def largest_token_and_arrival(self, epochs: Epochs) -> tuple[int, int]:
        """Return the largest fencing token (or closing moment) and the largest arrival number of closed shards."""
        token = arrival = 0
        for number in all_numbers(epochs):
            meta = self.meta(number)
            token = max(token, int(meta.get(b"token", 0)), int(meta.get(b"closed", 0)))
            arrival = max(arrival, int(meta.get(b"seq", 0)))
        return token, arrival

    def copy_ticks(self, numbers: Iterable[int], epoch: int, shards: int) -> None:
        """Copy the ticks that were fired in some shards to the shards of an epoch."""
        ticks: dict[bytes, bytes] = {}
        for number in numbers:
            ticks |= _later_ticks(ticks, self.meta(number))
        fields: dict[int, list[bytes]] = {}
        for field, value in ticks.items():
            ident = field.partition(b":")[2]
            fields.setdefault(number_of(epoch, crc32(ident) % shards), []).extend((field, value))
        for number, pairs in fields.items():
            self.call("carry", number, b"", *pairs)

    def copy_counters(self, epoch: int, numbers: Iterable[int], target: int) -> bool:
        """Add the counters of tombstones, which no longer change, to those of shard ``target``, and delete them.

        They are added once, also if one process stops in between and another one repeats the step.

        Returns:
            False if the target is a tombstone itself.
        """
        keys = [self._key(number, "count") for number in numbers]
        total: dict[bytes, int] = {}
        for key in keys:
            with clear_errors():
                counters = self._broker.client.hgetall(key)
            for counter, n in counters.items():
                total[counter] = total.get(counter, 0) + int(n)
        pairs = [item for counter, n in total.items() for item in (b"count:" + counter, n)]
        if pairs and self.call("carry", target, epoch, *pairs) != b"1":
            return False
        for key in keys:
            with clear_errors():
                self._broker.client.unlink(key)
        return True

    def are_empty(self, epochs: Epochs) -> bool:
        """Return True if no job, morgue record, completion mark or open attempt is left in the shards."""
        queue = self._broker.known_queue(self._queue)
        if queue is None:
            return True
        counts = self._broker.inspector.count_shards(queue, all_numbers(epochs))
        return counts.is_empty

    def retire(self, numbers: Iterable[int], *, force: bool) -> bool:
        """Turn shards into tombstones; return True if all of them are.

        Args:
            force: also shards that hold jobs, and their events. Otherwise events stay for a day.
        """
        replies = [self.call("retire", number, b"1" if force else b"0") for number in numbers]
        return all(reply == b"1" for reply in replies)

    def _key(self, number: int, name: str) -> bytes:
        return self._broker.shard(self._queue, number).names[name]


def _later_ticks(earlier: dict[bytes, bytes], meta: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Return the ticks in a shard's meta that are later than the known ones, and its first calls of schedules."""
    ticks = {field: value for field, value in meta.items() if field.startswith(_TICKS)}
    return {
        field: value
        for field, value in ticks.items()
        if field not in earlier or (field.startswith(b"tick:") and int(value) > int(earlier[field]))
    }

"""Change of a queue's number of shards, and deletion of a queue, while producers and workers continue.

The shards of a queue belong to an *epoch*. The layout (:mod:`.records.layout`) names the present epoch, which takes
new ids, and the old ones, which are drained. A change closes the shards of the present epoch for new ids, opens those
of the next one, and then publishes the layout. ``docs/decisions/epochs.md`` shows why no id is ever live in two epochs
and why fencing tokens keep growing.

Any process may repeat each step. A change whose process stopped is completed by the first caller that has to wait for
it, or by a dispatcher.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from .counts import Counts
from .errors import InvalidJob, QueueNotEmpty, QueueUnavailable
from .job import new_request
from .records import layout as layouts
from .records.frames import pack
from .records.keys import MAX_SHARDS, number_of
from .records.layout import Epochs, Layout, all_numbers, shard_numbers
from .redis.scripts import clear_errors

if TYPE_CHECKING:
    from .broker import Broker
    from .queue import Queue
    from .sending.epoch_walk import EpochWalk

log = logging.getLogger("django_delayq.core.epochs")

#: µs by which the tokens of an epoch begin above those of the epoch before, which is still in use
HEAD_START: Final = 1 << 15
_TICKS: Final = (b"tick:", b"sight:")


@dataclass(frozen=True, slots=True)
class EpochProgress:
    """State of one epoch of a queue: the present one (``open``), an old one, or the next one (no counts yet)."""

    epoch: int
    shards: int
    state: str  # open | old | coming
    counts: Counts


class EpochChanges:
    """Changes of the layouts of a broker's queues."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    # -- for operators -----------------------------------------------------------------------------------------------

    def reshard(self, name: str, shards: int) -> Layout:
        """Change a queue's number of shards; see :meth:`Broker.reshard`."""
        if isinstance(shards, bool) or not isinstance(shards, int) or not 1 <= shards <= MAX_SHARDS:
            raise InvalidJob(f"a queue has 1 to {MAX_SHARDS} shards, not {shards!r}")

        def with_shards(now: Layout) -> Layout:
            is_done = layouts.is_pending(now) or now["shards"] == shards
            return now if is_done else layouts.with_next(now, shards)

        # Shards are closed one by one: one that does not answer would leave the others closed until it does.
        EpochShards(self._broker, name).largest_token_and_arrival(self._broker.require_queue(name).epochs)
        while True:
            layout = self._broker.change_layout(name, with_shards)
            if not layouts.is_pending(layout):
                return layout
            try:
                self.finish(name)
            except QueueUnavailable as error:
                raise QueueUnavailable(
                    f"queue {name!r}: the change of shards has begun and is not finished ({error}); a dispatcher "
                    "finishes it when all shards answer. Until then calls with new ids wait, and then fail"
                ) from error

    def delete(self, name: str, *, force: bool = False) -> bool:
        """Delete a queue; see :meth:`Broker.delete_queue`."""
        while True:
            self.finish(name)
            queue = self._broker.known_queue(name)
            if queue is None:
                return False
            if not force:
                refuse_if_full(self._broker, queue)
            epoch = self._broker.change_layout(name, lambda now: layouts.with_leaving(now, force=force))["epoch"]
            self.finish(name)
            present = self._broker.known_queue(name)
            if present is None or all(other != epoch for other, _ in present.epochs):
                return True
            # A job was scheduled between the check and the closing, so the queue continued in a new epoch.

    def progress(self, name: str) -> list[EpochProgress]:
        """Return the state of every epoch of a queue, the oldest first; an empty list if there is no such queue."""
        queue = self._broker.known_queue(name)
        if queue is None:
            return []
        layout, count = queue.layout, self._broker.inspector.count_shards
        present = layout["epoch"]
        rows = [
            EpochProgress(
                epoch, shards, "open" if epoch == present else "old", count(queue, shard_numbers(epoch, shards))
            )
            for epoch, shards in layouts.epochs_of(layout)
        ]
        if "next" in layout:
            epoch, shards = layout["next"]
            rows.append(EpochProgress(epoch, shards, "coming", Counts(name)))
        return rows

    # -- for callers -------------------------------------------------------------------------------------------------

    def refresh(self, queue: Queue, epoch: int, walk: EpochWalk, *, create: bool) -> bool:
        """Read the layout again, because a shard of ``epoch``, the caller's present epoch, is closed.

        Args:
            create: re-create a deleted queue.

        Returns:
            True if the caller should try again; False if the queue was deleted.
        """
        _, layout = self._broker.read_layout(queue.name)
        if layout is None or layouts.is_deleted(layout):
            if create:
                last = queue.layout
                self._broker.create(queue.name, lambda stone: layouts.again(stone) if stone else layouts.revived(last))
            return create
        if layout["epoch"] == epoch:
            if not layouts.is_pending(layout):
                # The registry was restored from an older copy than the shards: continue in a new epoch.
                log.warning(
                    "queue %r: epoch %d is open in the registry, but its shards are closed; a new epoch is opened",
                    queue.name,
                    epoch,
                )
                self._open_another(queue.name, epoch)
            elif walk.is_takeover_due():
                self.finish(queue.name)
            walk.sleep()
        return True

    def _open_another(self, name: str, epoch: int) -> None:
        def with_another(now: Layout) -> Layout:
            is_done = layouts.is_pending(now) or now["epoch"] != epoch
            return now if is_done else layouts.with_next(now, now["shards"])

        self._broker.change_layout(name, with_another)
        self.finish(name)

    # -- the steps ---------------------------------------------------------------------------------------------------

    def finish(self, name: str) -> None:
        """Complete the unfinished change of a queue from its present step on, if there is one."""
        while True:
            stored, changes, layout = self._read(name)
            if layout is None:
                return
            if "leaving" in layout:
                done = self._leave(name, stored, layout)
            elif "next" in layout:
                done = self._advance(name, stored, layout, changes)
            elif layouts.is_deleted(layout) and "old" in layout:
                done = self._delete_keys(name, stored, layout)
            else:
                return
            if done:
                log.info("queue %r: %s", name, layouts.describe(done))

    def _read(self, name: str) -> tuple[bytes, bytes, Layout | None]:
        """Return the stored layout, the registry's number of changes at that moment, and the decoded layout."""
        with clear_errors():
            stored, changes = self._broker.client.hmget(self._broker.queues_key, [name, ""])
        return stored or b"", changes or b"0", None if stored is None else layouts.decode(stored)

    def _advance(self, name: str, stored: bytes, layout: Layout, changes: bytes) -> Layout | None:
        """Close the present epoch, open the next one, and publish it."""
        shards_of, former = EpochShards(self._broker, name), layouts.epochs_of(layout)
        epoch, shards = layout["next"]
        shards_of.close(former)
        token, arrival = shards_of.largest_token_and_arrival(former)
        time.sleep(HEAD_START / 1e6)  # the first tokens of the new shards must be in the past when these are published
        paused = self._broker.producers_paused_since() is not None
        rules = pack(layouts.rules_of(layout, shards, producers_paused=paused))
        for number in shard_numbers(epoch, shards):
            if shards_of.call("open", number, changes, token + HEAD_START, arrival, rules, shards) == b"u":
                # Another process has published it, so the swap fails; or the registry lost this epoch.
                return self._swapped(name, stored, layouts.with_lost(layout, self._size_of(name, epoch)))
        shards_of.copy_ticks(all_numbers(former), epoch, shards)
        return self._swapped(name, stored, layouts.published(layout), producers_paused=paused)

    def _size_of(self, name: str, epoch: int) -> int:
        """Return the number of shards of an epoch that is in no layout, by the keys that exist."""
        shards_of, size = EpochShards(self._broker, name), 0
        for number in shard_numbers(epoch, MAX_SHARDS):
            if shards_of.meta(number):
                size = number % MAX_SHARDS + 1
        return size

    def _leave(self, name: str, stored: bytes, layout: Layout) -> Layout | None:
        """Close a queue that is being deleted; leave a tombstone if it may go."""
        shards_of, epochs = EpochShards(self._broker, name), layouts.epochs_of(layout)
        shards_of.close(epochs)
        if layout["leaving"] == "empty" and not shards_of.are_empty(epochs):
            # Closed shards are never opened again, so the queue continues in a new epoch.
            return self._swapped(name, stored, layouts.with_next(layout, layout["shards"]))
        return self._swapped(name, stored, layouts.tombstone(layout, wiped=False))

    def _delete_keys(self, name: str, stored: bytes, layout: Layout) -> Layout | None:
        """Delete the keys of a deleted queue."""
        for epoch, shards in (*layout.get("past", ()), *layout["old"]):
            EpochShards(self._broker, name).retire(shard_numbers(epoch, shards), force=True)
        with clear_errors():
            self._broker.client.delete(self._broker.wake_key(name))
        return self._swapped(name, stored, layouts.tombstone(layout, wiped=True))

    def _swapped(
        self, name: str, stored: bytes, layout: Layout, *, producers_paused: bool | None = None
    ) -> Layout | None:
        is_stored = self._broker.swap_layout(name, stored, layout, producers_paused=producers_paused)
        return layout if is_stored else None

    def close_former(self, name: str, layout: Layout) -> None:
        """Close all but the present epoch of a layout again, after Redis lost the closed shards."""
        EpochShards(self._broker, name).close(layouts.epochs_of(layout)[:-1])

    def retire(self, name: str) -> list[int]:
        """Remove the old epochs that hold nothing any more; return their numbers.

        An epoch stays for two minutes after its last call, because that call may be sent again, and as long as its
        shards hold morgue records, marks of durable jobs, or open attempts of jobs that were acked before they began.
        Its events stay for a day after that (:mod:`..events`).
        """
        retired: list[int] = []
        while True:
            stored, layout = self._broker.read_layout(name)
            if layout is None or layouts.is_deleted(layout) or layouts.is_pending(layout):
                return retired
            old = layout.get("old", ())
            epoch = next((epoch for epoch, shards in old if self._end(name, layout, epoch, shards)), None)
            if epoch is None:
                return retired
            if self._swapped(name, stored, layouts.without_epoch(layout, epoch)):
                log.info("queue %r: epoch %d is retired", name, epoch)
                retired.append(epoch)

    def _end(self, name: str, layout: Layout, epoch: int, shards: int) -> bool:
        """End the shards of an old epoch if they are empty; return True if they are tombstones now."""
        shards_of = EpochShards(self._broker, name)
        if not shards_of.are_empty(((epoch, shards),)):
            return False
        numbers = shard_numbers(epoch, shards)
        shards_of.copy_ticks(numbers, layout["epoch"], layout["shards"])
        if not shards_of.retire(numbers, force=False):
            return False
        return shards_of.copy_counters(epoch, numbers, number_of(layout["epoch"], 0))


def refuse_if_full(broker: Broker, queue: Queue) -> None:
    """Check that a queue may be deleted without ``force``.

    Raises:
        QueueNotEmpty: it may not; the message says what it holds.
    """
    counts = broker.inspector.counts(queue.name)
    if counts.live or counts.morgue:
        raise QueueNotEmpty(
            f"queue {queue.name!r} holds {counts.live} jobs and {counts.morgue} morgue records; empty it first, or "
            "delete it with --force (force=True)"
        )
    if counts.marks:
        raise QueueNotEmpty(
            f"queue {queue.name!r} holds the completion marks of {counts.marks} durable jobs, which a worker has to "
            "write to the outbox; wait until it has, or delete the queue with --force (force=True)"
        )
    if counts.begun:
        raise QueueNotEmpty(
            f"queue {queue.name!r} has {counts.begun} running attempts of jobs that were acked before they began; wait "
            "until they have ended, or delete the queue with --force (force=True)"
        )


# -- the shards of an epoch ------------------------------------------------------------------------------------------


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

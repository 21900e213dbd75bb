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
import math
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeVar
from zlib import crc32

from .counts import Counts, count_shards
from .errors import InvalidJob, QueueNotEmpty, QueueUnavailable
from .records import layout as layouts
from .records.frames import pack
from .records.keys import MAX_SHARDS, number_of
from .records.layout import Epochs, Layout, shard_numbers
from .redis.scripts import clear_errors
from .registry import QueueRegistry, ShardSet

log = logging.getLogger("django_delayq.core.epochs")

#: µs by which the tokens of an epoch begin above those of the epoch before, which is still in use
HEAD_START: Final = 1 << 15
_TICKS: Final = (b"tick:", b"sight:")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EpochProgress:
    """State of one epoch of a queue: the present one (``open``), an old one, or the next one (no counts yet)."""

    epoch: int
    shards: int
    state: str  # open | old | coming
    counts: Counts


class EpochChanges:
    """Changes of the layouts of a deployment's queues."""

    def __init__(self, registry: QueueRegistry[ShardSet]) -> None:
        self._registry = registry

    # -- for operators -----------------------------------------------------------------------------------------------

    def reshard(self, name: str, shards: int) -> Layout:
        """Change a queue's number of shards while it is in use; return its layout.

        Raises:
            InvalidJob: there is no such queue, or the number is not 1 … 1024.
        """
        if isinstance(shards, bool) or not isinstance(shards, int) or not 1 <= shards <= MAX_SHARDS:
            raise InvalidJob(f"a queue has 1 to {MAX_SHARDS} shards, not {shards!r}")

        def with_shards(now: Layout) -> Layout:
            is_done = layouts.is_pending(now) or now["shards"] == shards
            return now if is_done else layouts.with_next(now, shards)

        # Shards are closed one by one: one that does not answer would leave the others closed until it does.
        queue = self._registry.require_queue(name)
        _largest_token_and_arrival(queue, queue.numbers)
        while True:
            layout = self._registry.change_layout(name, with_shards)
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
            queue = self._registry.known_queue(name)
            if queue is None:
                return False
            if not force:
                _refuse_if_full(queue)
            epoch = self._registry.change_layout(name, lambda now: layouts.with_leaving(now, force=force))["epoch"]
            self.finish(name)
            present = self._registry.known_queue(name)
            if present is None or all(other != epoch for other, _ in present.epochs):
                return True
            # A job was scheduled between the check and the closing, so the queue continued in a new epoch.

    def progress(self, name: str) -> list[EpochProgress]:
        """Return the state of every epoch of a queue, the oldest first; an empty list if there is no such queue."""
        queue = self._registry.known_queue(name)
        if queue is None:
            return []
        layout = queue.layout
        present = layout["epoch"]
        rows = [
            EpochProgress(
                epoch, shards, "open" if epoch == present else "old", count_shards(queue, shard_numbers(epoch, shards))
            )
            for epoch, shards in layouts.epochs_of(layout)
        ]
        if "next" in layout:
            epoch, shards = layout["next"]
            rows.append(EpochProgress(epoch, shards, "coming", Counts(name)))
        return rows

    # -- for callers -------------------------------------------------------------------------------------------------

    def refresh(self, queue: ShardSet, epoch: int, walk: EpochWalk, *, create: bool) -> bool:
        """Read the layout again, because a shard of ``epoch``, the caller's present epoch, is closed.

        Args:
            create: re-create a deleted queue.

        Returns:
            True if the caller should try again; False if the queue was deleted.
        """
        _, layout = self._registry.read_layout(queue.name)
        if layout is None or layouts.is_deleted(layout):
            if create:
                last = queue.layout
                self._registry.create(
                    queue.name, lambda stone: layouts.again(stone) if stone else layouts.revived(last)
                )
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

        self._registry.change_layout(name, with_another)
        self.finish(name)

    # -- the steps ---------------------------------------------------------------------------------------------------

    def finish(self, name: str) -> None:
        """Complete the unfinished change of a queue from its present step on, if there is one."""
        while True:
            stored, changes, layout = self._read(name)
            if layout is None:
                return
            shards = ShardSet(self._registry, name, layout)
            if "leaving" in layout:
                done = self._leave(shards, stored)
            elif "next" in layout:
                done = self._advance(shards, stored, changes)
            elif layouts.is_deleted(layout) and "old" in layout:
                done = self._registry.delete_keys(name, stored, layout)
            else:
                return
            if done:
                log.info("queue %r: %s", name, layouts.describe(done))

    def _read(self, name: str) -> tuple[bytes, bytes, Layout | None]:
        """Return the stored layout, the registry's number of changes at that moment, and the decoded layout."""
        with clear_errors():
            stored, changes = self._registry.deployment.client.hmget(self._registry.key, [name, ""])
        return stored or b"", changes or b"0", None if stored is None else layouts.decode(stored)

    def _advance(self, former: ShardSet, stored: bytes, changes: bytes) -> Layout | None:
        """Close the present epoch, open the next one, and publish it."""
        layout = former.layout
        epoch, shards = layout["next"]
        former.close(former.numbers)
        token, arrival = _largest_token_and_arrival(former, former.numbers)
        time.sleep(HEAD_START / 1e6)  # the first tokens of the new shards must be in the past when these are published
        paused = self._registry.producers_paused_since() is not None
        rules = pack(layouts.rules_of(layout, shards, producers_paused=paused))
        for number in shard_numbers(epoch, shards):
            if former.call("open", number, changes, token + HEAD_START, arrival, rules, shards) == b"u":
                # Another process has published it, so the swap fails; or the registry lost this epoch.
                return self._swapped(former, stored, layouts.with_lost(layout, _size_of(former, epoch)))
        _copy_ticks(former, former.numbers, epoch, shards)
        return self._swapped(former, stored, layouts.published(layout), producers_paused=paused)

    def _leave(self, shards: ShardSet, stored: bytes) -> Layout | None:
        """Close a queue that is being deleted; leave a tombstone if it may go."""
        layout = shards.layout
        shards.close(shards.numbers)
        if layout["leaving"] == "empty" and not count_shards(shards, shards.numbers).is_empty:
            # Closed shards are never opened again, so the queue continues in a new epoch.
            return self._swapped(shards, stored, layouts.with_next(layout, layout["shards"]))
        return self._swapped(shards, stored, layouts.tombstone(layout, wiped=False))

    def _swapped(
        self, shards: ShardSet, stored: bytes, layout: Layout, *, producers_paused: bool | None = None
    ) -> Layout | None:
        is_stored = self._registry.swap_layout(shards.name, stored, layout, producers_paused=producers_paused)
        return layout if is_stored else None

    def retire(self, name: str) -> list[int]:
        """Remove the old epochs that hold nothing any more; return their numbers.

        An epoch stays for two minutes after its last call, because that call may be sent again, and as long as its
        shards hold morgue records, marks of durable jobs, or open attempts of jobs that were acked before they began.
        Its events stay for a day after that (:mod:`.events`).
        """
        retired: list[int] = []
        while True:
            stored, layout = self._registry.read_layout(name)
            if layout is None or layouts.is_deleted(layout) or layouts.is_pending(layout):
                return retired
            shards = ShardSet(self._registry, name, layout)
            epoch = next((epoch for epoch, size in layout.get("old", ()) if _end(shards, epoch, size)), None)
            if epoch is None:
                return retired
            if self._swapped(shards, stored, layouts.without_epoch(layout, epoch)):
                log.info("queue %r: epoch %d is retired", name, epoch)
                retired.append(epoch)


def _refuse_if_full(queue: ShardSet) -> None:
    """Check that a queue may be deleted without ``force``.

    Raises:
        QueueNotEmpty: it may not; the message says what it holds.
    """
    counts = count_shards(queue, queue.numbers)
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


def _meta(shards: ShardSet, number: int) -> dict[bytes, bytes]:
    """Return the fields of a shard's key ``meta``."""
    with clear_errors():
        meta: dict[bytes, bytes] = shards.deployment.client.hgetall(shards.shard(number).names["meta"])
    return meta


def _size_of(shards: ShardSet, epoch: int) -> int:
    """Return the number of shards of an epoch that is in no layout, by the keys that exist."""
    return max((n % MAX_SHARDS + 1 for n in shard_numbers(epoch, MAX_SHARDS) if _meta(shards, n)), default=0)


def _largest_token_and_arrival(shards: ShardSet, numbers: Iterable[int]) -> tuple[int, int]:
    """Return the largest fencing token (or closing moment) and the largest arrival number of closed shards."""
    token = arrival = 0
    for number in numbers:
        meta = _meta(shards, number)
        token = max(token, int(meta.get(b"token", 0)), int(meta.get(b"closed", 0)))
        arrival = max(arrival, int(meta.get(b"seq", 0)))
    return token, arrival


def _end(shards: ShardSet, epoch: int, size: int) -> bool:
    """End the shards of an old epoch if they are empty; return True if they are tombstones now."""
    numbers = shard_numbers(epoch, size)
    if not count_shards(shards, numbers).is_empty:
        return False
    _copy_ticks(shards, numbers, shards.layout["epoch"], shards.shards)
    replies = [shards.call("retire", number, b"0") for number in numbers]  # their events stay for a day
    if any(reply != b"1" for reply in replies):
        return False
    return _copy_counters(shards, epoch, numbers, number_of(shards.layout["epoch"], 0))


def _copy_ticks(shards: ShardSet, numbers: Iterable[int], epoch: int, size: int) -> None:
    """Copy the ticks that were fired in some shards to the shards of an epoch."""
    ticks: dict[bytes, bytes] = {}
    for number in numbers:
        ticks |= _later_ticks(ticks, _meta(shards, number))
    fields: dict[int, list[bytes]] = {}
    for field, value in ticks.items():
        ident = field.partition(b":")[2]
        fields.setdefault(number_of(epoch, crc32(ident) % size), []).extend((field, value))
    for number, pairs in fields.items():
        shards.call("carry", number, b"", *pairs)


def _later_ticks(earlier: dict[bytes, bytes], meta: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Return the ticks in a shard's meta that are later than the known ones, and its first calls of schedules."""
    ticks = {field: value for field, value in meta.items() if field.startswith(_TICKS)}
    return {
        field: value
        for field, value in ticks.items()
        if field not in earlier or (field.startswith(b"tick:") and int(value) > int(earlier[field]))
    }


def _copy_counters(shards: ShardSet, epoch: int, numbers: Iterable[int], target: int) -> bool:
    """Add the counters of tombstones, which no longer change, to those of shard ``target``, and delete them.

    They are added once, also if one process stops in between and another one repeats the step.

    Returns:
        False if the target is a tombstone itself.
    """
    keys = [shards.shard(number).names["count"] for number in numbers]
    total: dict[bytes, int] = {}
    for key in keys:
        with clear_errors():
            counters = shards.deployment.client.hgetall(key)
        for counter, n in counters.items():
            total[counter] = total.get(counter, 0) + int(n)
    pairs = [item for counter, n in total.items() for item in (b"count:" + counter, n)]
    if pairs and shards.call("carry", target, epoch, *pairs) != b"1":
        return False
    for key in keys:
        with clear_errors():
            shards.deployment.client.unlink(key)
    return True


# -- the way of a call through the epochs ----------------------------------------------------------------------------


class EpochWalk:
    """Walk of one call through the epochs of a queue, the oldest first.

    A closed shard refuses an id that is not live in it, and the call goes on to the next epoch.

    Args:
        queue: the queue.
        epochs: returns the epochs that are known now.
        create: re-create a deleted queue.
    """

    __slots__ = ("_create", "_epochs", "_give_up_at", "_pause", "_queue", "_takeover_at")

    def __init__(self, queue: ShardSet, epochs: Callable[[], Epochs], *, create: bool) -> None:
        self._queue = queue
        self._epochs = epochs
        self._create = create
        self._takeover_at = self._give_up_at = math.inf
        self._pause = 0.002

    def after(self, epoch: int) -> tuple[int, int] | None:
        """Return number and shards of the epoch after one whose shard is closed; wait until there is one.

        Returns:
            None if the queue was deleted.

        Raises:
            QueueUnavailable: no epoch was opened in time.
        """
        deployment, changes = self._queue.deployment, EpochChanges(self._queue.registry)
        while True:
            later = next((pair for pair in self._epochs() if pair[0] > epoch), None)
            if later is not None:
                return later
            if self._give_up_at == math.inf:
                now = time.monotonic()
                self._takeover_at = now + deployment.takeover_seconds * random.uniform(0.8, 1.2)
                self._give_up_at = now + deployment.change_seconds
            if not changes.refresh(self._queue, epoch, self, create=self._create):
                return None

    def is_takeover_due(self) -> bool:
        """Return True if the call should complete the unfinished change of another process itself."""
        return time.monotonic() >= self._takeover_at

    def sleep(self) -> None:
        """Sleep for a moment.

        Raises:
            QueueUnavailable: the wait took too long.
        """
        if time.monotonic() >= self._give_up_at:
            raise QueueUnavailable(
                f"queue {self._queue.name!r} is being changed, and the change does not complete; try again, and check "
                f"manage.py delayq_reshard {self._queue.name} --status"
            )
        time.sleep(self._pause * random.uniform(0.5, 1.0))
        self._pause = min(0.05, self._pause * 1.5)


def visit(
    queue: ShardSet, ident: str, ask: Callable[[int], T | None], *, create: bool = False, fresh: bool = False
) -> T | None:
    """Call the shards in which an id may live, the oldest first, until one has it.

    Args:
        queue: the queue.
        ident: the id.
        ask: called with the number of a shard; None means that the shard is closed and the id not live in it.
        create: re-create a deleted queue.
        fresh: the id was generated just now, so it is live nowhere.

    Returns:
        The result of ``ask``; None if the queue was deleted.
    """
    crc = crc32(ident.encode())
    epoch, shards = queue.first_epoch(fresh=fresh)
    walk = EpochWalk(queue, lambda: queue.epochs, create=create)
    while True:
        answer = ask(number_of(epoch, crc % shards))
        if answer is not None:
            return answer
        later = walk.after(epoch)
        if later is None:
            return None
        epoch, shards = later

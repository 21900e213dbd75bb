"""Change of a queue's number of shards, and deletion of a queue, while producers and workers continue.

The shards of a queue belong to an *epoch*. The layout (:mod:`.layouts`) names the present epoch, which takes
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

from . import layouts
from .counts import Counts, count_shards
from .errors import InvalidJob, QueueNotEmpty, QueueUnavailable
from .layouts import Epochs, Layout, shard_numbers
from .records.frames import pack
from .records.keys import MAX_SHARDS, number_of
from .redis.scripts import clear_errors
from .registry import QueueRegistry, ShardSet

log = logging.getLogger(__name__)

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

    def reshard(self, name: str, shards: int) -> Layout:
        """Change a queue's number of shards while it is in use; return its layout.

        Raises:
            InvalidJob: there is no such queue, or the number is not 1 … 1024.
        """
        if type(shards) is not int or not 1 <= shards <= MAX_SHARDS:
            raise InvalidJob(f"a queue has 1 to {MAX_SHARDS} shards, not {shards!r}")

        # Shards are closed one by one: one that does not answer would leave the others closed until it does.
        queue = self._registry.require_queue(name)
        _largest_token_and_arrival(queue, queue.numbers)
        while True:
            layout = self._registry.change_layout(name, lambda now: _restarted(now, shards, now["shards"] != shards))
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

    def open_another(self, name: str, epoch: int) -> None:
        """Continue a queue in a new epoch, unless a change is in progress or it has left this one already."""
        self._registry.change_layout(name, lambda now: _restarted(now, now["shards"], now["epoch"] == epoch))
        self.finish(name)

    # -- the steps ---------------------------------------------------------------------------------------------------

    def finish(self, name: str) -> None:
        """Complete the unfinished change of a queue from its present step on, if there is one."""
        while True:
            stored, layout = self._registry.read_layout(name)
            if layout is None:
                return
            shards = ShardSet(self._registry, name, layout)
            if "leaving" in layout:
                self._leave(shards, stored)
            elif "next" in layout:
                self._advance(shards, stored)
            else:
                return
            log.info("queue %r: a step of a change was made: %s", name, layout)

    def _advance(self, former: ShardSet, stored: bytes) -> None:
        """Close the present epoch, open the next one, and publish it."""
        layout = former.layout
        epoch, shards = layout["next"]
        former.close(former.numbers)
        token, arrival = _largest_token_and_arrival(former, former.numbers)
        time.sleep(HEAD_START / 1e6)  # the first tokens of the new shards must be in the past when these are published
        paused = self._registry.producers_paused_since() is not None
        rules = pack(layouts.rules_of(layout, shards, producers_paused=paused))
        for number in shard_numbers(epoch, shards):
            if former.call("open", number, token + HEAD_START, arrival, rules, shards) == b"u":
                # Another process has published it, so the swap fails; or the registry lost this epoch.
                self._registry.swap_layout(former.name, stored, layouts.with_lost(layout, _size_of(former, epoch)))
                return
        _copy_ticks(former, former.numbers, epoch, shards)
        self._registry.publish(former.name, stored, layouts.published(layout))

    def _leave(self, shards: ShardSet, stored: bytes) -> None:
        """Close a queue that is being deleted; if it may go, delete its keys and leave a tombstone."""
        layout = shards.layout
        shards.close(shards.numbers)
        if layout["leaving"] == "empty" and not count_shards(shards, shards.numbers).is_empty:
            # Closed shards are never opened again, so the queue continues in a new epoch.
            changed = layouts.with_next(layout, layout["shards"])
        else:
            for number in layouts.all_numbers((*layout.get("past", ()), *shards.epochs)):
                shards.call("retire", number, b"1")
            with clear_errors():
                shards.deployment.client.delete(shards.deployment.wake_key(shards.name))
            changed = layouts.tombstone(layout)
        self._registry.swap_layout(shards.name, stored, changed)

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
            if self._registry.swap_layout(name, stored, layouts.without_epoch(layout, epoch)):
                log.info("queue %r: epoch %d is retired", name, epoch)
                retired.append(epoch)


def _refuse_if_full(queue: ShardSet) -> None:
    """Check that a queue may be deleted without ``force``.

    Raises:
        QueueNotEmpty: it may not; the message says what it holds.
    """
    counts = count_shards(queue, queue.numbers)
    contents = {
        f"{counts.live} jobs": counts.live,
        f"{counts.morgue} morgue records": counts.morgue,
        f"the completion marks of {counts.marks} durable jobs, which a worker has to write to the outbox": counts.marks,
        f"{counts.begun} running attempts of jobs that were acked before they began": counts.begun,
    }
    if any(contents.values()):
        listed = " and ".join(text for text, number in contents.items() if number)
        raise QueueNotEmpty(
            f"queue {queue.name!r} holds {listed}; empty it first, or delete it with --force (force=True)"
        )


# -- the shards of an epoch ------------------------------------------------------------------------------------------


def _meta(shards: ShardSet, number: int) -> dict[bytes, bytes]:
    """Return the fields of a shard's key ``meta``."""
    with clear_errors():
        meta: dict[bytes, bytes] = shards.deployment.client.hgetall(shards.shard(number).names["meta"])
    return meta


def _restarted(layout: Layout, shards: int, is_wanted: bool) -> Layout:
    """Return the layout after the start of a reshard; the same if none is wanted, or while a change is in progress."""
    return layouts.with_next(layout, shards) if is_wanted and not layouts.is_pending(layout) else layout


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
    """Copy the ticks that were fired in some shards to the shards of an epoch, unless these know later ones."""
    fields: dict[int, list[bytes]] = {}
    for number in numbers:
        for field, value in _meta(shards, number).items():
            if field.startswith(_TICKS):
                ident = field.partition(b":")[2]
                fields.setdefault(number_of(epoch, crc32(ident) % size), []).extend((field, value))
    for number, pairs in fields.items():
        shards.call("carry", number, b"", *pairs)


def _copy_counters(shards: ShardSet, epoch: int, numbers: Iterable[int], target: int) -> bool:
    """Add the counters of tombstones, which no longer change, to those of shard ``target``, and delete them.

    They are added once, also if one process stops in between and another one repeats the step.

    Returns:
        False if the target is a tombstone itself.
    """
    client, keys = shards.deployment.client, [shards.shard(number).names["count"] for number in numbers]
    with clear_errors():
        counters = [item for key in keys for item in client.hgetall(key).items()]
    pairs = [word for counter, n in counters for word in (b"count:" + counter, n)]
    if pairs and shards.call("carry", target, epoch, *pairs) != b"1":
        return False
    with clear_errors():
        for key in keys:
            client.unlink(key)
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
        deployment = self._queue.deployment
        while True:
            later = next((pair for pair in self._epochs() if pair[0] > epoch), None)
            if later is not None:
                return later
            if self._give_up_at == math.inf:
                now = time.monotonic()
                self._takeover_at = now + deployment.takeover_seconds * random.uniform(0.8, 1.2)
                self._give_up_at = now + deployment.change_seconds
            if not self._refresh(epoch):
                return None

    def _refresh(self, epoch: int) -> bool:
        """Read the layout again, because a shard of ``epoch``, the caller's present epoch, is closed.

        Returns:
            True if the caller should try again; False if the queue was deleted.
        """
        registry, name, known = self._queue.registry, self._queue.name, self._queue.layout
        _, layout = registry.read_layout(name)
        if layout is None or layouts.is_deleted(layout):
            if self._create:
                registry.create(
                    name,
                    lambda former: (
                        layouts.new_layout(former["shards"], former["kind"], former)
                        if former
                        else layouts.recovered(known, is_closed=True)
                    ),
                )
            return self._create
        if layout["epoch"] == epoch:
            changes = EpochChanges(registry)
            if not layouts.is_pending(layout):
                # The registry was restored from an older copy than the shards: continue in a new epoch.
                log.warning(
                    "queue %r: epoch %d is open in the registry, but its shards are closed; a new epoch is opened",
                    name,
                    epoch,
                )
                changes.open_another(name, epoch)
            elif time.monotonic() >= self._takeover_at:
                changes.finish(name)
            self._sleep()
        return True

    def _sleep(self) -> None:
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
    epoch, shards = (queue.epochs or ((queue.layout["epoch"], queue.shards),))[-1 if fresh else 0]
    walk = EpochWalk(queue, lambda: queue.epochs, create=create)
    while True:
        answer = ask(number_of(epoch, crc % shards))
        if answer is not None:
            return answer
        later = walk.after(epoch)
        if later is None:
            return None
        epoch, shards = later

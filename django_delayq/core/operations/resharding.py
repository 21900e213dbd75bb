"""Changing the number of shards, and deleting a queue, while everybody goes on working.

A queue's shards belong to an *epoch*. Its layout (:mod:`..records.layout`) names the present epoch, in which new ids
are put, and the old ones, in which what lives goes on until it is done. Why no id ever lives in two epochs:

1. A shard becomes *closing* before the next epoch is published, and stays so for ever; when nothing is left of it, a
   tombstone remains (``retire.lua``). In a closing shard an id that is not live never becomes live again:
   ``schedule`` and ``kick`` refuse it there (letter ``v``), inside the same script that looks for it, and every other
   way into the due set or the lease (fail, release, expiry, gated content) starts from an id that is live.
2. An id is made in the present epoch only by a caller who was told ``v`` by its shard of every older epoch; ids that
   were made by the library a moment ago were never anywhere, and are not asked for. By (1) each ``v`` stays true,
   whatever happens between the calls. So at the moment of the making, the id lives nowhere else.
3. It cannot come to life in an older epoch later, by (1), and not in a newer one, because who puts it there has to
   ask this one first.

What callers with an old layout meet: who takes a closing shard for the present one is told ``v``, reads the layout
again and goes on; so does who asks (cancel, reschedule, ...) for an id that is not there. Who does not know a *new*
epoch and finds the id live in an old one is right by (3). Who still asks an epoch that is retired is told ``v`` by
its tombstone.

Interleavings that look dangerous: two changes at once: the second waits in :meth:`Epochs.reshard` until the first is
published, or finishes it. A changer that falls asleep between two steps and wakes up after others have finished:
closing again changes nothing, ``open.lua`` leaves a shard alone that is in use or was opened by a newer layout, the
swap of the layout fails. A pause that an operator orders meanwhile: it is in the layout, so the swap fails and the
new shards are opened again with it; if it comes after the publication, the operator's own round reaches the new
shards. A call that is sent again after a lost reply: its shard remembers it; ``v`` is not remembered and by (1) is
the answer again. An old shard is not retired before its youngest call is older than any that may still be sent again.

Fencing tokens: a later holder of an id has a larger token than every earlier one. A token is a moment, ``max(last + 1,
now)`` in µs (``lib/reserve.lua``), and none is ahead of the clock. So whatever Redis loses, later tokens are larger, as
long as its clock is not set back.

Of two epochs, let an old shard be closed at c by its own clock, and let F be the largest of c and of the tokens until
then, over all old shards. The shards of the next epoch begin above F + h, and are published when h = 33 ms have
passed, so that this is not ahead of the clock either. From c on the old shard's tokens follow a clock that is slow
until it is L = 64 h = 2.1 s behind: at c + e they are at most max(c + e/64, c + e - L). An id that it hands out then,
and that the next epoch hands out later, gets more than F + h from that one, and at least c + e - d by a clock that is
d behind. While e <= L the old token is at most c + h <= F + h; later it is c + e - L, which is less if d < L. So the
clocks of a cluster's nodes may differ by two seconds. (An old shard that hands out more often than every 64 µs counts
``last + 1`` instead; it would have to do so 32,768 times within those two seconds.)

Ticks of recurring tasks are told to the new shards before these are published, and once more before an old shard is
retired; until then the old shard is asked first. What was counted in an old epoch is added, once, to the counters of
the present one's first shard when it is retired, so that a queue's counters never go back.

Every step may be repeated by anybody. A change that its author left half done is finished by the first caller who has
to wait for it, or by a dispatcher.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from .. import events
from ..errors import InvalidJob, QueueNotEmpty
from ..records import layout as layouts
from ..records.keys import MAX_SHARDS, number_of
from ..records.layout import CLOSING, Layout
from ..redis.scripts import clear_errors
from .inspector import Counts

if TYPE_CHECKING:
    from ..broker import Broker
    from ..queue import Queue
    from ..sending.epoch_walk import Patience
    from ..sending.sender import Sender

log = logging.getLogger("django_delayq.core.epochs")

#: µs by which the tokens of an epoch begin above those of the epoch before, which goes on meanwhile
HEAD_START: Final = 1 << 15
_TICKS: Final = (b"tick:", b"sight:")


@dataclass(frozen=True, slots=True)
class Progress:
    """One epoch of a queue: the present one (``open``), an old one, or one that is being made (no counts yet)."""

    epoch: int
    shards: int
    state: str  # open | old | coming
    counts: Counts


class Epochs:
    """The changes of the layouts of a broker's queues."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    # -- for operators -----------------------------------------------------------------------------------------------

    def reshard(self, name: str, shards: int) -> Layout:
        """See :meth:`Broker.reshard`."""
        if isinstance(shards, bool) or not isinstance(shards, int) or not 1 <= shards <= MAX_SHARDS:
            raise InvalidJob(f"a queue has 1 to {MAX_SHARDS} shards, not {shards!r}")
        while True:
            layout = self._broker.change_layout(
                name,
                lambda now: (
                    now if layouts.is_pending(now) or now["shards"] == shards else layouts.with_next(now, shards)
                ),
            )
            if not layouts.is_pending(layout):
                return layout
            self.finish(name)

    def delete(self, name: str, *, force: bool = False) -> bool:
        """See :meth:`Broker.delete_queue`."""
        while True:
            self.finish(name)
            queue = self._broker.known_queue(name)
            if queue is None:
                return False
            if not force:
                self._refuse_full(queue)
            epoch = self._broker.change_layout(name, lambda now: layouts.with_leaving(now, force=force))["epoch"]
            self.finish(name)
            left = self._broker.known_queue(name)
            if left is None or all(other != epoch for other, _ in left.epochs):
                return True
            # A job came between the look and the closing; or somebody's job, which is done meanwhile.

    def _refuse_full(self, queue: Queue) -> None:
        counts = self._broker.inspector.counts(queue.name)
        live = counts.ready + counts.delayed + counts.reserved
        if live or counts.morgue:
            raise QueueNotEmpty(
                f"queue {queue.name!r} holds {live} jobs and {counts.morgue} graves; empty it first, or delete it with "
                "--force (force=True)"
            )
        if counts.marks:
            raise QueueNotEmpty(
                f"queue {queue.name!r} holds the ends of {counts.marks} durable jobs, which a worker has to note in "
                "the outbox; wait until one has, or delete it with --force (force=True)"
            )
        if counts.begun:
            raise QueueNotEmpty(
                f"queue {queue.name!r} has {counts.begun} runs of jobs that were acked before they began; wait until "
                "they have ended, or delete it with --force (force=True)"
            )

    def progress(self, name: str) -> list[Progress]:
        """Every epoch of a queue with what lies in it, the oldest first; nothing for a queue that is not there."""
        queue = self._broker.known_queue(name)
        if queue is None:
            return []
        present = queue.epochs[-1][0]
        found = [
            Progress(
                epoch,
                shards,
                "open" if epoch == present else "old",
                self._broker.inspector.count_shards(queue, _numbers(epoch, shards)),
            )
            for epoch, shards in queue.epochs
        ]
        if "next" in queue.layout:
            epoch, shards = queue.layout["next"]
            found.append(Progress(epoch, shards, "coming", Counts(name)))
        return found

    # -- for callers -------------------------------------------------------------------------------------------------

    def meet(self, queue: Sender, epoch: int, patience: Patience, *, create: bool) -> bool:
        """Read the layout again, because a shard of ``epoch``, the caller's present epoch, is closed.

        Args:
            create: bring a deleted queue back.

        Returns:
            Whether to look again; False = the queue was deleted.
        """
        _, layout = self._broker.read_layout(queue.name)
        if layout is None or layouts.is_deleted(layout):
            if create:
                last = queue.layout
                self._broker.create(queue.name, lambda stone: layouts.again(stone) if stone else layouts.revived(last))
            return create
        if layout["epoch"] == epoch:
            if not layouts.is_pending(layout):
                # A registry that was restored from an older copy than the shards: go on in a new epoch.
                log.warning(
                    "queue %r says that epoch %d is open, but its shards are closed; a new one is opened",
                    queue.name,
                    epoch,
                )
                self._open_another(queue.name, epoch)
            elif patience.is_over():
                self.finish(queue.name)
            patience.rest(queue.name)
        return True

    def _open_another(self, name: str, epoch: int) -> None:
        def change(now: Layout) -> Layout:
            settled = layouts.is_pending(now) or now["epoch"] != epoch
            return now if settled else layouts.with_next(now, now["shards"])

        self._broker.change_layout(name, change)
        self.finish(name)

    # -- the steps ---------------------------------------------------------------------------------------------------

    def finish(self, name: str) -> None:
        """Carries out what is under way for a queue, from wherever it stands. Nothing if nothing is."""
        while True:
            stored, changes, layout = self._read(name)
            if layout is None:
                return
            if "leaving" in layout:
                done = self._leave(name, stored, layout)
            elif "next" in layout:
                done = self._advance(name, stored, layout, changes)
            elif layouts.is_deleted(layout) and "old" in layout:
                done = self._wipe(name, stored, layout)
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
        epoch, shards = layout["next"]
        self._close(name, layouts.epochs_of(layout))
        token, seq, ticks = self._last_words(name, layouts.epochs_of(layout))
        time.sleep(HEAD_START / 1e6)  # before anybody may know of the new shards, their tokens are in the past
        rules = layouts.rules_of(layout, shards)
        for number in _numbers(epoch, shards):
            if self._call("open", name, number, changes, token + HEAD_START, seq, *rules, shards) == b"u":
                # Either others have published it, then the swap fails; or the registry forgot that it once was there.
                return self._swapped(name, stored, layouts.with_lost(layout, self._size_of(name, epoch)))
        self._carry(name, ticks, epoch, shards)
        return self._swapped(name, stored, layouts.published(layout))

    def _size_of(self, name: str, epoch: int) -> int:
        """Return the number of shards of an epoch that is in no layout, by the keys that exist."""
        there = 0
        for number in _numbers(epoch, MAX_SHARDS):
            if self._meta(name, number):
                there = number % MAX_SHARDS + 1
        return there

    def _leave(self, name: str, stored: bytes, layout: Layout) -> Layout | None:
        epochs = layouts.epochs_of(layout)
        self._close(name, epochs)
        if layout["leaving"] == "empty" and not self._is_empty(name, epochs):
            # Closed shards are not opened again: the queue goes on in a new epoch.
            return self._swapped(name, stored, layouts.with_next(layout, layout["shards"]))
        return self._swapped(name, stored, layouts.tombstone(layout, wiped=False))

    def _wipe(self, name: str, stored: bytes, layout: Layout) -> Layout | None:
        for epoch, shards in layout["old"]:
            self._retire_shards(name, _numbers(epoch, shards), force=True)
        with clear_errors():
            self._broker.client.delete(self._broker.wake_key(name))
        return self._swapped(name, stored, layouts.tombstone(layout, wiped=True))

    def _swapped(self, name: str, stored: bytes, layout: Layout) -> Layout | None:
        return layout if self._broker.swap_layout(name, stored, layout) else None

    def _close(self, name: str, epochs: layouts.Epochs) -> None:
        for number in _all_numbers(epochs):
            self._call("rule", name, number, 0, CLOSING, b"", b"", b"")

    def close_former(self, queue: Queue) -> None:
        """Close all but the present epoch again, after Redis lost the closed shards."""
        self._close(queue.name, queue.epochs[:-1])

    def _last_words(self, name: str, epochs: layouts.Epochs) -> tuple[int, int, dict[bytes, bytes]]:
        """Return the largest token (or closing moment), the largest arrival number, and the fired ticks."""
        token = seq = 0
        ticks: dict[bytes, bytes] = {}
        for number in _all_numbers(epochs):
            meta = self._meta(name, number)
            token = max(token, int(meta.get(b"token", 0)), int(meta.get(b"closed", 0)))
            seq = max(seq, int(meta.get(b"seq", 0)))
            ticks |= _later_ticks(ticks, meta)
        return token, seq, ticks

    def _meta(self, name: str, number: int) -> dict[bytes, bytes]:
        with clear_errors():
            meta: dict[bytes, bytes] = self._broker.client.hgetall(self._broker.shard(name, number).names["meta"])
        return meta

    def _carry(self, name: str, ticks: dict[bytes, bytes], epoch: int, shards: int) -> None:
        places: dict[int, list[bytes]] = {}
        for field, value in ticks.items():
            ident = field.partition(b":")[2]
            places.setdefault(number_of(epoch, crc32(ident) % shards), []).extend((field, value))
        for number, words in places.items():
            self._call("carry", name, number, b"", *words)

    # -- the end of an epoch -----------------------------------------------------------------------------------------

    def retire(self, name: str) -> list[int]:
        """Remove the old epochs that hold nothing any more; return their numbers.

        An epoch stays for two minutes after its last call, because that may be sent again, and as long as there are
        graves in its morgue, marks of durable jobs, open runs of jobs that were acked before they began, or events that
        a consumer has not read (:mod:`..events`).
        """
        retired: list[int] = []
        while True:
            stored, layout = self._broker.read_layout(name)
            if layout is None or layouts.is_deleted(layout) or layouts.is_pending(layout):
                return retired
            epoch = next(
                (epoch for epoch, shards in layout.get("old", ()) if self._end(name, layout, epoch, shards)), None
            )
            if epoch is None:
                return retired
            if self._swapped(name, stored, layouts.without_epoch(layout, epoch)):
                log.info("queue %r: epoch %d is retired", name, epoch)
                retired.append(epoch)

    def _end(self, name: str, layout: Layout, epoch: int, shards: int) -> bool:
        if not self._is_empty(name, ((epoch, shards),)):
            return False
        numbers = _numbers(epoch, shards)
        ticks: dict[bytes, bytes] = {}
        for number in numbers:
            ticks |= _later_ticks(ticks, self._meta(name, number))
        self._carry(name, ticks, layout["epoch"], layout["shards"])
        if not self._retire_shards(name, numbers, force=False):
            return False
        return self._hand_on_counters(name, epoch, numbers, number_of(layout["epoch"], 0))

    def _hand_on_counters(self, name: str, epoch: int, numbers: Iterable[int], heir: int) -> bool:
        """Add the counters of these tombstones, which no longer change, to those of ``heir``.

        It happens once, also if one process stops in between and another begins again.
        """
        keys = [self._broker.shard(name, number).names["count"] for number in numbers]
        total: dict[bytes, int] = {}
        for key in keys:
            with clear_errors():
                counters = self._broker.client.hgetall(key)
            for counter, n in counters.items():
                total[counter] = total.get(counter, 0) + int(n)
        words = [word for counter, n in total.items() for word in (b"count:" + counter, n)]
        if words and self._call("carry", name, heir, epoch, *words) != b"1":
            return False
        for key in keys:
            with clear_errors():
                self._broker.client.unlink(key)
        return True

    def _retire_shards(self, name: str, numbers: Iterable[int], *, force: bool) -> bool:
        # Who has not read what happened there is waited for, also when it has not come by yet.
        words = [b"1"] if force else [b"0", *events.followers(self._broker, name)]
        replies = [self._call("retire", name, number, *words) for number in numbers]
        return all(reply == b"1" for reply in replies)

    def _is_empty(self, name: str, epochs: layouts.Epochs) -> bool:
        queue = self._broker.known_queue(name)
        if queue is None:
            return True
        counts = self._broker.inspector.count_shards(queue, _all_numbers(epochs))
        held = counts.reserved or counts.begun
        return not (counts.ready or counts.delayed or held or counts.morgue or counts.marks)

    def _call(self, script: str, name: str, number: int, *args: Any) -> Any:
        shard = self._broker.shard(name, number)
        return self._broker.scripts.call(script, shard.keys, os.urandom(16), shard.constants, *args)


def _numbers(epoch: int, shards: int) -> list[int]:
    return [number_of(epoch, place) for place in range(shards)]


def _all_numbers(epochs: layouts.Epochs) -> list[int]:
    return [number for epoch, shards in epochs for number in _numbers(epoch, shards)]


def _later_ticks(known: dict[bytes, bytes], meta: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Of the ticks in a shard's meta those that are later than the known ones; when a schedule was first seen."""
    found = {field: value for field, value in meta.items() if field.startswith(_TICKS)}
    return {
        field: value
        for field, value in found.items()
        if field not in known or (field.startswith(b"tick:") and int(value) > int(known[field]))
    }

"""Registry of the queues of a deployment: a hash in Redis with the layout of each queue, and the queues opened here."""

from __future__ import annotations

import math
import time
from collections.abc import Container, Sequence
from typing import TYPE_CHECKING, Final

from .errors import QueueUnavailable
from .inputs import unknown_queue
from .layout_registry import LayoutRegistry, log
from .records import layout as layouts
from .records.keys import PRODUCERS_FIELD
from .records.layout import Layout
from .redis.connection import PARTIAL_SECONDS
from .redis.scripts import clear_errors

if TYPE_CHECKING:
    from .queue import Queue

#: longest time for which a call waits for the registry of a cluster, in seconds, if the layout is known
REGISTRY_SECONDS: Final = 1.0


class QueueRegistry(LayoutRegistry):
    """Queues of a deployment. Base of :class:`Broker`, which has the connection."""

    #: seconds for which a process that only schedules believes a layout: Redis may have lost it, and another process
    #: may have made the queue anew. The shards that are in it take jobs all the same
    layout_seconds: float = 15.0
    #: seconds after which a call no longer waits for another process's change of shards but completes it
    takeover_seconds: float = 0.5
    #: seconds for which a call waits for a change of shards before it gives up
    change_seconds: float = 10.0

    def __init__(self, prefix: str) -> None:
        super().__init__(prefix)
        #: moment (monotonic) until which the registry is not read again for known queues, because it was unreachable
        self._unreadable_until = -math.inf

    def queue(self, name: str, *, shards: int | None = None, kind: str = "python") -> Queue:
        """Return the queue of this name; create it if necessary.

        The first call of the deployment writes the layout into Redis. From then on Redis is authoritative, and a
        different number of shards only causes a warning: see ``delayq_reshard``. A deleted queue is created again.

        Args:
            shards: number of shards of a new queue; None = one.
            kind: ``python`` or ``pull``.
        """
        return self._believed(name) or self._open(name, shards, kind)

    def _believed(self, name: str) -> Queue | None:
        """Return the queue of this name if this process knows it; its layout is read again from time to time."""
        queue = self._queues.get(name)
        if queue is None or queue.deleted:
            return None
        if time.monotonic() >= queue.read_at + self.layout_seconds:
            before, queue.read_at = queue.read_at, time.monotonic()  # of many threads, one reads it
            try:
                self._read_again(name)
            except BaseException:
                queue.read_at = before
                raise
        return None if queue.deleted else queue

    def _read_again(self, name: str) -> None:
        """Read the layout of a known queue again.

        On a cluster the registry may be unreachable while the shards of the queue are not. Then the layout is believed
        for longer: jobs are accepted under an old one too, because shards that were closed since redirect them.
        """
        others_live, now = self.connection.cluster, time.monotonic()
        if others_live and now < self._unreadable_until:
            return
        try:
            with self.connection.limited(REGISTRY_SECONDS):
                if self.read_layout(name)[1] is None:
                    self._restore(name)
        except QueueUnavailable as error:
            if not others_live:
                raise
            self._unreadable_until = now + self.layout_seconds
            log.warning("the registry cannot be read; queues are used as they were read last: %s", error)

    def known_queue(self, name: str) -> Queue | None:
        """Return the queue of this name if the deployment has it now; never create it."""
        _, layout = self.read_layout(name)
        return self._queues[name] if layout is not None and not layouts.is_deleted(layout) else None

    def reachable_queue(self, name: str) -> Queue | None:
        """Return the queue of this name if the deployment has it, as last known if the registry does not answer now.

        For what people look at, on a cluster of which a part is away.
        """
        try:
            with self.connection.limited(PARTIAL_SECONDS):
                return self.known_queue(name)
        except QueueUnavailable:
            queue = self._queues.get(name)
            if queue is None or not self.connection.cluster:
                raise
            return None if queue.deleted else queue

    def reachable_queues(self) -> list[Queue]:
        """Return all queues, sorted by name; those that this process knows if the registry does not answer now.

        Raises:
            QueueUnavailable: it does not answer, and this process knows none, or Redis is no cluster.
        """
        try:
            with self.connection.limited(PARTIAL_SECONDS):
                return self.queues()
        except QueueUnavailable:
            opened = self.opened_queues()
            if not opened or not self.connection.cluster:
                raise
            return opened

    def opened_queues(self) -> list[Queue]:
        """Return the queues that this process knows, sorted by name, without asking Redis."""
        return [queue for _, queue in sorted(self._queues.items()) if not queue.deleted]

    def require_queue(self, name: str) -> Queue:
        """Return the queue of this name; never create it.

        Raises:
            InvalidJob: there is no such queue; the message lists the existing ones.
        """
        queue = self.known_queue(name)
        if queue is None:
            raise unknown_queue(name, self.queue_names())
        return queue

    def _open(self, name: str, shards: int | None, kind: str) -> Queue:
        def make(tombstone: Layout | None) -> Layout:
            if tombstone is None:
                return layouts.new_layout(shards or 1, kind)
            return layouts.again(tombstone, shards or 1, kind)

        try:
            layout = self.create(name, make)
        except QueueUnavailable as error:
            raise QueueUnavailable(
                f"queue {name!r} cannot be used: this process has not read its layout yet, and the registry "
                f"({self.queues_key}) cannot be read now; try again ({error})"
            ) from (error.__cause__ or error)
        if shards is not None and layout["shards"] != shards:
            log.warning(
                "queue %r has %d shards in Redis, but %d are configured; Redis decides. To change it: "
                "manage.py delayq_reshard %s --shards %d",
                name,
                layout["shards"],
                shards,
                name,
                shards,
            )
        return self._queues[name]

    # -- all queues -------------------------------------------------------------------------------------------------

    def queue_names(self) -> list[str]:
        """Return the names of all queues of this deployment, sorted."""
        return [queue.name for queue in self.queues()]

    def queues(self) -> list[Queue]:
        """Return all queues of this deployment, sorted by name."""
        since = self._adopted
        with clear_errors():
            stored = self.client.hgetall(self.queues_key)
        self._note_producers(stored.get(PRODUCERS_FIELD))
        return self._opened(stored, since)

    def _opened(self, stored: dict[bytes, bytes], since: int) -> list[Queue]:
        names = [name for name in sorted(stored) if name not in (b"", PRODUCERS_FIELD)]
        opened = [self._adopt(name.decode(), layouts.decode(stored[name]), since) for name in names]
        return [queue for queue in opened if not queue.deleted]

    def _adopt(self, name: str, layout: Layout, since: int) -> Queue:
        """Return the queue with a layout that was read; one that may be out of date is read again."""
        if not self._install(name, layout, since):
            self.read_layout(name)
        return self._queues[name]

    def served(self, names: Sequence[str], *, every: bool = False, awaited: Container[str] = ()) -> list[Queue]:
        """Return the queues that a process serves, as currently registered.

        Missing queues are created. Queues known locally but missing from Redis (after data loss) are restored,
        tombstones included. Deleted queues are skipped until a job is scheduled into them.

        Args:
            every: also all queues that are not named.
            awaited: names of queues that are not created: each is left out until the registry has it.
        """
        since = self._adopted
        with clear_errors():
            if every:
                stored = self.client.hgetall(self.queues_key)
            else:
                fields = [*(name.encode() for name in names), PRODUCERS_FIELD]
                values = zip(fields, self.client.hmget(self.queues_key, fields), strict=True)
                stored = {field: value for field, value in values if value is not None}
        self._note_producers(stored.get(PRODUCERS_FIELD))
        for name in sorted({*names, *(self._queues if every else ())}):
            if name.encode() not in stored and (name in self._queues or name not in awaited):
                stored[name.encode()] = layouts.encode(self._restore(name))
        return self._opened(stored, since)

    def _restore(self, name: str) -> Layout:
        queue = self._queues.get(name)
        if queue is None or queue.deleted:
            return self.queue(name).layout
        layout = self.create(name, lambda _: layouts.restored(queue.layout))
        self.epochs.close_former(name, layout)
        return layout

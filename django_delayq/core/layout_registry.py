"""Layouts of the queues in the registry in Redis: read, changed, and adopted by the queues of this process."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .inputs import unknown_queue
from .records import layout as layouts
from .records.keys import PRODUCERS_FIELD, queues_key
from .records.layout import Layout
from .redis.scripts import clear_errors
from .thread_lock import ThreadLock

if TYPE_CHECKING:
    from .queue import Queue
    from .redis.connection import Connection
    from .redis.scripts import Scripts
    from .resharding import EpochChanges

log = logging.getLogger("django_delayq.core.broker")


class LayoutRegistry:
    """Layouts of the registry, and the queues that have adopted them. Base of :class:`.registry.QueueRegistry`."""

    connection: Connection
    scripts: Scripts
    epochs: EpochChanges

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.queues_key = queues_key(prefix)
        #: the producers of all queues are paused, as of the last read of the registry
        self.producers_paused = False
        self._queues: dict[str, Queue] = {}
        #: number of layouts that the queues have adopted so far
        self._adopted = 0
        self._lock = ThreadLock()

    @property
    def client(self) -> Any:
        """redis-py client, for commands that are not verbs."""
        return self.connection.client

    def queue_names(self) -> list[str]:
        """Return the names of all queues of this deployment, sorted."""
        raise NotImplementedError

    def read_layout(self, name: str) -> tuple[bytes, Layout | None]:
        """Return the registry's layout of a queue, as stored and decoded; a known queue adopts it.

        Epochs only grow. If this process has seen a later epoch, a failover to a replica lost it, and it is written
        back (:func:`~.records.layout.put_back`).
        """
        while name:  # the registry keeps its change counter under ""
            since = self._adopted
            with clear_errors():
                stored: bytes | None = self.client.hget(self.queues_key, name)
            if stored is None:
                return b"", None
            layout = layouts.decode(stored)
            queue = self._later(name, layout)
            if queue is None:
                if self._install(name, layout, since):
                    return stored, layout
            elif queue.adopted <= since:
                later = layouts.put_back(queue.layout, layout)
                self.epochs.close_former(name, later)
                if self.swap_layout(name, stored, later):
                    log.warning("the registry lost epoch %d of queue %r; it is restored", queue.layout["epoch"], name)
        return b"", None

    def _later(self, name: str, layout: Layout) -> Queue | None:
        """Return the queue of this name if this process has seen a later epoch of it than that of a layout."""
        queue = self._queues.get(name)
        return queue if queue is not None and queue.layout["epoch"] > layout["epoch"] else None

    def swap_layout(self, name: str, stored: bytes, layout: Layout, *, producers_paused: bool | None = None) -> bool:
        """Replace the registry's layout of a queue; return False if it changed since ``stored`` was read.

        Args:
            producers_paused: for a layout that publishes new shards, whether these were prepared for paused producers;
                False is returned if that is not so (any more).
        """
        prepared, since = b"" if producers_paused is None else b"%d" % producers_paused, self._adopted
        keys, packed = (self.queues_key.encode(),), layouts.encode(layout)
        reply: bytes = self.scripts.call("layout", keys, name, stored, packed, prepared)
        if reply == b"1" and not self._install(name, layout, since):
            self.read_layout(name)
        return reply == b"1"

    def change_layout(self, name: str, change: Callable[[Layout], Layout]) -> Layout:
        """Change a layout with ``change(present one) -> new one``, safely under concurrent changes.

        Raises:
            InvalidJob: there is no such queue.
        """
        while True:
            stored, layout = self.read_layout(name)
            if layout is None or layouts.is_deleted(layout):
                raise unknown_queue(name, self.queue_names())
            changed = change(layout)
            if changed == layout or self.swap_layout(name, stored, changed):
                return changed

    def create(self, name: str, make: Callable[[Layout | None], Layout]) -> Layout:
        """Return the layout of a queue; if there is none, store and return ``make(its tombstone, if any)``."""
        while True:
            stored, layout = self.read_layout(name)
            if layout is not None and not layouts.is_deleted(layout):
                return layout
            if layout is not None and "old" in layout:
                self.epochs.finish(name)
            elif self._publish(name, stored, fresh := make(layout)):
                return fresh

    def _publish(self, name: str, stored: bytes, layout: Layout) -> bool:
        """Store the layout of a new queue. While producers are paused, its shards know it before anyone finds them."""
        paused = self.producers_paused_since() is not None
        if paused:
            queue = self._make_queue(name, layout)
            for number in queue.numbers:
                queue.rule(number, layouts.rules_of(layout, len(queue.numbers), producers_paused=True))
        return self.swap_layout(name, stored, layout, producers_paused=paused)

    def producers_paused_since(self) -> int | None:
        """Return since when the producers of all queues are paused, Unix ms; None = they are not."""
        with clear_errors():
            stored: bytes | None = self.client.hget(self.queues_key, PRODUCERS_FIELD)
        return self._note_producers(stored)

    def _note_producers(self, stored: bytes | None) -> int | None:
        self.producers_paused = stored is not None
        return None if stored is None else int(stored)

    def _make_queue(self, name: str, layout: Layout) -> Queue:
        raise NotImplementedError

    def _install(self, name: str, layout: Layout, since: int) -> bool:
        """Let the queue of this name adopt a layout that was read or stored.

        Args:
            name: the queue.
            layout: the layout.
            since: value of ``_adopted`` before the call to Redis.

        Returns:
            False if it is of an earlier epoch than the known one, or another thread let the queue adopt another layout
                since then: that one may be the later of the two, so the registry has to be read again.
        """
        with self._lock:
            queue = self._queues.get(name)
            if queue is None or queue.layout != layout:
                if queue is None:
                    queue = self._make_queue(name, layout)
                elif queue.adopted > since or self._later(name, layout) is not None:
                    return False
                else:
                    queue.install(layout)
                self._adopted += 1
                queue.adopted = self._adopted
                self._queues[name] = queue
            queue.read_at = time.monotonic()
            return True

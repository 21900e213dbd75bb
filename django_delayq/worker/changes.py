"""Change notifications inside one process, for components that keep records of queues outside Redis."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final, Literal

logger = logging.getLogger(__name__)

#: completions of durable jobs are waiting; the index of failed jobs changed; the morgue changed; the shard lost its
#: data
What = Literal["marks", "failed", "morgue", "lost"]
Place = tuple[str, int]
KINDS: Final[tuple[What, ...]] = ("marks", "failed", "morgue", "lost")


class Changes:
    """Mailbox of the shards (queue, number) that changed, by kind. Thread-safe.

    Notifications are hints: the reader checks the shard itself, and a superfluous one is harmless.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places: dict[str, set[Place]] = {what: set() for what in KINDS}
        self._rings: tuple[Callable[[], None], ...] = ()
        self._branches: tuple[tuple[frozenset[str], Changes], ...] = ()

    def note(self, queue: str, shard: int, what: What) -> None:
        """Record a change, and call the subscribers unless it was recorded already."""
        for kinds, branch in self._branches:
            if what in kinds:
                branch.note(queue, shard, what)
        place = (queue, shard)
        with self._lock:
            places = self._places[what]  # ``take`` replaces this set, so it is read under the lock
            if place in places:
                return
            places.add(place)
        for ring in self._rings:
            try:
                ring()
            except Exception:
                logger.exception("a subscriber to changes failed")

    def take(self, what: What) -> set[Place]:
        """Return the shards that changed in this way since the last call."""
        with self._lock:
            taken, self._places[what] = self._places[what], set()
        return taken

    def branch(self, *kinds: What) -> Changes:
        """Return a separate mailbox for one reader. It receives only these kinds and takes nothing from others."""
        made = Changes()
        with self._lock:
            self._branches = (*self._branches, (frozenset(kinds), made))
        return made

    def subscribe(self, ring: Callable[[], None]) -> None:
        """Call ``ring()`` whenever a new change is recorded.

        ``ring`` must return quickly, because it runs in the thread that recorded the change.
        """
        with self._lock:
            self._rings = (*self._rings, ring)

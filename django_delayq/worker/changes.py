"""What of the queues has changed, for those who keep books of them outside Redis: a mailbox inside this process."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final, Literal

logger = logging.getLogger(__name__)

#: ends of durable jobs wait to be taken; the index of failed jobs, the morgue has changed; the shard lost its data
What = Literal["settled", "failed", "morgue", "lost"]
Place = tuple[str, int]
KINDS: Final[tuple[What, ...]] = ("settled", "failed", "morgue", "lost")


class Changes:
    """Which shards (queue, number) have news of a kind. Any thread may put in and take out.

    News are hints: whoever takes them looks for himself, and one too many does no harm.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places: dict[str, set[Place]] = {what: set() for what in KINDS}
        self._rings: tuple[Callable[[], None], ...] = ()
        self._branches: tuple[tuple[frozenset[str], Changes], ...] = ()

    def note(self, queue: str, shard: int, what: What) -> None:
        """There is something new; who subscribed is called, unless that was known already."""
        for wanted, branch in self._branches:
            if what in wanted:
                branch.note(queue, shard, what)
        place = (queue, shard)
        with self._lock:
            places = self._places[what]  # another one after each take
            if place in places:
                return
            places.add(place)
        for ring in self._rings:
            try:
                ring()
            except Exception:
                logger.exception("a subscriber to changes failed")

    def take(self, what: What) -> set[Place]:
        """The shards with news of this kind since the last time."""
        with self._lock:
            taken, self._places[what] = self._places[what], set()
        return taken

    def branch(self, *kinds: What) -> Changes:
        """A mailbox of its own for one reader, who hears of these kinds only and takes nothing from others."""
        made = Changes()
        with self._lock:
            self._branches = (*self._branches, (frozenset(kinds), made))
        return made

    def subscribe(self, ring: Callable[[], None]) -> None:
        """Call ``ring()`` whenever something is noted that was not known: quickly, it is in somebody else's way."""
        with self._lock:
            self._rings = (*self._rings, ring)

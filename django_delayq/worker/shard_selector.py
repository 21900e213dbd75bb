"""Shard selector: when each shard has work next, and the condition that all threads wait on for it.

The fetch loop rests on the condition until the nearest due time. The wake thread and the slots end that rest early. The
dispatcher reads here whether this process has handled a due time itself.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from .pace import Pace
from .run import NEVER

if TYPE_CHECKING:
    from ..core.queue import Queue
    from .config import WorkerConfig

_FIRST_DOUBT: Final = 0.02
_LONGEST_DOUBT: Final = 1.0


class Source:
    """State of one shard of one queue in the fetch loop. Times are of ``time.monotonic()``."""

    __slots__ = ("asked_at", "due_at", "empties", "pace", "passed", "queue", "shard", "stride", "woken")

    def __init__(self, queue: Queue, shard: int, pace: Pace, weight: float = 1.0) -> None:
        self.queue = queue
        self.shard = shard
        self.pace = pace
        self.stride = 1.0 / weight
        #: when the next job can be reserved; NEVER = the shard was empty
        self.due_at = 0.0
        #: when the last reserve was sent
        self.asked_at = 0.0
        #: a wake token arrived during a reserve, whose reply may be older than the token
        self.woken = False
        self.passed = 0.0
        self.empties = 0

    def __repr__(self) -> str:
        return f"<Source {self.queue.name}.{self.shard}>"


class ShardSelector:
    """Shard selector over all shards of one process."""

    def __init__(self, sources: Sequence[Source], *, scheduler: str = "weighted") -> None:
        self.sources = list(sources)
        self.condition = threading.Condition()
        #: True while the fetch loop rests; only then is a nudge worth its cost
        self.resting = False
        self.by_place = _by_place(self.sources)
        self._welcome: Callable[[Source], None] = lambda _: None
        self._lag = scheduler == "lag"
        self._virtual = 0.0

    def welcome(self, call: Callable[[Source], None]) -> None:
        """Call ``call`` with every shard now, and with each one that is added later."""
        self._welcome = call
        for source in self.sources:
            call(source)

    def adopt(self, sources: Sequence[Source]) -> None:
        """Replace the shards of the process. Shards that are already known keep their state."""
        with self.condition:
            for source in sources:
                if self.by_place.get((source.queue.name, source.shard)) is not source:
                    source.passed = self._virtual  # a new shard has no credit
                    self._welcome(source)
            # New objects, because the fetch loop reads these without the lock.
            self.sources, self.by_place = list(sources), _by_place(sources)
            self._end_rest()

    def due(self, now: float) -> Source | None:
        """Return the shard to reserve from next, or None if no shard has due work."""
        best: Source | None = None
        rank = 0.0
        for source in self.sources:
            if source.due_at <= now:
                mine = source.due_at if self._lag else source.passed
                if best is None or mine < rank:
                    best, rank = source, mine
        if best is not None:
            # Stride scheduling: a served shard pays by its weight, and an idle one gains no credit.
            self._virtual = max(self._virtual, best.passed)
            best.passed = self._virtual + best.stride
        return best

    def next_due_at(self) -> float:
        """Return the nearest due time of all shards."""
        return min((source.due_at for source in self.sources), default=NEVER)

    def asking(self, source: Source, now: float) -> None:
        """Record that a reserve is about to be sent."""
        source.asked_at = now
        source.woken = False

    def answered(self, source: Source, now: float, next_due_ms: float | None, got: int) -> None:
        """Record the reply to a reserve: ``got`` jobs, and the time until the next due one (None = empty shard)."""
        with self.condition:
            if source.woken:
                source.due_at = now
            elif next_due_ms is None:
                source.due_at, source.empties = NEVER, 0
            elif got or next_due_ms > 0:
                source.due_at, source.empties = now + next_due_ms / 1000, 0
            else:
                # A shard that has due jobs but returns none may stay so. The pauses grow, to avoid a hot loop.
                doubt = min(_LONGEST_DOUBT, _FIRST_DOUBT * 2 ** min(source.empties, 10))
                source.due_at, source.empties = now + doubt, source.empties + 1

    def expect(self, source: Source, at: float) -> None:
        """Record that work which this process put back falls due at ``at``."""
        with self.condition:
            source.due_at = min(source.due_at, at)

    def wake(self, places: Sequence[tuple[str, int]]) -> None:
        """Make these (queue, shard) pairs due, because wake tokens arrived for them."""
        with self.condition:
            for place in places:
                source = self.by_place.get(place)
                if source is not None:
                    source.woken = True
                    source.due_at = 0.0
            self._end_rest()

    def nudge(self) -> None:
        """End the rest for another reason: an attempt ended, or the worker should stop."""
        with self.condition:
            self._end_rest()

    def rest(self, until: float) -> None:
        """Wait until ``until`` or a nudge. The caller must set ``resting`` before its last check for work."""
        with self.condition:
            timeout = until - time.monotonic()
            if self.resting and timeout > 0:
                self.condition.wait(min(timeout, 3600.0))
            self.resting = False

    def _end_rest(self) -> None:
        self.resting = False
        self.condition.notify_all()

    def stalest(self) -> Source | None:
        """Return the shard whose last reserve is the longest ago."""
        return min(self.sources, key=lambda source: source.asked_at, default=None)

    def overdue(self, queue: str, shard: int, now: float, patience: float) -> bool:
        """Return True if the shard's known due time passed ``patience`` seconds ago and no reserve here followed.

        Also True for a shard that this process does not reserve from, because other processes handle its due times.
        """
        source = self.by_place.get((queue, shard))
        return source is None or source.due_at + patience <= now


def build_sources(
    queues: Sequence[Queue], config: WorkerConfig, name: str, known: Mapping[tuple[str, int], Source] | None = None
) -> list[Source]:
    """Return every shard of the queues, in this process's own order.

    Args:
        queues: the queues to serve.
        config: has the splitter and the weights.
        name: the worker's name, for the splitter.
        known: shards that are served already; they stay the same objects.
    """
    known = known or {}
    paces = {source.queue.name: source.pace for source in known.values()}
    for queue in queues:
        paces.setdefault(queue.name, Pace())
    by_name = {queue.name: queue for queue in queues}
    places = [(queue.name, shard) for queue in queues for shard in queue.numbers]
    weights = {} if config.scheduler == "seq" else config.weights
    ordered = split(places, config, name)
    return [
        known.get((queue, shard)) or Source(by_name[queue], shard, paces[queue], weights.get(queue, 1.0))
        for queue, shard in ordered
    ]


def _by_place(sources: Sequence[Source]) -> dict[tuple[str, int], Source]:
    return {(source.queue.name, source.shard): source for source in sources}


def split(places: Sequence[tuple[str, int]], config: WorkerConfig, name: str) -> list[tuple[str, int]]:
    """Return ``places`` in the order of the configured splitter. A splitter orders shards and cannot remove any."""
    if callable(config.splitter):
        ordered = list(config.splitter(places, name, config.index))
        return ordered + [place for place in places if place not in ordered]
    if config.splitter == "rendezvous":
        return sorted(places, key=lambda place: hashlib.blake2b(f"{name}|{place}".encode(), digest_size=8).digest())
    if config.splitter == "by_node":
        own = [place for index, place in enumerate(places) if index % config.nodes == config.node]
        others = [place for index, place in enumerate(places) if index % config.nodes != config.node]
        return [*_rotated(own, config.index), *_rotated(others, config.index)]
    return _rotated(places, config.index)


def _rotated(places: Sequence[tuple[str, int]], by: int) -> list[tuple[str, int]]:
    """Return the places rotated, so that the processes of a node begin at different ones."""
    start = by % len(places) if places else 0
    return [*places[start:], *places[:start]]

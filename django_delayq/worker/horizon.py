"""When each shard has work next, and the one condition on which everybody waits for it.

The fetch loop rests on the condition until the nearest due time; the wake thread and the slots end that rest early; the
dispatcher looks here to learn whether this process took care of a due time by itself.
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
    """One shard of one queue, as the fetch loop sees it. Times are of ``time.monotonic()``."""

    __slots__ = ("asked_at", "due_at", "empties", "pace", "passed", "queue", "shard", "stride", "woken")

    def __init__(self, queue: Queue, shard: int, pace: Pace, weight: float = 1.0) -> None:
        self.queue = queue
        self.shard = shard
        self.pace = pace
        self.stride = 1.0 / weight
        #: when there is something to reserve; NEVER = the shard was empty
        self.due_at = 0.0
        #: when it was last asked
        self.asked_at = 0.0
        #: a wake token came while the shard was being asked: the answer may be older than the token
        self.woken = False
        self.passed = 0.0
        self.empties = 0

    def __repr__(self) -> str:
        return f"<Source {self.queue.name}.{self.shard}>"


class Horizon:
    """All shards of one process."""

    def __init__(self, sources: Sequence[Source], *, scheduler: str = "weighted") -> None:
        self.sources = list(sources)
        self.condition = threading.Condition()
        #: True while the fetch loop rests: only then is a nudge worth its price
        self.resting = False
        self.by_place = _by_place(self.sources)
        self._welcome: Callable[[Source], None] = lambda _: None
        self._lag = scheduler == "lag"
        self._virtual = 0.0

    def welcome(self, call: Callable[[Source], None]) -> None:
        """``call`` with every source, and with each that comes later."""
        self._welcome = call
        for source in self.sources:
            call(source)

    def adopt(self, sources: Sequence[Source]) -> None:
        """From now on these are the shards of the process. Those that are known already keep what is known of them."""
        with self.condition:
            for source in sources:
                if self.by_place.get((source.queue.name, source.shard)) is not source:
                    source.passed = self._virtual  # who comes late has no credit
                    self._welcome(source)
            # New objects, because the fetch loop reads these without the lock.
            self.sources, self.by_place = list(sources), _by_place(sources)
            self._end_rest()

    def due(self, now: float) -> Source | None:
        """The shard to reserve from next, or None when none has due work."""
        best: Source | None = None
        rank = 0.0
        for source in self.sources:
            if source.due_at <= now:
                mine = source.due_at if self._lag else source.passed
                if best is None or mine < rank:
                    best, rank = source, mine
        if best is not None:
            # Stride scheduling: who was served pays by its weight; who slept gains no credit for it.
            self._virtual = max(self._virtual, best.passed)
            best.passed = self._virtual + best.stride
        return best

    def next_due_at(self) -> float:
        """The nearest due time of all shards."""
        return min((source.due_at for source in self.sources), default=NEVER)

    def asking(self, source: Source, now: float) -> None:
        """A reserve is about to be sent."""
        source.asked_at = now
        source.woken = False

    def answered(self, source: Source, now: float, next_due_ms: float | None, got: int) -> None:
        """A reserve brought ``got`` jobs and the time until the next due one (None = empty shard)."""
        with self.condition:
            if source.woken:
                source.due_at = now
            elif next_due_ms is None:
                source.due_at, source.empties = NEVER, 0
            elif got or next_due_ms > 0:
                source.due_at, source.empties = now + next_due_ms / 1000, 0
            else:
                # "Due, but nothing for you" is no state to last; do not ask in a hot loop if it does.
                doubt = min(_LONGEST_DOUBT, _FIRST_DOUBT * 2 ** min(source.empties, 10))
                source.due_at, source.empties = now + doubt, source.empties + 1

    def expect(self, source: Source, at: float) -> None:
        """Work that this process itself put back falls due at ``at``."""
        with self.condition:
            source.due_at = min(source.due_at, at)

    def wake(self, places: Sequence[tuple[str, int]]) -> None:
        """Wake tokens arrived for these (queue, shard) pairs."""
        with self.condition:
            for place in places:
                source = self.by_place.get(place)
                if source is not None:
                    source.woken = True
                    source.due_at = 0.0
            self._end_rest()

    def nudge(self) -> None:
        """Something else changed: a run ended, the worker shall stop."""
        with self.condition:
            self._end_rest()

    def rest(self, until: float) -> None:
        """Wait until ``until`` or a nudge. ``resting`` must have been set before the caller's last look around."""
        with self.condition:
            timeout = until - time.monotonic()
            if self.resting and timeout > 0:
                self.condition.wait(min(timeout, 3600.0))
            self.resting = False

    def _end_rest(self) -> None:
        self.resting = False
        self.condition.notify_all()

    def stalest(self) -> Source | None:
        """The shard that was not asked for longest."""
        return min(self.sources, key=lambda source: source.asked_at, default=None)

    def overdue(self, queue: str, shard: int, now: float, patience: float) -> bool:
        """Whether the shard's known due time passed ``patience`` seconds ago and nobody here has asked since.

        Also of a shard that nobody here asks: its due times are somebody else's.
        """
        source = self.by_place.get((queue, shard))
        return source is None or source.due_at + patience <= now


def build_sources(
    queues: Sequence[Queue], config: WorkerConfig, name: str, known: Mapping[tuple[str, int], Source] | None = None
) -> list[Source]:
    """Every shard of the queues, in this process's own order; ``known`` ones stay the same objects."""
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
    """``places`` in the order of the configured splitter; a splitter orders, it never takes away."""
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
    """The processes of a node begin at different places."""
    start = by % len(places) if places else 0
    return [*places[start:], *places[:start]]

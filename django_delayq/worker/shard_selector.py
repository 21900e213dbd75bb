"""Shard selector: when each shard has work next, and the condition that all threads wait on for it.

The fetch loop rests on the condition until the nearest due time. The wake listener and the slots end that rest early.
The dispatcher reads here whether this process has handled a due time itself.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from .attempt import NEVER
from .pace import Pace
from .scheduler import OwnScheduler, Scheduler
from .shard_state import ShardState

if TYPE_CHECKING:
    from ..core.queue import Queue
    from .config import WorkerConfig


class Source(ShardState):
    """Shard that the fetch loop reserves from."""

    __slots__ = ("checked_at", "pace", "passed", "reserve_number", "shared", "stride")

    def __init__(self, queue: Queue, shard: int, pace: Pace, weight: float = 1.0) -> None:
        super().__init__(queue, shard)
        self.pace = pace
        self.stride = 1.0 / weight
        self.passed = 0.0
        #: number of the last reserve
        self.reserve_number = 0
        #: when the shard was last chosen for a safety check, or a dispatcher of this process found no new work there
        self.checked_at = -NEVER
        #: True if other processes can learn without this one that there is work at ``due_at``
        self.shared = True


class ShardSelector:
    """Shard selector over all shards of one process.

    Args:
        scheduler: see :class:`~.config.WorkerConfig`.
        on_unknown: called when a token names a shard that the selector does not have; it should have it afterwards.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        *,
        scheduler: str | Scheduler = "weighted",
        on_unknown: Callable[[], None] = lambda: None,
    ) -> None:
        self.sources = list(sources)
        self.lock = threading.RLock()
        self.condition = threading.Condition(self.lock)
        #: queues whose tokens this process can use now: it has free slots, and does not know the work already
        self.waiting = frozenset[str]()
        #: True while the fetch loop rests; only then is a nudge worth its cost
        self.resting = False
        self.by_place = _by_place(self.sources)
        #: the queues
        self.names = _names_of(self.sources)
        self._on_unknown = on_unknown
        self._passed_on: list[tuple[str, int]] = []
        self._welcome: Callable[[Source], None] = lambda _: None
        self._lag = scheduler == "lag"
        self._own = None if isinstance(scheduler, str) else OwnScheduler(scheduler)
        self._virtual = 0.0

    def on_new_source(self, call: Callable[[Source], None]) -> None:
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
            self.sources, self.by_place, self.names = list(sources), _by_place(sources), _names_of(sources)
            self._end_rest()

    def due(self, now: float, has_room: Callable[[Source], bool] = lambda _: True) -> Source | None:
        """Return the shard to reserve from next, or None if no shard has due work.

        It stays the same until something is reserved: only a reserve pays. Else a worker whose slots are full would
        pass a shard over, and could do that with the same one each time.

        Args:
            has_room: whether jobs of a shard can be reserved now; without any the project's scheduler is not called.
        """
        if self._own is not None:
            due = [source for source in self.sources if source.due_at <= now]
            if not any(map(has_room, due)):
                return None
            chosen = self._own.choose(due, now)
            if chosen is not None:
                return chosen
        best, rank = None, 0.0
        for source in self.sources:
            if source.due_at <= now:
                mine = source.due_at if self._lag else source.passed
                if best is None or mine < rank:
                    best, rank = source, mine
        return best

    def next_due_at(self) -> float:
        """Return the nearest due time of all shards."""
        return min((source.due_at for source in self.sources), default=NEVER)

    def begin_reserve(self, source: Source, now: float) -> None:
        """Record that a reserve is about to be sent."""
        with self.condition:
            source.reserve_number = source.begin_reserve(now)
            # Stride scheduling: a served shard pays by its weight, and an idle one gains no credit.
            self._virtual = max(self._virtual, source.passed)
            source.passed = self._virtual + source.stride

    def apply_reply(self, source: Source, now: float, next_due_ms: float | None, got: int) -> None:
        """Record the reply to a reserve: ``got`` jobs, and the time until the next due one (None = empty shard)."""
        with self.condition:
            if source.apply_reply(source.reserve_number, now, next_due_ms, got):
                # The script has left a token for due work, and removed those for later work.
                source.shared = next_due_ms is None or next_due_ms == 0
            else:
                source.due_at = now  # a token came after the reserve was sent

    def expect(self, source: Source, at: float) -> None:
        """Record that work which this process put back falls due at ``at``."""
        with self.condition:
            if at < source.due_at:
                source.due_at, source.shared = at, False

    def postpone(self, source: Source, at: float, *, pass_on: bool = False) -> None:
        """Rest a shard until ``at``, although it may have due jobs: they wait for a limit.

        Args:
            pass_on: other processes may have room for them.
        """
        with self.condition:
            if pass_on and not source.shared:
                self._passed_on.append((source.queue.name, source.shard))
            source.due_at, source.shared = at, True

    # --- what other processes have to know

    def take_unshared(self, until: float) -> list[tuple[str, int]]:
        """Return the shards with work since ``until`` or before of which only this process knows. Others get it now."""
        with self.condition:
            places, self._passed_on = self._passed_on, []
            for source in self.sources:
                if not source.shared and source.due_at <= until:
                    source.shared = True
                    places.append((source.queue.name, source.shard))
            return places

    def next_unshared_at(self) -> float:
        """Return from when on there is work of which only this process knows."""
        return min((source.due_at for source in self.sources if not source.shared), default=NEVER)

    def uncertain_queues(self, now: float) -> frozenset[str]:
        """Return the queues with shards that are not known to have due work."""
        return frozenset([source.queue.name for source in self.sources if source.due_at > now])

    def awaited_queues(self) -> frozenset[str]:
        """Return the queues to listen to. See :class:`~.wake_listener.Audience`."""
        return self.waiting

    def serves(self, name: str) -> bool:
        """Return True if the process has shards of this queue. See :class:`~.wake_listener.Audience`."""
        return name in self.names

    def tokens(self, hints: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
        """Handle wake tokens. See :class:`~.wake_listener.Audience`."""
        awaited, self.waiting = self.waiting, frozenset()  # until the fetch loop has checked
        if any(place not in self.by_place for place in hints):
            self._on_unknown()
        unused = [hint for hint in hints if hint[0] not in awaited & self.names]
        with self.condition:
            self.wake(hints)
            for place in set(hints).difference(unused):
                source = self.by_place.get(place)
                if source is not None:
                    source.shared = False
        return unused

    def check_all(self) -> None:
        """Have every shard checked for due jobs at its next turn."""
        self.wake(list(self.by_place))

    def wake(self, places: Sequence[tuple[str, int]]) -> None:
        """Make these (queue, shard) pairs due, because wake tokens arrived for them."""
        with self.condition:
            for place in places:
                source = self.by_place.get(place)
                if source is not None:
                    source.wake()
            self._end_rest()

    def nudge(self) -> None:
        """End the rest for another reason: an attempt ended, or the worker should stop."""
        with self.condition:
            self._end_rest()

    def attempt_ended(self) -> None:
        """End the rest because a slot is free."""
        if self.resting:
            self.nudge()

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

    def note_check(self, queue: str, shard: int, now: float, work_at: float) -> None:
        """Record that a dispatcher of this process checked a shard.

        Args:
            work_at: from when there may be work, as far as the check shows.
        """
        source = self.by_place.get((queue, shard))
        if source is not None:
            with self.condition:
                source.checked_at = now if source.due_at <= work_at else -NEVER

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


def _names_of(sources: Sequence[Source]) -> frozenset[str]:
    return frozenset(source.queue.name for source in sources)


def split(places: Sequence[tuple[str, int]], config: WorkerConfig, name: str) -> list[tuple[str, int]]:
    """Return ``places`` in the order of the configured splitter, which cannot remove or repeat any of them."""
    if callable(config.splitter):
        return list(dict.fromkeys([*config.splitter(places, name, config.index), *places]))
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

"""Queues and shards of a process: which ones it serves, when each shard may have work, and which of them is next.

A shard is *due*, or *asked* while a reserve runs, or it *rests* until its next due time. The reply of a reserve sets
that time. A wake token makes the shard due and outdates the replies that are still to come. The fetch loop rests on the
condition of the selector until the nearest due time; the wake listener and the slots end that rest early.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar

from ..core.workers import IGNORE, WATCH
from .attempt import NEVER
from .loop import Reminders

if TYPE_CHECKING:
    from ..core.broker import Broker
    from ..core.queue import Queue
    from .config import WorkerConfig

logger = logging.getLogger(__name__)

State = TypeVar("State", bound="ShardState")
#: number of queue names that a process with ``all_queues`` announces
_MOST_NAMES: Final = 50
#: seconds until a shard is asked again that has due jobs but returned none; doubled each time
_FIRST_DOUBT: Final = 0.02
_LONGEST_DOUBT: Final = 1.0
#: weights of a new measurement of run times: slow attempts count at once, fast ones more slowly
_RISE: Final = 0.5
_FALL: Final = 0.2
#: time limit of one call of the fetch loop on a cluster, in seconds: the other masters wait meanwhile
CALL_SECONDS: Final = 1.0


@dataclass(eq=False, repr=False)
class Scope:
    """Queues of one process, read from the registry at the start and after each change. Any thread may refresh them."""

    _broker: Broker
    _config: WorkerConfig
    #: called with the queues whose jobs this process runs, after each read
    _changed: Callable[[Sequence[Queue]], None] = lambda _: None
    #: every queue of the process, including those that other programs pull from
    queues: list[Queue] = field(default_factory=list, init=False)
    #: queues that operators added ("watch") or took away ("ignore") while the program runs
    _choices: Mapping[str, str] = field(default_factory=dict, init=False)
    _seen: str = field(default="", init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    @property
    def worked(self) -> list[Queue]:
        """Queues whose jobs this process runs."""
        return [queue for queue in self.queues if queue.kind == "python" and self._serves(queue.name)]

    def _serves(self, name: str) -> bool:
        chosen = self._choices.get(name)
        return chosen == WATCH or (chosen != IGNORE and name not in self._config.pulled)

    @property
    def ignored(self) -> list[str]:
        """Names of the queues that operators took away."""
        return sorted(name for name, word in self._choices.items() if word == IGNORE)

    @property
    def names(self) -> list[str]:
        """Names of the queues for display. If there are very many, the first ones and the number of the others."""
        if not self._config.all_queues:
            return [name for name in dict.fromkeys((*self._config.queues, *self._choices)) if self._serves(name)]
        names = [queue.name for queue in self.worked]
        return names if len(names) <= _MOST_NAMES else [*names[:_MOST_NAMES], f"… {len(names) - _MOST_NAMES} more"]

    def follow(self, choices: Mapping[str, str]) -> None:
        """Apply the choices that an announcement returned; read the registry if they or the registry changed."""
        if choices != self._choices:
            changes = [f"{word} {name}" for name, word in sorted(choices.items())]
            logger.warning("choice of queues by operators: %s", ", ".join(changes) or "none any more")
            self.refresh(choices)
        elif self._broker.worker_registry.changes != self._seen:
            self.refresh()

    def refresh(self, choices: Mapping[str, str] | None = None) -> None:
        """Read the registry. If that fails, nothing changes.

        Args:
            choices: queues that operators added ("watch") or took away ("ignore"); None = as before.
        """
        with self._lock:
            choices, config = self._choices if choices is None else choices, self._config
            seen = self._broker.worker_registry.changes
            # A chosen queue is never created: it may have been deleted since.
            chosen = [name for name in choices if name not in config.queues]
            awaited = config.awaited | set(chosen)
            queues = self._broker.served((*config.queues, *chosen), every=config.all_queues, awaited=awaited)
            self.queues, self._choices = queues, choices
            self._changed(self.worked)
            self._seen = seen


class Pace:
    """Seconds per attempt of one queue: an average that rises quickly with slow attempts and falls more slowly."""

    __slots__ = ("seconds", "size")

    def __init__(self, size: int = 1) -> None:
        #: None until an attempt was measured
        self.seconds: float | None = None
        #: jobs that fit into one attempt: more than one if batches of merged jobs are expected
        self.size = size

    def measured(self, total: float, attempts: int) -> None:
        """Record that ``attempts`` attempts took ``total`` seconds together."""
        mean = total / attempts
        if self.seconds is None:
            self.seconds = mean
        else:
            self.seconds += (mean - self.seconds) * (_RISE if mean > self.seconds else _FALL)

    def at_least(self, seconds: float) -> None:
        """Record that an attempt has taken this long and has not ended."""
        self.seconds = max(self.seconds or 0.0, seconds)

    def room(self, free: int, waiting: int, prefetch: float) -> int:
        """Return how many more attempts may be reserved.

        Args:
            free: idle slots.
            waiting: attempts that are held already and have no slot yet.
            prefetch: seconds of work that may wait here.
        """
        room = free - waiting
        if self.seconds is None:
            return room
        return max(room, int(prefetch / max(self.seconds, 1e-6)) - waiting)

    @property
    def tiny(self) -> bool:
        """Return True if attempts are so short that a second thread would cost more than it gains."""
        return self.seconds is not None and self.seconds < 0.001


class ShardState:
    """State of one shard of one queue. Times are of ``time.monotonic()``. Callers hold the lock of its owner."""

    __slots__ = ("_oldest", "due_at", "empties", "place", "queue", "reserves", "sent_at", "shard")

    def __init__(self, queue: Queue, shard: int) -> None:
        self.queue = queue
        self.shard = shard
        self.place = (queue.name, shard)
        #: when the next job can be reserved; NEVER = the shard was empty, or a reserve is running
        self.due_at = 0.0
        #: when the last reserve was sent
        self.sent_at = 0.0
        self.empties = 0
        #: number of reserves, and the first one whose reply is not outdated
        self.reserves = self._oldest = 0

    def begin_reserve(self, now: float) -> int:
        """Record that a reserve is about to be sent. Return its number."""
        self.sent_at, self.due_at = now, NEVER
        self.reserves += 1
        return self.reserves

    def apply_reply(self, number: int, now: float, next_due_ms: float | None, got: int) -> bool:
        """Apply the reply of a reserve: ``got`` jobs, and the time until the next due one (None = empty shard).

        Returns:
            False if it is older than a token or than the reply of a later reserve, so that nothing was changed.
        """
        if number < self._oldest:
            return False
        self._oldest = number
        if next_due_ms is None:
            self.due_at, self.empties = NEVER, 0
        elif got or next_due_ms > 0:
            self.due_at, self.empties = now + next_due_ms / 1000, 0
        else:
            # A shard that has due jobs but returns none may stay so. The pauses grow, to avoid a hot loop.
            doubt = min(_LONGEST_DOUBT, _FIRST_DOUBT * 2 ** min(self.empties, 10))
            self.due_at, self.empties = now + doubt, self.empties + 1
        return True

    def expect(self, at: float) -> None:
        """Record that there may be work at ``at``."""
        self.due_at = min(self.due_at, at)

    def wake(self) -> None:
        """Make the shard due: a wake token has arrived, or one may have been lost."""
        self.due_at, self._oldest = 0.0, self.reserves + 1


def stalest(states: Iterable[State]) -> State | None:
    """Return the shard whose last reserve is the longest ago: the next one to check for work without a token."""
    return min(states, key=attrgetter("sent_at"), default=None)


class Source(ShardState):
    """Shard that the fetch loop reserves from."""

    __slots__ = ("pace", "passed", "shared", "stride", "unanswered")

    def __init__(self, queue: Queue, shard: int, pace: Pace, weight: float = 1.0) -> None:
        super().__init__(queue, shard)
        self.pace = pace
        self.stride = 1.0 / weight
        self.passed = 0.0
        #: request of a reserve that was given up, and True if ends were sent with it: it may have been applied
        self.unanswered: tuple[bytes, bool, float] | None = None
        #: True if other processes can learn without this one that there is work at ``due_at``
        self.shared = True


class DueShard(NamedTuple):
    """Shard with due work, as a scheduler sees it."""

    queue: str
    shard: int
    #: weight of the queue
    weight: float
    #: seconds since its first job fell due; inf = it is not known when
    overdue: float
    #: seconds since this process reserved from it; inf = it has not yet
    idle: float


#: returns one of the shards that it gets, at least two. It is called in the fetch loop, so it must not block
Scheduler: TypeAlias = Callable[[Sequence[DueShard]], DueShard]


@dataclass(eq=False, repr=False)
class ShardSelector:
    """Knowledge about all shards of one process, and the choice between those with due work."""

    #: the shards; :meth:`serve` replaces them
    sources: Sequence[Source] = ()
    _: KW_ONLY
    #: queue name → how often it is visited compared with a queue of weight 1
    weights: Mapping[str, float] = field(default_factory=dict)
    #: index of this process among its siblings: each begins at another shard
    index: int = 0
    #: the project's function for the choice; None = by the weights
    scheduler: Scheduler | None = None
    #: returns how many jobs of a queue an attempt is expected to take
    batch_size: Callable[[str], int] = lambda queue: 1
    #: called when a token names a shard that the selector does not have; it should have it afterwards
    on_unknown: Callable[[], None] = lambda: None
    #: queues whose tokens this process can use now: it has free slots, and does not know the work already
    waiting: frozenset[str] = field(default=frozenset(), init=False)
    #: True while the fetch loop rests; only then is a nudge worth its cost
    resting: bool = field(default=False, init=False)
    _virtual: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self.lock = threading.RLock()
        self.condition = threading.Condition(self.lock)
        self._passed_on: list[tuple[str, int]] = []
        self._reminders = Reminders()
        self._checked_at = time.monotonic()
        self._set(self.sources)

    def _set(self, sources: Sequence[Source]) -> None:
        # New objects, because the fetch loop reads these without the lock.
        self.sources = list(sources)
        self.by_place = {source.place: source for source in sources}
        #: the queues
        self.names = frozenset(source.queue.name for source in sources)

    def serve(self, queues: Sequence[Queue]) -> None:
        """Replace the queues of the process by these. Shards that are already known keep their state."""
        with self.condition:
            paces = {source.queue.name: source.pace for source in self.sources}
            sources = []
            for queue in queues:
                pace = paces.get(queue.name) or Pace(self.batch_size(queue.name))
                for shard in queue.numbers:
                    source = self.by_place.get((queue.name, shard))
                    if source is None:
                        source = Source(queue, shard, pace, self.weights.get(queue.name, 1.0))
                        source.passed = self._virtual  # a new shard has no credit
                    sources.append(source)
            start = self.index % len(sources) if sources else 0
            self._set([*sources[start:], *sources[:start]])
            self.nudge()

    def due(self, now: float, room: Callable[[Source], int] = lambda _: 1) -> Source | None:
        """Return the shard to reserve from next, or None if no shard has due work.

        By the weights it stays the same until something is reserved: only a reserve pays. Else a worker whose slots are
        full would pass a shard over, and could do that with the same one each time.

        Args:
            room: returns how many jobs of a shard can be reserved now. Without any the scheduler is not called.
        """
        due = [source for source in self.sources if source.due_at <= now]
        if self.scheduler is not None and len(due) > 1 and any(map(room, due)):
            chosen = self._ask(self.scheduler, due, now)
            if chosen is not None:
                return chosen
        return min(due, key=attrgetter("passed"), default=None)

    def _ask(self, scheduler: Scheduler, due: Sequence[Source], now: float) -> Source | None:
        """Return the choice of the project's scheduler; None if it failed."""
        shards = tuple(
            DueShard(
                *(*source.place, 1.0 / source.stride),
                overdue=now - source.due_at if source.due_at else math.inf,
                idle=now - source.sent_at if source.sent_at else math.inf,
            )
            for source in due
        )
        try:
            return due[shards.index(scheduler(shards))]
        except Exception as error:
            if self._reminders.pass_on("scheduler"):
                text = (
                    "the scheduler %r failed or returned none of its shards; the weights decide whenever that happens"
                )
                logger.error(text, scheduler, exc_info=error)
            return None

    def next_due_at(self) -> float:
        """Return the nearest due time of all shards."""
        return min((source.due_at for source in self.sources), default=NEVER)

    def begin_reserve(self, source: Source, now: float) -> None:
        """Record that a reserve is about to be sent."""
        with self.condition:
            source.begin_reserve(now)
            # Stride scheduling: a served shard pays by its weight, and an idle one gains no credit.
            self._virtual = max(self._virtual, source.passed)
            source.passed = self._virtual + source.stride

    def apply_reply(self, source: Source, now: float, next_due_ms: float | None, got: int) -> None:
        """Record the reply to a reserve: ``got`` jobs, and the time until the next due one (None = empty shard)."""
        with self.condition:
            if source.apply_reply(source.reserves, now, next_due_ms, got):
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
                self._passed_on.append(source.place)
            source.due_at, source.shared = at, True

    # --- checks in rotation, in case a token was lost

    def next_safety_check(self, now: float, seconds: float) -> float:
        """Return when the next check without a reason is due, and make the least recently checked shard due for it.

        Args:
            seconds: time between two checks; see :class:`~.config.WorkerConfig`.
        """
        oldest = stalest(self.sources)
        if oldest is None:
            return NEVER
        at = max(self._checked_at, oldest.sent_at) + seconds
        if at <= now:
            # Also if it may not be reserved from, because it waits for a limit: the others have their turn.
            self._checked_at = oldest.sent_at = now
            self.expect(oldest, now)
            return now
        return at

    # --- what other processes have to know

    def take_unshared(self, until: float) -> list[tuple[str, int]]:
        """Return the shards with work since ``until`` or before of which only this process knows. Others get it now."""
        with self.condition:
            places, self._passed_on = self._passed_on, []
            for source in self.sources:
                if not source.shared and source.due_at <= until:
                    source.shared = True
                    places.append(source.place)
            return places

    def stop_waiting(self) -> list[tuple[str, int]]:
        """Take no further tokens. Return the shards with work, also work to come, of which only this process knows."""
        with self.condition:
            self.waiting = frozenset()
            return self.take_unshared(sys.float_info.max)

    def next_unshared_at(self) -> float:
        """Return from when on there is work of which only this process knows."""
        return min((source.due_at for source in self.sources if not source.shared), default=NEVER)

    def uncertain_queues(self, now: float) -> frozenset[str]:
        """Return the queues with shards that are not known to have due work."""
        return frozenset([source.queue.name for source in self.sources if source.due_at > now])

    # --- called by the wake listener, see :class:`~.wake.Audience`

    def awaited_queues(self) -> frozenset[str]:
        """Return the queues to listen to."""
        return self.waiting

    def serves(self, name: str) -> bool:
        """Return True if the process has shards of this queue."""
        return name in self.names

    def tokens(self, hints: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
        """Handle wake tokens. Return those that this process cannot use now."""
        if any(place not in self.by_place for place in hints):
            self.on_unknown()
        with self.condition:  # in one step: a token is either unused, or returned by stop_waiting()
            awaited, self.waiting = self.waiting, frozenset()  # until the fetch loop has checked
            unused = [hint for hint in hints if hint[0] not in awaited & self.names]
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
            self.nudge()

    # --- the rest of the fetch loop

    def nudge(self) -> None:
        """End the rest: there may be work, an attempt ended, or the worker should stop.

        The caller has changed something that the fetch loop checks after it has set ``resting``.
        """
        if self.resting:  # without the lock, because each attempt calls this
            with self.condition:
                self.resting = False
                self.condition.notify_all()

    def rest(self, until: float) -> None:
        """Wait until ``until`` or a nudge. The caller must set ``resting`` before its last check for work."""
        with self.condition:
            timeout = until - time.monotonic()
            if self.resting and timeout > 0:
                self.condition.wait(min(timeout, 3600.0))
            self.resting = False

    # --- called by a dispatcher of this process

    def note_work(self, queue: str, shard: int, at: float) -> None:
        """Record from when on a shard may have work, as a dispatcher of this process has found."""
        with self.condition:
            source = self.by_place.get((queue, shard))
            if source is not None and at < source.due_at:
                source.due_at = at
                self.nudge()

    def overdue(self, queue: str, shard: int, now: float, patience: float) -> bool:
        """Return True if the shard's known due time passed ``patience`` seconds ago and no reserve here followed.

        Also True for a shard that this process does not reserve from, because other processes handle its due times.
        """
        source = self.by_place.get((queue, shard))
        return source is None or source.due_at + patience <= now

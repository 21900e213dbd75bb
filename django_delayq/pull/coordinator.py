"""Pull coordinator: the waiting callers of a process share one blocking read and their knowledge of the shards.

A waiter sleeps, in its own way (:mod:`.waiter`), until the nearest known due time; the hub only decides for how long.
The wake thread keeps the blocking read open and wakes one waiter for each token, the one that has waited longest.
Checks of the shards for lost tokens are made by waiters and callers. Expired leases are left to the dispatchers: a web
server may have other tasks, and other policies, than the workers.

Invariant: of the waiters for a queue at least one is awake or sleeps no longer than the nearest known due time of that
queue. Therefore a waiter that changes a due time, or leaves, wakes another one.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from .. import connections
from ..core import flusher
from ..worker.dispatcher import ShardPoller
from ..worker.redis_health import RedisHealth
from ..worker.run import NEVER
from .waiter import Waiter
from .wake_listener import WakeListener

if TYPE_CHECKING:
    from ..core.broker import Broker
    from ..core.queue import Queue

#: seconds between two regular checks of the shards
LOOK: Final = 1.75
#: seconds between two reads of the registry of queues
REFRESH: Final = 6.0
#: seconds after which the wake thread, if it listens to other queues, has to be notified of new ones again
_REPEAT: Final = 0.1
_SHORTEST: Final = 0.02
_MOST_TURNS: Final = 10_000
_LONGEST: Final = 3600.0
_FIRST_DOUBT: Final = 0.02
_LONGEST_DOUBT: Final = 1.0


class Place:
    """One shard of one queue, shared by all pulling threads of the process. Times are of ``time.monotonic()``."""

    __slots__ = ("applied", "due_at", "empties", "heard", "number", "queue", "token")

    def __init__(self, queue: Queue, number: int) -> None:
        self.queue = queue
        self.number = number
        #: time when there is something to reserve; NEVER = it was empty, or a reserve is running
        self.due_at = NEVER
        #: number of tokens received for it
        self.heard = 0
        #: a token was taken off the wake list, so other processes may lack this information
        self.token = False
        #: serial of the reserve whose reply was applied last
        self.applied = 0
        self.empties = 0


@dataclass(frozen=True, slots=True)
class Question:
    """Reserve call that is running."""

    place: Place
    serial: int
    heard: int


@dataclass(frozen=True, slots=True)
class Step:
    """Next step of a waiter; without a chore and without seconds it checks the shards.

    Attributes:
        chore: call to Redis, to be made in a thread; then decide again.
        seconds: maximum time to sleep; then decide again.
        everything: check all shards, not only those with due jobs.
    """

    chore: Callable[[], object] | None = None
    seconds: float | None = None
    everything: bool = False


class PullCoordinator:
    """Pull coordinator of one broker in one process; see :func:`hub`."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.weather = RedisHealth(partial(flusher.note_fault, broker))
        self._lock = threading.Lock()
        self._places: dict[tuple[str, int], Place] = {}
        self._queues: dict[str, Queue] = {}
        self._turns: Counter[tuple[str, ...]] = Counter()
        self._serial = 0
        #: in order of arrival
        self._waiters: list[Waiter] = []
        self._ear = WakeListener(broker, self, self.weather, self._lock)
        lease = broker.lease_ms / 1000
        self._patrol = ShardPoller(self._live_queues, lease, lease / 3, self.weather, self, pace=LOOK)
        #: a check is running, or a caller has claimed it
        self._patrolling = False
        self._look_at = self._refresh_at = 0.0

    # -- knowledge of the shards -------------------------------------------------------------------------------------

    def open(self, names: tuple[str, ...]) -> list[Queue]:
        """Return the queues as currently registered, without deleted ones."""
        with self._lock:
            known = {name: self._queues.get(name) for name in names}
        missing = [name for name, queue in known.items() if queue is None or queue.deleted]
        if missing:
            found = {queue.name: queue for queue in self.broker.served(missing)}
            known.update(found)
            with self._lock:
                self._queues.update(found)
                self._look_at = 0.0  # check them too
        return [queue for queue in known.values() if queue is not None and not queue.deleted]

    def places(self, queues: Sequence[Queue], turn: int) -> list[Place]:
        """Return every current shard of the queues, starting with another queue and another shard in each turn."""
        first = turn % len(queues) if queues else 0
        found = []
        with self._lock:
            for queue in (*queues[first:], *queues[:first]):
                numbers = queue.numbers
                start = turn // len(queues) % len(numbers)
                for number in (*numbers[start:], *numbers[:start]):
                    place = self._places.get((queue.name, number))
                    if place is None:
                        place = self._places[queue.name, number] = Place(queue, number)
                    found.append(place)
        return found

    def turn(self, names: tuple[str, ...]) -> int:
        """Count the calls for these queues. Return the number of earlier calls."""
        with self._lock:
            if len(self._turns) >= _MOST_TURNS and names not in self._turns:
                self._turns.clear()  # callers may name queues in any order, and each order is counted separately
            self._turns[names] += 1
            return self._turns[names] - 1

    def ask(self, place: Place) -> Question:
        """Start a reserve on this shard. Others need not query it before the reply, or a token, arrives."""
        with self._lock:
            return self._ask(place)

    def ask_due(self, places: Sequence[Place]) -> Question | None:
        """Start a reserve on the first of these shards with due jobs; None if there is none."""
        with self._lock:
            now = time.monotonic()
            due = next((place for place in places if place.due_at <= now), None)
            return None if due is None else self._ask(due)

    def _ask(self, place: Place) -> Question:
        self._serial += 1
        place.due_at = NEVER
        return Question(place, self._serial, place.heard)

    def answered(self, question: Question, next_due_ms: float | None, got: int) -> None:
        """Apply the reply of a reserve: ``got`` jobs and the time until the next due one (None = nothing waits)."""
        place, now = question.place, time.monotonic()
        self.weather.fine()
        with self._lock:
            # A reply that is older than a token or another reply does not describe the current state.
            if place.heard != question.heard or place.applied > question.serial:
                return
            place.applied = question.serial
            if next_due_ms is None:
                place.due_at, place.empties, place.token = NEVER, 0, False
                return
            if got or next_due_ms > 0:
                place.due_at, place.empties = now + next_due_ms / 1000, 0
            else:
                doubt = min(_LONGEST_DOUBT, _FIRST_DOUBT * 2 ** min(place.empties, 10))
                place.due_at, place.empties = now + doubt, place.empties + 1
            self._wake_one(place.queue.name)

    def unanswered(self, question: Question) -> None:
        """Record a failed reserve: the shard still has to be queried."""
        with self._lock:
            question.place.due_at = 0.0
            self._wake_one(question.place.queue.name)

    # -- waiting -----------------------------------------------------------------------------------------------------

    def enter(self, waiter: Waiter) -> None:
        """Add a waiter that has found no jobs."""
        with self._lock:
            self._waiters.append(waiter)
            self._ear.called.notify()

    def decide(self, waiter: Waiter, places: Sequence[Place], give_up: float) -> Step:
        """Return the next step of a waiter for jobs in these shards until ``give_up``. Never calls Redis."""
        with self._lock:
            waiter.sleeping = False
            if waiter.anew:
                waiter.anew = False
                return Step(everything=True)
            now = time.monotonic()
            due_at = min((place.due_at for place in places), default=NEVER)
            if due_at <= now or give_up <= now:
                return Step()
            call_at = NEVER if self._ear.hears(waiter.names) else waiter.called_at + _REPEAT
            if call_at <= now:
                waiter.called_at = now
                return Step(lambda: self._ear.call(waiter.names))
            if self._claims_house(now):
                return Step(self._patrol_now)
            waiter.hush()
            waiter.sleeping = True
            until = min(due_at, give_up, call_at, max(self._look_at, now + _SHORTEST))
            return Step(seconds=min(until - now, _LONGEST))

    def leave(self, waiter: Waiter) -> None:
        """Remove a waiter. Its tokens go to another waiter, else to other processes."""
        self.put_back(self.withdraw(waiter))

    def withdraw(self, waiter: Waiter) -> list[tuple[str, int]]:
        """Remove a waiter without calling Redis. Return tokens for other processes, for :meth:`put_back`."""
        with self._lock:
            self._waiters.remove(waiter)
            alone = {name for name in waiter.names if not self._wanted(name)}
            for name in waiter.names - alone:
                self._wake_one(name)
            known = [place for place in self._places.values() if place.token and place.queue.name in alone]
            for place in known:
                place.token = False
            return [(place.queue.name, place.number) for place in known if place.due_at != NEVER]

    def put_back(self, hints: Sequence[tuple[str, int]]) -> None:
        """Send tokens for shards to other processes."""
        self._ear.put_back(hints)

    def _wanted(self, name: str) -> bool:
        return any(name in waiter.names for waiter in self._waiters)

    def _wake_one(self, name: str) -> None:
        for waiter in self._waiters:
            if waiter.sleeping and name in waiter.names:
                waiter.sleeping = False  # the next token is for another waiter
                waiter.wake()
                return

    # -- housekeeping ------------------------------------------------------------------------------------------------

    def keep_house(self) -> None:
        """Check for work whose token was lost, if a check is due, and wake a consumer for it.

        Never raises: errors of Redis are raised by the reserve calls.
        """
        if time.monotonic() < self._look_at:
            return
        with self._lock:
            mine = self._claims_house(time.monotonic())
        if mine:
            self._patrol_now()

    def _claims_house(self, now: float) -> bool:
        """Return True if a check is due and not running. The caller then has to run it. Called under the lock."""
        if now < self._look_at or self._patrolling:
            return False
        self._patrolling, self._look_at = True, now + LOOK
        return True

    def _patrol_now(self) -> None:
        try:
            now = time.monotonic()
            if self._refresh_at <= now:
                self._refresh_at = now + REFRESH
                self._refresh()
            self._look_at = time.monotonic() + max(_SHORTEST, self._patrol.run())
        except Exception as error:
            self.weather.storm("a look at the shards", error)
        finally:
            self._patrolling = False

    def _refresh(self) -> None:
        """Refresh the shards, which may have changed while the tokens went to other processes only."""
        before = {queue.name: queue.numbers for queue in self._live_queues()}
        if before and {queue.name: queue.numbers for queue in self.broker.served(list(before))} != before:
            with self._lock:
                self.ask_anew()

    def _live_queues(self) -> list[Queue]:
        return [queue for queue in list(self._queues.values()) if not queue.deleted]

    def overdue(self, queue: str, shard: int, now: float, patience: float) -> bool:
        """Return False: waiters watch due times themselves, and no other consumer has to be woken."""
        return False

    # -- called by the wake thread, under the lock -------------------------------------------------------------------

    def names(self) -> frozenset[str]:
        """Return the queues that have waiters now."""
        return frozenset[str]().union(*(waiter.names for waiter in self._waiters))

    def token(self, name: str, number: int) -> bool:
        """Wake a waiter for a token. Return False if the queue has no waiters any more."""
        if not self._wanted(name):
            return False
        place = self._places.get((name, number))
        if place is not None:
            place.heard += 1
            place.due_at, place.token = 0.0, True
        else:  # the queue has shards that this process does not know yet
            self._queues.pop(name, None)
            for waiter in self._waiters:
                waiter.anew = waiter.anew or name in waiter.names
        self._wake_one(name)
        return True

    def ask_anew(self) -> None:
        """Make every waiter query every shard, because tokens may have been lost."""
        for waiter in self._waiters:
            waiter.anew = True
            waiter.wake()


_lock = threading.Lock()
_hubs: dict[Broker, PullCoordinator] = {}


def hub(broker: Broker | None = None) -> PullCoordinator:
    """Return the hub of the process's broker, or of another one of the same process."""
    broker = broker or connections.broker()
    with _lock:
        if broker not in _hubs:
            for closed in [one for one in _hubs if not connections.is_current(one)]:
                del _hubs[closed]
            _hubs[broker] = PullCoordinator(broker)
        return _hubs[broker]


def _forget() -> None:
    """Reset the hubs in a forked child: it has none of its parent's threads, and its locks may be held forever."""
    global _lock
    _hubs.clear()
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget)

"""Where those who pull in a process wait: they share one blocking read, and what is known of the shards.

Who waits sleeps, in a way of its own (:mod:`.waiter`), until the nearest due time that is known; the hub only decides
for how long. The wake thread keeps the blocking read outstanding and wakes one of them for each token, the one that
waits longest. Every look at the shards, for lost tokens, is made by one who waits or calls anyway. Expired leases are
left to the dispatchers: a web server may have other tasks, and other policies, than the workers.

What holds at every moment: of those who wait for a queue at least one is awake or sleeps no longer than the nearest
known due time of that queue. So who changes a due time, or leaves, wakes one of the others.
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
from ..worker.dispatcher import Patrol
from ..worker.run import NEVER
from ..worker.weather import Weather
from .ear import Ear
from .waiter import Waiter

if TYPE_CHECKING:
    from ..core.broker import Broker
    from ..core.queue import Queue

#: seconds between two looks at shards without a reason
LOOK: Final = 1.75
#: seconds between two looks into the registry of queues
REFRESH: Final = 6.0
#: the wake thread listens to other queues: it is told of new ones again after so long
_REPEAT: Final = 0.1
_SHORTEST: Final = 0.02
_MOST_TURNS: Final = 10_000
_LONGEST: Final = 3600.0
_FIRST_DOUBT: Final = 0.02
_LONGEST_DOUBT: Final = 1.0


class Place:
    """One shard of one queue, as all pulling threads of the process know it. Times are of ``time.monotonic()``."""

    __slots__ = ("applied", "due_at", "empties", "heard", "number", "queue", "token")

    def __init__(self, queue: Queue, number: int) -> None:
        self.queue = queue
        self.number = number
        #: when there is something to reserve; NEVER = it was empty, or somebody is asking just now
        self.due_at = NEVER
        #: how many tokens came for it
        self.heard = 0
        #: a token was taken off the wake list, so what is known of it other processes may not know
        self.token = False
        #: the question whose answer is known
        self.applied = 0
        self.empties = 0


@dataclass(frozen=True, slots=True)
class Question:
    """One reserve call that is on its way."""

    place: Place
    serial: int
    heard: int


@dataclass(frozen=True, slots=True)
class Step:
    """What one who waits does next; without a chore and without seconds it looks at the shards.

    Attributes:
        chore: asks Redis, so it is for a thread; then decide again.
        seconds: sleep so long at most; then decide again.
        everything: look at all shards, not only at those in which something is due.
    """

    chore: Callable[[], object] | None = None
    seconds: float | None = None
    everything: bool = False


class Hub:
    """Of one broker in one process; see :func:`hub`."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.weather = Weather(partial(flusher.note_fault, broker))
        self._lock = threading.Lock()
        self._places: dict[tuple[str, int], Place] = {}
        self._queues: dict[str, Queue] = {}
        self._turns: Counter[tuple[str, ...]] = Counter()
        self._serial = 0
        #: by arrival
        self._waiters: list[Waiter] = []
        self._ear = Ear(broker, self, self.weather, self._lock)
        lease = broker.lease_ms / 1000
        self._patrol = Patrol(self._live_queues, lease, lease / 3, self.weather, self, pace=LOOK)
        #: somebody is at it, or has said that it will be
        self._patrolling = False
        self._look_at = self._refresh_at = 0.0

    # -- what is known of the shards ---------------------------------------------------------------------------------

    def open(self, names: tuple[str, ...]) -> list[Queue]:
        """The queues as the registry has them; those that were deleted are left out."""
        with self._lock:
            known = {name: self._queues.get(name) for name in names}
        missing = [name for name, queue in known.items() if queue is None or queue.deleted]
        if missing:
            found = {queue.name: queue for queue in self.broker.served(missing)}
            known.update(found)
            with self._lock:
                self._queues.update(found)
                self._look_at = 0.0  # at them too
        return [queue for queue in known.values() if queue is not None and not queue.deleted]

    def places(self, queues: Sequence[Queue], turn: int) -> list[Place]:
        """Every shard of the queues as they are now, beginning with another queue and another shard at each turn."""
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
        """Counts the calls for these queues."""
        with self._lock:
            if len(self._turns) >= _MOST_TURNS and names not in self._turns:
                self._turns.clear()  # callers may name queues in any order, and then each order counts for itself
            self._turns[names] += 1
            return self._turns[names] - 1

    def ask(self, place: Place) -> Question:
        """Somebody is about to ask this shard; nobody else has to before the answer, or a token, is there."""
        with self._lock:
            return self._ask(place)

    def ask_due(self, places: Sequence[Place]) -> Question | None:
        """The first of these shards in which something is due, to be asked now."""
        with self._lock:
            now = time.monotonic()
            due = next((place for place in places if place.due_at <= now), None)
            return None if due is None else self._ask(due)

    def _ask(self, place: Place) -> Question:
        self._serial += 1
        place.due_at = NEVER
        return Question(place, self._serial, place.heard)

    def answered(self, question: Question, next_due_ms: float | None, got: int) -> None:
        """A reserve brought ``got`` jobs and the time until the next due one (None = nothing waits)."""
        place, now = question.place, time.monotonic()
        self.weather.fine()
        with self._lock:
            # An answer that is older than a token or another answer says nothing about now.
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
        """The reserve failed: the shard is still to be asked."""
        with self._lock:
            question.place.due_at = 0.0
            self._wake_one(question.place.queue.name)

    # -- waiting -----------------------------------------------------------------------------------------------------

    def enter(self, waiter: Waiter) -> None:
        """One who found nothing wants to wait."""
        with self._lock:
            self._waiters.append(waiter)
            self._ear.called.notify()

    def decide(self, waiter: Waiter, places: Sequence[Place], give_up: float) -> Step:
        """What it does next, to find something in one of these shards before ``give_up``. Never asks Redis."""
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
        """It waits no more. What it knew is told to another one, else to other processes."""
        self.put_back(self.withdraw(waiter))

    def withdraw(self, waiter: Waiter) -> list[tuple[str, int]]:
        """The same without asking Redis: tokens for other processes, for :meth:`put_back`."""
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
        """Tells other processes of shards that are worth a look."""
        self._ear.put_back(hints)

    def _wanted(self, name: str) -> bool:
        return any(name in waiter.names for waiter in self._waiters)

    def _wake_one(self, name: str) -> None:
        for waiter in self._waiters:
            if waiter.sleeping and name in waiter.names:
                waiter.sleeping = False  # the next token is for another one
                waiter.wake()
                return

    # -- looks -------------------------------------------------------------------------------------------------------

    def keep_house(self) -> None:
        """Wake a consumer for work whose token was lost, if it is time to look. Never raises: what is wrong with Redis
        is seen by those who reserve."""
        if time.monotonic() < self._look_at:
            return
        with self._lock:
            mine = self._claims_house(time.monotonic())
        if mine:
            self._patrol_now()

    def _claims_house(self, now: float) -> bool:
        """Under the lock: whether it is time to look, and nobody else is at it. Who claims it has to do it."""
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
        """Learn of shards that came or went; tokens may have told others only."""
        before = {queue.name: queue.numbers for queue in self._live_queues()}
        if before and {queue.name: queue.numbers for queue in self.broker.served(list(before))} != before:
            with self._lock:
                self.ask_anew()

    def _live_queues(self) -> list[Queue]:
        return [queue for queue in list(self._queues.values()) if not queue.deleted]

    def overdue(self, queue: str, shard: int, now: float, patience: float) -> bool:
        """False: those who wait look after due times by themselves, and nobody else is to be woken."""
        return False

    # -- what the wake thread asks and tells, under the lock ---------------------------------------------------------

    def names(self) -> frozenset[str]:
        """The queues that are waited for now."""
        return frozenset[str]().union(*(waiter.names for waiter in self._waiters))

    def token(self, name: str, number: int) -> bool:
        """Wake a thread for a token; False when none waits for the queue any more."""
        if not self._wanted(name):
            return False
        place = self._places.get((name, number))
        if place is not None:
            place.heard += 1
            place.due_at, place.token = 0.0, True
        else:  # the queue has shards that nobody here knows yet
            self._queues.pop(name, None)
            for waiter in self._waiters:
                waiter.anew = waiter.anew or name in waiter.names
        self._wake_one(name)
        return True

    def ask_anew(self) -> None:
        """Tokens may have been lost: everyone who waits asks every shard."""
        for waiter in self._waiters:
            waiter.anew = True
            waiter.wake()


_lock = threading.Lock()
_hubs: dict[Broker, Hub] = {}


def hub(broker: Broker | None = None) -> Hub:
    """The hub of the process's broker, or of another one of the same process."""
    broker = broker or connections.broker()
    with _lock:
        if broker not in _hubs:
            for closed in [one for one in _hubs if not connections.is_current(one)]:
                del _hubs[closed]
            _hubs[broker] = Hub(broker)
        return _hubs[broker]


def _forget() -> None:
    """A forked child has none of the threads of its parent, and its locks may be taken for ever."""
    global _lock
    _hubs.clear()
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget)

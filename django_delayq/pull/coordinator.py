"""Pull coordinator: the waiting callers of a process share one blocking read and their knowledge of the shards.

The states of the shards and the wake listener are those of the workers. A waiter sleeps until the nearest known due
time; the coordinator only decides for how long. Each token wakes one waiter, the one that has waited longest. Expired
leases are left to the dispatchers: a web server may have other tasks, and other policies, than the workers.

Invariant: of the waiters for a queue at least one is awake or sleeps no longer than the nearest known due time of that
queue. Therefore a waiter that changes a due time, or leaves, wakes another one.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from functools import lru_cache
from itertools import count
from typing import Final, TypeAlias, TypeVar

from .. import connections
from ..core.broker import Broker
from ..core.queue import Queue
from ..core.thread_lock import ThreadLock
from ..core.wake import Hints
from ..worker.attempt import NEVER
from ..worker.loop import RedisHealth
from ..worker.shards import ShardState, stalest
from ..worker.wake import REPEAT, WakeListener

#: seconds between two safety checks, each of one shard in rotation; shorter if that would take longer than a lease
SAFETY_CHECK: Final = 1.75
#: seconds between two reads of the registry of queues
REFRESH: Final = 6.0
_MOST_TURNS: Final = 10_000
_LONGEST: Final = 3600.0
#: attribute of the broker that its coordinator is kept as
_NAME: Final = "pull_coordinator"

T = TypeVar("T")


class Waiter:
    """Waiter for some queues: a thread or a coroutine, which sleeps in its own way until ``woken`` is done.

    Attributes:
        names: names of the queues.
        sleeping: True if it may be woken.
        must_check: True if the shards have to be checked although none of the known ones is due, as at first.
        called_at: time of its last call to the wake listener (monotonic).
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.names = frozenset(names)
        self.sleeping = False
        self.must_check = True
        self.called_at = 0.0
        self.woken: Future[None] = Future()

    def wake(self) -> None:
        """End the current sleep, or the one about to begin. Any thread may call it."""
        with contextlib.suppress(InvalidStateError):  # woken before, or its sleep is over
            self.woken.set_result(None)


#: reserve that is running: the shard and the number of the reserve
ReserveCall: TypeAlias = tuple[ShardState, int]


class PullCoordinator:
    """Pull coordinator of one broker in one process; see :func:`coordinator_of`."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.pid = os.getpid()
        self.health = RedisHealth(lambda fault: broker.tally.count("redis_error", fault.value))
        self._lock = threading.RLock()
        self._places: dict[tuple[str, int], ShardState] = {}
        #: shards whose tokens were taken off the wake list, so that other processes may lack this information
        self._taken: set[tuple[str, int]] = set()
        self._queues: dict[str, Queue] = {}
        #: name of a queue -> when it was read from the registry (monotonic)
        self._read_at: dict[str, float] = {}
        #: callers may name queues in any order, and each order is counted separately
        self._turns: Callable[[tuple[str, ...]], Iterator[int]] = lru_cache(_MOST_TURNS)(lambda names: count())
        #: in order of arrival
        self._waiters: list[Waiter] = []
        self._listener = WakeListener(broker, self, self.health, self._lock)
        self._check_at = 0.0

    # -- knowledge of the shards -------------------------------------------------------------------------------------

    def open(self, names: Sequence[str]) -> list[Queue]:
        """Return the queues as registered at most :data:`REFRESH` seconds ago, without deleted ones."""
        now, read_at = time.monotonic(), self._read_at
        with self._lock:  # shards may change while the tokens go to other processes only
            stale = [one for one in names if now - read_at.get(one, -NEVER) >= REFRESH or self._queues[one].deleted]
        served = {queue.name: queue for queue in self.broker.served(stale)} if stale else {}
        with self._lock:
            self._queues.update(served)
            read_at.update(dict.fromkeys(served, now))
            return [self._queues[name] for name in names if name in self._queues and not self._queues[name].deleted]

    def places(self, names: Iterable[str], turn: int = 0) -> list[ShardState]:
        """Return every current shard of the queues, starting with another queue and another shard in each turn."""
        with self._lock:
            queues = [self._queues[name] for name in names if name in self._queues]
            rounds = turn // max(1, len(queues))
            shards = [(one, n) for one in _rotated(queues, turn) for n in _rotated(one.numbers, rounds)]
            known = self._places
            return [known.get((q.name, n)) or known.setdefault((q.name, n), ShardState(q, n)) for q, n in shards]

    def turn(self, names: tuple[str, ...]) -> int:
        """Return the number of earlier calls for these queues, and count this one."""
        return next(self._turns(names))

    def begin_reserve(self, place: ShardState) -> ReserveCall:
        """Start a reserve on this shard. Others need not query it before the reply, or a token, arrives."""
        with self._lock:
            return place, place.begin_reserve(time.monotonic())

    def begin_due_reserve(self, places: Sequence[ShardState]) -> ReserveCall | None:
        """Start a reserve on the first of these shards with due jobs; None if there is none."""
        with self._lock:
            now = time.monotonic()
            due = next((place for place in places if place.due_at <= now), None)
            return None if due is None else self.begin_reserve(due)

    def apply_reply(self, place: ShardState, number: int, next_due_ms: float | None, got: int) -> None:
        """Apply the reply of a reserve: ``got`` jobs and the time until the next due one (None = nothing waits)."""
        self.health.recovered()
        with self._lock:
            if not place.apply_reply(number, time.monotonic(), next_due_ms, got):
                return
            if next_due_ms is None:
                self._taken.discard(place.place)
            else:
                self._wake_one(place.queue.name)

    def apply_failure(self, place: ShardState) -> None:
        """Record a failed reserve: the shard still has to be queried."""
        with self._lock:
            place.expect(0.0)
            self._wake_one(place.queue.name)

    # -- waiting -----------------------------------------------------------------------------------------------------

    def enter(self, waiter: Waiter) -> None:
        """Add a waiter that has found no jobs."""
        with self._lock:
            if waiter not in self._waiters:
                self._waiters.append(waiter)

    def listen(self, waiter: Waiter) -> None:
        """Have tokens of a waiter's queues received. Called before each check of its shards."""
        with self._lock:
            waiter.must_check = False
            if waiter not in self._waiters or self._listener.listens_to(waiter.names):
                return
            waiter.called_at = time.monotonic()
        self._listener.call(waiter.names)

    def rest(self, waiter: Waiter, give_up: float) -> float | None:
        """Return the seconds for which a waiter may sleep; None = it has to check its shards now.

        Never calls Redis.
        """
        with self._lock:
            waiter.sleeping = False
            if waiter.must_check:
                return None
            now = time.monotonic()
            call_at = NEVER if self._listener.listens_to(waiter.names) else waiter.called_at + REPEAT
            until = min(*(place.due_at for place in self.places(waiter.names)), give_up, call_at)
            if until <= now:
                return None
            waiter.woken = Future()  # earlier wake-ups no longer count
            waiter.sleeping = True
            if self._check_at <= now:
                self._safety_check(now)
            return min(until - now, self._check_at - now, _LONGEST)

    def _safety_check(self, now: float) -> None:
        """Have the least recently checked shard checked, because its token may have been lost."""
        awaited = self.places(self.awaited_queues())
        self._check_at = now + min(SAFETY_CHECK, self.broker.lease_ms / 1000 / max(1, len(awaited)))
        oldest = stalest(awaited)
        if oldest is not None:
            oldest.expect(now)
            self._wake_one(oldest.queue.name)

    def withdraw(self, waiter: Waiter) -> list[tuple[str, int]]:
        """Remove a waiter without calling Redis. Return tokens for other processes, for :meth:`put_back`."""
        with self._lock:
            if waiter not in self._waiters:
                return []
            self._waiters.remove(waiter)
            alone = {name for name in waiter.names if not self.serves(name)}
            for name in waiter.names - alone:
                self._wake_one(name)
            taken = {place for place in self._taken if place[0] in alone}
            self._taken -= taken
            return [place for place in taken if self._places[place].due_at != NEVER]

    def put_back(self, hints: Sequence[tuple[str, int]]) -> None:
        """Return wake-up tokens that no caller here will use, so that another process looks at those shards."""
        self._listener.put_back(hints)

    def _wake_one(self, name: str) -> None:
        for waiter in self._waiters:
            if waiter.sleeping and name in waiter.names:
                waiter.sleeping = False  # the next token is for another waiter
                waiter.wake()
                return

    # -- called by the wake listener ---------------------------------------------------------------------------------

    def awaited_queues(self) -> frozenset[str]:
        """Return the queues that have waiters now. See :class:`~..worker.wake.Audience`."""
        return frozenset[str]().union(*(waiter.names for waiter in self._waiters))

    def serves(self, name: str) -> bool:
        """Return True if the queue has waiters. See :class:`~..worker.wake.Audience`."""
        return any(name in waiter.names for waiter in self._waiters)

    def tokens(self, hints: Hints) -> Hints:
        """Wake a waiter for each token. See :class:`~..worker.wake.Audience`."""
        with self._lock:
            return [hint for hint in hints if not self._token(*hint)]

    def _token(self, name: str, number: int) -> bool:
        if not self.serves(name):
            return False
        place = self._places.get((name, number))
        if place is not None:
            place.wake()
            self._taken.add(place.place)
        else:  # the queue has shards that this process does not know yet
            self._read_at.pop(name, None)
            for waiter in self._waiters:
                waiter.must_check = waiter.must_check or name in waiter.names
        self._wake_one(name)
        return True

    def check_all(self) -> None:
        """Make waiters check every shard, because tokens may have been lost, or shards be new."""
        with self._lock:
            for place in self._places.values():
                place.wake()
            for waiter in self._waiters:
                waiter.must_check = True
                waiter.wake()


def _rotated(items: Sequence[T], turn: int) -> list[T]:
    first = turn % max(1, len(items))  # a queue that was deleted just now has no shards
    return [*items[first:], *items[:first]]


_lock: Final = ThreadLock()


def coordinator_of(broker: Broker | None = None) -> PullCoordinator:
    """Return the coordinator of the process's broker, or of another one of the same process.

    It is kept with the broker, so that its waiting callers share it as long as they use that.
    """
    beside = vars(broker or connections.broker())
    with _lock:
        found: PullCoordinator | None = beside.get(_NAME)
        # A forked child has no threads, and the locks of its parent's coordinators may be held forever.
        if found is None or found.pid != os.getpid():
            found = beside[_NAME] = PullCoordinator(broker or connections.broker())
        return found

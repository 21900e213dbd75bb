"""Loops of a process, each of which runs a duty repeatedly, and what duties share.

That is the health of Redis as all loops see it, a guard for the parts of a duty's work, of which one may fail without
stopping the others, and a mailbox for changes of shards.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias

from ..core.redis.faults import Backoff, Fault, classify

if TYPE_CHECKING:
    from ..core.broker import Broker

logger = logging.getLogger(__name__)

#: seconds between two log lines about the same bug, refusal, part or task
_REMIND_SECONDS: Final = 60.0
_MOST_REMINDERS: Final = 1000

#: queue and shard, also with a part of the shard; or any name
Part: TypeAlias = tuple[str, int] | tuple[str, int, str] | str
#: completions of durable jobs are waiting; the index of failed jobs changed; the morgue changed; the shard lost its
#: data
What = Literal["marks", "failed", "morgue", "lost"]
Place = tuple[str, int]


class Reminders:
    """Filter of log lines that repeat: each passes once a minute."""

    def __init__(self) -> None:
        self._again_at: dict[Hashable, float] = {}

    def pass_on(self, what: Hashable) -> bool:
        """Return True if the line about this is to be written now."""
        now = time.monotonic()
        if now < self._again_at.get(what, 0.0):
            return False
        if len(self._again_at) >= _MOST_REMINDERS:  # any caller that can schedule may add names of tasks
            self._again_at.clear()
        self._again_at[what] = now + _REMIND_SECONDS
        return True


class RedisHealth:
    """Redis health, shared by all loops of a process, so that an outage is logged once and not by each of them.

    Args:
        count: called with each fault of Redis.
    """

    def __init__(self, count: Callable[[Fault], object] = lambda fault: None) -> None:
        self._count = count
        self._lock = threading.Lock()
        self._since = 0.0
        self._reminders = Reminders()
        #: duration of the last outage (seconds), and when it ended (monotonic)
        self.last_outage = 0.0
        self.cleared_at = 0.0

    def recovered(self) -> None:
        """Record that a call to Redis succeeded."""
        if not self._since:
            return
        with self._lock:
            if self._since:
                self.cleared_at = time.monotonic()
                self.last_outage = self.cleared_at - self._since
                self._since = 0.0
                logger.warning("Redis is back after %.1f s", self.last_outage)

    def lasting(self) -> float:
        """Return the seconds since the outage began; 0 while Redis is reachable."""
        since = self._since
        return time.monotonic() - since if since else 0.0

    def failed(self, who: str, error: BaseException) -> Fault:
        """Record that a call failed. Return the kind of fault, after logging it as often as it deserves."""
        fault = classify(error)
        now = time.monotonic()
        if fault is Fault.BUG:
            # A bug of this program, not a fault of Redis. The same error from the same loop is logged once a minute.
            if self._reminders.pass_on((who, type(error))):
                logger.error("%s failed and is retried", who, exc_info=error)
            return fault
        self._count(fault)
        with self._lock:
            if not self._since:
                self._since = now
                self._reminders.pass_on(Fault.CONFIG)
                logger.warning("no work with Redis now (%s, seen by %s): %s", fault.value, who, error)
            elif fault is Fault.CONFIG and self._reminders.pass_on(fault):
                logger.error("Redis refuses this worker since %.0f s: %s", now - self._since, error)
        return fault


def call_safely(what: str, function: Callable[..., object], *args: object) -> None:
    """Call a function. Its exception is logged."""
    try:
        function(*args)
    except Exception:
        logger.exception("%s failed", what)


class Duty(Protocol):
    """Task of a loop, to be run repeatedly. Two further methods are optional.

    ``attach(ring)`` stores a function, callable in any thread, that ends the rest of the duty's loop. It is called
    once, before the first turn. ``close()`` releases a resource, such as a database connection. It is called in the
    thread of the loop, after the last turn.
    """

    def run(self) -> float:
        """Run one turn. Exceptions do not end the loop.

        Returns:
            Seconds until the next turn.
        """


@dataclass(frozen=True, slots=True)
class Periodic:
    """Duty that calls a function every so many seconds."""

    seconds: float
    work: Callable[[], object]

    def run(self) -> float:
        """Call it."""
        self.work()
        return self.seconds


class Loop:
    """Thread that runs one duty until it is closed; a turn that fails is tried again after ``longest`` s at most."""

    def __init__(self, name: str, duty: Duty, health: RedisHealth, *, longest: float = 5.0) -> None:
        self.name = name
        self._pause = Backoff(cap=longest)
        self._duty = duty
        self._health = health
        self._bell = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run_thread, name=f"delayq-{name}", daemon=True)
        if hasattr(duty, "attach"):
            duty.attach(self.ring)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def ring(self) -> None:
        """End the pause until the duty's next turn: it runs now."""
        self._bell.set()

    def close(self, timeout: float = 2.0) -> None:
        """Stop the loop after the duty's current turn, and wait up to ``timeout`` seconds for it to end."""
        close_loops([self], timeout)

    def _run_thread(self) -> None:
        while not self._closing:
            try:
                rest = self._duty.run()
                self._pause.reset()
            except Exception as error:
                rest = self._pause.next(self._health.failed(self.name, error))
            self._bell.wait(min(rest, 3600.0))  # a turn without a reason does no harm
            self._bell.clear()
        if hasattr(self._duty, "close"):
            call_safely(f"the end of {self.name}", self._duty.close)


def close_loops(loops: Sequence[Loop], timeout: float = 2.0) -> None:
    """Stop loops after the current turns of their duties, and wait up to ``timeout`` seconds for all together."""
    for loop in loops:
        loop._closing = True
        loop.ring()
    join_threads([loop._thread for loop in loops], timeout)


def join_threads(threads: Iterable[threading.Thread], timeout: float) -> bool:
    """Wait up to ``timeout`` seconds for threads. Return False if one of them is still alive then."""
    until = time.monotonic() + timeout
    threads = [thread for thread in threads if thread.is_alive()]
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return not any(thread.is_alive() for thread in threads)


# -- parts of a duty ---------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Rest:
    """Rest of a part that failed."""

    pause: Backoff
    until: float = 0.0
    #: when the first call began that Redis did not answer; 0 = there was none
    since: float = 0.0
    reminders: Reminders = field(default_factory=Reminders)


@dataclass(eq=False, repr=False)
class Parts:
    """Guard for the parts of a duty's work: one that fails is logged, rests for a growing time, and is tried again.

    An error of Redis concerns all parts, so :meth:`attempt` raises it; on a Cluster it concerns those of the same node,
    which rest together.
    """

    #: name of the duty for the log
    _duty: str
    #: that of the shards; without one, every error of Redis concerns all parts
    broker: Broker | None = None
    _: KW_ONLY
    #: longest rest in seconds
    longest: float = 5.0
    #: on a Cluster, the time limit of a part that only calls Redis: the parts on other nodes wait meanwhile; None =
    #: each call has its own
    seconds: float | None = None
    #: further errors that concern all parts
    shared: tuple[type[Exception], ...] = ()

    def __post_init__(self) -> None:
        self._cluster = self.broker if self.broker is not None and self.broker.connection.cluster else None
        self._rests: dict[Hashable, _Rest] = {}

    def __bool__(self) -> bool:
        """Return True while any part rests."""
        return bool(self._rests)

    def retry_at(self, part: Part) -> float:
        """Return the moment (monotonic) until which the part rests; 0 if it does not."""
        return max((rest.until for rest in self._rests_of(part)), default=0.0)

    def outage(self, part: Part) -> float:
        """Return for how many seconds the part's node of a cluster has failed; 0 if it works."""
        return max((time.monotonic() - rest.since for rest in self._rests_of(part) if rest.since), default=0.0)

    def _rests_of(self, part: Part) -> list[_Rest]:
        names = (part, self._node(part)) if self._rests else ()
        return [rest for name in names if (rest := self._rests.get(name)) is not None]

    def attempt(self, part: Part, work: Callable[[], object]) -> bool:
        """Call ``work()`` unless the part rests. Return True if it succeeded.

        Raises:
            Exception: of ``work``, if it concerns all parts.
        """
        began = time.monotonic()
        if self.retry_at(part) > began:
            return False
        try:
            if self._cluster is None or self.seconds is None:
                work()
            else:
                with self._cluster.connection.limited(self.seconds):
                    work()
        except Exception as error:
            fault = classify(error)
            if isinstance(error, self.shared) or (fault is not Fault.BUG and self._cluster is None):
                raise
            self.failed(part, fault, error, began)
            return False
        self.worked(part)
        return True

    def worked(self, part: Part) -> None:
        """End the rest of a part, whose work succeeded."""
        if self._rests:
            for name in (part, self._node(part)):
                if self._rests.pop(name, None) is not None and name is not None:
                    logger.warning("%s: %s works again", self._duty, _text_of(part))

    def failed(self, part: Part, fault: Fault, error: Exception, began: float) -> None:
        """Let a part rest whose work began then and failed."""
        name = part if fault is Fault.BUG else self._node(part)
        rest = self._rests.setdefault(name, _Rest(Backoff(cap=self.longest)))
        now = time.monotonic()
        # The other parts have waited meanwhile: at most a fifth of their time shall go by in that way.
        waited = 0.0 if name is None else now - began
        rest.until = now + max(rest.pause.next(), min(self.longest, 4 * waited))
        if fault is not Fault.BUG:
            rest.since = rest.since or began
        if name is None or not rest.reminders.pass_on(fault):
            return
        if fault is Fault.BUG:
            logger.error("%s: %s failed and is retried; the rest goes on", self._duty, _text_of(part), exc_info=error)
        else:
            what = f"{self._duty}: no work with the node of {_text_of(part)} now"
            logger.warning("%s (%s); the others go on: %s", what, fault.value, error)

    def _node(self, part: Part) -> Hashable:
        """Return what the parts of one node share: None = a single server; the part itself if that is not known."""
        if isinstance(part, str):
            return part
        if self._cluster is None:
            return None
        try:
            return self._cluster.scripts.node(self._cluster.shard(part[0], part[1]).keys)
        except Exception:
            return part


def _text_of(part: Part) -> str:
    return part if isinstance(part, str) else f"shard {part[1]} of queue {part[0]}{' '.join(('', *part[2:]))}"


# -- changes of shards -------------------------------------------------------------------------------------------------


class ChangeReader:
    """Shards (queue, number) that changed since one reader took them last, by kind of change.

    They are hints: the reader checks the shard itself, and a superfluous one is harmless.
    """

    def __init__(self, kinds: Sequence[What]) -> None:
        #: by kind; a set, because adding and removing one member are atomic
        self.noted: dict[What, set[Place]] = {what: set() for what in kinds}
        #: called with each new change, in the thread that noted it
        self.ring: Callable[[], None] = lambda: None

    def take(self, what: What) -> set[Place]:
        """Return the shards that changed in this way since the last call."""
        noted = self.noted[what]
        return {noted.pop() for _ in range(len(noted))}


class Changes:
    """Mailbox in which a process notes changes of shards for all who read them."""

    def __init__(self) -> None:
        self._readers: list[ChangeReader] = []

    def reader(self, *kinds: What) -> ChangeReader:
        """Return a reader of these kinds; it takes nothing from others."""
        self._readers.append(ChangeReader(kinds))
        return self._readers[-1]

    def note(self, queue: str, shard: int, what: What) -> None:
        """Note a change. Readers are called unless they have it already."""
        place = (queue, shard)
        for reader in self._readers:
            noted = reader.noted.get(what)
            if noted is not None and place not in noted:
                noted.add(place)
                reader.ring()

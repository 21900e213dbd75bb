"""Supervisor: starts worker processes, keeps them alive, settles the jobs of dead ones, and stops all of them in time.

It runs no jobs, has no threads before it starts children, and talks to Redis only to settle the jobs of dead children
(:mod:`.dead`), in a thread for each of them, so that a listener that hangs delays no other.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TYPE_CHECKING, Final

from ..core.redis.faults import Backoff
from ..core.task import Registry
from ..core.workers import choices_of
from .child import (
    EXIT_DRY,
    EXIT_RECYCLE,
    EXIT_STUCK,
    ChildSpec,
    Scoreboard,
    new_name,
    reap_adopted,
)
from .config import WorkerConfig
from .dead import Death, Ends, salvage
from .hooks import Hooks
from .loop import join_threads
from .shards import Scope
from .shutdown import DRAIN, DUMP, STOP, STOP_REQUEST, Signals, log_stacks

if TYPE_CHECKING:
    from ..core.broker import Broker

logger = logging.getLogger(__name__)

#: seconds that a child gets beyond the grace period before it is killed, within a turn
_KILL_AFTER_SECONDS: Final = 0.5
_TURN_SECONDS: Final = 1.0
#: seconds between two looks of a quarantine process, each at one shard: no token wakes it
QUARANTINE_CHECK: Final = 0.1
_START_RETRY_SECONDS: Final = 2.0
_SALVAGE_AT_END_SECONDS: Final = 2.0
#: lifetime in seconds from which a death does not count as fast
LONG_LIFE: Final = 10.0
#: fast deaths after which the next child starts at once
_FREE_RESTARTS: Final = 3
_LONGEST_BACKOFF: Final = 60.0
_PLANNED_ENDS: Final = {
    EXIT_RECYCLE: "ended to be replaced",
    EXIT_STUCK: "ended because a job ignored its time limit",
    EXIT_DRY: "ended, no job waits for quarantine",
}


@dataclass(slots=True)
class Child:
    """Child process. Times are of ``time.monotonic()``."""

    name: str
    process: subprocess.Popen[bytes]
    board: Scoreboard
    born: float
    #: its last sign of life, and for how many seconds of the supervisor there was no other one
    stamp: float = 0.0
    silent: float = 0.0
    #: why the supervisor killed it, if it did. No job is blamed then, unless ``blame`` is set
    killed: str = ""
    blame: bool = False
    #: signals that the supervisor sent to all children
    signals: set[int] = field(default_factory=set)

    def cause(self, code: int) -> str:
        """Return how the child ended, for the log and for the errors of its jobs."""
        if self.killed:
            return f"was killed: {self.killed}"
        if code in _PLANNED_ENDS:
            return _PLANNED_ENDS[code]
        if code < 0:
            with contextlib.suppress(ValueError):
                return f"died of signal {-code} ({signal.Signals(-code).name})"
            return f"died of signal {-code}"
        return "ended" if code == 0 and self.board.leaving else f"ended with exit code {code}"


@dataclass(slots=True)
class Place:
    """Place for a child: when the next one may start, and how many died fast in a row.

    A quarantine place is filled only while jobs wait for quarantine.
    """

    index: int
    quarantine: bool = False
    child: Child | None = None
    start_at: float = 0.0
    fast_deaths: int = 0

    def plan_restart(self, child: Child, now: float, *, expected: bool) -> None:
        """Set when the next child starts.

        Children that die fast are restarted at once three times, then after 1, 2, 4 … 60 s.
        """
        self.start_at = now
        # A crash in quarantine costs its job one of few attempts, so crashes end by themselves; and other jobs wait for
        # the place.
        at_work = self.quarantine and bool(child.board.ready)
        self.fast_deaths = 0 if expected or at_work or now - child.born >= LONG_LIFE else self.fast_deaths + 1
        if self.fast_deaths > _FREE_RESTARTS:
            delay = min(_LONGEST_BACKOFF, 2.0 ** min(self.fast_deaths - _FREE_RESTARTS - 1, 10))
            self.start_at = now + delay
            logger.warning("children at place %d die fast; the next one starts in %.0f s", self.index, delay)


@dataclass(eq=False, repr=False)
class Supervisor:
    """Keeper of ``config.processes`` children, and of up to ``config.quarantine`` more while jobs wait for quarantine.

    Ordinary children never run such a job: after a crash under several jobs it is unknown which of them caused it, so
    each runs alone in a quarantine child. There the next crash is surely its own and costs no other job an attempt.
    """

    #: command line of a child; the rest is passed through its environment (:mod:`.child`)
    _command: Sequence[str]
    #: configuration of the program
    _config: WorkerConfig
    #: returns the broker; not called before the first child runs
    _broker: Callable[[], Broker]
    #: the policies that decide over the jobs of dead children
    registry: Registry
    _: KW_ONLY
    #: further signals that end all children gracefully and start new ones (e.g. SIGHUP)
    reload_on: frozenset[int] = frozenset()
    #: listeners to the ends of jobs whose process died
    hooks: Hooks | None = None
    _started: int = field(default=0, init=False)
    #: True if jobs may wait for quarantine: a process died, or a child has found overdue ones
    _has_suspects: bool = field(default=False, init=False)
    _stop_by: float | None = field(default=None, init=False)
    _draining: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        config = self._config
        self._base = config.name or new_name()
        #: name of this start of the program: another one each time, unlike a configured name of the worker
        self._program = new_name()
        self._ends = Ends(self.registry, self.hooks)
        self._salvages: list[threading.Thread] = []
        places = range(config.processes + config.quarantine)
        self._places = [Place(index, quarantine=index >= config.processes) for index in places]
        self._looked_at = time.monotonic()

    def run(self) -> int:
        """Work until stopped. Main thread only.

        Returns:
            The exit code: 0 also after a forced end.
        """
        handlers = dict.fromkeys(STOP, self._handle_stop) | dict.fromkeys(self.reload_on, self._reload)
        handlers |= {DRAIN: self._drain, DUMP: self._dump, STOP_REQUEST: self._stop, signal.SIGCHLD: lambda: None}
        with Signals(handlers) as signals:
            text, queues = "supervisor %s started: pid %d, %d processes, queues %s", ",".join(self._config.queues)
            logger.info(text, self._base, os.getpid(), self._config.processes, queues)
            try:
                while True:
                    now = time.monotonic()
                    self._reap(now)
                    if self._stop_by is None and not self._draining:
                        self._start_missing(now)
                        self._serve_quarantine(now)
                    elif not self._children():
                        break
                    self._watch(now)
                    signals.wait(_TURN_SECONDS)  # a child that ends is a signal, too
            finally:
                self._kill_all("the supervisor ends")
                self._reap(time.monotonic(), wait=True)
                join_threads(self._salvages, _SALVAGE_AT_END_SECONDS)
        logger.info("supervisor %s stopped", self._base)
        return 0

    # --- signals

    def _handle_stop(self) -> None:
        if self._stop_by is None:
            self._stop()
        else:
            logger.warning("supervisor %s stops at once", self._base)
            self._stop_by = time.monotonic() - _KILL_AFTER_SECONDS

    def _dump(self) -> None:
        log_stacks()
        self._send_signal(DUMP)

    def _reload(self) -> None:
        self._send_signal(signal.SIGTERM)
        for place in self._places:  # the cause of fast deaths may be fixed now
            place.start_at, place.fast_deaths = 0.0, 0

    def _stop(self) -> None:
        """Stop the program, unless it stops already."""
        if self._stop_by is not None:
            return
        logger.info("supervisor %s stops, %.0f s for running jobs", self._base, self._config.grace)
        self._stop_by = time.monotonic() + self._config.grace
        self._send_signal(signal.SIGTERM)

    def _drain(self) -> None:
        self._draining = True
        self._send_signal(DRAIN)

    def _send_signal(self, number: int) -> None:
        for child in self._children():
            child.signals.add(number)
            child.process.send_signal(number)

    def _children(self) -> list[Child]:
        return [place.child for place in self._places if place.child is not None]

    # --- starting children

    def _start_missing(self, now: float) -> None:
        for place in self._places:
            if place.child is None and place.start_at <= now and not place.quarantine:
                self._start(place, now)

    def _start(self, place: Place, now: float) -> bool:
        """Start a child. Return False if the system has no process for it now; the place is tried again soon."""
        name = f"{self._base}.{self._started + 1}"
        config = replace(self._config, name=name, program=self._program, index=place.index, which="others")
        if place.quarantine:
            config = replace(config, which="quarantined", threads=1, prefetch_ms=0.0)
            config = replace(config, dispatcher=False, safety_check=QUARANTINE_CHECK)
        board = Scoreboard.create(config.threads)
        environment = ChildSpec(config, board.fd, os.getpid()).environment()
        try:
            process = subprocess.Popen(self._command, env=environment, pass_fds=(board.fd,))
        except OSError as error:
            logger.error("no process can be started now, which is retried in %.0f s: %s", _START_RETRY_SECONDS, error)
            os.close(board.fd)
            place.start_at = now + _START_RETRY_SECONDS
            return False
        self._started += 1
        logger.info("child %s started%s: pid %d", name, " for quarantine" if place.quarantine else "", process.pid)
        place.child = Child(name, process, board, time.monotonic())
        return True

    def _serve_quarantine(self, now: float) -> None:
        """Start one more quarantine child if jobs may wait for one and none is idle: an idle one finds them itself."""
        for child in self._children():
            self._has_suspects = self._has_suspects or child.board.overdue
            child.board.overdue = False
        quarantine = [place for place in self._places if place.quarantine]
        free = [place for place in quarantine if place.child is None]
        has_idle = any(place.child is not None and not place.child.board.busy for place in quarantine)
        if self._has_suspects and free and not has_idle:
            place = min(free, key=lambda place: place.start_at)
            self._has_suspects = place.start_at > now or not self._start(place, now)
        else:
            self._has_suspects = False  # if all are busy, each checks again after its job

    # --- watching children

    def _watch(self, now: float) -> None:
        """Kill children that do not end in time, or that showed no life for most of a lease."""
        if self._stop_by is not None and now >= self._stop_by + _KILL_AFTER_SECONDS:
            self._kill_all("it did not end within the grace period")
            return
        # A supervisor that was stopped has not watched meanwhile, and its children may have been stopped, too.
        passed, self._looked_at = min(now - self._looked_at, _TURN_SECONDS), now
        for child in self._children():
            before, child.stamp = child.stamp, child.board.stamped
            child.silent = child.silent + passed if child.stamp == before else 0.0
            if child.stamp and child.silent > 0.8 * self._broker().lease_ms / 1000:
                self._end_lifeless(child, child.silent)

    def _end_lifeless(self, child: Child, seconds: float) -> None:
        """Send SIGABRT, which writes the stacks to stderr; one turn later SIGKILL, which always works."""
        if child.killed:
            child.process.kill()
            return
        child.killed, child.blame = f"it showed no life for {seconds:.0f} s", True
        logger.error("child %s (pid %d) is killed: %s", child.name, child.process.pid, child.killed)
        child.process.send_signal(signal.SIGABRT)

    def _kill_all(self, why: str) -> None:
        for child in self._children():
            child.killed = child.killed or why
            child.process.kill()

    # --- dead children

    def _reap(self, now: float, *, wait: bool = False) -> None:
        if os.getpid() == 1:
            reap_adopted({child.process.pid for child in self._children()})
        for place in self._places:
            child = place.child
            if child is None:
                continue
            if wait:
                child.process.wait()
            code = child.process.poll()
            if code is not None:
                place.child = None
                self._handle_death(place, child, code, now)

    def _handle_death(self, place: Place, child: Child, code: int, now: float) -> None:
        board, why = child.board, child.cause(code)
        planned = board.leaving or (bool(child.killed) and not child.blame)
        expected = planned and (code == 0 or code in _PLANNED_ENDS or self._stop_by is not None)
        # While a child starts it has no handlers yet, so a signal of ours ends it.
        expected = expected or (not board.ready and -code in child.signals)
        logger.log(logging.INFO if expected else logging.WARNING, "child %s %s", child.name, why)
        place.plan_restart(child, now, expected=expected)
        death = Death(child.name, why, board.records(), now, planned)
        if (death.records and not planned) or (place.quarantine and code != EXIT_DRY):
            self._has_suspects = True
        if board.ready:
            thread = threading.Thread(target=self._settle, args=(death,), name="delayq-salvage", daemon=True)
            self._salvages = [other for other in self._salvages if other.is_alive()] + [thread]
            thread.start()
        os.close(board.fd)

    # --- settling, in threads of its own

    def _settle(self, death: Death) -> None:
        """Settle the jobs of one child, with retries for one lease; after that any dispatcher's reaper does it."""
        pause, began = Backoff(), time.monotonic()
        while True:
            try:
                broker = self._broker()
                scope = Scope(broker, self._config)
                scope.refresh(choices_of(broker, self._program))
                salvage(death, self._ends, broker, scope.queues)
                broker.forget(death.worker)
                broker.tally.flush()
                return
            except Exception as error:
                if time.monotonic() - began > self._broker().lease_ms / 1000:
                    logger.warning("jobs of child %s are left to the reaper: %s", death.worker, error)
                    return
                time.sleep(pause.next())

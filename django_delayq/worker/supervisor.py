"""The supervisor: execs worker processes, keeps them alive, settles what a dead one held, stops them all in time.

It runs no jobs, has no threads before it spawns and talks to Redis only on behalf of the dead.
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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from django_delayq.core.faults import Backoff
from django_delayq.core.task import Registry

from .board import Board, Mark
from .child import EXIT_RECYCLE, EXIT_STUCK, Birth
from .config import WorkerConfig
from .salvage import salvage
from .shutdown import DRAIN, DUMP, STOP, Signals, log_stacks
from .worker import new_name

if TYPE_CHECKING:
    from django_delayq.core.broker import Broker

logger = logging.getLogger(__name__)

#: a child that lived so long did not die "fast"
LONG_LIFE: Final = 10.0
#: quick deaths of children that had begun to serve, which are answered at once
_FREE_RESTARTS: Final = 3
_LONGEST_BACKOFF: Final = 60.0
#: what a child gets beyond the grace before it is killed
_STRAGGLE: Final = 0.5
_TURN: Final = 1.0
_SALVAGE_AT_END: Final = 2.0


@dataclass(slots=True)
class Child:
    """One child process. Times are of ``time.monotonic()``."""

    index: int
    name: str
    process: subprocess.Popen[bytes]
    board: Board
    born: float
    #: why we killed it, if we did; then nobody's job is to blame unless ``blame`` is set
    killed: str = ""
    blame: bool = False
    #: whether we asked it to stop
    told: bool = False


@dataclass(slots=True)
class Place:
    """One of the N places for a child: when the next one starts, and how many died fast in a row."""

    index: int
    child: Child | None = None
    start_at: float = 0.0
    fast_deaths: int = 0


class Supervisor:
    """Keeps ``config.processes`` children running.

    Args:
        command: what a child is started with; the rest is told through its environment (:mod:`.child`).
        broker: called when Redis is first needed, that is when a child died.
        registry: the policies that decide over the jobs of the dead.
        reload_on: further signals that end all children gracefully and start fresh ones (e.g. SIGHUP).
    """

    def __init__(self, command: Sequence[str], config: WorkerConfig, broker: Callable[[], Broker],
                 registry: Registry, *, reload_on: frozenset[int] = frozenset()) -> None:  # fmt: skip
        self._command = list(command)
        self._config = config
        self._broker = broker
        self._registry = registry
        self._reload_on = reload_on
        self._base = config.name or new_name()
        self._births = 0
        self._places = [Place(index) for index in range(config.processes)]
        self._salvagers: list[threading.Thread] = []
        self._stop_by: float | None = None
        self._draining = False
        self._awake_at = time.monotonic()
        self._stale_after = 0.0

    def run(self) -> int:
        """Work until told to stop. Main thread only. Returns the exit code: 0 also after a forced end."""
        with Signals(also=frozenset({signal.SIGCHLD}) | self._reload_on) as signals:
            logger.info("supervisor %s started: pid %d, %d processes, queues %s", self._base, os.getpid(),
                        self._config.processes, ",".join(self._config.queues))  # fmt: skip
            try:
                while True:
                    now = time.monotonic()
                    self._hear()  # first: a child that is dead has said it too
                    self._reap(now)
                    if self._is_over():
                        break
                    self._start_missing(now)
                    self._watch(now)
                    for number in signals.wait(self._next_turn(time.monotonic())):
                        self._heed(number)
            finally:
                self._kill_all("the supervisor ends", blame=False)
                self._reap(time.monotonic(), wait=True)
                self._finish_salvage()
        logger.info("supervisor %s stopped", self._base)
        return 0

    # --- signals

    def _heed(self, number: int) -> None:
        if number in STOP:
            if self._stop_by is not None:
                logger.warning("supervisor %s stops at once", self._base)
                self._stop_by = time.monotonic() - _STRAGGLE
                return
            self._stop()
        elif number == DRAIN:
            self._drain()
        elif number == DUMP:
            log_stacks()
            self._tell(DUMP)
        elif number in self._reload_on:
            self._tell(signal.SIGTERM)
            for place in self._places:  # what made children die fast may be mended now
                place.start_at, place.fast_deaths = 0.0, 0

    def _stop(self) -> None:
        logger.info("supervisor %s stops, %.0f s for running jobs", self._base, self._config.grace)
        self._stop_by = time.monotonic() + self._config.grace
        self._tell(signal.SIGTERM)

    def _drain(self) -> None:
        self._draining = True
        self._tell(DRAIN)

    def _hear(self) -> None:
        """What somebody told the children. Not through signals: several of them may be told the same, and a second
        SIGTERM would end the program at once."""
        wishes = {child.board.wish for child in self._children()}
        if "stop" in wishes and self._stop_by is None:
            self._stop()
        elif "drain" in wishes and self._stop_by is None and not self._draining:
            self._drain()

    def _tell(self, number: int) -> None:
        for child in self._children():
            child.told = child.told or number == signal.SIGTERM
            with contextlib.suppress(ProcessLookupError):
                child.process.send_signal(number)

    def _children(self) -> list[Child]:
        return [place.child for place in self._places if place.child is not None]

    def _is_over(self) -> bool:
        return (self._draining or self._stop_by is not None) and not self._children()

    def _next_turn(self, now: float) -> float:
        moments = [now + _TURN]
        if self._stop_by is not None:
            moments.append(self._stop_by + _STRAGGLE)
        else:
            moments += [place.start_at for place in self._places if place.child is None]
        return max(0.0, min(moments) - now)

    # --- birth

    def _start_missing(self, now: float) -> None:
        if self._stop_by is not None or self._draining:
            return
        for place in self._places:
            if place.child is None and place.start_at <= now:
                place.child = self._start(place.index)

    def _start(self, index: int) -> Child:
        self._births += 1
        slots = self._config.threads
        board = Board.create(slots)
        birth = Birth(f"{self._base}.{self._births}", index, board.fd, slots, os.getpid())
        process = subprocess.Popen(self._command, env=birth.environment(), pass_fds=(board.fd,))
        logger.info("child %s started: pid %d", birth.name, process.pid)
        return Child(index, birth.name, process, board, time.monotonic())

    # --- watch

    def _watch(self, now: float) -> None:
        gap, self._awake_at = now - self._awake_at, now
        if gap > 2 * _TURN:
            # This process itself was stopped; its children may have been too. They get time to show life again.
            self._stale_after = now + 5.0
        if self._stop_by is not None and now >= self._stop_by + _STRAGGLE:
            self._kill_all("it did not end within the grace period", blame=False)
            return
        if now < self._stale_after:
            return
        limit = 0.8 * self._lease()
        for child in self._children():
            stamped = child.board.stamped
            if stamped and now - stamped > limit:
                self._end_lifeless(child, now - stamped)

    def _end_lifeless(self, child: Child, seconds: float) -> None:
        """SIGABRT first, which leaves the stacks on stderr; one turn later SIGKILL, which always works."""
        if child.killed:
            child.process.kill()
            return
        logger.error("child %s (pid %d) showed no life for %.0f s and is killed", child.name, child.process.pid,
                     seconds)  # fmt: skip
        child.killed, child.blame = f"it showed no life for {seconds:.0f} s", True
        child.process.send_signal(signal.SIGABRT)

    def _lease(self) -> float:
        return self._broker().lease_ms / 1000

    def _kill_all(self, why: str, *, blame: bool) -> None:
        for child in self._children():
            self._kill(child, why, blame=blame)

    def _kill(self, child: Child, why: str, *, blame: bool) -> None:
        if not child.killed:
            child.killed, child.blame = why, blame
        child.process.kill()

    # --- death

    def _reap(self, now: float, *, wait: bool = False) -> None:
        if os.getpid() == 1:
            _reap_strangers({child.process.pid for child in self._children()})
        for place in self._places:
            child = place.child
            if child is None:
                continue
            if wait:
                child.process.wait()
            code = child.process.poll()
            if code is not None:
                place.child = None
                self._bury(place, child, code, now)

    def _bury(self, place: Place, child: Child, code: int, now: float) -> None:
        board, why = child.board, _cause(child, code)
        planned = board.leaving or (bool(child.killed) and not child.blame)
        expected = planned and (code in (0, EXIT_RECYCLE, EXIT_STUCK) or self._stop_by is not None)
        # Told to stop while it still imported the project: nothing was there yet to heed the signal gracefully.
        expected = expected or (child.told and code == -signal.SIGTERM)
        logger.log(logging.INFO if expected else logging.WARNING, "child %s %s", child.name, why)
        self._plan_restart(place, child, now, expected=expected)
        marks, served = board.marks(), bool(board.ready)
        board.close()
        if served:
            thread = threading.Thread(
                target=self._salvage, args=(child.name, marks, why, planned, now), name="delayq-salvage", daemon=True
            )
            self._salvagers = [other for other in self._salvagers if other.is_alive()] + [thread]
            thread.start()

    def _plan_restart(self, place: Place, child: Child, now: float, *, expected: bool) -> None:
        place.start_at = now
        if expected or now - child.born >= LONG_LIFE:
            place.fast_deaths = 0
            return
        place.fast_deaths += 1
        # A child that never served will hardly do better at once; one that was killed at work deserves a few tries.
        paid = place.fast_deaths - (_FREE_RESTARTS if child.board.ready else 0)
        if paid > 0:
            delay = min(_LONGEST_BACKOFF, 2.0 ** (min(paid, 10) - 1))
            place.start_at = now + delay
            logger.warning("children at place %d die fast; the next one starts in %.0f s", place.index, delay)

    def _salvage(self, name: str, marks: list[Mark], why: str, planned: bool, died_at: float) -> None:
        """Retried for one lease; after that the reaper of any dispatcher does it."""
        pause = Backoff()
        while True:
            try:
                broker = self._broker()
                queues = broker.served(self._config.queues, every=self._config.all_queues)
                salvage(queues, name, marks, self._registry, why, planned=planned, died_at=died_at)
                broker.forget(name)
                broker.tally.flush()
                return
            except Exception as error:
                if time.monotonic() - died_at > self._lease():
                    logger.warning("jobs of child %s are left to the reaper: %s", name, error)
                    return
                time.sleep(pause.next())

    def _finish_salvage(self) -> None:
        until = time.monotonic() + _SALVAGE_AT_END
        for thread in self._salvagers:
            thread.join(max(0.0, until - time.monotonic()))


def _cause(child: Child, code: int) -> str:
    if child.killed:
        return f"was killed: {child.killed}"
    if code == EXIT_RECYCLE:
        return "ended to be replaced"
    if code == EXIT_STUCK:
        return "ended because a job ignored its time limit"
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"died of signal {-code} ({signal.Signals(-code).name})"
        return f"died of signal {-code}"
    return "ended" if code == 0 and child.board.leaving else f"ended with exit code {code}"


def _reap_strangers(own: set[int]) -> None:
    """As PID 1 of a container: orphans of our children become ours, and somebody has to bury them."""
    with contextlib.suppress(ChildProcessError, AttributeError):
        while True:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None or found.si_pid in own:
                return
            os.waitpid(found.si_pid, os.WNOHANG)

"""Supervisor: starts worker processes, keeps them alive, settles the jobs of dead ones, and stops all of them in time.

It runs no jobs, has no threads before it starts children, and talks to Redis only to settle the jobs of dead children.
Listeners to the ends of those jobs are called here too (:mod:`.orphans`), in a thread for each dead child, so that one
that hangs delays no other.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from ..core.task import Registry
from .child import EXIT_DRY, EXIT_RECYCLE, EXIT_STUCK, new_name, reap_adopted
from .child_starter import ChildStarter
from .config import WorkerConfig
from .hooks import Hooks
from .orphans import Orphans
from .places import Child, Place, Suspects
from .salvage import Death
from .salvage_threads import SalvageThreads
from .shutdown import DRAIN, DUMP, STOP, Signals, log_stacks
from .signs_of_life import SignsOfLife

if TYPE_CHECKING:
    from ..core.broker import Broker

logger = logging.getLogger(__name__)

#: seconds that a child gets beyond the grace period before it is killed
_KILL_AFTER_SECONDS: Final = 0.5
_TURN_SECONDS: Final = 1.0
_START_RETRY_SECONDS: Final = 2.0
_SALVAGE_AT_END_SECONDS: Final = 2.0


class Supervisor:
    """Keeper of ``config.processes`` children, and of up to ``config.quarantine`` more while jobs wait for quarantine.

    Ordinary children never run such a job: after a crash under several jobs it is unknown which of them caused it, so
    each runs alone in a quarantine child. There the next crash is surely its own and costs no other job an attempt.

    Args:
        command: the command line of a child; the rest is passed through its environment (:mod:`.child`).
        config: the configuration of the program.
        broker: returns the broker; not called before the first child runs.
        registry: the policies that decide over the jobs of dead children.
        reload_on: further signals that end all children gracefully and start new ones (e.g. SIGHUP).
        hooks: listeners to the ends of jobs whose process died.
    """

    def __init__(
        self,
        command: Sequence[str],
        config: WorkerConfig,
        broker: Callable[[], Broker],
        registry: Registry,
        *,
        reload_on: frozenset[int] = frozenset(),
        hooks: Hooks | None = None,
    ) -> None:
        self._config = config
        self._reload_on = reload_on
        self._base = config.name or new_name()
        self._starter = ChildStarter(command, self._base, config.threads)
        self._salvage = SalvageThreads(
            broker, config, self._starter.program, Orphans(registry, hooks, self._base), self._expect
        )
        self._places = [Place(index) for index in range(config.processes)]
        self._quarantine = [Place(config.processes + index, quarantine=True) for index in range(config.quarantine)]
        self._suspects = Suspects()
        self._signals: Signals | None = None
        self._stop_by: float | None = None
        self._draining = False
        self._signs_of_life = SignsOfLife(lambda: broker().lease_ms / 1000)

    def run(self) -> int:
        """Work until stopped. Main thread only.

        Returns:
            The exit code: 0 also after a forced end.
        """
        with Signals(also=frozenset({signal.SIGCHLD}) | self._reload_on) as signals:
            logger.info(
                "supervisor %s started: pid %d, %d processes, queues %s",
                self._base,
                os.getpid(),
                self._config.processes,
                ",".join(self._config.queues),
            )
            self._signals = signals
            try:
                while True:
                    now = time.monotonic()
                    self._carry_out_requests()  # first, because a child that is dead by now may have left a request
                    self._reap(now)
                    if self._is_over():
                        break
                    self._start_missing(now)
                    self._serve_quarantine(now)
                    self._watch(now)
                    for number in signals.wait(self._next_turn(time.monotonic())):
                        self._handle_signal(number)
            finally:
                self._kill_all("the supervisor ends", blame=False)
                self._reap(time.monotonic(), wait=True)
                self._signals = None
                self._salvage.join(_SALVAGE_AT_END_SECONDS)
        logger.info("supervisor %s stopped", self._base)
        return 0

    # --- signals

    def _handle_signal(self, number: int) -> None:
        if number in STOP:
            if self._stop_by is not None:
                logger.warning("supervisor %s stops at once", self._base)
                self._stop_by = time.monotonic() - _KILL_AFTER_SECONDS
                return
            self._stop()
        elif number == DRAIN:
            self._drain()
        elif number == DUMP:
            log_stacks()
            self._send_signal(DUMP)
        elif number in self._reload_on:
            self._send_signal(signal.SIGTERM)
            for place in self._all_places:  # the cause of fast deaths may be fixed now
                place.start_at, place.fast_deaths = 0.0, 0

    def _stop(self) -> None:
        logger.info("supervisor %s stops, %.0f s for running jobs", self._base, self._config.grace)
        self._stop_by = time.monotonic() + self._config.grace
        self._send_signal(signal.SIGTERM)

    def _drain(self) -> None:
        self._draining = True
        self._send_signal(DRAIN)

    def _carry_out_requests(self) -> None:
        """Carry out ends that were requested from the children.

        They do not use signals: several children may get the same request, and a second SIGTERM would end the program
        at once.
        """
        requests = {child.board.requested_end for child in self._children()}
        if "stop" in requests and self._stop_by is None:
            self._stop()
        elif "drain" in requests and self._stop_by is None and not self._draining:
            self._drain()

    def _send_signal(self, number: int) -> None:
        for child in self._children():
            child.stop_sent = child.stop_sent or number == signal.SIGTERM
            child.process.send_signal(number)

    @property
    def _all_places(self) -> list[Place]:
        return [*self._places, *self._quarantine]

    def _children(self) -> list[Child]:
        return [place.child for place in self._all_places if place.child is not None]

    def _is_over(self) -> bool:
        return self._is_ending and not self._children()

    @property
    def _is_ending(self) -> bool:
        return self._stop_by is not None or self._draining

    def _next_turn(self, now: float) -> float:
        moments = [now + _TURN_SECONDS]
        if self._stop_by is not None:
            moments.append(self._stop_by + _KILL_AFTER_SECONDS)
        elif not self._draining:
            moments += [place.start_at for place in self._places if place.child is None]
            if not any(now < place.start_at for place in self._quarantine):
                moments.append(self._suspects.next_at)
        return max(0.0, min(moments) - now)

    # --- starting children

    def _start_missing(self, now: float) -> None:
        if self._is_ending:
            return
        for place in self._places:
            if place.child is None and place.start_at <= now:
                self._start(place, now)

    def _start(self, place: Place, now: float) -> bool:
        """Start a child. Return False if the system has no process for it now; the place is tried again soon."""
        try:
            place.child = self._starter.start(place)
        except OSError as error:
            logger.error("no process can be started now, which is retried in %.0f s: %s", _START_RETRY_SECONDS, error)
            place.start_at = now + _START_RETRY_SECONDS
            return False
        return True

    def _serve_quarantine(self, now: float) -> None:
        """Make an idle quarantine child check for jobs that are due in quarantine, or start one more child."""
        if self._is_ending:
            return
        if any(child.board.overdue_at > self._suspects.served_at for child in self._children()):
            self._suspects.expect(now)
        if self._suspects.next_at > now:
            return
        children = [place.child for place in self._quarantine if place.child is not None]
        idle = [child for child in children if not child.board.busy]
        free = [place for place in self._quarantine if place.child is None]
        if not idle and free:
            place = min(free, key=lambda place: place.start_at)
            if place.start_at > now or not self._start(place, now):
                return
        for child in idle:
            child.board.call()
        self._suspects.served(now)  # if all are busy, each checks again after its job

    # --- watching children

    def _watch(self, now: float) -> None:
        if self._stop_by is not None and now >= self._stop_by + _KILL_AFTER_SECONDS:
            self._kill_all("it did not end within the grace period", blame=False)
            return
        for child, seconds in self._signs_of_life.missing(self._children(), now):
            self._end_lifeless(child, seconds)

    def _end_lifeless(self, child: Child, seconds: float) -> None:
        """Send SIGABRT, which writes the stacks to stderr; one turn later SIGKILL, which always works."""
        if child.killed:
            child.process.kill()
            return
        logger.error(
            "child %s (pid %d) showed no life for %.0f s and is killed", child.name, child.process.pid, seconds
        )
        child.killed, child.blame = f"it showed no life for {seconds:.0f} s", True
        child.process.send_signal(signal.SIGABRT)

    def _kill_all(self, why: str, *, blame: bool) -> None:
        for child in self._children():
            self._kill(child, why, blame=blame)

    def _kill(self, child: Child, why: str, *, blame: bool) -> None:
        if not child.killed:
            child.killed, child.blame = why, blame
        child.process.kill()

    # --- dead children

    def _reap(self, now: float, *, wait: bool = False) -> None:
        if os.getpid() == 1:
            reap_adopted({child.process.pid for child in self._children()})
        for place in self._all_places:
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
        expected = planned and (code in (0, EXIT_RECYCLE, EXIT_STUCK, EXIT_DRY) or self._stop_by is not None)
        # Stopped while it still imported the project: it had no handler yet to stop gracefully.
        expected = expected or (child.stop_sent and code == -signal.SIGTERM)
        logger.log(logging.INFO if expected else logging.WARNING, "child %s %s", child.name, why)
        place.plan_restart(child, now, expected=expected)
        if place.quarantine and (code != EXIT_DRY or board.called):
            self._suspects.expect(place.start_at)  # more jobs may wait than it held
        death, served = Death(child.name, why, board.records(), now, planned), bool(board.ready)
        board.close()
        if served:
            self._salvage.start(death)

    def _expect(self, seconds: float) -> None:
        """Expect a job in quarantine that is due so many seconds from now."""
        self._suspects.expect(time.monotonic() + seconds)
        signals = self._signals  # the main thread takes them away at its end
        if signals is not None:
            signals.poke()

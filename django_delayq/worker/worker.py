"""Worker: builds the parts of one worker process, starts them, and ends them in a safe order, for whatever reason."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ..core.redis.faults import Backoff
from ..core.workers import choices_of
from .attempt import expected_batch
from .child import (
    EXIT_FATAL,
    EXIT_NO_REDIS,
    EXIT_OK,
    EXIT_RECYCLE,
    EXIT_STUCK,
    ChildSpec,
    new_name,
)
from .dispatcher import dispatcher_duties
from .execution import Execution
from .fetch import Consumer, Stage
from .heartbeat import Heartbeat
from .hooks import Hooks, Middleware
from .loop import Changes, Duty, Loop, RedisHealth, call_safely, close_loops
from .shards import Scope, ShardSelector
from .shutdown import DRAIN, DUMP, STOP, STOP_REQUEST, Signals, log_stacks
from .slots import EventLoop, Slots
from .timeouts import REACTION_SECONDS, TimeoutMonitor, resident_mib
from .wake import WakeListener

if TYPE_CHECKING:
    from ..core.broker import Broker
    from ..core.task import Registry
    from .attempt import Attempt
    from .child import Scoreboard
    from .config import WorkerConfig

logger = logging.getLogger(__name__)

#: seconds before the grace period ends at which ``should_stop`` turns true, found out once a second: at least five
SHUTDOWN_WARNING_SECONDS: Final = 6.0
#: beginning of the names of the threads without which a worker cannot work
_OWN_THREADS: Final = "delayq-"


@dataclass(eq=False, repr=False)
class Worker:
    """One worker process. ``run()`` as a program; ``start()`` and ``stop()`` inside another one.

    Its parts get it as their ``process``, for what they share: identity, configuration, broker, registry, hooks, the
    health of Redis and the mailbox of changes.
    """

    broker: Broker
    registry: Registry
    config: WorkerConfig
    hooks: Hooks = field(default_factory=Hooks)
    _: KW_ONLY
    middlewares: Sequence[Middleware] = ()
    #: further housekeeping of this process, by name; each gets its own loop
    duties: Mapping[str, Duty] = field(default_factory=dict)
    #: mailbox in which this process notes changes for those duties
    changes: Changes = field(default_factory=Changes)
    #: the child specification from the supervisor; None without one
    child_spec: ChildSpec | None = None
    #: scoreboard on which the supervisor reads what this process runs
    board: Scoreboard | None = None
    #: seconds that an attempt gets to react to its time limit
    reaction_seconds: float = REACTION_SECONDS
    #: end of the grace period (monotonic); None while the process works or drains
    stop_by: float | None = field(default=None, init=False)
    exit_code: int = field(default=EXIT_OK, init=False)
    #: fetch loop; None before the start and in a process that runs no jobs
    consumer: Consumer | None = field(default=None, init=False)
    #: signals of the main thread, if the worker is a program
    _signals: Signals | None = field(default=None, init=False)
    _signalled: bool = field(default=False, init=False)
    _clean: bool = field(default=False, init=False)
    _fatal: BaseException | None = field(default=None, init=False)
    _had_last_words: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        broker, config = self.broker, self.config
        #: name in the registry of workers and on leases
        self.name = config.name or new_name()
        self._program = config.program or self.name
        self.health = RedisHealth(lambda fault: broker.tally.count("redis_error", fault.value))
        #: set when the worker has nothing more to do, for any reason
        self.done = threading.Event()
        self._selector = ShardSelector(
            weights=config.weights,
            index=config.index,
            scheduler=config.scheduler if callable(config.scheduler) else None,
            batch_size=partial(expected_batch, self.registry),
            on_unknown=lambda: self.scope.refresh(),
        )
        self.scope = Scope(broker, config, self._selector.serve)
        self._started_at = time.time()
        self._event_loop = EventLoop()
        self._monitor = TimeoutMonitor(self.board, self._overran, self._check, self.reaction_seconds)
        #: attempts that cannot be ended, for which the end of the process does not wait
        self.stuck = self._monitor.stuck
        self._heartbeat: Loop | None = None
        self._loops: list[Loop] = []
        self._stopping = threading.Lock()

    @property
    def lease(self) -> float:
        """Duration of a lease in seconds."""
        return self.broker.lease_ms / 1000

    @property
    def seconds_left(self) -> float:
        """Seconds until the end of the grace period."""
        return (self.stop_by or 0.0) - time.monotonic()

    @property
    def _is_supervised(self) -> bool:
        return self.child_spec is not None and os.getppid() == self.child_spec.parent

    # --- as a program

    def run(self) -> int:
        """Work until a signal arrives, or until nothing is left to do. Main thread only.

        Returns:
            The exit code. Threads of jobs that could not be ended may still be alive: end the process with
                :func:`leave`.
        """
        ignore = frozenset() if self.child_spec is None else frozenset({int(signal.SIGINT)})
        handlers: dict[int, Callable[[], object]] = {DRAIN: self.drain, DUMP: log_stacks}
        handlers |= dict.fromkeys(STOP, self._handle_stop)
        previous = threading.excepthook
        threading.excepthook = partial(self._handle_dead_thread, previous)
        try:
            with Signals(handlers, ignore=ignore) as self._signals:
                self.start()
                while not self.done.is_set() and (self.stop_by is None or self.seconds_left > 0):
                    self._wait(None if self.stop_by is None else self.seconds_left)
                self.stop(None if self.stop_by is None else max(0.0, self.seconds_left))
        except BaseException as error:
            self._call_last_words(error)
            raise
        finally:
            threading.excepthook = previous
        return self.exit_code

    def _wait(self, seconds: float | None) -> bool:
        """Wait this long and handle signals meanwhile. Return True if the worker is done."""
        if self._signals is None:
            return self.done.wait(seconds)
        self._signals.wait(seconds)
        return self.done.is_set()

    def _handle_stop(self) -> None:
        if not self._signalled:
            self._signalled = True
            self.begin_stop(self.config.grace)
            logger.info("worker %s stops, %.0f s for running jobs", self.name, self.seconds_left)
        elif not self._is_supervised:  # else the signal came to the whole process group, and from the supervisor, too
            logger.warning("worker %s stops at once", self.name)
            self.stop_by = 0.0

    def _handle_dead_thread(self, previous: Callable[[Any], object], args: Any) -> None:
        """End the process if an error ended one of its own threads."""
        previous(args)
        if args.thread is not None and args.thread.name.startswith(_OWN_THREADS):
            logger.critical("thread %s died, so this process ends", args.thread.name, exc_info=args.exc_value)
            self._fatal = self._fatal or args.exc_value
            self.exit_code = EXIT_FATAL
            self.finish()

    # --- inside another program

    def start(self) -> None:
        """Start all parts. Retries until Redis returns the queues."""
        board, config = self.board, self.config
        self.hooks.process_start()
        self._monitor.start()
        if not self._read_queues():
            return
        if config.consumer:
            self.consumer = self._make_consumer()
        # After an outage no lease is taken for the time of one: this loop has to be back before.
        self._heartbeat = Loop("heartbeat", Heartbeat(self), self.health, longest=config.heartbeat)
        duties = dict(self.duties)
        if config.dispatcher:
            duties |= dispatcher_duties(self, self.scope, self._selector if config.consumer else None)
        self._loops = [Loop(name, duty, self.health) for name, duty in duties.items()]
        # From the inside out: each part is started before its callers.
        if board is not None:
            board.ready = time.monotonic()  # from here on there may be jobs to settle if this process dies
        self._heartbeat.start()  # before the first lease is won
        if self.consumer is not None:
            self.consumer.start()
        for loop in self._loops:
            loop.start()
        parts = f"{config.threads} threads" if config.consumer else "no consumer"
        parts += ", dispatcher" if config.dispatcher else ""
        queues = ",".join(self.scope.names)
        logger.info("worker %s started: pid %d, queues %s, %s", self.name, os.getpid(), queues, parts)

    def _read_queues(self) -> bool:
        """Read the queues once Redis is reachable. Return False if the worker was stopped before."""
        pause = Backoff()
        while True:
            try:
                self.scope.refresh(choices_of(self.broker, self._program))
            except Exception as error:
                if self._wait(pause.next(self.health.failed("start", error))):
                    return False
            else:
                self.health.recovered()
                return True

    def _make_consumer(self) -> Consumer:
        """Return the fetch loop, with the parts that run jobs."""
        selector = self._selector
        execution = Execution(
            self.registry,
            self.hooks,
            self.middlewares,
            board=self.board,
            loop=self._event_loop,
            timeout_monitor=self._monitor,
            knows_task=self.broker.knows_task,
        )
        slots = Slots(self.config.threads, execution, self.hooks, selector.nudge)
        self._monitor.running = slots.running
        waker = None  # in quarantine: the tokens are for processes that serve all other jobs
        if self.config.which != "quarantined":
            waker = WakeListener(self.broker, selector, self.health, selector.lock)
        return Consumer(self, selector, slots, waker, execution.readiness)

    def entry(self) -> dict[str, Any]:
        """Return what the registry of workers stores about this process now."""
        config, consumer = self.config, self.consumer
        return {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "queues": self.scope.names,
            "all_queues": config.all_queues,
            "ignored": self.scope.ignored,
            "program": self._program,
            "threads": config.threads if config.consumer else 0,
            "running": config.threads - consumer.slots.free if consumer else 0,
            "idle_ms": round(consumer.idle_seconds * 1000) if consumer else 0,
            "settled": consumer.settled if consumer else 0,
            "dispatcher": config.dispatcher,
            "heartbeat_ms": round(config.heartbeat * 1000),
            "quarantine": config.which == "quarantined",
            "started": int(self._started_at * 1000),
            "rss_mib": round(resident_mib()),
            "stopping": self.stop_by is not None,
            "jobs": consumer.slots.jobs() if consumer else [],
        }

    # --- causes of the end, from any thread

    def drain(self) -> None:
        """Stop reserving, finish the held jobs, then be done."""
        logger.info("worker %s drains", self.name)
        self.end(Stage.DRAIN)

    def begin_stop(self, grace: float) -> None:
        """Stop reserving, give back what has not begun, and give running jobs so many seconds.

        A deadline that was set before remains.
        """
        self.end(Stage.GIVE_BACK, grace=grace)

    def end(self, stage: Stage, *, grace: float | None = None, code: int = EXIT_OK) -> None:
        """Advance towards the end.

        Args:
            stage: that of the fetch loop.
            grace: seconds of the grace period, which begins now; None = running jobs have the time that they need.
            code: exit code of the process, which says why it ends.
        """
        self.exit_code = code or self.exit_code
        if grace is not None and self.stop_by is None:
            self.stop_by = time.monotonic() + grace
            self._poke()
        if self.consumer is not None:
            self.consumer.advance(stage)
        else:
            self.finish()

    def finish(self) -> None:
        """Record that the worker has nothing more to do."""
        self.done.set()
        self._poke()

    def _poke(self) -> None:
        if self._signals is not None:
            self._signals.poke()

    def end_by_command(self, command: str) -> None:
        """Carry out a "stop" or "drain" command, which is meant for the whole program."""
        if self.child_spec is not None and self._is_supervised:
            os.kill(self.child_spec.parent, DRAIN if command == "drain" else STOP_REQUEST)
            return
        if command == "drain":
            self.drain()
        else:
            self.begin_stop(self.config.grace)
        self._end_soon()

    def _end_soon(self) -> None:
        """End the worker inside another program, which may not wait for ``done``; else the main thread does it."""

        def end() -> None:
            if self.stop_by is None:
                self.done.wait()
            self.stop()

        if self._signals is None:
            threading.Thread(target=end, name="delayq-end", daemon=True).start()

    def _overran(self, attempt: Attempt) -> None:
        """End the process because this attempt cannot be ended. Called by the timeout monitor."""
        self.hooks.log.hangs(attempt, "this process finishes its other jobs and ends")
        self.end(Stage.DRAIN, grace=self.config.grace, code=EXIT_STUCK)

    def _check(self) -> None:
        """Check memory use, supervisor, patience with Redis and the deadline every second, without network I/O."""
        most, patience = self.config.max_rss, self.config.redis_patience
        if self.stop_by is not None:
            if self.consumer is not None and self.seconds_left <= SHUTDOWN_WARNING_SECONDS:
                for attempt in list(self.consumer.held):
                    attempt.should_stop = True
            return
        if most is not None and self.exit_code == EXIT_OK and resident_mib() > most:
            logger.info("worker %s uses more than %s MiB and is replaced", self.name, most)
            self.end(Stage.DRAIN, code=EXIT_RECYCLE)
        if self.child_spec is not None and not self._is_supervised:
            logger.warning("worker %s lost its supervisor", self.name)
            self.begin_stop(self.config.grace)
        away = max(self.health.lasting(), self.consumer.unreachable_for() if self.consumer is not None else 0.0)
        if patience is not None and away > patience:
            logger.error("worker %s ends: Redis or a part of it has been away for %.0f s", self.name, away)
            self.end(Stage.GIVE_BACK, grace=self.config.grace, code=EXIT_NO_REDIS)
            self._end_soon()

    # --- the end

    def stop(self, grace: float | None = None) -> bool:
        """End the worker: running jobs get ``grace`` seconds (default: the configuration's).

        A job that still runs then keeps its lease until that ends, or until the supervisor settles it after this
        process is gone. This process cannot give it back, because its thread may continue. Two threads may call this
        method.

        Returns:
            False if a job still runs.
        """
        with self._stopping:
            self._clean = self._clean or self._end(self.config.grace if grace is None else grace)
            return self._clean

    def _end(self, grace: float) -> bool:
        self.begin_stop(grace)
        # First what brings new work: the wake listener and the dispatcher. The heartbeat continues while jobs run.
        if self.consumer is not None and self.consumer.waker is not None:
            self.consumer.waker.close()
        close_loops(self._loops)
        clean = self._end_jobs()
        if self._heartbeat is not None:
            self._heartbeat.close()
        self._monitor.close()
        self._unregister()
        left = len(self.consumer.held) if self.consumer is not None else 0
        if self._fatal is not None or not clean:
            self._call_last_words(self._fatal or TimeoutError(f"{left} jobs still ran at the end of the process"))
        if clean:
            call_safely("the hook process_stop", self.hooks.process_stop)
        if self.board is not None:
            self.board.leaving = True
        logger.info("worker %s stopped%s", self.name, "" if clean else f", {left} jobs still running")
        self.done.set()
        return clean

    def _end_jobs(self) -> bool:
        """Wait for the fetch loop until the grace period ends, then end it. Return False if a job still runs."""
        consumer = self.consumer
        if consumer is None:
            return True
        if not consumer.join(max(0.0, self.seconds_left)):
            consumer.advance(Stage.HALT)
            consumer.join(1.0)
        clean = consumer.slots.close(1.0 if not consumer.held else 0.0)
        if clean:
            self._event_loop.close()
        return clean

    def _unregister(self) -> None:
        """Take this process off the registry, and store its figures."""
        broker = self.broker
        try:
            broker.forget(self.name)
            broker.tally.flush()
        except Exception as error:
            logger.info("worker %s could not take itself off the registry: %s", self.name, error)
        broker.tally.close()

    def _call_last_words(self, error: BaseException) -> None:
        if not self._had_last_words:
            self._had_last_words = True
            call_safely("the hook last_words", self.hooks.last_words, error)

"""Composition root: builds the parts of one worker process, starts them, and stops them in a safe order."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..core.redis.faults import Backoff
from ..core.task import Registry
from ..core.workers import choices_of
from .attempt import Attempt
from .changes import Changes
from .child import EXIT_OK, EXIT_RECYCLE, EXIT_STUCK, ChildSpec, exit_code_of, is_orphan, new_name, served_by
from .commands import WorkerCommands
from .config import WorkerConfig
from .consumer import Consumer
from .duties import dispatcher_duties
from .end_hooks import EndHooks
from .eventloop import EventLoop
from .execution import Execution
from .heartbeat import Heartbeat
from .hooks import Hooks
from .limits import REACTION_SECONDS, TimeoutMonitor, resident_mib
from .loop import Duty, Loop
from .metrics_flusher import MetricsFlusher
from .middleware import Middleware
from .redis_health import RedisHealth
from .scope import Scope
from .scoreboard import Scoreboard
from .shard_selector import ShardSelector, build_sources
from .shutdown import DRAIN, DUMP, STOP, Signals, log_stacks
from .slots import Slots
from .unknown import UnknownTasks
from .wake_listener import WakeListener

if TYPE_CHECKING:
    from ..core.broker import Broker
    from ..core.queue import Queue

logger = logging.getLogger(__name__)

#: seconds before the grace period ends at which ``should_stop`` turns true
_WARNING_TIME = 5.0


class Worker:
    """One worker process. ``run()`` as a program; ``start()`` and ``stop()`` inside another one.

    Args:
        duties: further housekeeping of a dispatcher, by name; each gets its own loop.
        always: the same for every process, whether it has a dispatcher or not.
        changes: mailbox in which this process notes changes for those duties.
        child_spec: the child specification from the supervisor; None without one.
        board: scoreboard on which the supervisor reads what this process runs.
        patience: seconds that an attempt gets to react to its time limit.
    """

    def __init__(
        self,
        broker: Broker,
        registry: Registry,
        config: WorkerConfig,
        hooks: Hooks | None = None,
        *,
        middlewares: Sequence[Middleware] = (),
        duties: dict[str, Duty] | None = None,
        always: dict[str, Duty] | None = None,
        changes: Changes | None = None,
        child_spec: ChildSpec | None = None,
        board: Scoreboard | None = None,
        reaction_seconds: float = REACTION_SECONDS,
    ) -> None:
        self._which = served_by(child_spec)
        if self._which == "quarantined":
            config = replace(config, threads=1, prefetch_ms=0.0, dispatcher=False)
        self.config = config
        self.name = config.name or (child_spec.name if child_spec else new_name())
        self.program = (child_spec.program if child_spec else "") or self.name
        #: set when the worker has nothing more to do, for any reason
        self.done = threading.Event()
        self._broker = broker
        self._registry = registry
        self._hooks = hooks or Hooks()
        self._end_hooks = EndHooks(self._hooks)
        self._middlewares = middlewares
        self._extra = duties or {}
        self._always = always or {}
        self._changes = changes or Changes()
        self._child_spec = child_spec
        self._board = board
        self._reaction_seconds = reaction_seconds
        self._exit_code = EXIT_OK
        self._signals: Signals | None = None
        self._stop_by: float | None = None
        self._signalled = False
        self._warning: threading.Timer | None = None
        self._ending = threading.Lock()
        self._clean = False
        self._started_at = time.time()
        self.health = RedisHealth(lambda fault: broker.tally.count("redis_error", fault.value))
        self._scope = Scope(broker, config, self._set_queues)
        self.consumer: Consumer | None = None
        self._selector: ShardSelector | None = None
        self._slots: Slots | None = None
        self._waker: WakeListener | None = None
        self._timeout_monitor: TimeoutMonitor | None = None
        self._event_loop = EventLoop()
        self._heartbeat: Loop | None = None
        self._loops: list[Loop] = []

    # --- as a program

    def run(self) -> int:
        """Work until a signal arrives, or until nothing is left to do. Main thread only.

        Returns:
            The exit code. Threads of jobs that could not be ended may still be alive: end the process with
                :func:`leave`.
        """
        ignore = frozenset() if self._child_spec is None else frozenset({int(signal.SIGINT)})
        with Signals(ignore=ignore) as signals, self._end_hooks.at_fatal_errors(self._fail):
            self._signals = signals
            try:
                self.start()
                while not self.done.is_set():
                    for number in signals.wait(None if self._stop_by is None else self._seconds_left()):
                        self._handle_signal(number)
                    if self._stop_by is not None and self._seconds_left() <= 0:
                        break
                self.stop(max(0.0, self._seconds_left()) if self._stop_by is not None else self.config.grace)
            finally:
                self._signals = None
        return self._exit_code

    def _fail(self, code: int) -> None:
        """End the process with this code, because one of its own threads died."""
        self._exit_code = code
        self._finish()

    def _handle_signal(self, number: int) -> None:
        if number == DUMP:
            log_stacks()
        elif number == DRAIN:
            logger.info("worker %s drains", self.name)
            self.drain()
        elif number in STOP:
            if self._signalled:
                if self._child_spec is not None and not is_orphan(self._child_spec):
                    return  # a signal to the whole process group arrives twice; only the supervisor may stop at once
                logger.warning("worker %s stops at once", self.name)
                self._stop_by = 0.0
                return
            self._signalled = True
            if self._stop_by is None:
                self._begin_stop(self.config.grace)
                logger.info("worker %s stops, %.0f s for running jobs", self.name, self.config.grace)

    def _seconds_left(self) -> float:
        return (self._stop_by or 0.0) - time.monotonic()

    # --- inside another program

    def start(self) -> None:
        """Start all parts. Retries until Redis returns the queues."""
        self._hooks.process_start()
        selector = self._open()
        if selector is None:
            return
        if self._board is not None:
            self._board.stamp(time.monotonic())
        if self.config.consumer:
            self._build_consumer(selector)
        else:
            self._timeout_monitor = TimeoutMonitor([], self._board, self._overran, self._beat)
        heartbeat = Heartbeat(
            self._broker,
            self.name,
            self.config.heartbeat,
            self.describe,
            self.consumer,
            self._slots,
            lambda reply: self._scope.follow(reply.choices),
            WorkerCommands(self._broker, self.name, self._end_by_command),
        )
        self._heartbeat = Loop("heartbeat", heartbeat, self.health)
        duties = {
            **(self._dispatcher_duties() if self.config.dispatcher else {}),
            "figures": MetricsFlusher(self._broker.tally),
            **self._always,
        }
        self._loops = [Loop(name, duty, self.health) for name, duty in duties.items()]
        self._start_parts()
        logger.info(
            "worker %s started: pid %d, queues %s, %s%s",
            self.name,
            os.getpid(),
            ",".join(self._scope.names),
            f"{self.config.threads} threads" if self.config.consumer else "no consumer",
            ", dispatcher" if self.config.dispatcher else "",
        )

    def _open(self) -> ShardSelector | None:
        """Return the shard selector, once Redis is reachable.

        None if the worker was stopped before, so that nothing may begin.
        """
        selector = self._selector = ShardSelector([], scheduler=self.config.scheduler, on_unknown=self._scope.refresh)
        pause = Backoff()
        while True:
            try:
                self._scope.refresh(choices_of(self._broker, self.program))
            except Exception as error:
                if self._wait_for_stop(pause.next(self.health.failed("start", error))):
                    return None
            else:
                self.health.recovered()
                return selector

    def _set_queues(self, queues: Sequence[Queue]) -> None:
        """Replace the queues and shards that this process reserves from."""
        selector = self._selector
        if selector is not None:
            selector.adopt(build_sources(queues, self.config, self.name, selector.by_place))

    def watch(self, queue: str) -> None:
        """Reserve from this queue too, from now on; one that does not exist yet is created. Thread-safe.

        Raises:
            InvalidJob: it cannot be the name of a queue, or it is of kind "pull".
            QueueUnavailable: Redis is unreachable; nothing has changed.
        """
        self._scope.watch(queue, now=self._selector is not None)

    def ignore(self, queue: str) -> None:
        """Stop reserving from this queue; held jobs are finished. Thread-safe.

        Raises:
            InvalidJob, QueueUnavailable: see :meth:`watch`.
        """
        self._scope.ignore(queue, now=self._selector is not None)

    @property
    def queues(self) -> Sequence[Queue]:
        """Every queue that this process serves, as of the last read of the registry."""
        return self._scope.queues

    def _wait_for_stop(self, seconds: float) -> bool:
        """Wait this long, while no other part handles signals yet. Return True if the worker is to stop."""
        if self._signals is None:
            return self.done.wait(seconds)
        for number in self._signals.wait(seconds):
            self._handle_signal(number)
        return self.done.is_set()

    def _build_consumer(self, selector: ShardSelector) -> None:
        config = self.config
        execution = Execution(self._registry, self._hooks, self._middlewares, board=self._board, loop=self._event_loop)
        execution.unknown = UnknownTasks(self._broker.knows_task)
        self._slots = Slots(config.threads, execution, self._hooks, selector.attempt_ended)
        self._timeout_monitor = execution.timeout_monitor = TimeoutMonitor(
            self._slots.running, self._board, self._overran, self._beat, reaction_seconds=self._reaction_seconds
        )
        if self._which != "quarantined":  # the tokens are for processes that serve all other jobs
            self._waker = WakeListener(self._broker, selector, self.health, selector.lock)
        self.consumer = Consumer(
            config,
            self.name,
            selector,
            self._slots,
            self.health,
            self._waker,
            self._broker.lease_ms / 1000,
            self._registry,
            self._changes,
            execution.readiness,
            self._broker.tally,
            self._which,
            self._board,
        )

    def _dispatcher_duties(self) -> dict[str, Duty]:
        duties = dispatcher_duties(
            self._broker,
            self._registry,
            self.config,
            self._hooks,
            name=self.name,
            scope=self._scope,
            health=self.health,
            selector=self._selector if self.config.consumer else None,
            changes=self._changes,
        )
        return {**duties, **self._extra}

    def _start_parts(self) -> None:
        """Start the parts from the inside out: each part is started before its callers."""
        if self._board is not None:
            self._board.set_ready(time.monotonic())  # from here on there may be jobs to settle if this process dies
        if self._timeout_monitor is not None:
            self._timeout_monitor.start()
        if self._slots is not None:
            self._slots.start()
        if self._heartbeat is not None:
            self._heartbeat.start()  # before the first lease is won
        if self.consumer is not None:
            self.consumer.start()
            threading.Thread(target=self._await_consumer, args=(self.consumer,), name="delayq-end", daemon=True).start()
        for loop in self._loops:
            loop.start()

    def _await_consumer(self, consumer: Consumer) -> None:
        consumer.finished.wait()
        self._finish()

    def _finish(self) -> None:
        self.done.set()
        if self._signals is not None:
            self._signals.poke()

    def describe(self) -> dict[str, Any]:
        """Return this worker's entry in the registry of workers."""
        slots, consumer = self._slots, self.consumer
        return {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "queues": self._scope.names,
            "all_queues": self.config.all_queues,
            "ignored": self._scope.ignored,
            "program": self.program,
            "threads": self.config.threads if self.config.consumer else 0,
            "running": self.config.threads - slots.free if slots else 0,
            "settled": consumer.settled if consumer else 0,
            "dispatcher": self.config.dispatcher,
            "heartbeat_ms": round(self.config.heartbeat * 1000),
            "quarantine": self._which == "quarantined",
            "started": int(self._started_at * 1000),
            "rss_mib": round(resident_mib()),
            "stopping": self._stop_by is not None,
            "jobs": slots.jobs() if slots else [],
        }

    # --- the end

    def drain(self) -> None:
        """Stop reserving, finish the held jobs, then be done."""
        if self.consumer is not None:
            self.consumer.stop(give_back=False)
        else:
            self._finish()

    def _begin_stop(self, grace: float) -> None:
        self._stop_by = time.monotonic() + grace
        if self.consumer is not None:
            self.consumer.stop()
            self._warning = threading.Timer(max(0.0, grace - _WARNING_TIME), self._warn_handlers)
            self._warning.daemon = True
            self._warning.start()
        else:
            self._finish()

    def _end_by_command(self, command: str) -> None:
        """Carry out a "stop" or "drain" command, which is meant for the whole program."""
        if self._child_spec is not None and self._board is not None and not is_orphan(self._child_spec):
            self._board.request_end(command)  # its supervisor sees it within a second
            return
        if command == "drain":
            self.drain()
        elif self._stop_by is None:
            self._begin_stop(self.config.grace)
        if self._signals is not None:
            self._signals.poke()  # run() does the rest
        else:
            threading.Thread(target=self._end_alone, name="delayq-told", daemon=True).start()

    def _end_alone(self) -> None:
        """End the worker inside another program, which may not wait for ``done``."""
        if self._stop_by is None:
            self.done.wait()
        self.stop()

    def _warn_handlers(self) -> None:
        if self.consumer is not None:
            for attempt in list(self.consumer.held):
                attempt.should_stop = True

    def stop(self, grace: float | None = None) -> bool:
        """End the worker: running jobs get ``grace`` seconds (default: the configuration's).

        A job that still runs then keeps its lease until that ends, or until the supervisor settles it after this
        process is gone. This process cannot give it back, because its thread may continue. Two threads may call this
        method.

        Returns:
            False if a job still runs.
        """
        with self._ending:
            self._clean = self._clean or self._end(self.config.grace if grace is None else grace)
            return self._clean

    def _end(self, grace: float) -> bool:
        if self._stop_by is None:
            self._begin_stop(grace)
        # First what brings new work: the wake listener and the dispatcher. The heartbeat continues while jobs run.
        if self._waker is not None:
            self._waker.close()
        for loop in self._loops:
            loop.close()
        clean = True
        if self.consumer is not None and self._slots is not None:
            if not self.consumer.join(max(0.0, self._seconds_left())):
                self.consumer.halt()
                self.consumer.join(1.0)
            if self._exit_code == EXIT_OK:
                self._exit_code = exit_code_of(self.consumer)
            clean = self._slots.close(0.2 if not self.consumer.held else 0.0)
        if self._warning is not None:
            self._warning.cancel()
        if self._heartbeat is not None:
            self._heartbeat.close()
        if self._timeout_monitor is not None:
            self._timeout_monitor.close()
        if clean:
            self._event_loop.close()
        self._unregister(clean)
        return clean

    def _unregister(self, clean: bool) -> None:
        try:
            self._broker.forget(self.name)
            self._broker.tally.flush()
        except Exception as error:
            logger.info("worker %s could not take itself off the registry: %s", self.name, error)
        left = len(self.consumer.held) if self.consumer is not None else 0
        self._end_hooks.call(clean, left)
        if self._board is not None:
            self._board.set_leaving()
        logger.info("worker %s stopped%s", self.name, "" if clean else f", {left} jobs still running")
        self.done.set()

    # --- called by the timeout monitor

    def _overran(self, attempt: Attempt) -> None:
        logger.error(
            "%s: task %s ignores its time limit; this process finishes its other jobs and ends",
            attempt.job.id,
            attempt.job.task,
        )
        self._exit_code = EXIT_STUCK
        if self.consumer is not None:
            self.consumer.overran(attempt)
        if self._stop_by is None:
            self._stop_by = time.monotonic() + self.config.grace
            if self._signals is not None:
                self._signals.poke()

    def _beat(self) -> None:
        """Check the memory use and the supervisor every second, without network I/O."""
        config = self.config
        if self._stop_by is not None:
            return
        if config.max_rss is not None and self._exit_code == EXIT_OK and resident_mib() > config.max_rss:
            logger.info("worker %s uses more than %s MiB and is replaced", self.name, config.max_rss)
            self._exit_code = EXIT_RECYCLE
            self.drain()
        if self._child_spec is not None and is_orphan(self._child_spec):
            logger.warning("worker %s lost its supervisor", self.name)
            self._begin_stop(config.grace)
            if self._signals is not None:
                self._signals.poke()

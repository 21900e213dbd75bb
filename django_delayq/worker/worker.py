"""Composition root: builds the parts of one worker process, starts them, and stops them in a safe order."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..core.redis.faults import Backoff
from ..core.task import Registry
from ..core.workers import choices_of
from .changes import Changes
from .child import ChildSpec, Scoreboard, new_name, served_by
from .commands import WorkerCommands
from .config import WorkerConfig
from .consumer import Consumer
from .dispatcher import dispatcher_duties
from .end_hooks import EndHooks
from .ending import Ending
from .heartbeat import Heartbeat
from .hooks import Hooks, Middleware
from .job_parts import JobParts
from .loop import Duty, Loop, close_loops
from .process import Process
from .redis_health import RedisHealth
from .registration import Registration
from .scope import Scope
from .shard_selector import ShardSelector, build_sources
from .shutdown import Signals
from .timeouts import REACTION_SECONDS, TimeoutMonitor

if TYPE_CHECKING:
    from ..core.broker import Broker
    from ..core.queue import Queue

logger = logging.getLogger(__name__)


class Worker:
    """One worker process. ``run()`` as a program; ``start()`` and ``stop()`` inside another one.

    Args:
        duties: further housekeeping of a dispatcher, by name; each gets its own loop.
        always: the same for every process, whether it has a dispatcher or not.
        changes: mailbox in which this process notes changes for those duties.
        child_spec: the child specification from the supervisor; None without one.
        board: scoreboard on which the supervisor reads what this process runs.
        reaction_seconds: seconds that an attempt gets to react to its time limit.
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
        which = served_by(child_spec)
        if which == "quarantined":
            config = replace(config, threads=1, prefetch_ms=0.0, dispatcher=False)
        self.config = config
        self.name = config.name or (child_spec.name if child_spec else new_name())
        self.health = RedisHealth(lambda fault: broker.tally.count("redis_error", fault.value))
        self._process = Process(
            name=self.name,
            program=(child_spec.program if child_spec else "") or self.name,
            config=config,
            broker=broker,
            registry=registry,
            hooks=hooks or Hooks(),
            health=self.health,
            changes=changes or Changes(),
            which=which,
            board=board,
        )
        #: when and how this process ends
        ending = self.ending = Ending(self._process, child_spec, self.stop)
        #: set when the worker has nothing more to do, for any reason
        self.done = ending.done
        self._end_hooks = EndHooks(self._process.hooks)
        self._middlewares = middlewares
        self._extra = duties or {}
        self._always = always or {}
        self._child_spec = child_spec
        self._reaction_seconds = reaction_seconds
        self._stopping = threading.Lock()
        self._clean = False
        self._scope = Scope(broker, config, self._set_queues)
        self._registration = Registration(self._process, self._scope, ending)
        self._selector: ShardSelector | None = None
        self._jobs: JobParts | None = None
        self._timeout_monitor: TimeoutMonitor | None = None
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
        ending = self.ending
        with Signals(ignore=ignore) as signals, self._end_hooks.at_fatal_errors(ending.fail):
            ending.signals = signals
            try:
                self.start()
                ending.wait()
                self.stop(None if ending.stop_by is None else max(0.0, ending.seconds_left))
            finally:
                ending.signals = None
        return ending.exit_code

    # --- inside another program

    def start(self) -> None:
        """Start all parts. Retries until Redis returns the queues."""
        process, board = self._process, self._process.board
        process.hooks.process_start()
        selector = self._open()
        if selector is None:
            return
        if board is not None:
            board.stamped = time.monotonic()
        ending, jobs = self.ending, None
        if self.config.consumer:
            jobs = JobParts(process, selector, ending, self._middlewares, reaction_seconds=self._reaction_seconds)
        self._jobs = self._registration.jobs = jobs
        self._timeout_monitor = (
            jobs.timeout_monitor if jobs else TimeoutMonitor([], board, ending.overran, ending.check)
        )
        heartbeat = Heartbeat(
            process,
            self._registration.entry,
            jobs.consumer if jobs else None,
            jobs.slots if jobs else None,
            lambda reply: self._scope.follow(reply.choices),
            WorkerCommands(process.broker, self.name, ending.end_by_command),
        )
        self._heartbeat = Loop("heartbeat", heartbeat, self.health)
        duties = dict(self._always)
        if self.config.dispatcher:
            duties |= dispatcher_duties(process, self._scope, selector if self.config.consumer else None) | self._extra
        self._loops = [Loop(name, duty, self.health) for name, duty in duties.items()]
        self._start_parts(self._timeout_monitor, self._heartbeat)
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

        None if the worker was stopped before, or lost its supervisor, so that nothing may begin.
        """
        selector = self._selector = ShardSelector([], scheduler=self.config.scheduler, on_unknown=self._scope.refresh)
        pause = Backoff()
        while True:
            try:
                self._scope.refresh(choices_of(self._process.broker, self._process.program))
            except Exception as error:
                seconds = pause.next(self.health.failed("start", error))
                self.ending.check()  # the timeout monitor, which does this later, is not started yet
                if self.ending.wait_for_stop(min(seconds, self.config.redis_patience or seconds)):
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

    def _start_parts(self, timeout_monitor: TimeoutMonitor, heartbeat: Loop) -> None:
        """Start the parts from the inside out: each part is started before its callers."""
        board = self._process.board
        if board is not None:
            board.ready = time.monotonic()  # from here on there may be jobs to settle if this process dies
        timeout_monitor.start()
        if self._jobs is not None:
            self._jobs.slots.start()
        heartbeat.start()  # before the first lease is won
        if self._jobs is not None:
            self._jobs.start_consumer()
        for loop in self._loops:
            loop.start()

    @property
    def consumer(self) -> Consumer | None:
        """Fetch loop; None before the start and in a process that runs no jobs."""
        return self._jobs.consumer if self._jobs is not None else None

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
        self.ending.begin(grace)
        # First what brings new work: the wake listener and the dispatcher. The heartbeat continues while jobs run.
        if self._jobs is not None:
            self._jobs.stop_listening()
        close_loops(self._loops)
        clean = self._jobs is None or self._jobs.close()
        self.ending.cancel_warning()
        if self._heartbeat is not None:
            self._heartbeat.close()
        if self._timeout_monitor is not None:
            self._timeout_monitor.close()
        self._leave(clean)
        return clean

    def _leave(self, clean: bool) -> None:
        self._registration.remove()
        left = len(self.consumer.held) if self.consumer is not None else 0
        self._end_hooks.call(clean, left)
        if self._process.board is not None:
            self._process.board.leaving = True
        logger.info("worker %s stopped%s", self.name, "" if clean else f", {left} jobs still running")
        self.done.set()

"""Parts of a worker process that run jobs: execution, slots, time limits, wake listener and fetch loop."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .child import EXIT_OK
from .consumer import Consumer
from .ends import UnknownTasks
from .execution import Execution
from .slots import EventLoop, Slots
from .timeouts import TimeoutMonitor
from .wake_listener import WakeListener

if TYPE_CHECKING:
    from .ending import Ending
    from .hooks import Middleware
    from .process import Process
    from .shard_selector import ShardSelector


class JobParts:
    """Parts of one process, built and connected; each has its own ``start``. See :class:`.worker.Worker`."""

    def __init__(
        self,
        process: Process,
        selector: ShardSelector,
        ending: Ending,
        middlewares: Sequence[Middleware],
        *,
        reaction_seconds: float,
    ) -> None:
        self._ending = ending
        self._event_loop = EventLoop()
        execution = Execution(process.registry, process.hooks, middlewares, board=process.board, loop=self._event_loop)
        execution.unknown = UnknownTasks(process.broker.knows_task)
        self.slots = Slots(process.config.threads, execution, process.hooks, selector.attempt_ended)
        self.timeout_monitor = execution.timeout_monitor = TimeoutMonitor(
            self.slots.running, process.board, ending.overran, ending.check, reaction_seconds=reaction_seconds
        )
        self._waker: WakeListener | None = None
        if process.which != "quarantined":  # the tokens are for processes that serve all other jobs
            self._waker = WakeListener(process.broker, selector, process.health, selector.lock)
        self.consumer = ending.consumer = Consumer(process, selector, self.slots, self._waker, execution.readiness)

    def start_consumer(self) -> None:
        """Start the fetch loop; when it has ended, the worker has nothing more to do."""
        self.consumer.start()
        threading.Thread(target=self._await_consumer, name="delayq-end", daemon=True).start()

    def _await_consumer(self) -> None:
        self.consumer.finished.wait()
        self._ending.finish()

    def stop_listening(self) -> None:
        """Take no wake tokens any more."""
        if self._waker is not None:
            self._waker.close()

    def close(self) -> bool:
        """Wait for the fetch loop until the grace period ends, then end it. Return False if a job still runs."""
        consumer, ending = self.consumer, self._ending
        if not consumer.join(max(0.0, ending.seconds_left)):
            consumer.halt()
            consumer.join(1.0)
        if ending.exit_code == EXIT_OK:
            ending.exit_code = consumer.exit_code
        clean = self.slots.close(1.0 if not consumer.held else 0.0)
        if clean:
            self._event_loop.close()
        return clean

"""Threads of the supervisor that settle the jobs of dead children, one for each child."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ..core.errors import QueueUnavailable
from ..core.redis.faults import Backoff
from ..core.workers import choices_of
from .loop import join_threads
from .salvage import SHARD_SECONDS, Death, Salvage
from .shards import Scope

if TYPE_CHECKING:
    from ..core.broker import Broker
    from ..core.queue import Queue
    from .config import WorkerConfig
    from .orphans import Orphans

logger: Final = logging.getLogger("django_delayq.worker.supervisor")


class SalvageThreads:
    """Threads that settle the jobs of dead children, so that a listener that hangs delays no other child.

    Args:
        program: name under which the queues are stored that operators added to the children.
        expect: called with the seconds until a job is due that waits for quarantine now.
    """

    def __init__(
        self,
        broker: Callable[[], Broker],
        config: WorkerConfig,
        program: str,
        orphans: Orphans,
        expect: Callable[[float], None],
    ) -> None:
        self._broker = broker
        self._config = config
        self._program = program
        self._orphans = orphans
        self._expect = expect
        self._threads: list[threading.Thread] = []
        self._known: list[Queue] = []

    def start(self, death: Death) -> None:
        """Start a thread for one dead child."""
        salvage = Salvage(death, self._orphans, self._expect)
        thread = threading.Thread(target=self._settle, args=(death.worker, salvage), name="delayq-salvage", daemon=True)
        self._threads = [other for other in self._threads if other.is_alive()] + [thread]
        thread.start()

    def join(self, seconds: float) -> None:
        """Wait up to this long for all threads."""
        join_threads(self._threads, seconds)

    def _settle(self, name: str, salvage: Salvage) -> None:
        """Settle the jobs of one child, with retries for one lease; after that any dispatcher's reaper does it."""
        pause = Backoff()
        while True:
            try:
                broker = self._broker()
                salvage.run(self._queues(broker))
                broker.forget(name)
                broker.tally.flush()
                return
            except Exception as error:
                if time.monotonic() - salvage.held_since > self._broker().lease_ms / 1000:
                    logger.warning("jobs of child %s are left to the reaper: %s", name, error)
                    return
                time.sleep(pause.next())

    def _queues(self, broker: Broker) -> list[Queue]:
        """Return the queues of the children; those of the last time if the registry of a cluster cannot be reached."""
        try:
            scope = Scope(broker, self._config)
            with broker.connection.limited(SHARD_SECONDS):
                scope.refresh(choices_of(broker, self._program))
            self._known = scope.queues
        except QueueUnavailable:
            if not (self._known and broker.connection.cluster):
                raise
        return self._known

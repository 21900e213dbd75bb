"""Entry of a worker process in the registry of workers."""

from __future__ import annotations

import logging
import os
import socket
import time
from typing import TYPE_CHECKING, Any, Final

from .timeout_monitor import resident_mib

if TYPE_CHECKING:
    from ..core.broker import Broker
    from ..core.replies import Which
    from .config import WorkerConfig
    from .ending import Ending
    from .job_parts import JobParts
    from .scope import Scope

logger: Final = logging.getLogger("django_delayq.worker.worker")


class Registration:
    """Entry of one process, which its heartbeat writes."""

    def __init__(
        self,
        broker: Broker,
        name: str,
        program: str,
        config: WorkerConfig,
        which: Which,
        scope: Scope,
        ending: Ending,
    ) -> None:
        #: the parts that run jobs, in a process that has them
        self.jobs: JobParts | None = None
        self._broker = broker
        self._name = name
        self._program = program
        self._config = config
        self._which = which
        self._scope = scope
        self._ending = ending
        self._started_at = time.time()

    def entry(self) -> dict[str, Any]:
        """Return what the registry of workers stores about this process now."""
        jobs, config = self.jobs, self._config
        return {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "queues": self._scope.names,
            "all_queues": config.all_queues,
            "ignored": self._scope.ignored,
            "program": self._program,
            "threads": config.threads if config.consumer else 0,
            "running": config.threads - jobs.slots.free if jobs else 0,
            "settled": jobs.consumer.settled if jobs else 0,
            "dispatcher": config.dispatcher,
            "heartbeat_ms": round(config.heartbeat * 1000),
            "quarantine": self._which == "quarantined",
            "started": int(self._started_at * 1000),
            "rss_mib": round(resident_mib()),
            "stopping": self._ending.stop_by is not None,
            "jobs": jobs.slots.jobs() if jobs else [],
        }

    def remove(self) -> None:
        """Take this process off the registry, and store its figures."""
        try:
            self._broker.forget(self._name)
            self._broker.tally.flush()
        except Exception as error:
            logger.info("worker %s could not take itself off the registry: %s", self._name, error)

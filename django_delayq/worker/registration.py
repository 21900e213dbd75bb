"""Entry of a worker process in the registry of workers."""

from __future__ import annotations

import logging
import os
import socket
import time
from typing import TYPE_CHECKING, Any, Final

from .timeouts import resident_mib

if TYPE_CHECKING:
    from .ending import Ending
    from .job_parts import JobParts
    from .process import Process
    from .scope import Scope

logger: Final = logging.getLogger("django_delayq.worker.worker")


class Registration:
    """Entry of one process, which its heartbeat writes."""

    def __init__(self, process: Process, scope: Scope, ending: Ending) -> None:
        #: the parts that run jobs, in a process that has them
        self.jobs: JobParts | None = None
        self._process = process
        self._scope = scope
        self._ending = ending
        self._started_at = time.time()

    def entry(self) -> dict[str, Any]:
        """Return what the registry of workers stores about this process now."""
        jobs, config = self.jobs, self._process.config
        return {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "queues": self._scope.names,
            "all_queues": config.all_queues,
            "ignored": self._scope.ignored,
            "program": self._process.program,
            "threads": config.threads if config.consumer else 0,
            "running": config.threads - jobs.slots.free if jobs else 0,
            "idle_ms": round(jobs.consumer.idle_seconds * 1000) if jobs else 0,
            "settled": jobs.consumer.settled if jobs else 0,
            "dispatcher": config.dispatcher,
            "heartbeat_ms": round(config.heartbeat * 1000),
            "quarantine": self._process.which == "quarantined",
            "started": int(self._started_at * 1000),
            "rss_mib": round(resident_mib()),
            "stopping": self._ending.stop_by is not None,
            "jobs": jobs.slots.jobs() if jobs else [],
        }

    def remove(self) -> None:
        """Take this process off the registry, and store its figures."""
        try:
            self._process.broker.forget(self._process.name)
            self._process.broker.tally.flush()
        except Exception as error:
            logger.info("worker %s could not take itself off the registry: %s", self._process.name, error)
        self._process.broker.tally.close()

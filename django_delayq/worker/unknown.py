"""Jobs whose task this process does not know, because it runs an older or a newer release than the caller."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import Final

from ..core.outcomes import Settlement
from . import unbegun
from .attempt import Attempt
from .policy import Policy

logger: Final = logging.getLogger(__name__)

#: seconds for which a reply of the registry of workers is cached
ANSWER_SECONDS: Final = 2.0
#: seconds between two log lines about the same task
LOG_SECONDS: Final = 60.0
#: maximum number of cached tasks; any caller that can schedule may add names
_MOST_TASKS: Final = 1_000


class UnknownTasks:
    """Settler for jobs of unknown tasks, which checks whether a live worker knows their tasks. Thread-safe.

    Args:
        known: ``known(queue, task, now_ms)`` returns True if a live worker of the queue knows the task.
    """

    def __init__(self, known: Callable[[str, str, float], bool] = lambda queue, task, now_ms: False) -> None:
        self._known = known
        self._lock = threading.Lock()
        #: (queue, task) → when the cached reply expires, and the reply
        self._answers: dict[tuple[str, str], tuple[float, bool]] = {}
        self._logged: dict[str, float] = {}

    def settle(self, attempt: Attempt, policy: Policy) -> Settlement:
        """Return the settlement of the job."""
        job, now_ms = attempt.job, attempt.now_ms
        elsewhere = self._is_known(job.queue, job.task, now_ms)
        self._log(job.task, elsewhere=elsewhere)
        return unbegun.unknown_task(job, policy, now_ms, elsewhere=elsewhere, jitter=random.random())

    def _is_known(self, queue: str, task: str, now_ms: float) -> bool:
        with self._lock:  # the other slots wait for the same reply
            until, is_known = self._answers.get((queue, task), (0.0, False))
            if time.monotonic() < until:
                return is_known
            try:
                is_known = self._known(queue, task, now_ms)
            except Exception as error:  # the job has to be settled in any case
                logger.warning("the tasks of the other workers cannot be read: %s", error)
            if len(self._answers) >= _MOST_TASKS:
                self._answers.clear()
            self._answers[queue, task] = time.monotonic() + ANSWER_SECONDS, is_known
            return is_known

    def _log(self, task: str, *, elsewhere: bool) -> None:
        now = time.monotonic()
        with self._lock:
            if now < self._logged.get(task, 0.0):
                return
            if len(self._logged) >= _MOST_TASKS:
                self._logged.clear()
            self._logged[task] = now + LOG_SECONDS
        what = "are left to a worker that has it" if elsewhere else "wait for a worker that has it"
        logger.warning("no task named %s in this process; its jobs %s", task, what)

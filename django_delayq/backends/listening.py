"""Receivers for the ends of Tasks: each task listens to its own attempts, and a signal receiver to cancelled jobs.

A receiver of the signals of all attempts would cost every other job of the worker as much as it costs the Tasks.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from django.utils import timezone

from ..core.errors import DelayQError
from ..core.job import Job
from ..outbox import producer
from ..signals import job_cancelled
from . import attempts
from .backend import backend_of
from .errors import Gone
from .options import BackendOptions
from .registration import FrameworkTask
from .result_records import FAILED, READY, SUCCESSFUL, Results
from .stored import external_error, is_result_id

logger: Final = logging.getLogger("django_delayq.tasks")


#: framework status for each end of an attempt
_STATES: Final = {"job_succeeded": SUCCESSFUL, "job_failed": READY, "job_buried": FAILED}


def handle_event(
    task: FrameworkTask,
    event: str,
    *,
    job: Job,
    error: BaseException | None = None,
    retry_in: float | None = None,
    **_: Any,
) -> None:
    """Handle an event of an attempt at this task; see ``worker.Hooks.notify``."""
    if event == "job_started":
        attempts.begin(task, job)
    else:
        attempts.finish(task, job, _STATES[event], error=error, retry_in=retry_in or 0.0)


def _cancelled(sender: object, *, id: str, outcome: str, **_: Any) -> None:
    """Store the end of a waiting job that was cancelled. A running job stores its own end."""
    if outcome != "cancelled" or not is_result_id(id):
        return
    try:
        options = backend_of(sender.task.backend)[1] if isinstance(sender, FrameworkTask) else BackendOptions()
        ttl_ms, at = int(options.result_ttl * 1000), timezone.now().isoformat()
        error = external_error(Gone, "it was cancelled")
        producer.call_briefly(lambda broker: Results(broker).close(id, ttl_ms, at=at, error=error))
    except DelayQError as failed:  # without it only the time of the end is missing in the result
        logger.warning("%s: the end of a cancelled task could not be stored: %s", id, failed)


def connect() -> None:
    """Listen to jobs that are cancelled in this process. Safe to call again."""
    job_cancelled.connect(_cancelled, dispatch_uid="django_delayq.tasks")


def disconnect() -> None:
    """Stop listening."""
    job_cancelled.disconnect(dispatch_uid="django_delayq.tasks")

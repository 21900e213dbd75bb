"""Public signals, sent with ``send_robust``: the error of a receiver is logged, the job continues.

``sender`` is the registered task (the object that ``@task`` returned), so ``@receiver(job_failed,
sender=cancel_order)`` receives the events of one task only. It is None for a job whose task is not registered in this
process.

Signals of an attempt are sent in the worker, in the thread of the job. Signals of scheduling are sent in the calling
process. Signals for the end of an attempt are sent by the process that settles the job, before the end is stored, so at
least once: by the worker, by a program that pulls or the web server, by the supervisor of a process that died, or by a
dispatcher after a lost lease. Nothing is prepared or sent while a signal has no receivers.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from django.db import connections
from django.dispatch import Signal

from .core.job import Undecodable
from .worker.slots import HangingCall, call_limited

if TYPE_CHECKING:
    from .core.job import Job
    from .core.task import Task

#: sent after Redis stored a job. Arguments: ``id``, ``queue``, ``outcome`` (created, merged, replaced, ignored, gated),
#: ``due`` (aware datetime). Not sent for the jobs of ``schedule_many``.
job_scheduled: Final = Signal()
#: sent when a verb that was queued in a transaction could not be sent after the commit. Arguments: ``verb`` (schedule,
#: cancel, reschedule, run_now), ``id`` ("" for many), ``queue``, ``error`` (the exception;
#: of a ``NotConfirmed`` Redis has the job, so schedule it again under the same id only).
job_not_sent: Final = Signal()
#: sent after ``cancel()`` ended or marked a job. Arguments: ``id``, ``queue``, ``outcome`` (cancelled, stopping).
job_cancelled: Final = Signal()
#: sent before a handler is called. Arguments: ``job`` (django_delayq.core.job.Job).
job_started: Final = Signal()
#: sent after a handler returned. Arguments: ``job``, ``seconds`` (duration of the attempt).
job_succeeded: Final = Signal()
#: sent when a counted attempt failed and the job will be retried. Arguments: ``job``, ``error`` (exception or None),
#: ``outcome`` (failed, timeout, crashed), ``retry_in`` (seconds; None = never, the job was acked before it began).
job_failed: Final = Signal()
#: sent when a job goes to the morgue. Arguments: ``job``, ``error`` (exception or None), ``reason`` (exhausted, buried,
#: poison, unknown task, undecodable, …).
job_buried: Final = Signal()

logger: Final = logging.getLogger("django_delayq.signals")

#: seconds for the receivers of unreadable jobs; their caller is about to reserve others
_UNREADABLE_SECONDS: Final = 15.0

#: signals of an attempt, by their names in :class:`django_delayq.worker.Hooks`
_OF_RUNS: Final = {
    "job_started": job_started,
    "job_succeeded": job_succeeded,
    "job_failed": job_failed,
    "job_buried": job_buried,
}


def wants(event: str, task: Task | None) -> bool:
    """Return True if the signal of that name has receivers, or the task has a listener for its own jobs."""
    return bool(_OF_RUNS[event].receivers) or (task is not None and task.listener is not None)


def notify(event: str, *, job: Job, task: Task | None, **details: Any) -> None:
    """Call the task's own listener, if it has one, and send the signal of that name."""
    if task is not None and task.listener is not None:
        try:
            task.listener(event, job=job, **details)
        except Exception:
            logger.exception("%s: the listener of task %s failed at %s", job.id, task.name, event)
    emit(_OF_RUNS[event], task, job=job, **details)


def emit(signal: Signal, sender: object, **kwargs: Any) -> None:
    """Send ``signal`` if it has receivers; log the errors they raise."""
    if not signal.receivers:
        return
    for receiver, answer in signal.send_robust(sender=sender, **kwargs):
        if isinstance(answer, Exception):
            logger.error("signal receiver %r failed: %s", receiver, answer, exc_info=answer)


def notify_unreadable(jobs: Sequence[Job], *, seconds: float = _UNREADABLE_SECONDS) -> None:
    """Send ``job_buried`` for reserved jobs whose bodies cannot be read, before they are buried.

    The signal is sent in a separate thread, because any thread may reserve, and receivers may leave database
    connections open.

    Args:
        jobs: the jobs.
        seconds: time limit of all receivers together.
    """
    if not job_buried.receivers:
        return

    def send() -> None:
        for one in jobs:
            notify("job_buried", job=one, task=None, error=Undecodable(one.broken), reason="undecodable")

    try:
        call_limited("delayq-unreadable", send, seconds, end=connections.close_all)
    except HangingCall as error:
        logger.error("receivers of job_buried hang at %d unreadable jobs and are given up\n%s", len(jobs), error)

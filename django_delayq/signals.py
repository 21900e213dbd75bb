"""What other code may listen to. Each is sent with ``send_robust``: a failing receiver is logged, the job goes on.

``sender`` is the registered task (the object that ``@task`` made), so ``@receiver(job_failed, sender=cancel_order)``
hears of one task only; it is None for a job whose task is not registered in this process.

The signals of a run are sent in the worker, in the thread of the job; those of scheduling in the process that asks.
Ends are sent by the process that settles the job, before the end is stored, so at least once: by the worker, by a
program that pulls or the web server, by the supervisor of a process that died, or by a dispatcher after a lost lease.
Nothing is prepared or sent while a signal has no receivers.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from django.db import connections
from django.dispatch import Signal

from .core.job import Undecodable

if TYPE_CHECKING:
    from .core.job import Job
    from .core.records.frames import BrokenJob
    from .core.task import Task

#: after Redis took a job. Arguments: ``id``, ``queue``, ``outcome`` (created, merged, replaced, ignored, gated),
#: ``due`` (aware datetime). Not sent for the jobs of ``schedule_many``.
job_scheduled: Final = Signal()
#: a verb that was queued in a transaction could not be sent after the commit. Arguments: ``verb`` (schedule, cancel,
#: reschedule, run_now), ``id`` ("" for many), ``queue``, ``error`` (the exception).
job_not_sent: Final = Signal()
#: after ``cancel()`` ended or marked a job. Arguments: ``id``, ``queue``, ``outcome`` (cancelled, stopping).
job_cancelled: Final = Signal()
#: before a handler is called. Arguments: ``job`` (django_delayq.core.job.Job).
job_started: Final = Signal()
#: a handler returned. Arguments: ``job``, ``seconds`` (length of the run).
job_succeeded: Final = Signal()
#: a counted attempt failed and the job will be tried again. Arguments: ``job``, ``error`` (exception or None),
#: ``outcome`` (failed, timeout, crashed), ``retry_in`` (seconds; None = never, it was acked before it began).
job_failed: Final = Signal()
#: a job went to the morgue. Arguments: ``job``, ``error`` (exception or None), ``reason`` (exhausted, buried, poison,
#: unknown task, undecodable, …).
job_buried: Final = Signal()

logger: Final = logging.getLogger("django_delayq.signals")

#: the events of a run, by the names that :class:`django_delayq.worker.Hooks` has for them
_OF_RUNS: Final = {
    "job_started": job_started,
    "job_succeeded": job_succeeded,
    "job_failed": job_failed,
    "job_buried": job_buried,
}


def wants(event: str, task: Task | None) -> bool:
    """Return True if the signal of that name has receivers, or the task listens to its own jobs."""
    return bool(_OF_RUNS[event].receivers) or (task is not None and task.listener is not None)


def notify(event: str, *, job: Job, task: Task | None, **details: Any) -> None:
    """Call the task's own listener, if it has one, and send the signal of that name."""
    if task is not None and task.listener is not None:
        try:
            task.listener(event, job=job, **details)
        except Exception:
            logger.exception("%s: the task %s failed to hear of %s", job.id, task.name, event)
    emit(_OF_RUNS[event], task, job=job, **details)


def emit(signal: Signal, sender: object, **kwargs: Any) -> None:
    """Send ``signal`` if anybody listens; log what a receiver raises."""
    if not signal.receivers:
        return
    for receiver, answer in signal.send_robust(sender=sender, **kwargs):
        if isinstance(answer, Exception):
            logger.error("signal receiver %r failed: %s", receiver, answer, exc_info=answer)


def notify_unreadable(jobs: Sequence[BrokenJob]) -> None:
    """Send ``job_buried`` for reserved jobs whose bodies cannot be read, before they are buried.

    In a thread of its own, because any thread may reserve, and receivers may leave database connections behind.
    """
    if not job_buried.receivers:
        return

    def send() -> None:
        try:
            for one in jobs:
                notify("job_buried", job=one.job, task=None, error=Undecodable(one.error), reason="undecodable")
        finally:
            connections.close_all()

    thread = threading.Thread(target=send, name="delayq-unreadable")
    thread.start()
    thread.join()

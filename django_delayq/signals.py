"""What other code may listen to. Each is sent with ``send_robust``: a failing receiver is logged, the job goes on.

``sender`` is the registered task (the object that ``@task`` made), so ``@receiver(job_failed, sender=cancel_order)``
hears of one task only; it is None for a job whose task is not registered in this process.

The signals of a run are sent in the worker, in the thread of the job; those of scheduling in the process that asks.
Nothing is prepared or sent while a signal has no receivers.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from django.dispatch import Signal

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
#: ``outcome`` (failed, timeout, crashed), ``retry_in`` (seconds).
job_failed: Final = Signal()
#: a job went to the morgue. Arguments: ``job``, ``error`` (exception or None), ``reason`` (exhausted, buried, poison,
#: unknown task, undecodable, …).
job_buried: Final = Signal()

logger: Final = logging.getLogger("django_delayq.signals")


def emit(signal: Signal, sender: object, **kwargs: Any) -> None:
    """Send ``signal`` if anybody listens; log what a receiver raises."""
    if not signal.receivers:
        return
    for receiver, answer in signal.send_robust(sender=sender, **kwargs):
        if isinstance(answer, Exception):
            logger.error("signal receiver %r failed: %s", receiver, answer, exc_info=answer)

"""Changes and look-ups of one job, as the verbs for threads and those for coroutines share them."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from ..core.errors import InvalidJob
from ..outbox import row_verbs
from ..outbox.row_verbs import Change, Target
from ..outbox.rows import NOW, DueTime
from .handle import Delay
from .plans import job_rules

if TYPE_CHECKING:
    from ..connections import DjangoBroker
    from ..core.job_view import JobView


def rescheduling(job: Target, delay: Delay | None, at: datetime | float | None) -> Change[bool]:
    """Return the change of a job's due time."""
    if delay is None and at is None:
        raise InvalidJob("reschedule needs delay= or at=")
    due_ms, delay_ms = job_rules().due(delay, at)
    return row_verbs.movement(job, "reschedule", DueTime(due_ms=due_ms, delay_ms=delay_ms))


def running_now(job: Target) -> Change[bool]:
    """Return the change that makes a job due now."""
    return row_verbs.movement(job, "run_now", NOW)


def look_up(broker: DjangoBroker, job: Target) -> JobView | None:
    """Return the current state of a job in Redis."""
    if broker.existing(job.queue) is None:
        return None
    if job.generation is None:
        return broker.inspector.get(job.queue, job.id)
    return broker.inspector.get_generation(job.queue, job.id, job.generation)

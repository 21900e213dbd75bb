"""Changes and look-ups of one job, as the verbs for threads and those for coroutines share them."""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING

from ..core.errors import InvalidJob
from ..outbox import row_verbs
from ..outbox.due import NOW, DueTime
from ..outbox.row_verbs import Change, Target
from .handle import Delay
from .plans import job_rules

if TYPE_CHECKING:
    from ..connections import DjangoBroker
    from ..core.job_view import JobView


def rescheduling(job: Target, delay: Delay | None, at: datetime | float | None) -> Change[bool, bool]:
    """Return the change of a job's due time."""
    if delay is None and at is None:
        raise InvalidJob("reschedule needs delay= or at=")
    due_ms, delay_ms = job_rules().due(delay, at)
    called_at = time.monotonic()

    def call(broker: DjangoBroker) -> bool:
        live = broker.existing(job.queue)
        if live is None:
            return False
        # The due time is fixed at the call, so the wait for the commit is part of the delay.
        rest_ms = None if delay_ms is None else max(0, delay_ms - int((time.monotonic() - called_at) * 1000))
        return live.reschedule(job.id, due_ms=due_ms, delay_ms=rest_ms, task=job.task_name, generation=job.generation)

    return row_verbs.movement(job, "reschedule", DueTime(due_ms=due_ms, delay_ms=delay_ms), call)


def running_now(job: Target) -> Change[bool, bool]:
    """Return the change that makes a job due now."""

    def call(broker: DjangoBroker) -> bool:
        live = broker.existing(job.queue)
        return live is not None and live.run_now(job.id, task=job.task_name, generation=job.generation)

    return row_verbs.movement(job, "run_now", NOW, call)


def look_up(broker: DjangoBroker, job: Target) -> JobView | None:
    """Return the current state of a job in Redis."""
    if broker.existing(job.queue) is None:
        return None
    if job.generation is None:
        return broker.inspector.get(job.queue, job.id)
    return broker.inspector.get_generation(job.queue, job.id, job.generation)

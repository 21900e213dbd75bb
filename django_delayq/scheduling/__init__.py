"""Scheduling of jobs from Django code: ``@task``, the verbs (:mod:`.verbs`), their options, handles and triggers.

The package binds arguments, reads the settings and passes records to ``core``, to the transaction or to ``outbox``.
Packages above it import it: ``pull``, ``backends``, ``repair``, ``runtime``, ``metrics`` and the entry points.
"""

from .verbs import (
    JobHandle as JobHandle,
    cancel as cancel,
    get_job as get_job,
    reschedule as reschedule,
    run_now as run_now,
    schedule as schedule,
    schedule_many as schedule_many,
)

"""Scheduling of jobs from Django code: ``@task``, the verbs (:mod:`.verbs`), their options, handles and triggers.

The package binds arguments, reads the settings and passes records to ``core``, to the transaction or to ``outbox``.
Packages above it import it: ``pull``, ``backends``, ``repair``, ``runtime``, ``metrics`` and the entry points.
"""

from .verbs import JobHandle, cancel, get_job, reschedule, run_now, schedule, schedule_many

__all__ = ["JobHandle", "cancel", "get_job", "reschedule", "run_now", "schedule", "schedule_many"]

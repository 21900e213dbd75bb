"""Putting jobs in from Django code: ``@task``, the verbs (:mod:`.verbs`), their options, handles and triggers.

It binds arguments, reads the settings and hands records to ``core``, to the transaction or to ``outbox``. Imported by
the entry points (``api``, ``admin``, ``management``, ``testing``), ``backends``, ``runtime`` and ``repair``.
"""

from .handle import JobHandle
from .verbs import cancel, get_job, reschedule, run_now, schedule, schedule_many

__all__ = ["JobHandle", "cancel", "get_job", "reschedule", "run_now", "schedule", "schedule_many"]

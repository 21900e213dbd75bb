"""The whole status of a deployment as plain data: what the command, the HTTP API, the dashboard and the metrics show.

:func:`take` looks once, :func:`compare` says what happened between two looks::

    before = take(broker)
    ...
    after = take(broker)
    compare(before, after).total.done  # jobs per second
"""

from .change import Change, Rates, compare
from .snapshot import (
    GROUPS,
    LOST_AFTER,
    QueueStatus,
    RecurringStatus,
    RedisStatus,
    RunningJob,
    Snapshot,
    Totals,
    WorkerStatus,
)
from .taking import take

__all__ = [
    "GROUPS",
    "LOST_AFTER",
    "Change",
    "QueueStatus",
    "Rates",
    "RecurringStatus",
    "RedisStatus",
    "RunningJob",
    "Snapshot",
    "Totals",
    "WorkerStatus",
    "compare",
    "take",
]

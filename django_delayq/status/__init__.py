"""Status of a deployment as plain data, for the status command, the HTTP API, the dashboard and the metrics.

:func:`take` takes a snapshot, :func:`compare` returns the change between two snapshots::

    before = take(broker)
    ...
    after = take(broker)
    compare(before, after).total.done  # jobs per second
"""

from .change import Change, Rates, compare
from .reading import take
from .snapshot import (
    LOST_AFTER,
    QueueStatus,
    RecurringStatus,
    RedisStatus,
    RunningJob,
    Snapshot,
    Totals,
    UnreachablePart,
    WorkerStatus,
)

__all__ = [
    "LOST_AFTER",
    "Change",
    "QueueStatus",
    "Rates",
    "RecurringStatus",
    "RedisStatus",
    "RunningJob",
    "Snapshot",
    "Totals",
    "UnreachablePart",
    "WorkerStatus",
    "compare",
    "take",
]

"""Status of a deployment as plain data, for the status command, the HTTP API, the dashboard and the metrics.

:func:`take` takes a snapshot, :func:`compare` returns the change between two snapshots::

    before = take(broker)
    ...
    after = take(broker)
    compare(before, after).total.done  # jobs per second
"""

from .reading import read_recurring, take
from .snapshot import (
    LOST_AFTER,
    Change,
    QueueStatus,
    Rates,
    RecurringStatus,
    RedisStatus,
    RunningJob,
    Snapshot,
    Totals,
    UnreachablePart,
    WorkerStatus,
    compare,
    united,
)
from .warnings import Finding, warnings_of

__all__ = [
    "LOST_AFTER",
    "Change",
    "Finding",
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
    "read_recurring",
    "take",
    "united",
    "warnings_of",
]

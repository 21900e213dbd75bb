"""Status of a deployment as plain data, for the status command, the HTTP API, the dashboard and the metrics.

:func:`take` takes a snapshot::

    snapshot = take(broker, rates=True)
    snapshot.rates(snapshot.totals)  # jobs per second, since a sample of the dispatcher
"""

from .reading import read_recurring, take
from .snapshot import (
    LOST_AFTER,
    QueueStatus,
    Rates,
    RecurringStatus,
    RedisStatus,
    RunningJob,
    Snapshot,
    Totals,
    UnreachablePart,
    WorkerStatus,
    united,
)
from .warnings import Finding, warnings_of

__all__ = [
    "LOST_AFTER",
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
    "read_recurring",
    "take",
    "united",
    "warnings_of",
]

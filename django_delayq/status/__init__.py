"""Status of a deployment as plain data, for the status command, the HTTP API, the dashboard and the metrics.

:func:`take` takes a snapshot::

    snapshot = take(broker, rates=True)
    snapshot.rates()  # jobs per second, since a sample of the dispatcher
"""

from .snapshot import (
    LOST_AFTER as LOST_AFTER,
    QueueStatus as QueueStatus,
    Rates as Rates,
    RecurringStatus as RecurringStatus,
    RedisStatus as RedisStatus,
    RunningJob as RunningJob,
    Snapshot as Snapshot,
    UnreachablePart as UnreachablePart,
    WorkerStatus as WorkerStatus,
    read_recurring as read_recurring,
    take as take,
)
from .warnings import Finding as Finding, warnings_of as warnings_of

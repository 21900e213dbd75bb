"""Due jobs beside a process with free slots, which should have begun to run them."""

from __future__ import annotations

from typing import Final

from ..settings.conf import conf
from .snapshot import QueueStatus, Snapshot, WorkerStatus

#: seconds for which the job has been due and the slot free
IDLE_AFTER: Final = 5.0


def idle_beside_due(snapshot: Snapshot) -> dict[str, WorkerStatus]:
    """Return the queues with due jobs for which a process has free slots, each with one such process.

    Neither a pause nor a limit of concurrency is the reason: jobs behind limits of tasks do not count as due here.
    """
    found = ((queue, _idle_worker(queue, snapshot)) for queue in snapshot.queues)
    return {queue.name: worker for queue, worker in found if worker is not None}


def _idle_worker(queue: QueueStatus, snapshot: Snapshot) -> WorkerStatus | None:
    limit = conf().queue(queue.name).limits
    if queue.kind != "python" or queue.paused in ("out", "both"):
        return None
    if limit is not None and limit.total is not None and (queue.permits or 0) >= limit.total:
        return None
    local = None if limit is None else limit.local
    return next((worker for worker in snapshot.workers if _could_run(worker, queue, local)), None)


def _could_run(worker: WorkerStatus, queue: QueueStatus, local: int | None) -> bool:
    """Return True if at its last heartbeat the process had been idle for long beside a job that was due for long."""
    running = sum(job.ids for job in worker.jobs if job.queue == queue.name)
    return (
        not (worker.lost or worker.stopping or worker.quarantine)
        and worker.serves(queue.name)
        and min(worker.idle_seconds, queue.lag_seconds - worker.seconds_ago) >= IDLE_AFTER
        and (local is None or running < local)
    )

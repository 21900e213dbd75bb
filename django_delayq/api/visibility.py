"""Filter for metrics of the whole deployment: removes queues that the project's ``allow`` rule hides from a user."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

from rest_framework.request import Request

from ..access.permissions import allows, may_use
from ..status import Snapshot, WorkerStatus


class VisibleQueues:
    """Filter that calls ``API["allow"]`` once for each queue."""

    def __init__(self, request: Request) -> None:
        self._everything = allows() is None
        self._sees: Callable[[str], bool] = cache(lambda queue: may_use(request, "view", queue))

    def worker(self, worker: WorkerStatus) -> WorkerStatus:
        """Return the worker without hidden queues and without the jobs it runs from them."""
        if self._everything:
            return worker
        queues, ignored = tuple(filter(self._sees, worker.queues)), tuple(filter(self._sees, worker.ignored))
        jobs = tuple(job for job in worker.jobs if self._sees(job.queue))
        payload = {**worker.payload, "queues": list(queues), "ignored": list(ignored)}
        return replace(worker, queues=queues, ignored=ignored, jobs=jobs, payload=payload)

    def snapshot(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot without hidden queues; its totals cover the remaining ones."""
        if self._everything:
            return snapshot
        sees, figures = self._sees, snapshot.figures
        return replace(
            snapshot,
            queues=tuple(queue for queue in snapshot.queues if sees(queue.name)),
            workers=tuple(map(self.worker, snapshot.workers)),
            unreachable=tuple(
                replace(part, shards={name: number for name, number in part.shards.items() if sees(name)})
                for part in snapshot.unreachable
            ),
            recurring=tuple(one for one in snapshot.recurring if sees(one.queue)),
            figures=replace(
                figures,
                lateness={name: one for name, one in figures.lateness.items() if sees(name)},
                run={key: one for key, one in figures.run.items() if sees(key[0])},
            ),
        )

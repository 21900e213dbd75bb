"""What one user sees of figures about the whole deployment: nothing of queues that the project's own rule hides."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from ..status import Snapshot, WorkerStatus
from .permissions import allows, may_use

if TYPE_CHECKING:
    from collections.abc import Callable

    from rest_framework.request import Request


class Visible:
    """Asks ``API["allow"]`` once for each queue."""

    def __init__(self, request: Request) -> None:
        self._everything = allows() is None
        self._sees: Callable[[str], bool] = cache(lambda queue: may_use(request, "view", queue))

    def worker(self, worker: WorkerStatus) -> WorkerStatus:
        """A worker without the queues that are hidden, and what it runs of them."""
        if self._everything:
            return worker
        queues = tuple(filter(self._sees, worker.queues))
        jobs = tuple(job for job in worker.jobs if self._sees(job.queue))
        return replace(worker, queues=queues, jobs=jobs, said={**worker.said, "queues": list(queues)})

    def snapshot(self, snapshot: Snapshot) -> Snapshot:
        """A status without them; its totals are those of the rest."""
        if self._everything:
            return snapshot
        sees, figures = self._sees, snapshot.figures
        return replace(
            snapshot,
            queues=tuple(queue for queue in snapshot.queues if sees(queue.name)),
            workers=tuple(map(self.worker, snapshot.workers)),
            recurring=tuple(one for one in snapshot.recurring if sees(one.queue)),
            figures=replace(
                figures,
                lateness={name: one for name, one in figures.lateness.items() if sees(name)},
                run={key: one for key, one in figures.run.items() if sees(key[0])},
            ),
        )

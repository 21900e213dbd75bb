"""Batches of merged jobs: several jobs of one task from one reserve that share one call of the handler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .attempt import Attempt, BatchAttempt

if TYPE_CHECKING:
    from ..core.job import Job
    from ..core.task import Registry, Task


class Batcher:
    """Groups jobs of merged tasks into calls of at most ``batch_size`` ids."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def expected(self, queue: str) -> int:
        """Return the smallest number of jobs that an attempt takes from this queue, judging by the registered tasks."""
        sizes = [_size(task) for task in self._registry if task.options.queue == queue]
        return min(sizes, default=1)

    def size_of(self, job: Job) -> int:
        """Return how many jobs one attempt may take, given this job."""
        return _size(self._registry.get(job.task)) if job.merged else 1

    def arrange(self, attempts: Sequence[Attempt]) -> list[Attempt]:
        """Return the same attempts with those of merged tasks combined into batches.

        Each batch takes the position of its first member.
        """
        groups: list[list[Attempt]] = []
        growing: dict[Task, list[Attempt]] = {}
        for attempt in attempts:
            task = self._registry.get(attempt.job.task) if attempt.job.merged else None
            size = _size(task)
            if task is None or size == 1:
                groups.append([attempt])
                continue
            group = growing.get(task)
            if group is None:
                group = growing[task] = []
                groups.append(group)
            group.append(attempt)
            if len(group) == size:
                del growing[task]
        return [BatchAttempt(group) if len(group) > 1 else group[0] for group in groups]


def _size(task: Task | None) -> int:
    return task.options.batch_size if task is not None and task.options.merge else 1

"""Batches: merged jobs of one task, out of one reserve, that share one call of the handler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .run import BatchRun, Run

if TYPE_CHECKING:
    from ..core.job import Job
    from ..core.task import Registry, Task


class Batcher:
    """Knows how many jobs a task takes at once."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def expected(self, queue: str) -> int:
        """How many jobs of this queue one run will surely take, by what the registered tasks say."""
        sizes = [_size(task) for task in self._registry if task.options.queue == queue]
        return min(sizes, default=1)

    def size_of(self, job: Job) -> int:
        """How many jobs a run of this one may take."""
        return _size(self._registry.get(job.task)) if job.merged else 1

    def arrange(self, runs: Sequence[Run]) -> list[Run]:
        """The same runs, those of merged tasks united to batches, in the order of their first ones."""
        groups: list[list[Run]] = []
        growing: dict[Task, list[Run]] = {}
        for run in runs:
            task = self._registry.get(run.job.task) if run.job.merged else None
            size = _size(task)
            if task is None or size == 1:
                groups.append([run])
                continue
            group = growing.get(task)
            if group is None:
                group = growing[task] = []
                groups.append(group)
            group.append(run)
            if len(group) == size:
                del growing[task]
        return [BatchRun(group) if len(group) > 1 else group[0] for group in groups]


def _size(task: Task | None) -> int:
    return task.options.batch_size if task is not None and task.options.merge else 1

"""Injected failures: tasks that raise, and an outage of Redis."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..core.task import Task
from ..scheduling.verbs import find_task

if TYPE_CHECKING:
    from ..worker.run import Run
    from .broker import MemoryBroker

Error = BaseException | type[BaseException]

DOWN = "Redis cannot be used now: redis_down() of django_delayq.testing plays that it is away"


class Faults:
    """Exceptions that the next attempts of tasks raise."""

    def __init__(self) -> None:
        self._ordered: dict[str, deque[Error]] = {}

    def order(self, task: Task | str, error: Error, times: int = 1) -> None:
        """Make the next ``times`` attempts of ``task`` raise ``error`` instead of calling its function."""
        name = find_task(task).name
        if not (isinstance(error, BaseException) or (isinstance(error, type) and issubclass(error, BaseException))):
            raise TypeError(f"fail_next() wants an exception, not {error!r}")
        self._ordered.setdefault(name, deque()).extend([error] * times)

    def strike(self, run: Run) -> None:
        """Raise the injected error for the task of this attempt, if there is one."""
        ordered = self._ordered.get(run.task.name) if run.task is not None else None
        if ordered:
            error = ordered.popleft()
            raise error if isinstance(error, BaseException) else error()


@contextmanager
def outage(broker: MemoryBroker) -> Iterator[None]:
    """Make every call raise QueueUnavailable during the block."""
    before, broker.down = broker.down, DOWN
    try:
        yield
    finally:
        broker.down, broker.owes = before, True
        _reassure(broker)


def _reassure(broker: MemoryBroker) -> None:
    """Close the outbox's circuit breaker, so that it does not wait before it uses this broker again."""
    from ..outbox.producer import producer_state

    breaker = producer_state(broker).breaker
    if breaker.open:
        breaker.succeeded()

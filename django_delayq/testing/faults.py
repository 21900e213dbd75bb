"""Injected failures: tasks that raise, and an outage of Redis."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from ..core.task import Task
from ..scheduling.build import find_task

if TYPE_CHECKING:
    from ..worker.attempt import Attempt
    from .broker import MemoryBroker

Error = BaseException | type[BaseException]


class Faults:
    """Exceptions that the next attempts of tasks raise."""

    def __init__(self) -> None:
        self._errors: dict[str, deque[Error]] = {}

    def add(self, task: Task | str, error: Error, times: int = 1) -> None:
        """Make the next ``times`` attempts of ``task`` raise ``error`` instead of calling its function."""
        name = find_task(task).name
        if not (isinstance(error, BaseException) or (isinstance(error, type) and issubclass(error, BaseException))):
            raise TypeError(f"fail_next() takes an exception or an exception class, not {error!r}")
        self._errors.setdefault(name, deque()).extend([error] * times)

    def raise_next(self, attempt: Attempt) -> None:
        """Raise the injected error for the task of this attempt, if there is one."""
        errors = self._errors.get(attempt.task.name) if attempt.task is not None else None
        if errors:
            error = errors.popleft()
            # An object that is raised again would keep the traceback of its earlier attempts, too.
            raise error.with_traceback(None) if isinstance(error, BaseException) else error()


@contextmanager
def outage(broker: MemoryBroker) -> Iterator[None]:
    """Make every call raise QueueUnavailable during the block."""
    try:
        with _set_down(broker, down=True):
            yield
    finally:
        broker.has_unsent = True
        _close_breaker(broker)


def reachable(broker: MemoryBroker) -> AbstractContextManager[None]:
    """Return a block in which a test can read the queue even during an outage."""
    return _set_down(broker, down=False)


@contextmanager
def _set_down(broker: MemoryBroker, *, down: bool) -> Iterator[None]:
    server = broker.server
    before, server.down = server.down, down
    try:
        yield
    finally:
        server.down = before


def _close_breaker(broker: MemoryBroker) -> None:
    """Close the outbox's circuit breaker, so that it does not wait before it uses this broker again."""
    from ..outbox.producer import producer_state

    breaker = producer_state(broker).breaker
    if breaker.open:
        breaker.succeeded()

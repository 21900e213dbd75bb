"""The methods of the active in-memory queue, as functions to import."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

from ..core.task import Task
from .fake import Fake, Until, active
from .faults import Error
from .looking import ScheduledJob
from .running import RunReport
from .times import Moment

F = TypeVar("F", bound=Callable[..., Any])


def _of(method: Callable[..., Any]) -> Callable[[F], F]:
    """The documentation is that of the method."""

    def documented(function: F) -> F:
        function.__doc__ = method.__doc__
        return function

    return documented


class _ActiveClock:
    """The clock of the active in-memory queue."""

    @property
    def now(self) -> datetime:
        """The time (UTC)."""
        return active().clock.now

    def __repr__(self) -> str:
        return f"<clock {self.now}>"


clock: Final = _ActiveClock()


@_of(Fake.scheduled_jobs)
def scheduled_jobs(
    task: Task | str | None = None, queue: str | None = None, id: str | int | None = None, *, state: str | None = None
) -> list[ScheduledJob]:
    return active().scheduled_jobs(task, queue, id, state=state)


@_of(Fake.assert_scheduled)
def assert_scheduled(
    task: Task | str,
    *,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    id: str | int | None = None,
    queue: str | None = None,
    delay: timedelta | float | None = None,
    at: datetime | float | None = None,
    within: timedelta | float | None = None,
    count: int | None = None,
    **more: Any,
) -> ScheduledJob | None:
    return active().assert_scheduled(
        task, args=args, kwargs=kwargs, id=id, queue=queue, delay=delay, at=at, within=within, count=count, **more
    )


@_of(Fake.refute_scheduled)
def refute_scheduled(task: Task | str, **wishes: Any) -> None:
    active().refute_scheduled(task, **wishes)


@_of(Fake.run_due)
def run_due(until: Until = None, *, max_jobs: int | None = None, raise_errors: bool = True) -> RunReport:
    return active().run_due(until, max_jobs=max_jobs, raise_errors=raise_errors)


@_of(Fake.arun_due)
async def arun_due(until: Until = None, *, max_jobs: int | None = None, raise_errors: bool = True) -> RunReport:
    return await active().arun_due(until, max_jobs=max_jobs, raise_errors=raise_errors)


@_of(Fake.freeze)
def freeze(moment: Moment | None = None) -> datetime:
    return active().freeze(moment)


@_of(Fake.travel)
def travel(delta: timedelta | float) -> datetime:
    return active().travel(delta)


@_of(Fake.fail_next)
def fail_next(task: Task | str, error: Error, times: int = 1) -> None:
    active().fail_next(task, error, times)


@_of(Fake.redis_down)
def redis_down() -> AbstractContextManager[None]:
    return active().redis_down()

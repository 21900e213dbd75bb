"""Verbs for coroutines: ``await aschedule(…)`` does not block the event loop.

They run their synchronous counterparts in the thread that Django's own a-methods use (``sync_to_async`` with
``thread_sensitive``), which is also the thread of the coroutine's transactions. If a coroutine is cancelled while it
waits, the call may still have been sent: check with :func:`aget_job`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from asgiref.sync import sync_to_async

from ..core.task import Task
from ..outbox import row_verbs
from ..outbox.row_verbs import Change, R
from ..transactions import OnCommit
from . import changes, verbs
from .handle import Delay, JobHandle, Left
from .targets import find_job

if TYPE_CHECKING:
    from ..core.job_view import JobView

__all__ = ["acancel", "aget_job", "areschedule", "arun_now", "aschedule", "aschedule_many"]


async def aschedule(
    task: Task | str,
    /,
    *arguments: Any,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    **named: Any,
) -> JobHandle:
    """Schedule a job. See :func:`django_delayq.schedule`."""
    return await aschedule_call(*verbs.split_call(task, arguments, named, args, kwargs))


async def aschedule_call(
    task: Task, arguments: tuple[Any, ...], named: dict[str, Any], options: Mapping[str, Any]
) -> JobHandle:
    """Schedule a job, given the function's arguments and the options separately. See :func:`aschedule`."""
    return await sync_to_async(verbs.schedule_call)(task, arguments, named, options)


async def aschedule_many(
    task: Task | str, jobs: Iterable[Mapping[str, Any]], /, *, all_or_none: bool = False, **options: Any
) -> dict[str, int]:
    """Schedule many jobs. See :func:`django_delayq.schedule_many`; ``jobs`` is read in the other thread."""
    return await sync_to_async(verbs.schedule_many)(task, jobs, all_or_none=all_or_none, **options)


async def acancel(
    target: JobHandle | Task | str | None = None,
    /,
    id: str | int | None = None,
    *,
    task: Task | str | None = None,
    queue: str | None = None,
    using_db: str | None = None,
) -> Literal["cancelled", "stopping", False] | OnCommit | Left:
    """Cancel a job. See :func:`django_delayq.cancel`."""
    return await _apply(row_verbs.cancellation(find_job(target, id, task, queue, using_db)))


async def areschedule(
    target: JobHandle | Task | str | None = None,
    /,
    id: str | int | None = None,
    *,
    delay: Delay | None = None,
    at: datetime | float | None = None,
    task: Task | str | None = None,
    queue: str | None = None,
    using_db: str | None = None,
) -> bool | OnCommit | Left:
    """Reschedule a job. See :func:`django_delayq.reschedule`."""
    return await _apply(changes.rescheduling(find_job(target, id, task, queue, using_db), delay, at))


async def arun_now(
    target: JobHandle | Task | str | None = None,
    /,
    id: str | int | None = None,
    *,
    task: Task | str | None = None,
    queue: str | None = None,
    using_db: str | None = None,
) -> bool | OnCommit | Left:
    """Make a job due now. See :func:`django_delayq.run_now`."""
    return await _apply(changes.running_now(find_job(target, id, task, queue, using_db)))


async def _apply(change: Change[R]) -> R | OnCommit | Left:
    return await sync_to_async(row_verbs.apply)(change)


async def aget_job(
    target: JobHandle | Task | str | None = None,
    /,
    id: str | int | None = None,
    *,
    task: Task | str | None = None,
    queue: str | None = None,
) -> JobView | None:
    """Return a view of a job. See :func:`django_delayq.get_job`."""
    return await sync_to_async(verbs.get_job)(target, id, task=task, queue=queue)

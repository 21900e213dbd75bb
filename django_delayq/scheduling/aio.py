"""The verbs for coroutines: ``await aschedule(…)`` while the event loop goes on.

Each runs its namesake in the thread that Django's own a-methods use (``sync_to_async`` with ``thread_sensitive``), so
that what is sent on commit belongs to the transaction of this request or of this test. A coroutine that is cancelled
while it waits may have sent the call all the same: ask with :func:`aget_job`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from asgiref.sync import sync_to_async

from ..core.task import Task
from ..transactions import OnCommit
from . import verbs
from .handle import Delay, JobHandle, Left

if TYPE_CHECKING:
    from ..core.operations.inspector import JobView

__all__ = ["acancel", "aget_job", "areschedule", "arun_now", "aschedule", "aschedule_many"]


async def aschedule(
    task: Task | str,
    /,
    *arguments: Any,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    **named: Any,
) -> JobHandle:
    """See :func:`django_delayq.schedule`."""
    return await sync_to_async(verbs.schedule)(task, *arguments, args=args, kwargs=kwargs, **named)


async def aschedule_many(task: Task | str, jobs: Iterable[Mapping[str, Any]], /, **options: Any) -> dict[str, int]:
    """See :func:`django_delayq.schedule_many`; ``jobs`` is read in the other thread."""
    return await sync_to_async(verbs.schedule_many)(task, jobs, **options)


async def acancel(
    target: JobHandle | Task | str | None = None,
    /,
    id: str | int | None = None,
    *,
    task: Task | str | None = None,
    queue: str | None = None,
    using_db: str | None = None,
) -> Literal["cancelled", "stopping", False] | OnCommit | Left:
    """See :func:`django_delayq.cancel`."""
    return await sync_to_async(verbs.cancel)(target, id, task=task, queue=queue, using_db=using_db)


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
    """See :func:`django_delayq.reschedule`."""
    return await sync_to_async(verbs.reschedule)(
        target, id, delay=delay, at=at, task=task, queue=queue, using_db=using_db
    )


async def arun_now(
    target: JobHandle | Task | str | None = None,
    /,
    id: str | int | None = None,
    *,
    task: Task | str | None = None,
    queue: str | None = None,
    using_db: str | None = None,
) -> bool | OnCommit | Left:
    """See :func:`django_delayq.run_now`."""
    return await sync_to_async(verbs.run_now)(target, id, task=task, queue=queue, using_db=using_db)


async def aget_job(
    target: JobHandle | Task | str | None = None,
    /,
    id: str | int | None = None,
    *,
    task: Task | str | None = None,
    queue: str | None = None,
) -> JobView | None:
    """See :func:`django_delayq.get_job`."""
    return await sync_to_async(verbs.get_job)(target, id, task=task, queue=queue)

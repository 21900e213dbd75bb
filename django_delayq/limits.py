"""Limits at run time: ``limits.set("mail", rate="10/s")``, for a queue, a task, or a group of a queue.

They stand above those in settings and code, for all processes, until they are cleared. Those of groups hold at once,
those of tasks and queues within a few seconds in processes that knew no limit of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .connections import broker
from .core.errors import InvalidJob
from .core.inputs import check_int, check_queue_name, check_task_name
from .core.limit_status import LANES, LimitsPage, LimitStatus, read_limits
from .core.limits import Limiter
from .core.options import Limits, check_group, check_rate, joint_limits
from .core.queue import Queue
from .core.task import registry
from .settings.conf import conf

__all__ = ["LimitStatus", "LimitsPage", "clear", "get", "set", "waiting"]


def set(
    queue: str | None = None,
    *,
    task: str | None = None,
    group: str | None = None,
    concurrency: int | None = None,
    rate: str | float | None = None,
    burst: int | None = None,
) -> None:
    """Set limits over all workers.

    Args:
        queue, task, group: of these jobs: one of a queue, a task, or a group with its queue.
        concurrency: most jobs at a time; None = as code and settings say.
        rate, burst: starts in a time, and how many may follow each other at once; None = as code and settings say.

    Raises:
        InvalidJob: a wrong value, or it is not clear which jobs are meant.
        QueueUnavailable: Redis could not be reached.
    """
    _limiter().set(name_of(queue, task, group), numbers_of(concurrency, rate, burst))


def get(queue: str | None = None, *, task: str | None = None, group: str | None = None) -> dict[str, Any]:
    """Return what :func:`set` has set, by the names of its arguments; the rate as starts per second."""
    numbers = _limiter().get(name_of(queue, task, group)) or Limits()
    found = {
        "concurrency": numbers.total,
        "rate": 1e6 / numbers.interval_us if numbers.interval_us else None,
        "burst": numbers.burst or None,
    }
    return {name: value for name, value in found.items() if value is not None}


def clear(queue: str | None = None, *, task: str | None = None, group: str | None = None) -> None:
    """Remove what :func:`set` has set: code and settings hold again."""
    _limiter().set(name_of(queue, task, group), None)


def waiting(queue: str, *, after: str = "") -> LimitsPage:
    """Return the limits of a queue with the due jobs that wait behind them, since when, and when the next one starts.

    Of groups a page is read, at least 100 if so many have due jobs; its ``more``, as ``after``, leads to the next one.

    Raises:
        InvalidJob: there is no such queue.
        QueueUnavailable: Redis could not be reached.
    """
    (page,) = pages([broker().require_queue(queue)], after=after)
    return page


def pages(queues: Sequence[Queue], *, after: str = "", lanes: int = LANES, partial: bool = False) -> list[LimitsPage]:
    """Return a page of limits for each queue; see :func:`.core.limit_status.read_limits`."""
    return read_limits(
        queues, lambda name: conf().queue(name).limits, registry, after=after, lanes=lanes, partial=partial
    )


def _limiter() -> Limiter:
    return Limiter(broker().registry)


def numbers_of(concurrency: int | None = None, rate: str | float | None = None, burst: int | None = None) -> Limits:
    """Return the numbers of a limit; see :func:`set`."""
    total = None if concurrency is None else Limits(check_int("concurrency", concurrency, 1))
    at_once = None if burst is None else check_int("burst", burst, 1)
    numbers = joint_limits(total, None if rate is None else check_rate("rate", rate), at_once)
    if numbers is None:
        raise InvalidJob("give concurrency= or rate=, or call limits.clear()")
    return numbers


def name_of(queue: str | None = None, task: str | None = None, group: str | None = None) -> str:
    """Return the name of the limit of these jobs; see :func:`set`."""
    if group is not None and queue is not None and task is None:
        return f"group:{check_queue_name(queue)}:{check_group('group', group)}"
    if group is None and (queue is None) != (task is None):
        known = registry.get(task) if task else None
        return (
            f"queue:{check_queue_name(queue)}"
            if task is None
            else f"task:{known.name if known else check_task_name(task)}"
        )
    raise InvalidJob("name the jobs: queue=, task=, or group= together with queue=")

"""Actions retry, discard and bury for rows of the mirrors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace as replace_rows
from datetime import timedelta
from typing import Final

from ..core import actions, bulk
from ..core.errors import InvalidJob
from ..core.queue import Queue
from ..core.times import delay_ms_of
from ..mirror.index_mirror import IndexMirror
from ..mirror.refresh import Group, grouped, refresh
from ..mirror.rows import MORGUE, Row, is_readable, member_of
from ..settings.conf import conf


def retry(rows: Iterable[Row], *, delay: timedelta | float | None = None, replace: bool = False) -> Counter[str]:
    """Retry jobs. A failed job skips the rest of its back-off, the failures of a job from the morgue are reset.

    Args:
        rows: rows of either mirror.
        delay: delay from now on, ``timedelta`` or seconds; None = due now.
        replace: jobs from the morgue replace live plain jobs of the same ids.

    Returns:
        Counts by outcome: retried, live, running, gone.

    Raises:
        InvalidJob: an implausible delay.
        QueueUnavailable: Redis cannot be reached; some jobs may be retried already.
    """
    delay_ms = delay_ms_of_action(delay)

    def act(queue: Queue, group: Group) -> Counter[str]:
        if group.place is MORGUE:
            return bulk.retried(_apply(queue, group, actions.Kick(delay_ms or 0, replace=replace)))
        return _apply(queue, group, actions.retry_failed(delay_ms))

    return _each(rows, act)


def discard(rows: Iterable[Row]) -> Counter[str]:
    """Delete jobs and their payloads for good.

    Returns:
        Counts by outcome: discarded, running, gone.

    Raises:
        QueueUnavailable: Redis cannot be reached; some jobs may be discarded already.
    """

    def act(queue: Queue, group: Group) -> Counter[str]:
        return _apply(queue, group, actions.Discard() if group.place is MORGUE else actions.delete_failed())

    return _each(rows, act)


def bury(rows: Iterable[Row]) -> Counter[str]:
    """Move failed jobs to the morgue, where they are not retried any more.

    Returns:
        Counts by outcome: buried, running, gone.

    Raises:
        InvalidJob: a job that is in the morgue already.
        QueueUnavailable: Redis cannot be reached; some jobs may be buried already.
    """

    def act(queue: Queue, group: Group) -> Counter[str]:
        if group.place is MORGUE:
            raise InvalidJob("these jobs are in the morgue already; bury is for failed jobs")
        counts = _apply(queue, group, actions.kill_failed())
        if conf().is_mirrored:  # one page only; the dispatcher copies the rest
            next(IndexMirror(conf().mirror, queue, group.number, MORGUE).copy(), None)
        return counts

    return _each(rows, act)


#: verb → its function, with the rows and the delay of a retry
VERBS: Final[Mapping[str, Callable[[Sequence[Row], float | None], Counter[str]]]] = {
    "retry": lambda rows, delay: retry(rows, delay=delay),
    "discard": lambda rows, delay: discard(rows),
    "bury": lambda rows, delay: bury(rows),
}


def delay_ms_of_action(delay: timedelta | float | None) -> int | None:
    """Return a delay in ms; None stays None.

    Raises:
        InvalidJob: an implausible delay.
    """
    return None if delay is None else delay_ms_of(delay, allow_far=conf().allow_far)


def _each(rows: Iterable[Row], act: Callable[[Queue, Group], Counter[str]]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for group in grouped(rows):
        # The row of a record with an unreadable name identifies no job that could be looked up.
        readable = [row for row in group.rows if group.queue is not None and is_readable(member_of(row))]
        if group.queue is not None and readable:
            counts += act(group.queue, replace_rows(group, rows=readable))
        if len(readable) < len(group.rows):
            counts["gone"] += len(group.rows) - len(readable)
        refresh(group)
    return counts


def _apply(queue: Queue, group: Group, action: actions.Action) -> Counter[str]:
    selected = [(row.job_id, row.key.bytes) for row in group.rows]
    return Counter(bulk.act_in_shard(queue, group.number, selected, action))

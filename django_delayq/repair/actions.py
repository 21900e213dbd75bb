"""Retry, discard and bury, for rows of the mirrors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace as replace_rows
from datetime import timedelta

from ..core import bulk
from ..core.errors import InvalidJob
from ..core.operations.mend import Named, end_failed, retry_failed
from ..core.queue import Queue
from ..core.times import delay_ms_of
from ..mirror.refresh import Group, grouped, refresh
from ..mirror.rows import MORGUE, Row, is_readable, member_of
from ..mirror.shadow import Shadow
from ..settings.conf import conf

_RETRIED = {"kicked": "retried"}


def retry(rows: Iterable[Row], *, delay: timedelta | float | None = None, replace: bool = False) -> Counter[str]:
    """Another try: a job that failed does not wait out its back-off, one of the morgue begins anew.

    Args:
        rows: of either mirror.
        delay: how long from now they wait, ``timedelta`` or seconds; None = due now.
        replace: jobs of the morgue take the places of live plain jobs of the same ids.

    Returns:
        How many came to what: retried, live, running, gone.

    Raises:
        InvalidJob: a delay that cannot be meant.
        QueueUnavailable: Redis cannot be reached; some may be retried already.
    """
    delay_ms = delay_ms_of_action(delay)

    def act(queue: Queue, group: Group) -> Counter[str]:
        if group.place is MORGUE:
            counts = bulk.kick_many(queue, _named(group), delay_ms=delay_ms or 0, replace=replace)
            return Counter({_RETRIED.get(outcome, outcome): n for outcome, n in counts.items()})
        return Counter(retry_failed(queue, group.number, _named(group), delay_ms=delay_ms))

    return _each(rows, act)


def discard(rows: Iterable[Row]) -> Counter[str]:
    """Jobs go for good, their payloads with them.

    Returns:
        How many came to what: discarded, running, gone.

    Raises:
        QueueUnavailable: Redis cannot be reached; some may be discarded already.
    """

    def act(queue: Queue, group: Group) -> Counter[str]:
        if group.place is MORGUE:
            return Counter(bulk.discard_many(queue, _named(group)))
        return Counter(end_failed(queue, group.number, _named(group), "delete"))

    return _each(rows, act)


def bury(rows: Iterable[Row]) -> Counter[str]:
    """Jobs that failed go to the morgue, where nobody tries them again.

    Returns:
        How many came to what: buried, running, gone.

    Raises:
        InvalidJob: a job that is in the morgue already.
        QueueUnavailable: Redis cannot be reached; some may be buried already.
    """

    def act(queue: Queue, group: Group) -> Counter[str]:
        if group.place is MORGUE:
            raise InvalidJob("these jobs are in the morgue already; bury is for failed jobs")
        counts = Counter(end_failed(queue, group.number, _named(group), "kill"))
        # One page: what else there is, the dispatcher copies.
        next(Shadow(conf().mirror, queue, group.number, MORGUE).copy(), None)
        return counts

    return _each(rows, act)


def delay_ms_of_action(delay: timedelta | float | None) -> int | None:
    """A delay in ms; None as it is. :class:`InvalidJob` for one that cannot be meant."""
    return None if delay is None else delay_ms_of(delay, allow_far=conf().allow_far)


def _each(rows: Iterable[Row], act: Callable[[Queue, Group], Counter[str]]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for group in grouped(rows):
        # The row of a record whose name cannot be read speaks of nothing that could be asked for.
        asked = [row for row in group.rows if group.queue is not None and is_readable(member_of(row))]
        if group.queue is not None and asked:
            counts += act(group.queue, replace_rows(group, rows=asked))
        if len(asked) < len(group.rows):
            counts["gone"] += len(group.rows) - len(asked)
        refresh(group)
    return counts


def _named(group: Group) -> list[Named]:
    return [(row.job_id, row.key.bytes) for row in group.rows]

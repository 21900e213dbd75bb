"""Bulk operations on the jobs of a queue that meet conditions (:class:`JobFilter`).

The jobs are read page by page, and those that match are changed under the keys of their generations: a job that ran or
was replaced since it was read is left alone. Jobs that enter the order behind the last one of the start are not read,
so each operation ends whatever producers and workers do meanwhile. A cursor continues it. For all jobs of a queue see
:mod:`.bulk`, which does not read them.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from .errors import InvalidJob
from .operations import actions
from .operations.actions import UNCOUNTED, Action
from .operations.job_filter import JobFilter
from .operations.morgue import Discard, Kick, Pace
from .operations.pages import Accepts
from .operations.paging import INDEXES, Bound
from .operations.selection import Progress, shard_snapshots
from .records.schedule_frames import CHUNK, encode_id

if TYPE_CHECKING:
    from .operations.views import JobView
    from .queue import Queue

#: longest time of one page, s: a progress callback is called at least so often
_PAGE_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Verb:
    """Verb on the jobs of a place that match."""

    place: str
    action: Action
    #: True = only of jobs that are not due yet
    only_delayed: bool = False


CANCEL: Final = Verb("waiting", actions.cancel_waiting())
RUN_NOW: Final = Verb("waiting", actions.run_waiting_now(), only_delayed=True)
KILL_FAILED: Final = Verb("failed", actions.end_failed_before("killed", math.inf))
DELETE_FAILED: Final = Verb("failed", actions.end_failed_before("deleted", math.inf))
DISCARD: Final = Verb("morgue", Discard())


def kick(*, delay_ms: int = 0, per_second: float | None = None, replace: bool = False, now_ms: float = 0) -> Verb:
    """Return the verb that moves jobs from the morgue back into the queue.

    Args:
        delay_ms, per_second, replace: see :func:`.bulk.kick_all`.
        now_ms: time from which a rate counts.

    Raises:
        InvalidJob: a rate that is not above 0.
    """
    return Verb("morgue", Kick(Pace.of(delay_ms, per_second, int(now_ms)), replace=replace))


@dataclass(slots=True)
class Changed:
    """Result of an operation: numbers of jobs by outcome, and the cursor with which it can be continued."""

    counts: Counter[str] = field(default_factory=Counter)
    #: number of jobs that were read
    examined: int = 0
    #: number of jobs of the place at the start, or of those that were read if these are more
    total: int = 0
    #: "" = all jobs were read
    cursor: str = ""


def change_matching(
    queue: Queue,
    verb: Verb,
    where: JobFilter,
    *,
    accepts: Accepts | None = None,
    cursor: str = "",
    seconds: float = math.inf,
    progress: Progress | None = None,
) -> Changed:
    """Apply a verb to all jobs of its place that meet the conditions.

    Args:
        verb: one of this module.
        where: the conditions, at least one.
        accepts: see :meth:`Inspector.page`.
        cursor: of an earlier call with the same verb and conditions, which it continues.
        seconds: time after which no further page is read.
        progress: called after each page with the number of jobs that were read, and that of the place at the start.

    Raises:
        InvalidJob: there is no condition, or the cursor is not valid.
    """
    if where.is_empty:
        raise InvalidJob("change which jobs? The filter has no condition; use the verbs for all jobs of a queue")
    give_up = time.monotonic() + seconds
    inspector, changed = queue.broker.inspector, Changed(cursor=cursor)
    by = where.best_order(verb.place, tuple(INDEXES[verb.place]))
    shards = shard_snapshots(queue).values()
    changed.total = sum(getattr(shard, verb.place) for shard in shards)
    low = min((shard.now_ms + 1 for shard in shards), default=None) if verb.only_delayed and by == "due" else None
    high = _last(queue, verb.place, by)
    while True:
        page = inspector.page(
            queue.name,
            verb.place,
            by,
            cursor=changed.cursor,
            limit=CHUNK,
            low=low,
            high=high,
            most_bytes=0,
            where=where,
            accepts=accepts,
            seconds=min(_PAGE_SECONDS, max(0.0, give_up - time.monotonic())),
        )
        changed.counts.update(_act(queue, verb.action, page.jobs))
        changed.examined += page.examined
        changed.total = max(changed.total, changed.examined)
        changed.cursor = page.cursor
        if progress:
            progress(changed.examined, changed.total)
        if not page.cursor or time.monotonic() >= give_up:
            changed.counts.pop(UNCOUNTED, None)
            return changed


def _act(queue: Queue, action: Action, views: list[JobView]) -> Counter[str]:
    by_shard: dict[int, list[tuple[bytes, bytes]]] = {}
    for view in views:
        by_shard.setdefault(view.job.shard, []).append((encode_id(view.id), view.job.key))
    counts: Counter[str] = Counter()
    for number, names in by_shard.items():
        counts.update(action.in_shard(queue, number, names))
    return counts


def _last(queue: Queue, place: str, by: str) -> Bound:
    """Return the value of the last job in an order."""
    for view in queue.broker.inspector.page(queue.name, place, by, limit=1, reverse=True, most_bytes=0).jobs:
        return {
            "due": view.due_ms,
            "failures": view.job.failures,
            "updated": view.buried_ms if place == "morgue" else view.job.failed_at_ms,
        }.get(by)
    return None

"""Cancel and run now all waiting jobs of a queue, including durable jobs that Redis does not have yet.

Commands, admin and HTTP API all call these functions. They look into every outbox, whatever this process knows about
durable jobs: the rows may be those of other processes. Jobs that Redis has are changed there only, because running ones
are left alone.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from ..core import bulk
from ..core.bulk import Progress, Verb
from ..core.queue import Queue
from ..models import OutboxJob
from . import durability, rows
from .due import NOW
from .records import digest_of

if TYPE_CHECKING:
    from django.db.models import QuerySet

State = OutboxJob.State


def cancel_all(queue: Queue, *, progress: Progress | None = None) -> dict[str, int]:
    """Cancel every waiting job, also those that Redis has refused; see :data:`..core.bulk.CANCEL`.

    Raises:
        QueueUnavailable: Redis is unavailable; jobs that were never sent are cancelled all the same.
    """
    states = (State.UNSENT, State.REFUSED)
    return _on_all(queue, bulk.CANCEL, "cancelled", states, rows.mark_cancelled, progress, moved=False)


def run_all_now(queue: Queue, *, progress: Progress | None = None) -> dict[str, int]:
    """Make every waiting job due now; see :data:`..core.bulk.RUN_NOW`.

    Raises:
        QueueUnavailable: Redis is unavailable; jobs that were never sent are due as soon as it is back.
    """

    def move(some: QuerySet[OutboxJob]) -> int:
        return rows.move(some, NOW, uuid.uuid4())

    return _on_all(queue, bulk.RUN_NOW, "moved", (State.UNSENT,), move, progress, moved=True)


def count_unsent(queue: Queue) -> int:
    """Return the number of durable jobs of the queue that were not sent to Redis yet."""
    return sum(mine.filter(state=State.UNSENT).count() for mine in _rows(queue))


def _on_all(
    queue: Queue,
    verb: Verb,
    outcome: str,
    states: Sequence[str],
    change: Callable[[QuerySet[OutboxJob]], int],
    progress: Progress | None,
    *,
    moved: bool,
) -> dict[str, int]:
    """Change the rows of jobs that Redis does not have, then the jobs that it has. Return the number by outcome.

    Args:
        states: states of rows whose jobs Redis certainly does not have, unless they are being sent.
        moved: also change the rows of jobs that Redis has, and that wait to be moved by the relay.
    """
    done = 0
    for mine in _rows(queue):  # first what needs no Redis
        for pks in _pages(mine.filter(state__in=states)):
            done += change(mine.filter(pk__in=pks, state__in=states))
            if progress:
                progress(done, done + 1)  # Redis comes next
    for mine in _rows(queue):
        for pks in _pages(mine.filter(state=State.MOVED)):
            lost = _lost(queue, mine, pks)
            change(mine.filter(pk__in=pks if moved else lost, state=State.MOVED))
            done += len(lost)

    def advance(seen: int, total: int) -> None:
        if progress:
            progress(done + seen, done + total)

    counts = dict(bulk.change(queue, verb, progress=advance).counts)
    changed = done + counts.get(outcome, 0)
    return counts | {outcome: changed} if changed else counts


def _rows(queue: Queue) -> Iterator[QuerySet[OutboxJob]]:
    """Yield the rows of a queue in each database."""
    for alias in durability.outboxes(queue.kind):
        yield rows.table(alias).filter(queue=queue.name)


def _pages(mine: QuerySet[OutboxJob]) -> Iterator[list[int]]:
    """Yield the keys of rows that are there now, page by page, each row once."""
    last = mine.order_by("-pk").values_list("pk", flat=True).first() or 0
    after = 0
    while pks := list(
        mine.filter(pk__gt=after, pk__lte=last).order_by("pk").values_list("pk", flat=True)[: rows.CHUNK]
    ):
        yield pks
        after = pks[-1]


def _lost(queue: Queue, mine: QuerySet[OutboxJob], pks: Sequence[int]) -> list[int]:
    """Return those of these rows whose jobs Redis does not have (any more), so that they will be sent again."""
    stored = list(mine.filter(pk__in=pks).values_list("pk", "job_id", "key", "record"))
    known = queue.knows([(job_id, key.bytes, digest_of(record)) for _, job_id, key, record in stored])
    return [row[0] for row, is_known in zip(stored, known, strict=True) if not is_known]

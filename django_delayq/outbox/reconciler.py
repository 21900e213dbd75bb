"""Dispatcher duty that detects durable jobs lost by Redis and has them sent again.

The row of a sent job belongs to a job that Redis has, live or in its morgue, or to a job whose end is marked. If Redis
has neither, the job was lost with its memory: its row is reset to unsent, and the relay sends it again.

All rows are checked when this process starts and whenever a shard has lost its data; later they are checked in
rotation. Rows of buried jobs are checked in rotation too: if the job is live, its row counts as sent again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple

from django.db.models import DateTimeField, Q, QuerySet, Value
from django.db.models.functions import Greatest, Now

from ..models import OutboxJob
from .claims import Outbox
from .live_lookup import live_among
from .records import digest_of
from .rows import CHUNK, ahead, free

if TYPE_CHECKING:
    from ..connections import DjangoBroker
    from ..worker.changes import Changes

logger: Final = logging.getLogger("django_delayq.outbox")
State = OutboxJob.State

#: seconds between two searches for rows that are due for a check
LOOK: Final = 10.0
#: … for rows of buried jobs: their changes are marked, and only a lost mark makes such a row wrong
LOOK_AT_GRAVES: Final = 60.0


class Row(NamedTuple):
    """Fields of a row that a check needs."""

    pk: int
    queue: str
    job_id: str
    key: bytes
    #: digest of a merged job's payload; b"" for a plain job
    digest: bytes


def read(rows: QuerySet[OutboxJob]) -> list[Row]:
    """Return the fields needed for a check, with one query."""
    fields = rows.values_list("id", "queue", "job_id", "key", "record")
    return [Row(pk, queue, job_id, key.bytes, digest_of(record)) for pk, queue, job_id, key, record in fields]


class Reconciler:
    """Duty that detects durable jobs lost by Redis.

    Args:
        changes: reports that a shard has lost its data.
        wake: called when there are jobs to send again.
    """

    #: number of rows that are looked up together
    batch = CHUNK
    #: seconds after which a job that was sent, but is unknown to Redis, counts as lost and is sent again
    resubmit_after = 60.0
    #: seconds between two checks that Redis still has a job that was sent
    recheck_every = 600.0

    def __init__(
        self, outbox: Outbox, broker: DjangoBroker, changes: Changes, wake: Callable[[], None] = lambda: None
    ) -> None:
        self._outbox = outbox
        self._broker = broker
        self._changes = changes
        self._wake = wake
        #: time on the database's clock; rows not checked since then are checked now; None = not read yet
        self._since: datetime | None = None
        #: time of the next check of rows of buried jobs (monotonic)
        self._graves_at = 0.0

    def attach(self, ring: Callable[[], None]) -> None:
        """Subscribe ``ring``, which wakes this duty's loop."""
        self._changes.subscribe(ring)

    def run(self) -> float:
        """Check one batch. Return the seconds until the next one."""
        lost = bool(self._changes.take("lost"))
        if lost or self._since is None:
            self._since = self._outbox.now()
        if self._since is None:
            return LOOK
        try:
            count, missing = self.look(self._since)
        except Exception:
            self._since = None  # rows of a query without a reply are checked again
            raise
        if missing:
            self._wake()
        graves = self._look_at_graves() if time.monotonic() >= self._graves_at else 0
        return 0.0 if self.batch in (count, graves) else min(LOOK, self.resubmit_after / 2)

    def _look_at_graves(self) -> int:
        count, _ = self.look_at_graves()
        self._graves_at = time.monotonic() + (0.0 if count == self.batch else LOOK_AT_GRAVES)
        return count

    def look(self, since: datetime, *, at_once: bool = False) -> tuple[int, int]:
        """Check one batch of rows of sent jobs against Redis.

        Args:
            since: only rows that were not checked since then, or not for long.
            at_once: include rows that were sent recently.

        Returns:
            Number of rows checked, and number of rows to send again.

        Raises:
            QueueUnavailable: Redis does not answer; nothing is sent again.
        """
        rows = self._take(since, 0.0 if at_once else self.resubmit_after)
        missing = list(self.unknown(rows))
        return len(rows), self._send_again(missing) if missing else 0

    def look_at_graves(self) -> tuple[int, int]:
        """Check one batch of rows of buried jobs that were not checked for long.

        Returns:
            Number of rows checked, and number of rows whose jobs are live: their mark was lost, or an older one came
            late.

        Raises:
            QueueUnavailable: Redis does not answer.
        """
        bound = ahead(-self.recheck_every)
        rows = self._choose(State.BURIED, Q(checked_at__lte=bound) | Q(checked_at=None))
        alive = live_among(self._broker, rows)
        if alive:
            mine = self._outbox.rows.filter(free(), pk__in=alive, state=State.BURIED)
            count = mine.update(state=State.SENT, sent_at=Now())
            logger.info("%d durable jobs were thought to be buried and live", count)
        return len(rows), len(alive)

    def _take(self, since: datetime, age: float) -> list[Row]:
        """Return rows that are due for a check."""
        # One bound for the index, not two with an "or" between.
        bound = Greatest(Value(since, output_field=DateTimeField()), ahead(-self.recheck_every))
        due = Q(checked_at__lte=bound)
        return self._choose(State.SENT, due & Q(sent_at__lte=ahead(-age)) if age else due)

    def _choose(self, state: str, due: Q) -> list[Row]:
        """Return a batch of rows and mark them as checked now, so that other dispatchers take other rows."""
        outbox = self._outbox
        unchecked = outbox.rows.filter(free(), due, state=state)
        if not unchecked.exists():
            return []
        with outbox.atomic():
            rows = read(outbox.unlocked(unchecked).order_by("checked_at", "id")[: self.batch])
            if rows:
                outbox.rows.filter(pk__in=[row.pk for row in rows], state=state).update(checked_at=Now())
        return rows

    def unknown(self, rows: list[Row]) -> Iterator[Row]:
        """Yield the rows whose jobs are unknown to Redis."""
        for queue, some in groupby(sorted(rows, key=lambda row: row.queue), key=lambda row: row.queue):
            mine = list(some)
            opened = self._broker.existing(queue)
            in_redis = [False] * len(mine) if opened is None else opened.knows([row[2:] for row in mine])
            yield from (row for row, is_known in zip(mine, in_redis, strict=True) if not is_known)

    def _send_again(self, missing: list[Row]) -> int:
        """Reset rows to unsent, unless another process has done so or is sending them. Return their number.

        A plain job behind another one of its id keeps waiting for the end of that one.
        """
        pks = [row.pk for row in missing]
        behind = self._outbox.behind(pks, (*OutboxJob.WAITING, State.SENT))
        later = [row.pk for row in missing if row.pk in behind and not row.digest]
        if later:
            soon = ahead(self.resubmit_after - self.recheck_every)
            self._outbox.rows.filter(pk__in=later, state=State.SENT).update(checked_at=soon)
        count = self._outbox.rows.filter(free(), pk__in=set(pks) - set(later), state=State.SENT).update(
            state=State.UNSENT
        )
        if count:
            logger.warning(
                "Redis has lost %d durable jobs (%s is one); they are sent again",
                count,
                f"{missing[0].queue}/{missing[0].job_id}",
            )
        return count

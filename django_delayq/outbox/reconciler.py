"""The duty of noticing that Redis has lost a durable job, and of having it sent again.

A row that was sent belongs to a job that Redis has, live or in its morgue, or to one whose end is marked. A row of
which Redis knows neither was lost with its memory: from then on it waits to be sent again, and the relay does that.
All rows are looked at when this process starts and whenever a shard has lost its data; later each of them in rotation.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple

from django.db.models import DateTimeField, Value
from django.db.models.functions import Greatest, Now

from django_delayq.conf import Conf
from django_delayq.core.packed import unpack_job
from django_delayq.models import OutboxJob

from .claims import Outbox
from .rows import ahead, free

if TYPE_CHECKING:
    from django_delayq.connections import DjangoBroker
    from django_delayq.worker.changes import Changes

logger: Final = logging.getLogger("django_delayq.outbox")
State = OutboxJob.State

#: seconds between two looks for rows whose turn it is
LOOK: Final = 10.0


class Row(NamedTuple):
    """What is asked about."""

    pk: int
    queue: str
    job_id: str
    key: bytes


class Reconciler:
    """See the module.

    Args:
        settings: the project's.
        outbox: of which database.
        broker: whom to ask.
        changes: tells when a shard has lost its data.
        wake: called when there is something to send again.
    """

    def __init__(self, settings: Conf, outbox: Outbox, broker: DjangoBroker, changes: Changes,
                 wake: Callable[[], None] = lambda: None) -> None:  # fmt: skip
        self._settings = settings.outbox
        self._outbox = outbox
        self._broker = broker
        self._changes = changes
        self._wake = wake
        #: on the database's clock: rows that were not looked at since then are looked at now; None = ask for it
        self._since: datetime | None = None

    def attach(self, ring: Callable[[], None]) -> None:
        """``ring`` ends the rest of this duty's loop."""
        self._changes.subscribe(ring)

    def run(self) -> float:
        """Looks after one batch. Returns the seconds until the next one."""
        lost = bool(self._changes.take("lost"))
        if lost or self._since is None:
            self._since = self._outbox.now()
        if self._since is None:
            return LOOK
        try:
            asked, missing = self.look(self._since)
        except Exception:
            self._since = None  # what was asked about without an answer is asked about again
            raise
        if missing:
            self._wake()
        return 0.0 if asked == self._settings.batch else min(LOOK, self._settings.resubmit_after / 2)

    def look(self, since: datetime, *, at_once: bool = False) -> tuple[int, int]:
        """Asks Redis about one batch of rows that were sent.

        Args:
            since: only those that were not looked at since then, or not for long.
            at_once: however short ago they were sent.

        Returns:
            How many were asked about, and how many of them are to be sent again.

        Raises:
            QueueUnavailable: Redis does not answer; nothing is sent again.
        """
        rows = self._take(since, 0.0 if at_once else self._settings.resubmit_after)
        missing = list(self.unknown(rows))
        return len(rows), self._send_again(missing) if missing else 0

    def _take(self, since: datetime, age: float) -> list[Row]:
        """Rows whose turn it is. They count as seen from now on, so that other dispatchers take other ones."""
        outbox = self._outbox
        # One bound for the index, not two with an "or" between.
        bound = Greatest(Value(since, output_field=DateTimeField()), ahead(-self._settings.recheck_every))
        due = outbox.rows.filter(free(), state=State.SENT, checked_at__lte=bound)
        if age:
            due = due.filter(sent_at__lte=ahead(-age))
        if not due.exists():
            return []
        with outbox.atomic():
            chosen = outbox.unlocked(due).order_by("checked_at", "id")[: self._settings.batch]
            rows = [Row(pk, queue, job_id, key.bytes)
                    for pk, queue, job_id, key in chosen.values_list("id", "queue", "job_id", "key")]  # fmt: skip
            if rows:
                outbox.rows.filter(pk__in=[row.pk for row in rows], state=State.SENT).update(checked_at=Now())
        return rows

    def unknown(self, rows: list[Row]) -> Iterator[Row]:
        """Those of which Redis knows nothing."""
        for queue, some in groupby(sorted(rows, key=lambda row: row.queue), key=lambda row: row.queue):
            mine = list(some)
            opened = self._broker.existing(queue)
            known = [False] * len(mine) if opened is None else opened.knows([(row.job_id, row.key) for row in mine])
            yield from (row for row, is_known in zip(mine, known, strict=True) if not is_known)

    def _send_again(self, missing: list[Row]) -> int:
        """Has rows sent again, if nobody has done so or is about to. Returns how many.

        A plain job behind another one of its id waits for the end of that, as it did before.
        """
        pks = [row.pk for row in missing]
        behind = self._outbox.behind(pks, (*OutboxJob.WAITING, State.SENT))
        later = [pk for pk in behind if not self._is_merged(pk)]
        if later:
            soon = ahead(self._settings.resubmit_after - self._settings.recheck_every)
            self._outbox.rows.filter(pk__in=later, state=State.SENT).update(checked_at=soon)
        count = self._outbox.rows.filter(free(), pk__in=set(pks) - set(later), state=State.SENT).update(
            state=State.UNSENT
        )
        if count:
            logger.warning("Redis has lost %d durable jobs (%s is one); they are sent again", count,
                           f"{missing[0].queue}/{missing[0].job_id}")  # fmt: skip
        return count

    def _is_merged(self, pk: int) -> bool:
        record = self._outbox.rows.filter(pk=pk).values_list("record", flat=True).first()
        try:
            return record is None or unpack_job(bytes(record)).payload is not None
        except ValueError:
            return True  # the relay refuses it

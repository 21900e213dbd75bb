"""The duty of noticing that Redis has lost a durable job, and of having it sent again.

A row that was sent belongs to a job that Redis has, live or in its morgue, or to one whose end is marked. A row of
which Redis knows neither was lost with its memory: from then on it waits to be sent again, and the relay does that.
All rows are looked at when this process starts and whenever a shard has lost its data; later each of them in rotation.
Rows of buried jobs are looked at in rotation too: one whose job lives counts as sent again.
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
from ..settings.conf import Conf
from .claims import Outbox
from .living import Living
from .records import digest_of
from .rows import ahead, free

if TYPE_CHECKING:
    from ..connections import DjangoBroker
    from ..worker.changes import Changes

logger: Final = logging.getLogger("django_delayq.outbox")
State = OutboxJob.State

#: seconds between two looks for rows whose turn it is
LOOK: Final = 10.0
#: … for rows of buried jobs: what happens to these is marked, and only a lost mark makes one of them wrong
LOOK_AT_GRAVES: Final = 60.0


class Row(NamedTuple):
    """What is asked about."""

    pk: int
    queue: str
    job_id: str
    key: bytes
    #: of a merged job's payload; b"" of a plain job
    digest: bytes


def read(rows: QuerySet[OutboxJob]) -> list[Row]:
    """What is asked about, with one query."""
    found = rows.values_list("id", "queue", "job_id", "key", "record")
    return [Row(pk, queue, job_id, key.bytes, digest_of(record)) for pk, queue, job_id, key, record in found]


class Reconciler:
    """See the module.

    Args:
        settings: the project's.
        outbox: of which database.
        broker: whom to ask.
        changes: tells when a shard has lost its data.
        wake: called when there is something to send again.
    """

    def __init__(
        self,
        settings: Conf,
        outbox: Outbox,
        broker: DjangoBroker,
        changes: Changes,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self._settings = settings.outbox
        self._outbox = outbox
        self._broker = broker
        self._changes = changes
        self._wake = wake
        #: on the database's clock: rows that were not looked at since then are looked at now; None = ask for it
        self._since: datetime | None = None
        #: when rows of buried jobs are looked for again (monotonic)
        self._graves_at = 0.0

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
        graves = self._look_at_graves() if time.monotonic() >= self._graves_at else 0
        return 0.0 if self._settings.batch in (asked, graves) else min(LOOK, self._settings.resubmit_after / 2)

    def _look_at_graves(self) -> int:
        asked, _ = self.look_at_graves()
        self._graves_at = time.monotonic() + (0.0 if asked == self._settings.batch else LOOK_AT_GRAVES)
        return asked

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

    def look_at_graves(self) -> tuple[int, int]:
        """Asks Redis about one batch of rows of buried jobs, which were not looked at for long.

        Returns:
            How many were asked about, and how many of their jobs live: their mark was lost, or an older one came late.

        Raises:
            QueueUnavailable: Redis does not answer.
        """
        bound = ahead(-self._settings.recheck_every)
        rows = self._choose(State.BURIED, Q(checked_at__lte=bound) | Q(checked_at=None))
        alive = Living(self._broker).among(rows)
        if alive:
            mine = self._outbox.rows.filter(free(), pk__in=alive, state=State.BURIED)
            count = mine.update(state=State.SENT, sent_at=Now())
            logger.info("%d durable jobs were thought to be buried and live", count)
        return len(rows), len(alive)

    def _take(self, since: datetime, age: float) -> list[Row]:
        """Rows whose turn it is."""
        # One bound for the index, not two with an "or" between.
        bound = Greatest(Value(since, output_field=DateTimeField()), ahead(-self._settings.recheck_every))
        due = Q(checked_at__lte=bound)
        return self._choose(State.SENT, due & Q(sent_at__lte=ahead(-age)) if age else due)

    def _choose(self, state: str, due: Q) -> list[Row]:
        """A batch of them. They count as seen from now on, so that other dispatchers take other ones."""
        outbox = self._outbox
        wanted = outbox.rows.filter(free(), due, state=state)
        if not wanted.exists():
            return []
        with outbox.atomic():
            rows = read(outbox.unlocked(wanted).order_by("checked_at", "id")[: self._settings.batch])
            if rows:
                outbox.rows.filter(pk__in=[row.pk for row in rows], state=state).update(checked_at=Now())
        return rows

    def unknown(self, rows: list[Row]) -> Iterator[Row]:
        """Those of which Redis knows nothing."""
        for queue, some in groupby(sorted(rows, key=lambda row: row.queue), key=lambda row: row.queue):
            mine = list(some)
            opened = self._broker.existing(queue)
            known = [False] * len(mine) if opened is None else opened.knows([row[2:] for row in mine])
            yield from (row for row, is_known in zip(mine, known, strict=True) if not is_known)

    def _send_again(self, missing: list[Row]) -> int:
        """Has rows sent again, if nobody has done so or is about to. Returns how many.

        A plain job behind another one of its id waits for the end of that, as it did before.
        """
        pks = [row.pk for row in missing]
        behind = self._outbox.behind(pks, (*OutboxJob.WAITING, State.SENT))
        later = [row.pk for row in missing if row.pk in behind and not row.digest]
        if later:
            soon = ahead(self._settings.resubmit_after - self._settings.recheck_every)
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

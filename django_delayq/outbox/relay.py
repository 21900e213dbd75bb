"""Dispatcher duty that sends the rows of the outbox which their writer could not send.

It follows the protocol of :mod:`.protocol`, a batch in each turn. Rows of one job are sent one after the other, and a
row that is held up delays only the later rows of its job.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ..core.errors import DelayQError, IdTaken
from ..core.outcomes import ScheduleOutcome
from ..core.task import registry
from ..models import OutboxJob
from ..settings.conf import Conf
from ..signals import emit, job_cancelled, job_not_sent, job_scheduled
from ..transactions import not_sent
from ..worker.changes import Changes
from .claims import ClaimedBatch, Outbox
from .durability import declared, is_announced
from .protocol import FREE, GONE, RowOutcome, RowResult
from .rows import CHUNK
from .sender import OutboxSender

if TYPE_CHECKING:
    from ..connections import DjangoBroker

logger: Final = logging.getLogger("django_delayq.outbox")
State = OutboxJob.State

#: seconds between two checks while the outbox is in use, and while it is not
BUSY: Final = 1.0
IDLE: Final = 10.0
#: seconds after its last row, or the last end of a durable job, for which an outbox counts as in use
MEMORY: Final = 600.0
#: seconds before each retry of rows that are locked: other relays hold locks for a moment only. Rows of a longer
#: transaction are sent again when the claim is over
_TRIES: Final = (0.0, 0.01, 0.05, 0.2, 0.5, 1.0)


class Relay:
    """Duty that sends the rows of the outbox which their writer could not send.

    Args:
        changes: reports completion marks of durable jobs, which tell that the outbox is in use.
    """

    #: number of rows that are claimed and sent together
    batch = CHUNK

    def __init__(self, settings: Conf, outbox: Outbox, broker: DjangoBroker, changes: Changes | None = None) -> None:
        self._settings = settings
        self._outbox = outbox
        self._broker = broker
        self._sender = OutboxSender(settings, broker)
        self._changes = changes or Changes()
        self._seen_at = -MEMORY
        self._wake_loop: Callable[[], None] = lambda: None

    def attach(self, wake_loop: Callable[[], None]) -> None:
        """Set the function that wakes this duty's loop."""
        self._wake_loop = wake_loop

    def wake(self) -> None:
        """Wake the duty because the outbox has new work."""
        self._seen_at = time.monotonic()
        self._wake_loop()

    def run(self) -> float:
        """Handle one batch. Return the seconds until the next one."""
        if self._outbox.waiting.exists():
            self._seen_at = time.monotonic()
            return 0.0 if sum(self.turn().values()) else BUSY
        return BUSY if self._in_use() else IDLE

    def _in_use(self) -> bool:
        if is_announced() or declared(self._settings):
            return True
        now = time.monotonic()
        if self._changes.take("marks") or (now - self._seen_at >= MEMORY and self._outbox.rows.exists()):
            self._seen_at = now
        return now - self._seen_at < MEMORY

    def turn(self) -> Counter[str]:
        """Handle one batch. Return counts by result; empty if all waiting rows are claimed by other processes.

        Raises:
            QueueUnavailable: Redis became unavailable; rows that it had not received were released.
        """
        batch = self._outbox.claim(self.batch, self._broker)
        results: dict[int, RowResult] = {}
        try:
            for pk, result in self._sender.send(batch):
                results[pk] = result
        finally:
            self._settle(batch, results)
        return Counter(str(result.outcome) for result in results.values() if result is not FREE)

    # -- settling in the database ------------------------------------------------------------------------------------

    def _settle(self, batch: ClaimedBatch, results: dict[int, RowResult]) -> None:
        """Write the results. Rows without one are released. Rows that were changed meanwhile are sent again."""
        unsettled = {row.pk: row for row in batch.rows}
        for pause in _TRIES if unsettled else ():
            time.sleep(pause)
            for pk in self._settle_unlocked(batch, unsettled, results):
                del unsettled[pk]
            if not unsettled or not batch.held(pk__in=unsettled).exists():
                return

    def _settle_unlocked(
        self, batch: ClaimedBatch, sent: dict[int, OutboxJob], results: dict[int, RowResult]
    ) -> list[int]:
        """Settle the sent rows that no other transaction has locked. Return their keys."""
        with self._outbox.atomic():
            rows = self._outbox.unlocked(batch.held(pk__in=sent)).order_by("id")
            pks = list(rows.values_list("id", flat=True))
            changed = batch.settle([sent[pk] for pk in pks], results)
            batch.write(FREE, changed)
        for pk in pks:
            if pk in results and pk not in changed:
                self._report(sent[pk], results[pk])
        return pks

    def _report(self, row: OutboxJob, result: RowResult) -> None:
        """Report a result to the log, the counters and the signals."""
        task = registry.get(row.task)
        if result.outcome is RowOutcome.REFUSED:
            not_sent["refused"] += 1
            logger.error("%s of queue %s is refused and stays in the outbox: %s", row.job_id, row.queue, result.error)
            emit(job_not_sent, task, verb="schedule", id=row.job_id, queue=row.queue, error=DelayQError(result.error))
        elif result.reply in GONE:
            not_sent[result.reply] += 1
            reason = GONE[ScheduleOutcome(result.reply)]
            extra = {"verb": "schedule", "job_id": row.job_id, "queue": row.queue}
            logger.error("%s of queue %s was not scheduled: %s", row.job_id, row.queue, reason, extra=extra)
            if result.reply != ScheduleOutcome.IGNORED:
                error = IdTaken(f"id {row.job_id!r}: {reason}")
                emit(job_not_sent, task, verb="schedule", id=row.job_id, queue=row.queue, error=error)
        elif result.reply in ("cancelled", "stopping"):
            emit(job_cancelled, task, id=row.job_id, queue=row.queue, outcome=result.reply)
        elif (
            result.outcome is RowOutcome.SENT
            and result.reply not in ("", ScheduleOutcome.KNOWN)
            and row.sent_at is None
        ):
            emit(job_scheduled, task, id=row.job_id, queue=row.queue, outcome=result.reply, due=row.due)

"""Dispatcher duty that sends the rows of the outbox which their writer could not send.

A row is claimed, sent, and settled in the database, in this order. A relay may die or sleep after each step: the next
claim finds the row as it was, and Redis answers ``known`` to commands that it has received before. One turn handles a
batch. Rows of one job are sent one after the other, and a row that is held up delays only the later rows of its job.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from django.db import transaction
from django.db.models.functions import Now

from ..core.errors import DelayQError, IdTaken
from ..core.task import registry
from ..models import OutboxJob
from ..settings.conf import Conf
from ..signals import emit, job_cancelled, job_not_sent, job_scheduled
from ..transactions import not_sent
from .claims import ClaimedBatch, Outbox
from .rows import ahead
from .sender import FREE, GONE, OutboxSender, Verdict

if TYPE_CHECKING:
    from ..connections import DjangoBroker

logger: Final = logging.getLogger("django_delayq.outbox")
State = OutboxJob.State

#: seconds between two checks while the outbox is in use, and while it is not
BUSY: Final = 1.0
IDLE: Final = 10.0
#: seconds after its last row for which an outbox counts as in use
MEMORY: Final = 600.0
#: seconds of back-off for a row that Redis does not accept now
PAUSES: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)
#: seconds before each retry of rows that are locked: other relays hold locks for a moment only. Rows of a longer
#: transaction are sent again when the claim is over
_TRIES: Final = (0.0, 0.01, 0.05, 0.2, 0.5, 1.0)


class Relay:
    """Duty that sends the rows of the outbox which their writer could not send.

    Args:
        settings: the project's settings.
        outbox: outbox of one database.
        broker: broker that receives the jobs.
    """

    def __init__(self, settings: Conf, outbox: Outbox, broker: DjangoBroker) -> None:
        self._batch = settings.outbox.batch
        self._outbox = outbox
        self._broker = broker
        self._teller = OutboxSender(settings, broker)
        self._seen_at = -MEMORY
        self._always = any(entry.durable for entry in settings.queues.values())
        self._ring: Callable[[], None] = lambda: None

    def attach(self, ring: Callable[[], None]) -> None:
        """Set ``ring``, which wakes this duty's loop."""
        self._ring = ring

    def wake(self) -> None:
        """Wake the duty because the outbox has new work."""
        self._seen_at = time.monotonic()
        self._ring()

    def run(self) -> float:
        """Handle one batch. Return the seconds until the next one."""
        if self._outbox.waiting.exists():
            self._seen_at = time.monotonic()
            return 0.0 if sum(self.turn().values()) else BUSY
        return BUSY if self._in_use() else IDLE

    def _in_use(self) -> bool:
        if self._always or any(task.options.durable for task in registry):
            return True
        now = time.monotonic()
        if now - self._seen_at >= MEMORY and self._outbox.rows.exists():
            self._seen_at = now
        return now - self._seen_at < MEMORY

    def turn(self) -> Counter[str]:
        """Handle one batch. Return counts by verdict; empty if all waiting rows are claimed by other processes.

        Raises:
            QueueUnavailable: Redis became unavailable; rows that it had not received were released.
        """
        hand = self._outbox.claim(self._batch, self._broker)
        verdicts: dict[int, Verdict] = {}
        try:
            for pk, verdict in self._teller.tell(hand):
                verdicts[pk] = verdict
        finally:
            self._settle(hand, verdicts)
        return Counter(verdict.word for verdict in verdicts.values() if verdict is not FREE)

    # -- settling in the database ------------------------------------------------------------------------------------

    def _settle(self, hand: ClaimedBatch, verdicts: dict[int, Verdict]) -> None:
        """Write the verdicts. Rows without one are released. Rows that were changed meanwhile are sent again."""
        left = {row.pk: row for row in hand.rows}
        for pause in _TRIES if left else ():
            time.sleep(pause)
            for pk in self._settle_unlocked(hand, left, verdicts):
                del left[pk]
            if not left or not self._outbox.rows.filter(pk__in=left, claim=hand.token).exists():
                return

    def _settle_unlocked(
        self, hand: ClaimedBatch, told: dict[int, OutboxJob], verdicts: dict[int, Verdict]
    ) -> list[int]:
        """Settle the sent rows that no other transaction has locked. Return their keys."""
        with transaction.atomic(using=self._outbox.alias):
            final: dict[int, Verdict] = {}
            for pk, state, moved_by in self._outbox.lock(hand.token, told):
                final[pk] = _now(verdicts.get(pk, FREE), told[pk], state, moved_by)
            for verdict, pks in _grouped(final):
                self._write(hand, verdict, pks)
        for pk, verdict in final.items():
            self._report(told[pk], verdict)
        return list(final)

    def _write(self, hand: ClaimedBatch, verdict: Verdict, pks: list[int]) -> None:
        rows = self._outbox.rows.filter(pk__in=pks, claim=hand.token)
        ended: dict[str, Any] = {"claim": None, "claimed_until": None}
        if verdict.word in ("sent", "moved"):
            rows.update(state=verdict.word, sent_at=Now(), checked_at=Now(), tries=0, error="", **ended)
        elif verdict.word == "unsent":
            rows.update(state=State.UNSENT, **ended)
        elif verdict.word == "gone":
            rows.delete()
        elif verdict.word == "refused":
            rows.update(state=State.REFUSED, tries=verdict.tries, error=verdict.error, claim=None, claimed_until=Now())
        elif verdict.word == "later":
            pause = PAUSES[min(verdict.tries, len(PAUSES)) - 1]
            rows.update(claimed_until=ahead(pause), tries=verdict.tries, error=verdict.error)
        else:
            rows.update(**ended)

    def _report(self, row: OutboxJob, verdict: Verdict) -> None:
        """Report a verdict to the log, the counters and the signals."""
        task = registry.get(row.task)
        if verdict.word == "refused":
            not_sent["refused"] += 1
            logger.error("%s of queue %s is refused and stays in the outbox: %s", row.job_id, row.queue, verdict.error)
            emit(job_not_sent, task, verb="schedule", id=row.job_id, queue=row.queue, error=DelayQError(verdict.error))
        elif verdict.outcome in GONE:
            not_sent[verdict.outcome] += 1
            logger.error(
                "%s of queue %s was not scheduled: %s",
                row.job_id,
                row.queue,
                GONE[verdict.outcome],
                extra={"verb": "schedule", "job_id": row.job_id, "queue": row.queue},
            )
            if verdict.outcome != "ignored":
                emit(
                    job_not_sent,
                    task,
                    verb="schedule",
                    id=row.job_id,
                    queue=row.queue,
                    error=IdTaken(f"id {row.job_id!r}: {GONE[verdict.outcome]}"),
                )
        elif verdict.outcome in ("cancelled", "stopping"):
            emit(job_cancelled, task, id=row.job_id, queue=row.queue, outcome=verdict.outcome)
        elif verdict.word == "sent" and verdict.outcome not in ("", "known") and row.sent_at is None:
            emit(job_scheduled, task, id=row.job_id, queue=row.queue, outcome=verdict.outcome, due=row.due)


def _now(verdict: Verdict, told: OutboxJob, state: str, moved_by: uuid.UUID | None) -> Verdict:
    """Return the verdict for a row that may have changed since it was sent to Redis."""
    if verdict.word == "gone" or (state == told.state and (moved_by == told.moved_by or verdict.word != "sent")):
        return verdict
    if verdict.word == "sent" and state == told.state == State.UNSENT:
        return Verdict("moved", outcome=verdict.outcome)  # it was rescheduled while it was being sent
    return FREE


def _grouped(verdicts: dict[int, Verdict]) -> Iterator[tuple[Verdict, list[int]]]:
    """Yield the verdicts, each with the rows that share it."""
    groups: dict[Verdict, list[int]] = {}
    for pk, verdict in verdicts.items():
        groups.setdefault(Verdict(verdict.word, verdict.error, verdict.tries), []).append(pk)
    yield from groups.items()

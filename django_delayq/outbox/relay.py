"""The duty of telling Redis what waits in the outbox, when the process that wrote it did not live to do so itself.

A row is claimed, told, and settled in the database, in this order. A relay may die or sleep behind each step: the next
claim finds the row as it was, and Redis answers ``known`` to what it has heard before. One turn deals with a batch;
rows of one job are told one after the other, and one that is held up holds up the later rows of its job only.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from django.db import transaction
from django.db.models.functions import Now

from django_delayq.conf import Conf
from django_delayq.core.errors import DelayQError, IdTaken, InvalidJob, QueueFull
from django_delayq.core.faults import Fault, classify
from django_delayq.core.packed import unpack_job
from django_delayq.core.task import registry
from django_delayq.models import OutboxJob
from django_delayq.signals import emit, job_cancelled, job_not_sent, job_scheduled
from django_delayq.transactions import not_sent

from .claims import Hand, Outbox
from .rows import ahead

if TYPE_CHECKING:
    from django_delayq.connections import DjangoBroker
    from django_delayq.core.job import NewJob

logger: Final = logging.getLogger("django_delayq.outbox")
State = OutboxJob.State

#: seconds between two looks while the outbox is in use, and while it is not
BUSY: Final = 1.0
IDLE: Final = 10.0
#: seconds after its last row in which an outbox counts as in use
MEMORY: Final = 600.0
#: seconds of rest for a row that Redis does not take now
PAUSES: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)
#: seconds before each look for rows that others have locked: other relays do so for a moment. Those of a transaction
#: that lasts are told again when the claim is over
_TRIES: Final = (0.0, 0.01, 0.05, 0.2, 0.5, 1.0)
#: why Redis does not take a row now, though it will later
_LATER: Final = {"full": "the queue, or Redis, is full", "paused": "the queue is paused for new jobs"}
#: why a row is given up, and what follows
_GONE: Final = {
    "taken": "the live job of this id belongs to another task",
    "exists": "a job with this id lives already, and on_conflict is 'error'",
    "ignored": "a job with this id lives already",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is to become of a row. ``word``: sent, moved, unsent, gone, refused, later or free (as if never claimed)."""

    word: str
    error: str = ""
    tries: int = 0
    #: Redis's answer, for the log
    outcome: str = ""


_FREE: Final = Verdict("free")


class Relay:
    """See the module.

    Args:
        settings: the project's.
        outbox: of which database.
        broker: where to tell it.
    """

    def __init__(self, settings: Conf, outbox: Outbox, broker: DjangoBroker) -> None:
        self._settings = settings.outbox
        self._outbox = outbox
        self._broker = broker
        self._seen_at = -MEMORY
        self._always = any(entry.durable for entry in settings.queues.values())
        self._ring: Callable[[], None] = lambda: None

    def attach(self, ring: Callable[[], None]) -> None:
        """``ring`` ends the rest of this duty's loop."""
        self._ring = ring

    def wake(self) -> None:
        """Somebody has put work into the outbox."""
        self._seen_at = time.monotonic()
        self._ring()

    def run(self) -> float:
        """One batch. Returns the seconds until the next one."""
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
        """One batch. Returns how often which verdict was given; nothing if all that waits is in other hands.

        Raises:
            QueueUnavailable: Redis went away; what it had not heard was put back.
        """
        hand = self._outbox.claim(self._settings.batch, self._broker)
        verdicts: dict[int, Verdict] = {}
        try:
            for pk, verdict in self._tell_all(hand):
                verdicts[pk] = verdict
        finally:
            self._settle(hand, verdicts)
        return Counter(verdict.word for verdict in verdicts.values() if verdict is not _FREE)

    # -- telling Redis -----------------------------------------------------------------------------------------------

    def _tell_all(self, hand: Hand) -> Iterator[tuple[int, Verdict]]:
        held_up: set[tuple[str, str]] = set()
        for wave in _waves(hand.rows):
            ready = [row for row in wave if (row.queue, row.job_id) not in held_up]
            for (queue, unsent), some in groupby(ready, key=lambda row: (row.queue, row.state == State.UNSENT)):
                rows = list(some)
                for row, verdict in self._send(hand, queue, rows) if unsent else self._correct(hand, queue, rows):
                    if verdict.word in ("later", "free", "unsent"):
                        held_up.add((row.queue, row.job_id))
                    yield row.pk, verdict

    def _send(self, hand: Hand, queue: str, rows: Sequence[OutboxJob]) -> Iterator[tuple[OutboxJob, Verdict]]:
        """Schedules jobs of one queue."""
        jobs: list[tuple[OutboxJob, NewJob]] = []
        for row in rows:
            try:
                jobs.append((row, job_of(row)))
            except Exception as error:  # whatever the bytes make the reader do, it is this row's own trouble
                yield row, Verdict("refused", f"the record cannot be read: {type(error).__name__}: {error}", row.tries)
        if jobs:
            yield from self._offer(hand, queue, jobs)

    def _offer(
        self, hand: Hand, queue: str, jobs: list[tuple[OutboxJob, NewJob]]
    ) -> Iterator[tuple[OutboxJob, Verdict]]:
        try:
            opened = self._broker.queue(queue)
            outcomes = opened.schedule_many([job for _, job in jobs], not_after_ms=hand.deadline_ms)
        except QueueFull:  # Redis has no memory left
            yield from ((row, _later(row, _LATER["full"])) for row, _ in jobs)
        except Exception as error:
            if classify(error) is not Fault.BUG:
                raise
            if len(jobs) > 1:  # one of them is the cause; the others must not suffer for it
                middle = len(jobs) // 2
                yield from self._offer(hand, queue, jobs[:middle])
                yield from self._offer(hand, queue, jobs[middle:])
            else:
                yield jobs[0][0], self._failed(jobs[0][0], error)
        else:
            for (row, job), outcome in zip(jobs, outcomes, strict=True):
                yield row, self._answered(row, job, outcome)

    def _failed(self, row: OutboxJob, error: Exception) -> Verdict:
        said = f"{type(error).__name__}: {error}"
        tries = row.tries + 1 if row.error not in _LATER.values() else 1
        if isinstance(error, InvalidJob) or tries >= self._settings.max_tries:
            return Verdict("refused", said, tries)
        return Verdict("later", said, tries)

    def _answered(self, row: OutboxJob, job: NewJob, outcome: str) -> Verdict:
        if outcome in _LATER:
            return _later(row, _LATER[outcome])
        if outcome in _GONE:
            return Verdict("gone", outcome=outcome)
        if outcome == "late":
            return _FREE
        if outcome == "known" and job.payload is None and self._stands_elsewhere(row):
            return Verdict("moved")
        return Verdict("sent", outcome=outcome)

    def _stands_elsewhere(self, row: OutboxJob) -> bool:
        """Whether the job waits at another due time than the row's.

        It was told by somebody who died before he could say so, and rescheduled meanwhile. One that has failed waits
        for its back-off, and is left there.
        """
        view = self._broker.inspector.get(row.queue, row.job_id)
        return (view is not None and view.state in ("delayed", "ready") and view.job.key == row.key.bytes
                and not view.job.failures and view.due_ms != row.due_ms)  # fmt: skip

    def _correct(self, hand: Hand, queue: str, rows: Sequence[OutboxJob]) -> Iterator[tuple[OutboxJob, Verdict]]:
        """Cancels and moves jobs of one queue."""
        opened = self._broker.existing(queue)
        pairs = [(row.job_id, row.key.bytes) for row in rows]
        known = [False] * len(rows) if opened is None else opened.knows(pairs)
        for row, is_known in zip(rows, known, strict=True):
            cancelled = row.state == State.CANCELLED
            if not hand.held:
                yield row, _FREE
            elif not is_known or opened is None:  # never sent; or lost, and a job that shall run is sent again
                yield row, Verdict("gone" if cancelled else "unsent")
            elif cancelled:
                yield row, Verdict("gone", outcome=_or_nothing(opened.cancel, row))
            else:
                _or_nothing(opened.reschedule, row, due_ms=row.due_ms)
                yield row, Verdict("sent")

    # -- settling in the database ------------------------------------------------------------------------------------

    def _settle(self, hand: Hand, verdicts: dict[int, Verdict]) -> None:
        """Writes the verdicts; rows without one are given back. Rows that were changed meanwhile are told again."""
        left = {row.pk: row for row in hand.rows}
        for pause in _TRIES if left else ():
            time.sleep(pause)
            for pk in self._settle_unlocked(hand, left, verdicts):
                del left[pk]
            if not left or not self._outbox.rows.filter(pk__in=left, claim=hand.token).exists():
                return

    def _settle_unlocked(self, hand: Hand, told: dict[int, OutboxJob], verdicts: dict[int, Verdict]) -> list[int]:
        """Settles those of ``told`` that nobody else has locked; returns them."""
        with transaction.atomic(using=self._outbox.alias):
            final: dict[int, Verdict] = {}
            for pk, state, due_ms in self._outbox.lock(hand.token, told):
                final[pk] = _now(verdicts.get(pk, _FREE), told[pk], state, due_ms)
            for verdict, pks in _grouped(final):
                self._write(hand, verdict, pks)
        for pk, verdict in final.items():
            self._report(told[pk], verdict)
        return list(final)

    def _write(self, hand: Hand, verdict: Verdict, pks: list[int]) -> None:
        rows = self._outbox.rows.filter(pk__in=pks, claim=hand.token)
        ended: dict[str, Any] = {"claim": None, "claimed_until": None}
        if verdict.word in ("sent", "moved"):
            rows.update(state=verdict.word, sent_at=Now(), checked_at=Now(), tries=0, error="", **ended)
        elif verdict.word == "unsent":
            rows.update(state=State.UNSENT, **ended)
        elif verdict.word == "gone":
            rows.delete()
        elif verdict.word == "refused":
            rows.update(state=State.REFUSED, tries=verdict.tries, error=verdict.error, **ended)
        elif verdict.word == "later":
            pause = PAUSES[min(verdict.tries, len(PAUSES)) - 1]
            rows.update(claimed_until=ahead(pause), tries=verdict.tries, error=verdict.error)
        else:
            rows.update(**ended)

    def _report(self, row: OutboxJob, verdict: Verdict) -> None:
        """Tells the log, the counters and the signals."""
        task = registry.get(row.task)
        if verdict.word == "refused":
            not_sent["refused"] += 1
            logger.error("%s of queue %s is refused and stays in the outbox: %s", row.job_id, row.queue, verdict.error)
            emit(job_not_sent, task, verb="schedule", id=row.job_id, queue=row.queue, error=DelayQError(verdict.error))
        elif verdict.outcome in _GONE:
            not_sent[verdict.outcome] += 1
            logger.error("%s of queue %s was not scheduled: %s", row.job_id, row.queue, _GONE[verdict.outcome],
                         extra={"verb": "schedule", "job_id": row.job_id, "queue": row.queue})  # fmt: skip
            if verdict.outcome != "ignored":
                emit(job_not_sent, task, verb="schedule", id=row.job_id, queue=row.queue,
                     error=IdTaken(f"id {row.job_id!r}: {_GONE[verdict.outcome]}"))  # fmt: skip
        elif verdict.outcome in ("cancelled", "stopping"):
            emit(job_cancelled, task, id=row.job_id, queue=row.queue, outcome=verdict.outcome)
        elif verdict.word == "sent" and verdict.outcome not in ("", "known") and row.sent_at is None:
            emit(job_scheduled, task, id=row.job_id, queue=row.queue, outcome=verdict.outcome, due=row.due)


def job_of(row: OutboxJob) -> NewJob:
    """The job of a row, as Redis is to get it.

    One that was sent before and is lost must not push aside what lives under its id by now.

    Raises:
        ValueError: the record is none.
    """
    job = unpack_job(bytes(row.record))
    job.due_ms, job.delay_ms = row.due_ms, None
    if row.sent_at is not None and job.payload is None:
        job.on_conflict = "ignore"
    return job


def _waves(rows: Sequence[OutboxJob]) -> Iterator[list[OutboxJob]]:
    """The first row of each job, then the second of each, …; sorted so that what is told together stands together."""
    waves: list[list[OutboxJob]] = []
    seen: Counter[tuple[str, str]] = Counter()
    for row in rows:
        place = seen[row.queue, row.job_id]
        seen[row.queue, row.job_id] += 1
        if place == len(waves):
            waves.append([])
        waves[place].append(row)
    for wave in waves:
        yield sorted(wave, key=lambda row: (row.queue, row.state == State.UNSENT))


def _later(row: OutboxJob, why: str) -> Verdict:
    """Not its fault: it is tried again for ever, in growing intervals."""
    return Verdict("later", why, row.tries + 1 if row.error == why else 1)


def _or_nothing(verb: Callable[..., Any], row: OutboxJob, **options: Any) -> str:
    """Calls a verb of one id; "" where the id belongs to a job of another task by now."""
    try:
        return str(verb(row.job_id, task=row.task, **options) or "")
    except IdTaken:
        return ""


def _now(verdict: Verdict, told: OutboxJob, state: str, due_ms: int) -> Verdict:
    """The verdict on a row that may have changed since Redis was told of it."""
    if verdict.word == "gone" or (state == told.state and (due_ms == told.due_ms or verdict.word != "sent")):
        return verdict
    if verdict.word == "sent" and state == told.state == State.UNSENT:
        return Verdict("moved", outcome=verdict.outcome)  # it was rescheduled while it was on its way
    return _FREE


def _grouped(verdicts: dict[int, Verdict]) -> Iterator[tuple[Verdict, list[int]]]:
    """Rows that are written alike."""
    groups: dict[Verdict, list[int]] = {}
    for pk, verdict in verdicts.items():
        groups.setdefault(Verdict(verdict.word, verdict.error, verdict.tries), []).append(pk)
    yield from groups.items()

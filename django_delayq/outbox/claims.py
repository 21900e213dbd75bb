"""Claims that divide the rows of the outbox among dispatchers.

A claim is a token and an end time in each row, both set by one guarded UPDATE, so it is safe on every database.
Commands for a claimed row carry a deadline before that time. A process that sleeps past its claim receives ``late`` and
has changed nothing. All times are those of the database's clock.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from django.db import connections, transaction
from django.db.models import Exists, F, OuterRef, Q, QuerySet
from django.db.models.functions import Now

from ..models import OutboxJob
from .due import RowDue, delay_age
from .rows import behind, free, table, take

if TYPE_CHECKING:
    from ..core.broker import Broker

#: seconds that a relay's claim lasts
CLAIM: Final = 5.0
#: … and the part of it in which commands may be sent to Redis; the rest allows for clocks that run at different speeds
SENDING: Final = 4.5


@dataclass(slots=True)
class ClaimedBatch:
    """Claimed batch: rows that were claimed together, in the order of their ids.

    ``deadline_ms``: end of the sending period on Redis's clock; ``until``: the same on ``time.monotonic()``;
    ``due_ms``: due times of the rows on Redis's clock, by ``pk``.
    """

    token: uuid.UUID
    deadline_ms: float
    until: float
    rows: list[OutboxJob] = field(default_factory=list)
    due_ms: dict[int, int] = field(default_factory=dict)

    @property
    def held(self) -> bool:
        """True while there is time left to send commands to Redis."""
        return time.monotonic() < self.until


class Outbox:
    """Outbox of one database.

    Args:
        alias: alias of the database.
    """

    def __init__(self, alias: str) -> None:
        self.alias = alias

    @property
    def rows(self) -> QuerySet[OutboxJob]:
        """All rows."""
        return table(self.alias)

    @property
    def waiting(self) -> QuerySet[OutboxJob]:
        """Unclaimed rows that wait to be sent to Redis."""
        return self.rows.filter(free(), state__in=OutboxJob.WAITING)

    def now(self) -> datetime | None:
        """Return the database's time; None while the outbox is empty."""
        return self.rows.annotate(moment=Now()).values_list("moment", flat=True).order_by("pk").first()

    def atomic(self) -> AbstractContextManager[Any]:
        """Return a transaction if rows can be locked, else (SQLite) a null context: each statement is guarded."""
        return transaction.atomic(using=self.alias) if self._features.has_select_for_update else nullcontext()

    def unlocked(self, rows: QuerySet[OutboxJob]) -> QuerySet[OutboxJob]:
        """Return these rows with locks, without those that another transaction has locked."""
        if not self._features.has_select_for_update:
            return rows
        return rows.select_for_update(skip_locked=self._features.has_select_for_update_skip_locked)

    def candidates(self, limit: int) -> list[int]:
        """Return up to ``limit`` waiting rows that are not behind a claimed row of the same job, the oldest first."""
        stuck = self.rows.filter(
            queue=OuterRef("queue"),
            job_id=OuterRef("job_id"),
            id__lt=OuterRef("id"),
            state__in=OutboxJob.WAITING,
            claimed_until__gt=Now(),
        )
        candidates = self.rows.filter(free(), ~Exists(stuck))
        # One query for each state: each can use the index, and reads no more than it returns.
        pks: list[int] = []
        for state in OutboxJob.WAITING:
            rows = self.unlocked(candidates.filter(state=state)).order_by("id")
            pks += rows.values_list("id", flat=True)[:limit]
        return sorted(pks)[:limit]

    def claim(self, limit: int, broker: Broker) -> ClaimedBatch:
        """Claim up to ``limit`` waiting rows. Jobs keep the order of their rows.

        Raises:
            QueueUnavailable: Redis does not return its time; nothing was claimed.
        """
        read_at = time.monotonic()
        redis_ms = broker.now_ms()
        batch = ClaimedBatch(uuid.uuid4(), redis_ms + SENDING * 1000, read_at + SENDING)
        with self.atomic():
            pks = self.candidates(limit)
            if pks:
                take(self.rows.filter(pk__in=pks, state__in=OutboxJob.WAITING), batch.token, CLAIM)
        if pks:
            mine = list(self.rows.filter(pk__in=pks, claim=batch.token).annotate(age=delay_age()).order_by("id"))
            read_ms = redis_ms + (time.monotonic() - read_at) * 1000  # never behind Redis's clock
            batch.due_ms = {
                row.pk: RowDue.of(row.due_ms, row.delay_ms, row.age).on_redis_clock(read_ms) for row in mine
            }
            batch.rows.extend(mine)
            self._release_blocked(batch)
        return batch

    def _release_blocked(self, batch: ClaimedBatch) -> None:
        """Release rows behind an earlier row of the same job that another process has claimed at the same moment."""
        blocked = self.behind([row.pk for row in batch.rows], OutboxJob.WAITING, ~Q(claim=batch.token))
        if blocked:
            self.release(batch.token, blocked)
            batch.rows = [row for row in batch.rows if row.pk not in blocked]

    def behind(self, pks: Iterable[int], states: Iterable[str], blocking: Q | None = None) -> set[int]:
        """Return those of ``pks`` that have an earlier row of the same job; see :func:`.rows.behind`."""
        return set(behind(self.alias, Q(pk__in=list(pks)), states, blocking).values_list("pk", flat=True))

    def overtaken(self, pks: Iterable[int], states: Iterable[str]) -> set[int]:
        """Return those of ``pks`` that have a later row of the same job in one of ``states``."""
        later = self.rows.filter(
            queue=OuterRef("queue"), job_id=OuterRef("job_id"), id__gt=OuterRef("id"), state__in=list(states)
        )
        return set(self.rows.filter(Exists(later), pk__in=list(pks)).values_list("id", flat=True))

    def release(self, token: uuid.UUID, pks: Iterable[int]) -> None:
        """Release a claim on rows that were not sent."""
        self.rows.filter(pk__in=list(pks), claim=token).update(claim=None, claimed_until=None)

    def lock(self, token: uuid.UUID, pks: Iterable[int]) -> Iterator[tuple[int, str, uuid.UUID | None]]:
        """Yield ``(pk, state, moved_by)`` of claimed rows as they are now, locked until the end of the transaction.

        Rows that another transaction has locked are skipped without waiting.
        """
        rows = self.rows.filter(pk__in=list(pks), claim=token)
        if not self._features.has_select_for_update:
            rows.update(claim=F("claim"))  # SQLite has one lock, and the first write takes it
        yield from self.unlocked(rows).order_by("id").values_list("id", "state", "moved_by")

    @property
    def _features(self) -> Any:
        return connections[self.alias].features

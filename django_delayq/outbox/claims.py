"""Division of the rows of the outbox among dispatchers: each claims batches of them, by :class:`.protocol.Claim`."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from django.db import connections, transaction
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.db.models.functions import Now

from ..models import OutboxJob
from .due import RowDue, delay_age
from .producer import Clock
from .protocol import FREE, Claim
from .rows import SAME_JOB, behind, free, table

if TYPE_CHECKING:
    from ..core.broker import Broker

#: seconds that a relay's claim lasts
CLAIM: Final = 5.0


@dataclass(slots=True, eq=False)
class ClaimedBatch(Claim):
    """Claim on rows that are sent together, in the order of their ids.

    ``due_ms``: due times of the rows on Redis's clock, by ``pk``.
    """

    rows: list[OutboxJob] = field(default_factory=list)
    due_ms: dict[int, int] = field(default_factory=dict)


@dataclass(eq=False)
class Outbox:
    """Outbox of one database."""

    #: alias of the database
    alias: str

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
        claimed = self.rows.filter(state__in=OutboxJob.WAITING, claimed_until__gt=Now())
        stuck = claimed.filter(**SAME_JOB, id__lt=OuterRef("id"))
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
        batch = ClaimedBatch(self.alias, broker, Clock(), CLAIM)
        with self.atomic():
            pks = self.candidates(limit)
            if pks:
                batch.take(self.rows.filter(pk__in=pks, state__in=OutboxJob.WAITING))
        if pks:
            mine = list(batch.held(pk__in=pks).annotate(age=delay_age()).order_by("id"))
            read_ms = batch.clock.now_at_latest()
            batch.due_ms = {
                row.pk: RowDue.of(row.due_ms, row.delay_ms, row.age).on_redis_clock(read_ms) for row in mine
            }
            batch.rows.extend(mine)
            self._release_blocked(batch)
        return batch

    def _release_blocked(self, batch: ClaimedBatch) -> None:
        """Release rows behind an earlier row of the same job that another process has claimed at the same moment."""
        blocked = self.behind([row.pk for row in batch.rows], OutboxJob.WAITING, ~Q(claim=batch.token))
        batch.write(FREE, blocked)
        batch.rows = [row for row in batch.rows if row.pk not in blocked]

    def behind(self, pks: Iterable[int], states: Iterable[str], blocking: Q | None = None) -> set[int]:
        """Return those of ``pks`` that have an earlier row of the same job; see :func:`.rows.behind`."""
        return set(behind(self.alias, Q(pk__in=list(pks)), states, blocking).values_list("pk", flat=True))

    def overtaken(self, pks: Iterable[int], states: Iterable[str]) -> set[int]:
        """Return those of ``pks`` that have a later row of the same job in one of ``states``."""
        later = self.rows.filter(**SAME_JOB, id__gt=OuterRef("id"), state__in=list(states))
        return set(self.rows.filter(Exists(later), pk__in=list(pks)).values_list("id", flat=True))

    @property
    def _features(self) -> Any:
        return connections[self.alias].features

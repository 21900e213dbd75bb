"""Who deals with which rows of the outbox right now.

A claim is a token and a moment in each row, both set by one guarded UPDATE, so it is safe on every database. Redis is
told of a claimed row with a deadline before that moment: who sleeps past his claim is answered ``late`` and has
changed nothing. All moments are the database's own.
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
from django.db.models import Exists, F, OuterRef, QuerySet
from django.db.models.functions import Now

from ..models import OutboxJob
from .due import RowDue, delay_age
from .rows import ahead, free, table

if TYPE_CHECKING:
    from ..core.broker import Broker

#: seconds that a relay's claim lasts
CLAIM: Final = 5.0
#: … and the part of it in which Redis may be told; the rest is for clocks that do not run alike
TELLING: Final = 4.5


@dataclass(slots=True)
class Hand:
    """Rows that were claimed together, in the order of their ids.

    ``deadline_ms``: on Redis's clock, until when it may be told of them; ``until``: the same on ``time.monotonic()``;
    ``due_ms``: when they are due, on the same clock, by ``pk``.
    """

    token: uuid.UUID
    deadline_ms: float
    until: float
    rows: list[OutboxJob] = field(default_factory=list)
    due_ms: dict[int, int] = field(default_factory=dict)

    @property
    def held(self) -> bool:
        """Whether there is time left to tell Redis anything."""
        return time.monotonic() < self.until


class Outbox:
    """The outbox of one database.

    Args:
        alias: of the database.
    """

    def __init__(self, alias: str) -> None:
        self.alias = alias

    @property
    def rows(self) -> QuerySet[OutboxJob]:
        """All of it."""
        return table(self.alias)

    @property
    def waiting(self) -> QuerySet[OutboxJob]:
        """What Redis is to be told and nobody is telling it."""
        return self.rows.filter(free(), state__in=OutboxJob.WAITING)

    def now(self) -> datetime | None:
        """The database's clock; None while the outbox is empty."""
        return self.rows.annotate(moment=Now()).values_list("moment", flat=True).order_by("pk").first()

    def atomic(self) -> AbstractContextManager[Any]:
        """A transaction where rows can be locked; elsewhere (SQLite) each guarded statement stands alone."""
        return transaction.atomic(using=self.alias) if self._features.has_select_for_update else nullcontext()

    def unlocked(self, rows: QuerySet[OutboxJob]) -> QuerySet[OutboxJob]:
        """These rows, locked for us, without those that a transaction of somebody else has locked."""
        if not self._features.has_select_for_update:
            return rows
        return rows.select_for_update(skip_locked=self._features.has_select_for_update_skip_locked)

    def candidates(self, limit: int) -> list[int]:
        """Up to ``limit`` rows that wait and are not behind a claimed one of the same job, the oldest first."""
        stuck = self.rows.filter(
            queue=OuterRef("queue"),
            job_id=OuterRef("job_id"),
            id__lt=OuterRef("id"),
            state__in=OutboxJob.WAITING,
            claimed_until__gt=Now(),
        )
        wanted = self.rows.filter(free(), ~Exists(stuck))
        # One query for each state: each can walk along the index, and reads no more than it returns.
        found: list[int] = []
        for state in OutboxJob.WAITING:
            rows = self.unlocked(wanted.filter(state=state)).order_by("id")
            found += rows.values_list("id", flat=True)[:limit]
        return sorted(found)[:limit]

    def claim(self, limit: int, broker: Broker) -> Hand:
        """Takes up to ``limit`` waiting rows into a hand; jobs keep the order of their rows.

        Raises:
            QueueUnavailable: Redis does not tell its time; nothing was claimed.
        """
        asked_at = time.monotonic()
        asked_ms = broker.now_ms()
        hand = Hand(uuid.uuid4(), asked_ms + TELLING * 1000, asked_at + TELLING)
        with self.atomic():
            pks = self.candidates(limit)
            if pks:
                self.rows.filter(free(), pk__in=pks, state__in=OutboxJob.WAITING).update(
                    claim=hand.token, claimed_until=ahead(CLAIM)
                )
        if pks:
            mine = list(self.rows.filter(pk__in=pks, claim=hand.token).annotate(age=delay_age()).order_by("id"))
            read_ms = asked_ms + (time.monotonic() - asked_at) * 1000  # never behind Redis's clock
            hand.due_ms = {row.pk: RowDue.of(row.due_ms, row.delay_ms, row.age).on_redis_clock(read_ms) for row in mine}
            hand.rows.extend(mine)
            self._give_back_those_behind(hand)
        return hand

    def _give_back_those_behind(self, hand: Hand) -> None:
        """Somebody else may have taken an earlier row of the same job in the same moment."""
        behind = self.behind([row.pk for row in hand.rows], OutboxJob.WAITING, not_held_with=hand.token)
        if behind:
            self.give_back(hand.token, behind)
            hand.rows = [row for row in hand.rows if row.pk not in behind]

    def behind(self, pks: Iterable[int], states: Iterable[str], *, not_held_with: uuid.UUID | None = None) -> set[int]:
        """Those of ``pks`` that have an earlier row of the same job in one of ``states``.

        Args:
            not_held_with: rows with this claim do not count as earlier.
        """
        earlier = self.rows.filter(
            queue=OuterRef("queue"), job_id=OuterRef("job_id"), id__lt=OuterRef("id"), state__in=list(states)
        )
        if not_held_with is not None:
            earlier = earlier.exclude(claim=not_held_with)
        return set(self.rows.filter(Exists(earlier), pk__in=list(pks)).values_list("id", flat=True))

    def overtaken(self, pks: Iterable[int], states: Iterable[str]) -> set[int]:
        """Those of ``pks`` that have a later row of the same job in one of ``states``."""
        later = self.rows.filter(
            queue=OuterRef("queue"), job_id=OuterRef("job_id"), id__gt=OuterRef("id"), state__in=list(states)
        )
        return set(self.rows.filter(Exists(later), pk__in=list(pks)).values_list("id", flat=True))

    def give_back(self, token: uuid.UUID, pks: Iterable[int]) -> None:
        """Ends a claim without having done anything."""
        self.rows.filter(pk__in=list(pks), claim=token).update(claim=None, claimed_until=None)

    def lock(self, token: uuid.UUID, pks: Iterable[int]) -> Iterator[tuple[int, str, uuid.UUID | None]]:
        """``(pk, state, moved_by)`` of rows under a claim as they are now, not to change before the transaction's end.

        Rows that a transaction of somebody else has locked are left out: nobody is waited for.
        """
        rows = self.rows.filter(pk__in=list(pks), claim=token)
        if not self._features.has_select_for_update:
            rows.update(claim=F("claim"))  # SQLite has one lock, and the first write takes it
        yield from self.unlocked(rows).order_by("id").values_list("id", "state", "moved_by")

    @property
    def _features(self) -> Any:
        return connections[self.alias].features

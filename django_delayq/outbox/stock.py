"""Numbers of rows in the outboxes, for display and monitoring."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from django.db.models import Count, F
from django.db.models.functions import Now
from django.db.utils import Error as DatabaseError

from .durability import has_table
from .rows import table


class Stock(TypedDict):
    """Numbers of rows, and the age in seconds of the oldest one that waits to be sent (None: no such row)."""

    waiting: int
    sent: int
    buried: int
    refused: int
    oldest_waiting_seconds: float | None


def stock(aliases: Sequence[str]) -> Stock | None:
    """Return the numbers for the outboxes of some databases; None if there is no such table or database."""
    stocks = [one for one in map(_of, aliases) if one is not None]
    if not stocks:
        return None
    ages = [one["oldest_waiting_seconds"] for one in stocks if one["oldest_waiting_seconds"] is not None]
    return Stock(
        waiting=sum(one["waiting"] for one in stocks),
        sent=sum(one["sent"] for one in stocks),
        buried=sum(one["buried"] for one in stocks),
        refused=sum(one["refused"] for one in stocks),
        oldest_waiting_seconds=max(ages, default=None),
    )


def _of(alias: str) -> Stock | None:
    rows = table(alias)
    states = rows.model.State
    try:
        if not has_table(alias):
            return None
        counts = dict(rows.order_by().values_list("state").annotate(n=Count("pk")))
        # For rows that were sent before and have a change to send, the start of the wait is unknown.
        never = rows.filter(state=states.UNSENT, sent_at=None)
        age = never.annotate(age=Now() - F("created_at")).order_by("pk").values_list("age", flat=True).first()
    except DatabaseError:
        return None
    return Stock(
        waiting=sum(counts.get(state, 0) for state in rows.model.WAITING),
        sent=counts.get(states.SENT, 0),
        buried=counts.get(states.BURIED, 0),
        refused=counts.get(states.REFUSED, 0),
        oldest_waiting_seconds=None if age is None else round(max(0.0, age.total_seconds()), 3),
    )

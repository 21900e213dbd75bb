"""The hours of the history page by page, the latest first. Rows that come or go meanwhile move nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.db.models import Q, QuerySet

from ..models.history import HourlyStat
from .moments import from_row, to_row

__all__ = ["Page", "page", "pages"]

#: digits of the largest key that a database has, and of a moment
_LONGEST: Final = 80
_LARGEST: Final = 2**63


@dataclass(frozen=True, slots=True)
class Page:
    """Some rows.

    Attributes:
        older: cursor of the page behind it; "" at the end.
        newer: cursor of the page before it; "" at the beginning.
    """

    rows: list[HourlyStat]
    older: str = ""
    newer: str = ""


def page(rows: QuerySet[HourlyStat], limit: int, *, after: str = "", before: str = "") -> Page:
    """One page.

    Args:
        rows: those that are meant, in whatever order.
        limit: rows of a page.
        after: ``older`` of the page before; the page behind it is given.
        before: ``newer`` of the page behind; the page before it is given. Not with ``after``.

    Raises:
        ValueError: it is no cursor.
    """
    if before:
        found = list(_beyond(rows, before, newer=True)[: limit + 1])
        if len(found) > limit:
            there = found[limit - 1 :: -1]
            return Page(there, older=_cursor(there[-1]), newer=_cursor(there[0]))
        # Fewer than a page before it: the first page is a full one.
    found = list((_beyond(rows, after) if after else rows.order_by("-hour", "-pk"))[: limit + 1])
    there = found[:limit]
    older = _cursor(there[-1]) if len(found) > limit else ""
    return Page(there, older, _cursor(there[0]) if after and there else "")


def pages(rows: QuerySet[HourlyStat], size: int) -> Iterator[list[HourlyStat]]:
    """All rows, page by page: no cursor of the database is held open meanwhile, nor all of them in memory."""
    found = page(rows, size)
    yield found.rows
    while found.older:
        found = page(rows, size, after=found.older)
        yield found.rows


def _cursor(row: HourlyStat) -> str:
    return f"{from_row(row.hour):%Y-%m-%dT%H:%M:%S}Z~{row.pk}"


def _beyond(rows: QuerySet[Any], cursor: str, *, newer: bool = False) -> QuerySet[Any]:
    """The rows behind a cursor, or those before it from there on upwards."""
    hour, pk = _parsed(cursor)
    word = "gt" if newer else "lt"
    # Not just `a OR b`: the first condition is a range of the index.
    found = rows.filter(Q(**{f"hour__{word}e": hour}), Q(**{f"hour__{word}": hour}) | Q(**{f"pk__{word}": pk}))
    return found.order_by("hour", "pk") if newer else found.order_by("-hour", "-pk")


def _parsed(cursor: str) -> tuple[datetime, int]:
    text, _sep, key = cursor.rpartition("~")
    if len(cursor) <= _LONGEST and cursor.isascii() and key.isdigit() and text.endswith("Z") and int(key) < _LARGEST:
        try:
            return to_row(datetime.fromisoformat(text)), int(key)
        except (ValueError, OverflowError):
            pass
    raise ValueError(f"{cursor[:_LONGEST]!r} is no cursor; start again without one")

"""Keyset pagination of the hours, newest first. Rows added or deleted meanwhile do not shift pages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.db.models import Q, QuerySet

from ..models.history import HourlyStat
from .moments import from_row, to_row

__all__ = ["Page", "page", "pages"]

#: maximum length of a cursor: a moment and the digits of the largest database key
_LONGEST: Final = 80
_LARGEST: Final = 2**63


@dataclass(frozen=True, slots=True)
class Page:
    """Page of rows.

    Attributes:
        older: cursor of the next page; "" at the end.
        newer: cursor of the previous page; "" at the beginning.
    """

    rows: list[HourlyStat]
    older: str = ""
    newer: str = ""


def page(rows: QuerySet[HourlyStat], limit: int, *, after: str = "", before: str = "") -> Page:
    """Return one page.

    Args:
        rows: the rows to paginate, in any order.
        limit: rows of a page.
        after: ``older`` of a page; the page that follows it is returned.
        before: ``newer`` of a page; the page that precedes it is returned. Not with ``after``.

    Raises:
        ValueError: it is not a cursor.
    """
    if before:
        found = list(_beyond(rows, before, newer=True)[: limit + 1])
        if len(found) > limit:
            there = found[limit - 1 :: -1]
            return Page(there, older=_cursor(there[-1]), newer=_cursor(there[0]))
        # Fewer rows than a page precede the cursor: return the first page, full.
    found = list((_beyond(rows, after) if after else rows.order_by("-hour", "-pk"))[: limit + 1])
    there = found[:limit]
    older = _cursor(there[-1]) if len(found) > limit else ""
    return Page(there, older, _cursor(there[0]) if after and there else "")


def pages(rows: QuerySet[HourlyStat], size: int) -> Iterator[list[HourlyStat]]:
    """Yield all rows page by page, without an open database cursor and without holding all of them in memory."""
    found = page(rows, size)
    yield found.rows
    while found.older:
        found = page(rows, size, after=found.older)
        yield found.rows


def _cursor(row: HourlyStat) -> str:
    return f"{from_row(row.hour):%Y-%m-%dT%H:%M:%S}Z~{row.pk}"


def _beyond(rows: QuerySet[Any], cursor: str, *, newer: bool = False) -> QuerySet[Any]:
    """Return the rows after a cursor, or with ``newer`` those before it, in ascending order."""
    hour, pk = _parsed(cursor)
    word = "gt" if newer else "lt"
    # Not just `a OR b`: the first condition lets the database use a range of the index.
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

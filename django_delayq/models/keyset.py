"""Keyset pagination of tables: each page starts after the last row of the previous one, by indexes, without offsets.

Rows added or deleted meanwhile do not shift pages.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Generic, TypeVar

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db.models import Model, Q, QuerySet
from django.utils import timezone

__all__ = ["Keyset", "Page"]

_Row = TypeVar("_Row", bound=Model)

#: maximum length of a cursor
_LONGEST: Final = 200
#: first number that no key of a database reaches
_LARGEST: Final = 2**63


@dataclass(frozen=True, slots=True)
class Page(Generic[_Row]):
    """Page of rows.

    Attributes:
        after: cursor of the next page; "" at the end.
        before: cursor of the previous page; "" at the beginning.
    """

    rows: list[_Row]
    after: str = ""
    before: str = ""


@dataclass(frozen=True, slots=True)
class Keyset:
    """Order of rows by one indexed column and the primary key, and its cursors ``<value>~<key>``.

    Attributes:
        column: name of the column; "pk" = only the key.
        descending: True if the largest value comes first.
    """

    column: str = "pk"
    descending: bool = True

    @property
    def ordering(self) -> list[str]:
        """Arguments of ``order_by``."""
        sign = "-" if self.descending else ""
        return [f"{sign}pk"] if self.column == "pk" else [f"{sign}{self.column}", f"{sign}pk"]

    def page(self, rows: QuerySet[_Row], limit: int, *, after: str = "", before: str = "") -> Page[_Row]:
        """Return one page.

        Args:
            rows: the rows to paginate, in any order.
            limit: rows of a page.
            after: ``after`` of a page; the page that follows it is returned.
            before: ``before`` of a page; the page that precedes it is returned. Ignored with ``after``.

        Raises:
            ValueError: it is not a cursor.
        """
        if before and not after:
            fetched = list(self._beyond(rows, before, backwards=True)[: limit + 1])
            if len(fetched) > limit:
                there = fetched[limit - 1 :: -1]
                return Page(there, after=self._cursor(there[-1]), before=self._cursor(there[0]))
            # Fewer rows than a page precede the cursor: return the first page, full.
        fetched = list((self._beyond(rows, after) if after else rows.order_by(*self.ordering))[: limit + 1])
        there = fetched[:limit]
        further = self._cursor(there[-1]) if len(fetched) > limit else ""
        return Page(there, further, self._cursor(there[0]) if after and there else "")

    def _cursor(self, row: Model) -> str:
        value = getattr(row, self.column)
        # A plus sign would be a space in a URL that a client does not quote.
        text = value.isoformat().replace("+00:00", "Z") if isinstance(value, datetime) else value
        return f"{text}~{row.pk}"

    def _beyond(self, rows: QuerySet[_Row], cursor: str, *, backwards: bool = False) -> QuerySet[_Row]:
        """Return the rows after a cursor, or with ``backwards`` those before it in reverse order."""
        value, pk = self._parsed(rows.model, cursor)
        word = "lt" if self.descending is not backwards else "gt"
        ordered = rows.order_by(*self.ordering)
        if backwards:
            ordered = ordered.reverse()
        if self.column == "pk":
            return ordered.filter(**{f"pk__{word}": pk})
        # Not just `a OR b`: the first condition lets the database use a range of the index.
        beyond = Q(**{f"{self.column}__{word}": value}) | Q(**{f"pk__{word}": pk})
        return ordered.filter(Q(**{f"{self.column}__{word}e": value}), beyond)

    def _parsed(self, model: type[Model], cursor: str) -> tuple[Any, Any]:
        text, _sep, key = cursor.rpartition("~")
        options = model._meta
        field: Any = options.pk if self.column == "pk" else options.get_field(self.column)
        try:
            value, pk = field.to_python(text), options.pk.to_python(key)
        except (ValidationError, ValueError, OverflowError):
            value = pk = None
        is_foreign = isinstance(value, datetime) and not _is_storable(value)
        out_of_range = isinstance(pk, int) and not 0 <= pk < _LARGEST
        if None in (value, pk) or is_foreign or out_of_range or len(cursor) > _LONGEST or not cursor.isascii():
            raise ValueError(f"{cursor[:80]!r} is no cursor; start again without one")
        return value, pk


def _is_storable(moment: datetime) -> bool:
    """Return True if the database accepts the moment: with or without a time zone as configured, and in range."""
    if timezone.is_aware(moment) is not settings.USE_TZ:
        return False
    return moment.year > 1 and moment.year < datetime.max.year

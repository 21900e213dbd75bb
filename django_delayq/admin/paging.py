"""Change lists for millions of rows: keyset pagination without offsets, and capped counts."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ORDER_VAR, ChangeList
from django.core.exceptions import ValidationError
from django.db.models import Model, Q, QuerySet
from django.utils.text import capfirst

from ..settings.conf import conf
from .formatting import grouped

if TYPE_CHECKING:
    from django.http import HttpRequest

__all__ = ["AFTER", "BEFORE", "CappedCount", "KeysetChangeList", "capped_count"]

#: query parameters: the page that follows this row, or precedes it
AFTER: Final = "after"
BEFORE: Final = "before"
_CURSOR_LENGTH: Final = 200


class CappedCount(int):
    """Number of rows; ``capped`` if there are more than were counted."""

    capped = False

    @classmethod
    def of(cls, count: int, cap: int) -> CappedCount:
        """Return a count of which at most ``cap`` + 1 rows were counted."""
        made = cls(min(count, cap))
        made.capped = count > cap
        return made

    def __str__(self) -> str:
        return f"{grouped(self)}+" if self.capped else grouped(self)


def capped_count(rows: QuerySet[Any]) -> CappedCount:
    """Return the number of rows up to the configured cap, without a COUNT over a whole large table."""
    cap = conf().admin.count_cap
    return CappedCount.of(rows.order_by().values("pk")[: cap + 1].count(), cap)


class KeysetChangeList(ChangeList):
    """Change list ordered by one indexed column and the primary key, with keyset pagination.

    Each page starts after the last row of the previous one. ``model_admin.keyset`` names the column (``"pk"`` = only
    the key). Rows added or deleted meanwhile do not shift pages.
    """

    show_full_result_count = False
    full_result_count = None
    show_admin_actions = True
    can_show_all = False
    multi_page = False  # there are no numbered pages
    newer_url = ""
    older_url = ""
    model_admin: Any
    title: Any

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.title = capfirst(self.opts.verbose_name_plural)
        self.rows_name = self.model_admin.one if self.result_count == 1 else self.model_admin.many

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Any]:
        """Return the matching rows, ignoring the page; links to other filters do not keep the page."""
        for name in (AFTER, BEFORE):
            self.params.pop(name, None)
            self.filter_params.pop(name, None)
        return super().get_queryset(request, exclude_parameters)

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[Any]:
        """Return the ordering by the keyset column, newest first unless the user reversed it."""
        column = self.model_admin.keyset
        chosen = super().get_ordering(request, queryset) if self.params.get(ORDER_VAR) else [f"-{column}"]
        sign = "-" if str(chosen[0]).startswith("-") else ""
        return [f"{sign}pk"] if column == "pk" else [f"{sign}{column}", f"{sign}pk"]

    def get_results(self, request: HttpRequest) -> None:
        """Read one page, and set the links to its neighbours."""
        after, before = request.GET.get(AFTER, ""), request.GET.get(BEFORE, "")
        size = self.list_per_page
        self.result_count = capped_count(self.queryset)
        # The search box shows the number of results unless all rows match.
        self.full_result_count = None if self.has_active_filters or self.query else self.result_count
        self.paginator = self.model_admin.get_paginator(request, self.queryset, size)
        rows: list[Model] = []
        if before and not after:
            rows = list(self._behind(before, backwards=True)[: size + 1])
        if len(rows) > size:  # there is a full page before, and more before that
            rows = rows[size - 1 :: -1]
            has_newer, has_older = True, True
        else:
            rows = list((self._behind(after) if after else self._listed())[: size + 1])
            has_newer, has_older = bool(after), len(rows) > size
            rows = rows[:size]
        self.result_list = rows
        if rows and has_newer:
            self.newer_url = self.get_query_string({BEFORE: self._cursor(rows[0])})
        if rows and has_older:
            self.older_url = self.get_query_string({AFTER: self._cursor(rows[-1])})

    def _listed(self) -> QuerySet[Any]:
        rows: QuerySet[Any] = self.model_admin.listed(self.queryset)
        return rows

    def _cursor(self, row: Model) -> str:
        column = self.model_admin.keyset
        value = getattr(row, column)
        text = value.isoformat() if isinstance(value, datetime) else str(value)
        return f"{text}~{row.pk}"

    def _behind(self, cursor: str, *, backwards: bool = False) -> QuerySet[Any]:
        """Return the rows after a cursor, or with ``backwards`` those before it in reverse order.

        Raises:
            IncorrectLookupParameters: the cursor is invalid.
        """
        column = self.model_admin.keyset
        ordering = self.queryset.query.order_by
        descending = str(ordering[0]).startswith("-") is not backwards
        text, _sep, key = cursor[:_CURSOR_LENGTH].rpartition("~")
        word = "lt" if descending else "gt"
        field: Any = self.lookup_opts.pk if column == "pk" else self.lookup_opts.get_field(column)
        rows = self._listed().reverse() if backwards else self._listed()
        try:
            if column == "pk":
                return rows.filter(**{f"pk__{word}": self.lookup_opts.pk.to_python(key)})
            value = field.to_python(text)
            pk = self.lookup_opts.pk.to_python(key)
        except (ValidationError, ValueError, OverflowError) as error:
            raise IncorrectLookupParameters(error) from error
        # Not just `a OR b`: the first condition lets the database use a range of the index.
        return rows.filter(
            Q(**{f"{column}__{word}e": value}), Q(**{f"{column}__{word}": value}) | Q(**{f"pk__{word}": pk})
        )

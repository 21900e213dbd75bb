"""Lists of millions of rows: pages that continue behind their last row instead of skipping, counts that stop early."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ORDER_VAR, ChangeList
from django.core.exceptions import ValidationError
from django.db.models import Model, Q, QuerySet
from django.utils.formats import number_format
from django.utils.text import capfirst
from django.utils.translation import gettext as _

from ..settings.conf import conf

if TYPE_CHECKING:
    from django.http import HttpRequest

__all__ = ["AFTER", "BEFORE", "CappedCount", "KeysetChangeList", "capped_count"]

#: query parameters: the page that lies behind this row, or before it
AFTER: Final = "after"
BEFORE: Final = "before"
_CURSOR_LENGTH: Final = 200


class CappedCount(int):
    """A number of rows; ``capped`` when there are more than were counted."""

    capped = False

    @classmethod
    def of(cls, count: int, cap: int) -> CappedCount:
        """``count`` rows, of which no more than ``cap`` + 1 were counted."""
        made = cls(min(count, cap))
        made.capped = count > cap
        return made

    def __str__(self) -> str:
        number = number_format(int(self), force_grouping=True)
        return _("%(number)s+") % {"number": number} if self.capped else str(number)


def capped_count(rows: QuerySet[Any]) -> CappedCount:
    """How many rows there are, as far as that is worth knowing: never a COUNT over a whole large table."""
    cap = conf().admin.count_cap
    return CappedCount.of(rows.order_by().values("pk")[: cap + 1].count(), cap)


class KeysetChangeList(ChangeList):
    """A change list ordered by one indexed column and the primary key; each page begins where the one before ended.

    ``model_admin.keyset`` names the column (``"pk"`` = only the key). Rows that come or go meanwhile move nothing.
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
        """What matches, whatever the page; a link to other filters does not keep the page."""
        for name in (AFTER, BEFORE):
            self.params.pop(name, None)
            self.filter_params.pop(name, None)
        return super().get_queryset(request, exclude_parameters)

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[Any]:
        """By the column of the keyset, newest first unless a person turned it round."""
        column = self.model_admin.keyset
        chosen = super().get_ordering(request, queryset) if self.params.get(ORDER_VAR) else [f"-{column}"]
        sign = "-" if str(chosen[0]).startswith("-") else ""
        return [f"{sign}pk"] if column == "pk" else [f"{sign}{column}", f"{sign}pk"]

    def get_results(self, request: HttpRequest) -> None:
        """One page, and whether there is one on either side."""
        after, before = request.GET.get(AFTER, ""), request.GET.get(BEFORE, "")
        size = self.list_per_page
        self.result_count = capped_count(self.queryset)
        # The search box then says how many it found, unless that is everything.
        self.full_result_count = None if self.has_active_filters or self.query else self.result_count
        self.paginator = self.model_admin.get_paginator(request, self.queryset, size)
        rows: list[Model] = []
        if before and not after:
            rows = list(self._behind(before, backwards=True)[: size + 1])
        if len(rows) > size:  # there is a full page before, and something before that
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
        """The rows behind a cursor, or those before it in the opposite order.

        Raises:
            IncorrectLookupParameters: it is none.
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
        # Not just `a OR b`: the first condition is a range of the index.
        return rows.filter(
            Q(**{f"{column}__{word}e": value}), Q(**{f"{column}__{word}": value}) | Q(**{f"pk__{word}": pk})
        )

"""Change lists for millions of rows: keyset pagination without offsets, and capped counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ORDER_VAR, ChangeList
from django.db.models import QuerySet
from django.utils.text import capfirst

from ..models.keyset import Keyset
from .formatting import grouped

if TYPE_CHECKING:
    from django.http import HttpRequest

#: lists stop counting at this number
COUNT_CAP: Final = 10_000
#: query parameters: the page that follows this row, or precedes it
AFTER: Final = "after"
BEFORE: Final = "before"


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
    """Return the number of rows up to :data:`COUNT_CAP`, without a COUNT over a whole large table."""
    return CappedCount.of(rows.order_by().values("pk")[: COUNT_CAP + 1].count(), COUNT_CAP)


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
        return Keyset(column, str(chosen[0]).startswith("-")).ordering

    def get_results(self, request: HttpRequest) -> None:
        """Read one page, and set the links to its neighbours."""
        after, before = request.GET.get(AFTER, ""), request.GET.get(BEFORE, "")
        size = self.list_per_page
        self.result_count = capped_count(self.queryset)
        # The search box shows the number of results unless all rows match.
        self.full_result_count = None if self.has_active_filters or self.query else self.result_count
        self.paginator = self.model_admin.get_paginator(request, self.queryset, size)
        keyset = Keyset(self.model_admin.keyset, str(self.queryset.query.order_by[0]).startswith("-"))
        try:
            page = keyset.page(self.model_admin.listed(self.queryset), size, after=after, before=before)
        except ValueError as error:
            raise IncorrectLookupParameters(error) from error
        self.result_list = page.rows
        self.newer_url = self.get_query_string({BEFORE: page.before}) if page.before else ""
        self.older_url = self.get_query_string({AFTER: page.after}) if page.after else ""

"""The inbox: generations whose effects are in this database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib import admin
from django.utils.translation import gettext_lazy as _

from . import shown
from .base import ReadOnlyAdmin
from .filters import AgeFilter
from .outbox import as_uuid

if TYPE_CHECKING:
    from django.db.models import QuerySet
    from django.http import HttpRequest
    from django.utils.safestring import SafeString

    from ..models import InboxEntry

__all__ = ["InboxEntryAdmin"]


class InboxEntryAdmin(ReadOnlyAdmin):
    """What ``@exactly_once`` remembers, and requests of the API that put durable jobs in."""

    keyset = "created_at"
    ordering = ("-created_at",)
    many = _("inbox entries")
    list_display = ("key", "queue", "job_id", "task", "done")
    list_filter = (AgeFilter.of("created_at"),)
    sortable_by = ("done",)
    search_fields = ("key",)
    search_help_text = _("The key of a generation")
    fieldsets: ClassVar = [(None, {"fields": ("key", "queue", "job_id", "task", "done")})]
    readonly_fields = ("key", "queue", "job_id", "task", "done")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """A key."""
        if not search_term.strip():
            return queryset, False
        key = as_uuid(search_term)
        return (queryset.none() if key is None else queryset.filter(key=key)), False

    @admin.display(description=_("done"), ordering="created_at")
    def done(self, row: InboxEntry) -> SafeString | str:
        """How long ago."""
        return shown.ago(row.created_at)

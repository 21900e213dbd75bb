"""Admin pages of the inbox: job generations whose effects are in this database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from django.utils.translation import gettext_lazy as _

from . import formatting
from .base import ReadOnlyAdmin, column
from .filters import AgeFilter
from .outbox import as_uuid

if TYPE_CHECKING:
    from django.db.models import QuerySet
    from django.http import HttpRequest


class InboxEntryAdmin(ReadOnlyAdmin):
    """Entries of ``@exactly_once``, and of API requests that stored durable jobs."""

    keyset = "created_at"
    ordering = ("-created_at",)
    many = _("inbox entries")
    list_display = ("key", "queue", "job", "task_name", "done")
    list_filter = (AgeFilter.of("created_at"),)
    sortable_by = ("done",)
    search_fields = ("key",)
    search_help_text = _("The key of a job")
    fieldsets: ClassVar = [(None, {"fields": ("key", "queue", "job_id", "task", "done")})]

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Return the entry with this key."""
        if not search_term.strip():
            return queryset, False
        key = as_uuid(search_term)
        return (queryset.none() if key is None else queryset.filter(key=key)), False

    job = column("job_id", formatting.named, _("id"))
    task_name = column("task", formatting.named, _("task"))
    done = column("created_at", formatting.ago, _("done"), ordering="created_at")

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

    def searched(self, rows: QuerySet[Any], term: str) -> QuerySet[Any]:
        """Return the entry with this key."""
        key = as_uuid(term)
        return rows.none() if key is None else rows.filter(key=key)

    job = column("job_id", formatting.named, _("id"))
    task_name = column("task", formatting.named, _("task"))
    done = column("created_at", formatting.ago, _("done"), ordering="created_at")

"""The outbox: durable jobs, and what the database still wants of Redis."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, ClassVar, Final

from django.contrib import admin
from django.utils.translation import gettext_lazy as _

from ..core.records import packed
from ..settings.conf import conf
from . import shown
from .base import ReadOnlyAdmin, fields_of
from .filters import StateFilter, distinct_values

if TYPE_CHECKING:
    from django.db.models import QuerySet
    from django.http import HttpRequest
    from django.utils.safestring import SafeString

    from ..models import OutboxJob

__all__ = ["OutboxJobAdmin", "as_uuid"]

#: queues that a search names, to use the index that begins with them
_MOST_QUEUES: Final = 900
_KINDS: Final = {"refused": "bad", "buried": "late", "sent": "good"}


def as_uuid(text: str) -> uuid.UUID | None:
    """The UUID that a text is; None if it is none."""
    try:
        return uuid.UUID(text.strip())
    except ValueError:
        return None


class OutboxJobAdmin(ReadOnlyAdmin):
    """Rows of durable jobs, to look at."""

    keyset = "pk"
    many = _("outbox jobs")
    list_display = ("job", "queue", "task", "status", "due_in_words", "written", "tries", "trouble")
    list_display_links = ("job",)
    list_filter = (StateFilter,)
    sortable_by = ()
    search_fields = ("job_id",)
    search_help_text = _("The exact id of a job, or its key")
    fieldsets: ClassVar[Any] = (
        (_("What"), {"fields": ("job_id", "queue", "task", "key")}),
        (_("When"), {"fields": ("written", "due_in_words", "sent", "checked")}),
        (_("State"), {"fields": ("status", "tries", "whole_error")}),
        (_("With what"), {"fields": ("content", "context")}),
    )
    readonly_fields = fields_of(fieldsets)

    def listed(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        """Without the jobs themselves."""
        return rows.defer("record")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """An exact id (the index begins with the queue, so every queue is asked), or a key."""
        term = search_term.strip()
        if not term:
            return queryset, False
        key = as_uuid(term)
        if key is not None:
            return queryset.filter(key=key), False
        queues = distinct_values(queryset, "queue", _MOST_QUEUES)
        if len(queues) == _MOST_QUEUES:  # perhaps not all of them
            return queryset.filter(job_id=term), False
        return queryset.filter(queue__in=queues, job_id=term), False

    @admin.display(description=_("id"))
    def job(self, row: OutboxJob) -> str:
        """The job's id."""
        return row.job_id

    @admin.display(description=_("state"))
    def status(self, row: OutboxJob) -> SafeString:
        """What the database wants of Redis."""
        return shown.badge(row.get_state_display(), _KINDS.get(row.state, ""))

    @admin.display(description=_("due"))
    def due_in_words(self, row: OutboxJob) -> SafeString | str:
        """When it is due; late only as long as Redis does not know of it."""
        late_after = conf().admin.late_after if row.state in row.WAITING else None
        return shown.until(shown.from_ms(row.expected_ms), late_after=late_after)

    @admin.display(description=_("written"))
    def written(self, row: OutboxJob) -> SafeString | str:
        """How long ago."""
        return shown.ago(row.created_at)

    @admin.display(description=_("sent"))
    def sent(self, row: OutboxJob) -> SafeString | str:
        """How long ago."""
        return shown.ago(row.sent_at)

    @admin.display(description=_("last seen in Redis"))
    def checked(self, row: OutboxJob) -> SafeString | str:
        """How long ago."""
        return shown.ago(row.checked_at)

    @admin.display(description=_("error"))
    def trouble(self, row: OutboxJob) -> SafeString | str:
        """The first line of what Redis said last."""
        return shown.error_line("", row.error)

    @admin.display(description=_("error"))
    def whole_error(self, row: OutboxJob) -> SafeString | str:
        """What Redis said last."""
        return shown.pre(shown.mask().text(row.error)) if row.error else "–"

    @admin.display(description=_("content"))
    def content(self, row: OutboxJob) -> SafeString | str:
        """The arguments or the payload."""
        try:
            job = packed.unpack_job(bytes(row.record))
        except ValueError as error:
            return shown.pre(str(error))
        if job.payload is not None:
            return shown.payload_table([job.payload], 1)
        return shown.call_table(job.task, job.args)

    @admin.display(description=_("options"))
    def context(self, row: OutboxJob) -> SafeString | str:
        """The job's own options and its context."""
        try:
            options = packed.unpack_job(bytes(row.record)).options
        except ValueError:
            return "–"
        return shown.json_pre(options) if options else "–"

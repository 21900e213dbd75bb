"""Admin pages of the outbox: durable jobs and their pending changes to Redis."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, ClassVar, Final

from django.contrib import admin
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _

from ..outbox.rows import unpack_job
from ..settings.conf import conf
from . import content, formatting
from .base import ReadOnlyAdmin, column
from .filters import StateFilter, distinct_values

if TYPE_CHECKING:
    from django.db.models import QuerySet
    from django.utils.safestring import SafeString

    from ..models import OutboxJob

#: maximum number of queues named in a search, to use the index that begins with the queue
_MOST_QUEUES: Final = 900
_KINDS: Final = {"refused": "bad", "buried": "late", "sent": "good"}


def as_uuid(text: str) -> uuid.UUID | None:
    """Return the UUID in a text, or None."""
    try:
        return uuid.UUID(text.strip())
    except ValueError:
        return None


class OutboxJobAdmin(ReadOnlyAdmin):
    """Read-only list of durable jobs' rows."""

    keyset = "pk"
    many = _("outbox jobs")
    list_display = ("job", "queue", "task_and_error", "status", "due_time", "written", "tries")
    list_display_links = ("job",)
    list_filter = (StateFilter,)
    sortable_by = ()
    search_fields = ("job_id",)
    search_help_text = _("The exact id of a job, or its key")
    fieldsets: ClassVar[Any] = (
        (_("Job"), {"fields": ("job_id", "queue", "task", "key")}),
        (_("Times"), {"fields": ("written", "due_time", "sent", "checked")}),
        (_("State"), {"fields": ("status", "tries", "whole_error")}),
        (_("Content"), {"fields": ("content", "context")}),
    )

    def listed(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        """Return the rows without the packed jobs."""
        return rows.defer("record")

    def searched(self, rows: QuerySet[Any], term: str) -> QuerySet[Any]:
        """Return the rows with an exact id or key.

        The index begins with the queue, so a search by id names all queues in the query.
        """
        key = as_uuid(term)
        if key is not None:
            return rows.filter(key=key)
        queues = distinct_values(rows, "queue", _MOST_QUEUES)
        if len(queues) == _MOST_QUEUES:  # there may be more queues than these
            return rows.filter(job_id=term)
        return rows.filter(queue__in=queues, job_id=term)

    job = column("job_id", formatting.named, _("id"))

    @admin.display(description=_("task and error"))
    def task_and_error(self, row: OutboxJob) -> SafeString:
        """Return the task, and below it the first line of Redis's last error."""
        error = content.error_line("", row.error) if row.error else ""
        return format_html('<div class="delayq-task">{}</div> {}', formatting.named(row.task), error)

    @admin.display(description=_("state"))
    def status(self, row: OutboxJob) -> SafeString:
        """Return a badge with the state of the row."""
        return formatting.badge(row.get_state_display(), _KINDS.get(row.state, ""))

    @admin.display(description=_("due"))
    def due_time(self, row: OutboxJob) -> SafeString | str:
        """Return the due time; marked as late only while the job is not in Redis yet."""
        late_after = conf().admin.late_after if row.state in row.WAITING else None
        return formatting.until(formatting.from_ms(row.expected_ms), late_after=late_after)

    written = column("created_at", formatting.ago, _("written"))
    sent = column("sent_at", formatting.ago, _("sent"))
    checked = column("checked_at", formatting.ago, _("last seen in Redis"))
    whole_error = column("error", content.message_pre, _("error"))

    @admin.display(description=_("content"))
    def content(self, row: OutboxJob) -> SafeString | str:
        """Return the arguments or the payload."""
        try:
            job = unpack_job(bytes(row.record))
        except ValueError as error:
            return content.pre(str(error))
        if job.payload is not None:
            return content.payload_table([job.payload], 1)
        return content.call_table(job.task, job.args)

    @admin.display(description=_("options"))
    def context(self, row: OutboxJob) -> SafeString | str:
        """Return the job's own options and its context."""
        try:
            options = unpack_job(bytes(row.record)).options
        except ValueError:
            return formatting.NOTHING
        return content.json_pre(options) if options else formatting.NOTHING

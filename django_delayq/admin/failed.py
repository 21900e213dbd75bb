"""Admin pages of failed jobs, which wait for their next attempt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib import admin
from django.utils import timezone
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _

from ..settings.conf import conf
from . import formatting
from .base import column
from .filters import AgeFilter, AttemptFilter, value_filter
from .job_actions import BURY, DISCARD, RETRY_IN, RETRY_NOW
from .mirrored import MirroredAdmin
from .redis_state import RedisState, running_ones

if TYPE_CHECKING:
    from django.http import HttpRequest
    from django.utils.safestring import SafeString

    from ..models import FailedJob


class FailedJobAdmin(MirroredAdmin):
    """Mirror of the failed jobs."""

    keyset = "failed_at"
    list_subtitle = _("Waiting for retry")
    live_place = "failed"
    ordering = ("-failed_at",)
    list_display = ("job", "queue", "task_and_error", "attempts", "when")
    list_filter = (
        value_filter("queue", _("queue")),
        value_filter("task", _("task")),
        value_filter("error_class", _("error class")),
        AttemptFilter,
        AgeFilter.of("failed_at"),
    )
    sortable_by = ("when",)
    job_actions = (RETRY_NOW, RETRY_IN, BURY, DISCARD)
    actions = tuple(action.as_function() for action in job_actions)
    fieldsets: ClassVar[Any] = (
        (_("Job"), {"fields": ("job", "task", "place", "priority", "kind", "generation")}),
        (_("Times"), {"fields": ("failed", "next_attempt", "attempts")}),
        (_("Error"), {"fields": ("error_class", "message", "traceback")}),
        (_("Content"), {"fields": ("arguments", "payloads", "context", "own_options")}),
    )

    @admin.display(description=_("failed, next attempt"), ordering="failed_at")
    def when(self, row: FailedJob) -> SafeString:
        """Return the time since the failure, and below it the next due time."""
        return format_html("<div>{}</div> {}", self.failed(row), self.next_attempt(row))

    failed = column("failed_at", formatting.ago, _("failed"))

    @admin.display(description=_("next attempt"))
    def next_attempt(self, row: FailedJob) -> SafeString | str:
        """Return the next due time; of a job that a worker holds, that it is running."""
        state: RedisState | None = getattr(row, "delayq_state", None)
        is_held = state is not None and state.view is not None and state.view.state == "reserved"
        if is_held or getattr(row, "delayq_running", False):
            return formatting.badge(_("running"), "good")
        return formatting.until(row.due_at, late_after=conf().admin.late_after)

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """Return the list. Of the jobs that are due, those that run now are marked."""
        listed = super().get_changelist_instance(request)
        now = timezone.now()
        due = [row for row in listed.result_list if row.due_at <= now]
        running = running_ones(due)
        for row in due:
            row.delayq_running = row.pk in running
        return listed

    def has_bury_permission(self, request: HttpRequest) -> bool:
        """Return True with the permission ``bury_failedjob``."""
        return self.may(request, "bury")

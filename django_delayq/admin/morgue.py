"""Admin pages of the morgue: jobs that are not retried automatically."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

from django.contrib import admin
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _

from ..settings.conf import mask
from . import formatting
from .base import column
from .filters import AgeFilter, AttemptFilter, value_filter
from .job_actions import DISCARD
from .job_actions import RETRY_IN as LATER
from .job_actions import RETRY_NOW as NOW
from .mirrored import MirroredAdmin

if TYPE_CHECKING:
    from django.utils.safestring import SafeString

    from ..models import MorgueJob

RETRY_NOW: Final = replace(
    NOW, effect=_("They leave the morgue, and the next free worker runs them. Their failures are reset.")
)
RETRY_IN: Final = replace(
    LATER, effect=_("They leave the morgue and become due after the delay. Their failures are reset.")
)


class MorgueJobAdmin(MirroredAdmin):
    """Mirror of the morgue."""

    keyset = "buried_at"
    list_subtitle = _("Dead jobs, kept for a decision")
    live_place = "morgue"
    ordering = ("-buried_at",)
    many = _("jobs in the morgue")
    list_display = ("job", "queue", "task_and_error", "attempts", "when")
    list_filter = (
        value_filter("queue", _("queue")),
        value_filter("task", _("task")),
        value_filter("reason", _("reason")),
        value_filter("error_class", _("error class")),
        AttemptFilter,
        AgeFilter.of("buried_at"),
    )
    sortable_by = ("when",)
    job_actions = (RETRY_NOW, RETRY_IN, DISCARD)
    actions = tuple(action.as_function() for action in job_actions)
    fieldsets: ClassVar[Any] = (
        (_("Job"), {"fields": ("job", "task", "place", "priority", "kind", "generation")}),
        (_("Times"), {"fields": ("buried", "was_due", "attempts")}),
        (_("Error"), {"fields": ("why", "outcome", "error_class", "message", "traceback")}),
        (_("Content"), {"fields": ("arguments", "payloads", "context", "own_options")}),
    )

    @admin.display(description=_("buried"), ordering="buried_at")
    def when(self, row: MorgueJob) -> SafeString:
        """Return the reason for the burial, and the time since."""
        return format_html("<div>{}</div> {}", self.why(row), self.buried(row))

    buried = column("buried_at", formatting.ago, _("buried"))
    was_due = column("due_at", formatting.ago, _("was due"))

    @admin.display(description=_("reason"))
    def why(self, row: MorgueJob) -> SafeString:
        """Return the reason for the burial."""
        reason = mask().text(row.reason) or row.outcome or formatting.NOTHING
        return formatting.badge(reason, "bad" if row.reason == "poison" else "")

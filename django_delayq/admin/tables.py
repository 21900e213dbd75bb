"""Admin pages of outbox, inbox, bulk actions and pipeline runs."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, ClassVar, Final

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.http import HttpResponse, HttpResponseRedirect
from django.urls import path
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext, gettext_lazy as _, ngettext
from django.views.decorators.http import require_POST

from ..history.records import DIED, SILENT, seconds_of, state_of
from ..models import BulkAction
from ..models.history import PipelineRun
from ..outbox.rows import unpack_job
from ..repair import orders
from ..settings.conf import conf
from ..status.formatting import NOTHING, duration
from . import content, formatting
from .actions import phrases
from .base import TableAdmin, column
from .filters import AgeFilter

if TYPE_CHECKING:
    from django.db.models import Model, QuerySet
    from django.http import HttpRequest
    from django.utils.safestring import SafeString

    from ..models import OutboxJob

#: state of a row → kind of its badge
_KINDS: Final = {
    **dict.fromkeys(("refused", "failed", DIED), "bad"),
    **dict.fromkeys(("buried", "stopped"), "late"),
    **dict.fromkeys(("sent", "done", "finished"), "good"),
}


def _as_uuid(text: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(text)
    except ValueError:
        return None


def _state(row: Any) -> SafeString:
    return formatting.badge(row.get_state_display(), _KINDS.get(row.state, ""))


class OutboxJobAdmin(TableAdmin):
    """Read-only list of durable jobs' rows."""

    ordering = ("-pk",)
    list_display = ("job", "queue", "task_and_error", "status", "due_time", "written", "tries")
    list_display_links = ("job",)
    list_filter = ("state",)
    sortable_by = ()
    search_fields = ("job_id",)
    search_help_text = _("The exact id of a job, or its key")
    fieldsets: ClassVar[Any] = (
        (_("Job"), {"fields": ("job_id", "queue", "task", "key")}),
        (_("Times"), {"fields": ("written", "due_time", "sent", "checked")}),
        (_("State"), {"fields": ("status", "tries", "whole_error")}),
        (_("Content"), {"fields": ("content", "context")}),
    )

    def searched(self, rows: QuerySet[Any], term: str) -> QuerySet[Any]:
        """Return the rows with an exact id or key."""
        key = _as_uuid(term)
        return rows.filter(job_id=term) if key is None else rows.filter(key=key)

    job = column("job_id", formatting.named, _("id"))

    @admin.display(description=_("task and error"))
    def task_and_error(self, row: OutboxJob) -> SafeString:
        """Return the task, and below it the first line of Redis's last error."""
        error = content.error_line("", row.error) if row.error else ""
        return format_html('<div class="delayq-task">{}</div> {}', formatting.named(row.task), error)

    status = admin.display(description=_("state"))(lambda self, row: _state(row))

    @admin.display(description=_("due"))
    def due_time(self, row: OutboxJob) -> SafeString | str:
        """Return the due time; marked as late only while the job is not in Redis yet."""
        late_after = conf().admin.late_after if row.state in row.WAITING else None
        return formatting.until(formatting.from_ms(row.expected_ms), late_after=late_after)

    written = column("created_at", formatting.ago, _("written"))
    sent = column("sent_at", formatting.ago, _("sent"))
    checked = column("checked_at", formatting.ago, _("last seen in Redis"))
    whole_error = column("error", content.pre, _("error"))

    @admin.display(description=_("content"))
    def content(self, row: OutboxJob) -> SafeString | str:
        """Return the arguments or the payload."""
        try:
            job: Any = unpack_job(bytes(row.record))
        except ValueError as error:
            return content.pre(str(error))
        payloads = None if job.payload is None else content.payload_rows([job.payload])
        return content.table(payloads or content.arguments_of(job.task, job.args)[0])

    @admin.display(description=_("options"))
    def context(self, row: OutboxJob) -> SafeString | str:
        """Return the job's own options and its context."""
        try:
            options = unpack_job(bytes(row.record)).options
        except ValueError:
            return NOTHING
        return content.pre(content.json_text(options) if options else "")


class InboxEntryAdmin(TableAdmin):
    """Entries of ``@exactly_once``, and of API requests that stored durable jobs."""

    ordering = ("-created_at",)
    list_display = ("key", "queue", "job", "task_name", "done")
    list_filter = (AgeFilter.of("created_at"),)
    sortable_by = ("done",)
    search_fields = ("key",)
    search_help_text = _("The key of a job")
    fieldsets: ClassVar = [(None, {"fields": ("key", "queue", "job_id", "task", "done")})]

    def searched(self, rows: QuerySet[Any], term: str) -> QuerySet[Any]:
        """Return the entry with this key."""
        key = _as_uuid(term)
        return rows.none() if key is None else rows.filter(key=key)

    job = column("job_id", formatting.named, _("id"))
    task_name = column("task", formatting.named, _("task"))
    done = column("created_at", formatting.ago, _("done"), ordering="created_at")


# -- bulk actions ------------------------------------------------------------------------------------------------------

_VERB_NAMES: Final = {"retry": _("Retry"), "discard": _("Discard"), "bury": _("Bury")}


class BulkActionAdmin(TableAdmin):
    """Bulk actions. Users may view and stop their own; for others permissions are required."""

    ordering = ("-created_at",)
    change_form_template = "django_delayq/admin/bulk_action.html"
    list_display = ("what", "status", "progress", "ordered_by", "ordered")
    list_display_links = ("what",)
    list_filter = ("state",)
    sortable_by = ("ordered",)
    fieldsets: ClassVar = [
        (_("Progress"), {"fields": ("status", "progress", "outcomes", "problem", "ended")}),
        (_("Action"), {"fields": ("what", "which", "ordered_by", "ordered")}),
    ]

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Return True with ``view_bulkaction``, or for one's own action."""
        return super().has_view_permission(request, obj) or self._is_own(request, obj)

    def has_stop_permission(self, request: HttpRequest, obj: BulkAction) -> bool:
        """Return True with ``stop_bulkaction``, or for one's own action."""
        return self.may(request, "stop") or self._is_own(request, obj)

    def _is_own(self, request: HttpRequest, obj: Model | None) -> bool:
        return isinstance(obj, BulkAction) and bool(obj.ordered_by_pk) and obj.ordered_by_pk == str(request.user.pk)

    def get_urls(self) -> list[Any]:
        """Return the URLs, with that of the stop button."""
        view = self.admin_site.admin_view(require_POST(self.stop_view))
        return [path("<path:object_id>/stop/", view, name=self.url_name("stop")), *super().get_urls()]

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Render the action with its progress, and the button that stops it."""
        row = self.get_object(request, unquote(object_id))
        extra = extra_context or {}
        if row is not None and self.has_view_permission(request, row):
            goes_on = row.state in orders.WAITING
            may_stop = goes_on and self.has_stop_permission(request, row)
            extra |= {"title": self.what(row), "subtitle": None, **self.page_context([(self.what(row), "")])}
            extra |= {"goes_on": goes_on, "stop_url": self.url("stop", row.pk) if may_stop else ""}
        return super().change_view(request, object_id, form_url, extra)

    def stop_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Stop the action before its next chunk; completed chunks stay."""
        order = self.object_or_404(request, object_id)
        if not (self.has_view_permission(request, order) and self.has_stop_permission(request, order)):
            raise PermissionDenied
        if orders.stop(order):
            self.note(request, [order], CHANGE, gettext("Stopped."))
            self.message_user(request, gettext("It will stop after the current chunk."), messages.SUCCESS)
        else:
            self.message_user(request, gettext("It had already ended."), messages.WARNING)
        return HttpResponseRedirect(self.url("change", order.pk))

    @admin.display(description=_("action"))
    def what(self, row: BulkAction) -> str:
        """Return the verb and the number of jobs."""
        text = ngettext("%(action)s %(number)s job", "%(action)s %(number)s jobs", row.total)
        return text % {"action": _VERB_NAMES.get(row.action, row.action), "number": formatting.grouped(row.total)}

    status = admin.display(description=_("state"))(lambda self, row: _state(row))

    @admin.display(description=_("progress"))
    def progress(self, row: BulkAction) -> SafeString:
        """Return a progress bar, and the number of jobs done."""
        bar = formatting.progress_bar(1.0 if row.state == row.State.DONE else min(1.0, row.done / max(1, row.total)))
        numbers = {"done": formatting.grouped(row.done), "total": formatting.grouped(row.total)}
        return format_html('{} <span class="delayq-note">{}</span>', bar, gettext("%(done)s of %(total)s") % numbers)

    @admin.display(description=_("outcomes"))
    def outcomes(self, row: BulkAction) -> SafeString | str:
        """Return a sentence for each outcome."""
        lines = phrases(row.counts if isinstance(row.counts, dict) else {})
        return format_html_join("", "<div>{}</div>", ((line,) for line in lines)) or NOTHING

    problem = column("error", content.pre, _("error"))
    ended = column("ended_at", formatting.ago, _("ended"))

    @admin.display(description=_("target"))
    def which(self, row: BulkAction) -> SafeString | str:
        """Return the target, its filters, and the options of the action."""
        return content.details({"target": row.target, "filters": row.filters, "options": row.options})

    ordered = column("created_at", formatting.ago, _("ordered"), ordering="created_at")


# -- pipeline runs -----------------------------------------------------------------------------------------------------

_DIED_NAME: Final = _("died")
_RUNNING: Final = PipelineRun.State.RUNNING


class RunStateFilter(admin.SimpleListFilter):
    """Filter by the displayed state, including ``died`` for runs whose process died before they ended."""

    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: admin.ModelAdmin[Any]) -> list[tuple[str, Any]]:
        """Return the model's states and ``died``."""
        return [*PipelineRun.State.choices, (DIED, _DIED_NAME)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return the rows of a state; of running ones those that had a heartbeat lately, or had none."""
        value, silent = self.value(), timezone.now() - SILENT
        if value == DIED:
            return queryset.filter(state=_RUNNING, seen_at__lt=silent)
        rows = queryset.filter(state=value) if value in PipelineRun.State else queryset
        return rows.filter(seen_at__gte=silent) if value == _RUNNING else rows


class PipelineRunAdmin(TableAdmin):
    """Read-only list of pipeline runs; they are started by ``manage.py delayq_pipeline``."""

    ordering = ("-started_at",)
    list_display = ("run", "status", "summary", "progress", "rows_created", "already_existed", "run_time", "started")
    list_display_links = ("run",)
    list_filter = (RunStateFilter, "kind")
    sortable_by = ("started",)
    search_fields = ("run_id",)
    search_help_text = _("The exact id of a pipeline run")

    class Media:
        css: ClassVar = {"all": ("django_delayq/history.css",)}

    fieldsets: ClassVar[Any] = (
        (_("Pipeline run"), {"fields": ("run", "status", "progress", "queue", "task")}),
        (_("Times"), {"fields": ("started", "last_heartbeat", "ended", "run_time")}),
        (_("Rows"), {"fields": ("rows_total", "rows_done", "rows_created", "already_existed", "refused")}),
        (_("Details"), {"fields": ("whole_error", "details")}),
    )

    def searched(self, rows: QuerySet[Any], term: str) -> QuerySet[Any]:
        """Return the rows with an exact id."""
        return rows.filter(run_id=term)

    @admin.display(description=_("pipeline run"))
    def run(self, row: PipelineRun) -> SafeString:
        """Return the kind of a pipeline run and, on a line of its own, its id."""
        return format_html("{} <div>{}</div>", row.get_kind_display(), formatting.named(row.run_id))

    @admin.display(description=_("state"))
    def status(self, row: PipelineRun) -> SafeString:
        """Return a badge with the state."""
        state = state_of(row)
        return formatting.badge(_DIED_NAME if state == DIED else row.get_state_display(), _KINDS.get(state, ""))

    @admin.display(description=_("rows"))
    def progress(self, row: PipelineRun) -> SafeString | str:
        """Return the number of rows done, with a bar while it is running and its total is known."""
        if not row.total or state_of(row) != _RUNNING:
            return formatting.grouped(row.rows)
        bar = formatting.progress_bar(min(1.0, row.rows / row.total))
        return format_html("{} · {}", bar, formatting.grouped(row.rows))

    rows_total = column("total", lambda n: NOTHING if n is None else formatting.grouped(n), _("rows in all"))
    rows_done = column("rows", formatting.grouped, _("rows done"))
    rows_created = column("created", formatting.grouped, _("created"))
    already_existed = column("known", formatting.grouped, _("already existed"))
    refused = column("bad", formatting.grouped, _("refused"))

    @admin.display(description=_("duration"))
    def run_time(self, row: PipelineRun) -> str:
        """Return the duration so far or in all; of a run that died, up to its last heartbeat."""
        return duration(seconds_of(row))

    started = column("started_at", formatting.ago, _("started"), ordering="started_at")
    ended = column("ended_at", formatting.ago, _("ended"))
    last_heartbeat = column("seen_at", formatting.ago, _("last heartbeat"))
    summary = column("error", lambda error: content.error_line("", error), _("error"))
    whole_error = column("error", content.pre, _("error"))
    details = column("detail", content.details, _("details"))

"""Admin pages of pipeline runs: options, progress and result of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from django.contrib import admin
from django.utils import timezone
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _

from ..history.records import DIED, SILENT, seconds_of, state_of
from ..models.history import PipelineRun
from ..settings.conf import mask
from . import content, formatting
from .base import column
from .filters import ChoiceFilter, StateFilter
from .progress import ProgressAdmin

if TYPE_CHECKING:
    from django.db.models import QuerySet
    from django.http import HttpRequest
    from django.utils.safestring import SafeString

_KINDS: Final = {"finished": "good", "failed": "bad", DIED: "bad", "stopped": "late"}
_DIED: Final = _("died")
_RUNNING: Final = PipelineRun.State.RUNNING


class RunStateFilter(StateFilter):
    """Filter by the displayed state, including ``died`` for runs whose process died before they ended."""

    def lookups(self, request: HttpRequest, model_admin: admin.ModelAdmin[Any]) -> list[tuple[str, Any]]:
        """Return the model's states and ``died``."""
        return [*super().lookups(request, model_admin), (DIED, _DIED)]

    def chosen(self) -> dict[str, Any]:
        """Return the lookups of the state; for running ones also the time of the last heartbeat."""
        silent = timezone.now() - SILENT
        if self.value() == DIED:
            return {"state": _RUNNING, "seen_at__lt": silent}
        if self.value() == _RUNNING:
            return {"state": _RUNNING, "seen_at__gte": silent}
        return super().chosen()


class KindFilter(ChoiceFilter):
    """Filter by kind."""

    title = _("kind")
    parameter_name = "kind"


class PipelineRunAdmin(ProgressAdmin):
    """Read-only list of pipeline runs; they are started by ``manage.py delayq_pipeline``."""

    keyset = "started_at"
    ordering = ("-started_at",)
    progress_template = "run_progress"
    list_display = (
        "named_run",
        "status",
        "error_summary",
        "progress",
        "rows_created",
        "already_existed",
        "run_time",
        "started",
    )
    list_display_links = ("named_run",)
    list_filter = (RunStateFilter, KindFilter)
    sortable_by = ("started",)
    search_fields = ("run_id",)
    search_help_text = _("The exact id of a pipeline run")
    fieldsets: ClassVar[Any] = (
        (_("Pipeline run"), {"fields": ("kind", "run_id", "queue", "task")}),
        (_("Times"), {"fields": ("started", "last_heartbeat", "ended", "run_time")}),
        (_("Rows"), {"fields": ("rows_total", "rows_done", "rows_created", "already_existed", "refused")}),
        (_("Details"), {"fields": ("whole_error", "details")}),
    )

    class Media:
        css: ClassVar = {"all": ("django_delayq/history.css",)}

    def listed(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        """Return the rows without columns that only the page of a run shows."""
        return rows.defer("detail")

    def searched(self, rows: QuerySet[Any], term: str) -> QuerySet[Any]:
        """Return the rows with an exact id."""
        return rows.filter(run_id=term)

    # -- pages -------------------------------------------------------------------------------------------------------

    def title_of(self, row: PipelineRun) -> str:
        """Return kind and id."""
        return f"{row.get_kind_display()} {row.run_id}".strip()

    def progress_of(self, request: HttpRequest, row: PipelineRun) -> dict[str, Any]:
        """Return the variables of the progress template."""
        share = _share(row)
        return {
            "run": row,
            "ended": state_of(row) != _RUNNING,
            "status": self.status(row),
            "bar": None if share is None else formatting.progress_bar(share),
            "number_done": formatting.grouped(row.rows),
            "number_total": self.rows_total(row),
            "run_time": self.run_time(row),
            "error": mask().text(row.error),
            "died": state_of(row) == DIED,
            "last_heartbeat": self.last_heartbeat(row),
        }

    # -- columns -----------------------------------------------------------------------------------------------------

    @admin.display(description=_("pipeline run"))
    def named_run(self, row: PipelineRun) -> SafeString:
        """Return the kind of a pipeline run and, on a line of its own, its id."""
        return format_html("{} <div>{}</div>", row.get_kind_display(), formatting.named(row.run_id))

    @admin.display(description=_("state"))
    def status(self, row: PipelineRun) -> SafeString:
        """Return a badge with the state."""
        state = state_of(row)
        return formatting.badge(_DIED if state == DIED else row.get_state_display(), _KINDS.get(state, ""))

    @admin.display(description=_("rows"))
    def progress(self, row: PipelineRun) -> SafeString | str:
        """Return the number of rows done, with a bar while it is running and its total is known."""
        share = _share(row)
        if share is None or state_of(row) != _RUNNING:
            return formatting.grouped(row.rows)
        return format_html("{} · {}", formatting.progress_bar(share), formatting.grouped(row.rows))

    @admin.display(description=_("rows in all"))
    def rows_total(self, row: PipelineRun) -> str:
        """Return the total number of rows, if known."""
        return formatting.NOTHING if row.total is None else formatting.grouped(row.total)

    rows_done = column("rows", formatting.grouped, _("rows done"))
    rows_created = column("created", formatting.grouped, _("created"))
    already_existed = column("known", formatting.grouped, _("already existed"))
    refused = column("bad", formatting.grouped, _("refused"))

    @admin.display(description=_("duration"))
    def run_time(self, row: PipelineRun) -> str:
        """Return the duration so far or in all; of a run that died, up to its last heartbeat."""
        return formatting.duration(seconds_of(row))

    started = column("started_at", formatting.ago, _("started"), ordering="started_at")
    ended = column("ended_at", formatting.ago, _("ended"))
    last_heartbeat = column("seen_at", formatting.ago, _("last heartbeat"))

    @admin.display(description=_("error"))
    def error_summary(self, row: PipelineRun) -> SafeString | str:
        """Return the first line of the error."""
        return content.error_line("", row.error)

    whole_error = column("error", content.message_pre, _("error"))

    @admin.display(description=_("details"))
    def details(self, row: PipelineRun) -> SafeString | str:
        """Return options and position of the run, secrets masked."""
        detail = mask().value(row.detail)
        if isinstance(detail, dict) and detail:
            return content.mapping_table(detail)
        return content.pre(content.pretty(detail)) if detail else formatting.NOTHING


def _share(row: PipelineRun) -> float | None:
    """Return the fraction done; None if the total is unknown."""
    if row.state == PipelineRun.State.FINISHED:
        return 1.0
    return min(1.0, row.rows / row.total) if row.total else None

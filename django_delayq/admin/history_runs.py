"""The runs of the pipeline: what each was asked for, how far it is, and how it ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from django.contrib import admin
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.template.response import TemplateResponse
from django.urls import path
from django.utils import timezone
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _

from ..history.records import DIED, SILENT, state_of
from ..models.history import PipelineRun
from . import shown
from .base import ReadOnlyAdmin, fields_of
from .filters import StateFilter
from .words import duration

if TYPE_CHECKING:
    from django.db.models import QuerySet
    from django.http import HttpRequest, HttpResponse
    from django.utils.safestring import SafeString

__all__ = ["PipelineRunAdmin"]

_KINDS: Final = {"finished": "good", "failed": "bad", DIED: "bad", "stopped": "late"}
_DIED: Final = _("died")
_RUNNING: Final = PipelineRun.State.RUNNING


class RunStateFilter(StateFilter):
    """The state, as it is shown: a run whose process died never said how it ended."""

    def lookups(self, request: HttpRequest, model_admin: admin.ModelAdmin[Any]) -> list[tuple[str, Any]]:
        """The model's states, and that one."""
        return [*super().lookups(request, model_admin), (DIED, _DIED)]

    def chosen(self) -> dict[str, Any]:
        """The state; of one that runs, also when it was heard of."""
        silent = timezone.now() - SILENT
        if self.value() == DIED:
            return {"state": _RUNNING, "seen_at__lt": silent}
        if self.value() == _RUNNING:
            return {"state": _RUNNING, "seen_at__gte": silent}
        return super().chosen()


class KindFilter(StateFilter):
    """What it does."""

    title = _("kind")
    parameter_name = "kind"

    def lookups(self, request: HttpRequest, model_admin: admin.ModelAdmin[Any]) -> list[tuple[str, Any]]:
        """The model's kinds."""
        return list(PipelineRun.Kind.choices)

    def chosen(self) -> dict[str, Any]:
        """The kind."""
        value = self.value()
        return {"kind": value} if value in PipelineRun.Kind.values else {}


class PipelineRunAdmin(ReadOnlyAdmin):
    """Runs to look at; they are started by ``manage.py delayq_pipeline``."""

    keyset = "started_at"
    ordering = ("-started_at",)
    change_form_template = "django_delayq/admin/history_run.html"
    list_display = ("what", "status", "trouble", "progress", "made", "were_known", "took", "began")
    list_display_links = ("what",)
    list_filter = (RunStateFilter, KindFilter)
    sortable_by = ("began",)
    search_fields = ("run_id",)
    search_help_text = _("The exact id of a run")
    fieldsets: ClassVar[Any] = (
        (_("What"), {"fields": ("kind", "run_id", "queue", "task")}),
        (_("When"), {"fields": ("began", "heard_of", "ended", "took")}),
        (_("How many"), {"fields": ("of_all", "done", "made", "were_known", "refused")}),
        (_("More"), {"fields": ("whole_error", "details")}),
    )
    readonly_fields = fields_of(fieldsets)

    class Media:
        css: ClassVar = {"all": ("django_delayq/history.css",)}
        js: ClassVar = ("django_delayq/progress.js",)

    def get_urls(self) -> list[Any]:
        """With the part that tells how far it is."""
        name = f"{self.opts.app_label}_{self.opts.model_name}_progress"
        return [
            path("<path:object_id>/progress/", self.admin_site.admin_view(self.progress_view), name=name),
            *super().get_urls(),
        ]

    def listed(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        """Without what only the page of a run shows."""
        return rows.defer("detail")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """An exact id."""
        term = search_term.strip()
        return (queryset.filter(run_id=term) if term else queryset), False

    # -- pages -------------------------------------------------------------------------------------------------------

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """The run, and how far it is."""
        run = self.get_object(request, unquote(object_id))
        extra = {**(extra_context or {}), **self.page_context()}
        if run is not None and self.has_view_permission(request, run):
            extra |= {"title": self.what(run), "subtitle": None, **self._progress_of(run)}
        return super().change_view(request, object_id, form_url, extra)

    def progress_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """The part of the page that changes, for the script that fetches it again and again."""
        run = self.object_or_404(request, object_id)
        if not self.has_view_permission(request, run):
            raise PermissionDenied
        response = TemplateResponse(request, "django_delayq/admin/history_progress.html", self._progress_of(run))
        response["Cache-Control"] = "no-store"
        return response

    def _progress_of(self, run: PipelineRun) -> dict[str, Any]:
        return {
            "run": run,
            "ended": state_of(run) != _RUNNING,
            "status": self.status(run),
            "share": _share(run),
            "number_done": shown.number(run.rows),
            "number_total": self.of_all(run),
            "took": self.took(run),
            "error": shown.mask().text(run.error),
            "died": state_of(run) == DIED,
            "heard_of": self.heard_of(run),
            "progress_url": self.address("progress", run.pk),
        }

    # -- columns -----------------------------------------------------------------------------------------------------

    @admin.display(description=_("run"))
    def what(self, row: PipelineRun) -> str:
        """Its kind and its id."""
        return f"{row.get_kind_display()} {row.run_id}".strip()

    @admin.display(description=_("state"))
    def status(self, row: PipelineRun) -> SafeString:
        """Running, or how it ended."""
        state = state_of(row)
        return shown.badge(_DIED if state == DIED else row.get_state_display(), _KINDS.get(state, ""))

    @admin.display(description=_("rows"))
    def progress(self, row: PipelineRun) -> SafeString | str:
        """Rows that are done; a bar where it is known how many there are, and it goes on."""
        share = _share(row)
        if share is None or state_of(row) != _RUNNING:
            return shown.number(row.rows)
        return format_html(
            '<progress class="delayq-bar" max="100" value="{}"></progress> {} % · {}',
            share,
            share,
            shown.number(row.rows),
        )

    @admin.display(description=_("rows in all"))
    def of_all(self, row: PipelineRun) -> str:
        """How many there are, if that is known."""
        return "–" if row.total is None else shown.number(row.total)

    @admin.display(description=_("rows done"))
    def done(self, row: PipelineRun) -> str:
        """How many are done."""
        return shown.number(row.rows)

    @admin.display(description=_("created"))
    def made(self, row: PipelineRun) -> str:
        """What it made."""
        return shown.number(row.created)

    @admin.display(description=_("there already"))
    def were_known(self, row: PipelineRun) -> str:
        """What it found."""
        return shown.number(row.known)

    @admin.display(description=_("refused"))
    def refused(self, row: PipelineRun) -> str:
        """What lies in the quarantine."""
        return shown.number(row.bad)

    @admin.display(description=_("duration"))
    def took(self, row: PipelineRun) -> str:
        """How long it took, or has taken so far; of one that died until it was last heard of."""
        end = row.ended_at or (timezone.now() if state_of(row) == _RUNNING else row.seen_at)
        return duration(max(0.0, (end - row.started_at).total_seconds()))

    @admin.display(description=_("started"), ordering="started_at")
    def began(self, row: PipelineRun) -> SafeString | str:
        """How long ago."""
        return shown.ago(row.started_at)

    @admin.display(description=_("ended"))
    def ended(self, row: PipelineRun) -> SafeString | str:
        """How long ago."""
        return shown.ago(row.ended_at)

    @admin.display(description=_("last heard of"))
    def heard_of(self, row: PipelineRun) -> SafeString | str:
        """How long ago."""
        return shown.ago(row.seen_at)

    @admin.display(description=_("error"))
    def trouble(self, row: PipelineRun) -> SafeString | str:
        """Its first line."""
        return shown.error_line("", row.error)

    @admin.display(description=_("error"))
    def whole_error(self, row: PipelineRun) -> SafeString | str:
        """All of it."""
        return shown.pre(shown.mask().text(row.error)) if row.error else "–"

    @admin.display(description=_("details"))
    def details(self, row: PipelineRun) -> SafeString | str:
        """What it was asked for and where it got to; secrets are hidden."""
        found = shown.mask().value(row.detail)
        if isinstance(found, dict) and found:
            return shown.mapping_table(found)
        return shown.pre(shown.pretty(found)) if found else "–"


def _share(row: PipelineRun) -> int | None:
    """Percent done; None where it is not known how many there are."""
    if row.state == PipelineRun.State.FINISHED:
        return 100
    return min(100, row.rows * 100 // row.total) if row.total else None

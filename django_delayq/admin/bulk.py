"""Pages of bulk actions: the order, its progress, and a button to stop it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.http import HttpResponse, HttpResponseRedirect
from django.urls import path
from django.utils.dateparse import parse_datetime
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_POST

from .. import repair
from ..models import BulkAction, FailedJob, MorgueJob
from ..settings.conf import mask
from . import formatting
from .base import ReadOnlyAdmin
from .filters import StateFilter
from .job_actions import phrases

if TYPE_CHECKING:
    from django.db.models import Model
    from django.http import HttpRequest
    from django.utils.safestring import SafeString

_KINDS: Final = {"done": "good", "failed": "bad", "stopped": "late"}
_NAMES: Final = {model.__name__: model._meta.verbose_name_plural for model in (FailedJob, MorgueJob)}
_COLUMNS: Final = {
    (model.__name__, field.name): field.verbose_name
    for model in (FailedJob, MorgueJob)
    for field in model._meta.concrete_fields
}
_SIGNS: Final = {"": "=", "exact": "=", "gte": "≥", "lte": "≤", "gt": ">", "lt": "<", "startswith": "…"}
_VERB_NAMES: Final = {"retry": _("Retry"), "discard": _("Discard"), "bury": _("Bury")}


class BulkActionAdmin(ReadOnlyAdmin):
    """Bulk actions. Users may view and stop their own; for others permissions are required."""

    keyset = "created_at"
    ordering = ("-created_at",)
    change_form_template = "django_delayq/admin/progress_page.html"
    list_display = ("what", "status", "progress", "ordered_by", "ordered")
    list_display_links = ("what",)
    list_filter = (StateFilter,)
    sortable_by = ("ordered",)
    fieldsets: ClassVar = [
        (None, {"fields": ("what", "which", "delay", "ordered_by", "ordered")}),
    ]
    readonly_fields = ("what", "which", "delay", "ordered_by", "ordered")

    class Media:
        js: ClassVar = ("django_delayq/live.js",)

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Return True with ``view_bulkaction``, or for one's own action."""
        return super().has_view_permission(request, obj) or self._is_own(request, obj)

    def has_stop_permission(self, request: HttpRequest, obj: BulkAction) -> bool:
        """Return True with ``stop_bulkaction``, or for one's own action."""
        return self.may(request, "stop") or self._is_own(request, obj)

    def _is_own(self, request: HttpRequest, obj: Model | None) -> bool:
        return isinstance(obj, BulkAction) and bool(obj.ordered_by_pk) and obj.ordered_by_pk == str(request.user.pk)

    def get_urls(self) -> list[Any]:
        """Return the URLs, with those of the progress fragment and the stop button."""
        view = self.admin_site.admin_view
        return [
            path("<path:object_id>/progress/", view(self.progress_view), name=self.url_name("progress")),
            path("<path:object_id>/stop/", view(require_POST(self.stop_view)), name=self.url_name("stop")),
            *super().get_urls(),
        ]

    # -- pages -------------------------------------------------------------------------------------------------------

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Render the action with its progress."""
        order = self.get_object(request, unquote(object_id))
        extra = extra_context or {}
        if order is not None and self.has_view_permission(request, order):
            title = self.what(order)
            extra |= {"title": title, "subtitle": None, "progress_template": "django_delayq/admin/bulk_progress.html"}
            extra |= {**self.page_context([(title, "")]), **self._progress_of(request, order)}
        return super().change_view(request, object_id, form_url, extra)

    def progress_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Render the progress fragment, which the page's script polls."""
        order = self.object_or_404(request, object_id)
        if not self.has_view_permission(request, order):
            raise PermissionDenied
        response = self.render(request, "bulk_progress", "", self._progress_of(request, order))
        response["Cache-Control"] = "no-store"
        return response

    def stop_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Stop the action before its next chunk; completed chunks stay."""
        order = self.object_or_404(request, object_id)
        if not (self.has_view_permission(request, order) and self.has_stop_permission(request, order)):
            raise PermissionDenied
        if repair.stop(order):
            self.note(request, [order], CHANGE, gettext("Stopped."))
            self.message_user(request, gettext("It will stop after the current chunk."), messages.SUCCESS)
        else:
            self.message_user(request, gettext("It had already ended."), messages.WARNING)
        return HttpResponseRedirect(self.url("change", order.pk))

    def _progress_of(self, request: HttpRequest, order: BulkAction) -> dict[str, Any]:
        ended = order.state in (order.State.DONE, order.State.STOPPED, order.State.FAILED)
        return {
            "order": order,
            "ended": ended,
            "ended_ago": formatting.ago(order.ended_at),
            "status": self.status(order),
            "bar": self.progress(order),
            "outcomes": phrases(order.counts if isinstance(order.counts, dict) else {}),
            "number_done": formatting.grouped(order.done),
            "number_total": formatting.grouped(order.total),
            "may_stop": not ended and self.has_stop_permission(request, order),
            "stop_url": self.url("stop", order.pk),
            "progress_url": self.url("progress", order.pk),
        }

    # -- columns -----------------------------------------------------------------------------------------------------

    @admin.display(description=_("action"))
    def what(self, row: BulkAction) -> str:
        """Return the verb and the number of jobs."""
        text = ngettext("%(action)s %(number)s job", "%(action)s %(number)s jobs", row.total)
        return text % {"action": _VERB_NAMES.get(row.action, row.action), "number": formatting.grouped(row.total)}

    @admin.display(description=_("state"))
    def status(self, row: BulkAction) -> SafeString:
        """Return a badge with the state."""
        return formatting.badge(row.get_state_display(), _KINDS.get(row.state, ""))

    @admin.display(description=_("progress"))
    def progress(self, row: BulkAction) -> SafeString:
        """Return a progress bar."""
        return formatting.progress_bar(_share(row))

    @admin.display(description=_("target"))
    def which(self, row: BulkAction) -> SafeString | str:
        """Return the target and its filters."""
        text = _NAMES.get(row.target, row.target)
        filters = row.filters if isinstance(row.filters, dict) else {}
        lines = [_condition(row.target, name, value) for name, value in mask().value(filters).items()]
        return format_html("{}{}", text, format_html_join("", "<br>{}", ((line,) for line in lines)))

    @admin.display(description=_("delay"))
    def delay(self, row: BulkAction) -> str:
        """Return the delay of a retry."""
        seconds = row.options.get("delay") if isinstance(row.options, dict) else None
        return formatting.duration(seconds) if isinstance(seconds, (int, float)) else formatting.NOTHING

    @admin.display(description=_("ordered"), ordering="created_at")
    def ordered(self, row: BulkAction) -> SafeString | str:
        """Return the time since it was ordered."""
        return formatting.ago(row.created_at)


def _condition(target: str, name: str, value: Any) -> str:
    """Return a filter as text: "queue = orders", "buried ≤ 2030-01-31 12:00:00 UTC"."""
    field, _sep, lookup = name.partition("__")
    column = _COLUMNS.get((target, field), field)
    try:
        moment = parse_datetime(value) if isinstance(value, str) and field.endswith("_at") else None
    except ValueError:
        moment = None
    return f"{column} {_SIGNS.get(lookup, lookup)} {value if moment is None else formatting.exact(moment)}"


def _share(row: BulkAction) -> float:
    """Return the fraction done."""
    if row.state == row.State.DONE:
        return 1.0
    return min(1.0, row.done / row.total) if row.total else 0.0

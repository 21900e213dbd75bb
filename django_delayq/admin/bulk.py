"""Pages of bulk actions: the order, its progress, and a button to stop it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE
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
from .base import column
from .filters import StateFilter
from .outcomes import phrases
from .progress import ProgressAdmin

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


class BulkActionAdmin(ProgressAdmin):
    """Bulk actions. Users may view and stop their own; for others permissions are required."""

    keyset = "created_at"
    ordering = ("-created_at",)
    progress_template = "bulk_progress"
    list_display = ("what", "status", "progress", "ordered_by", "ordered")
    list_display_links = ("what",)
    list_filter = (StateFilter,)
    sortable_by = ("ordered",)
    fieldsets: ClassVar = [
        (None, {"fields": ("what", "which", "delay", "ordered_by", "ordered")}),
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

    # -- pages -------------------------------------------------------------------------------------------------------

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

    def title_of(self, row: BulkAction) -> str:
        """Return the verb and the number of jobs."""
        return self.what(row)

    def progress_of(self, request: HttpRequest, row: BulkAction) -> dict[str, Any]:
        """Return the variables of the progress template."""
        ended = row.state in (row.State.DONE, row.State.STOPPED, row.State.FAILED)
        return {
            "order": row,
            "ended": ended,
            "ended_ago": formatting.ago(row.ended_at),
            "status": self.status(row),
            "bar": self.progress(row),
            "outcomes": phrases(row.counts if isinstance(row.counts, dict) else {}),
            "number_done": formatting.grouped(row.done),
            "number_total": formatting.grouped(row.total),
            "may_stop": not ended and self.has_stop_permission(request, row),
            "stop_url": self.url("stop", row.pk),
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

    ordered = column("created_at", formatting.ago, _("ordered"), ordering="created_at")


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

"""What the pages of failed jobs and of the morgue have in common."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ClassVar, Final

from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import unquote
from django.db import connections
from django.db.models import BinaryField, Case, F, Q, QuerySet, When
from django.db.models.functions import Length, Substr
from django.utils.html import format_html
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..core.task import registry
from . import shown
from .deeds import LONG_COLUMNS, Deed, DeedsMixin
from .edit import EditMixin
from .redis_look import Look, look_at

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponse
    from django.utils.safestring import SafeString

    from ..models import MirroredJob

__all__ = ["MirroredAdmin"]

#: characters of an error's message that a list reads
_MESSAGE_START: Final = 300
#: options that are longer (they hold the context) are not read for a list
_SMALL_OPTIONS: Final = 4096


class MirroredAdmin(EditMixin, DeedsMixin):
    """Jobs in trouble: found, understood, and repaired."""

    #: the buttons of a page of one job
    deeds: ClassVar[tuple[Deed, ...]] = ()
    change_form_template = "admin/django_delayq/mirrored.html"
    search_fields = ("job_id",)
    search_help_text = _("The id of a job, or its beginning")
    list_display_links = ("job",)

    def listed(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        """Nothing that may be long."""
        small = Case(When(Q(options_size__lte=_SMALL_OPTIONS), then=F("options")), output_field=BinaryField())
        found: QuerySet[Any] = rows.defer(*LONG_COLUMNS).annotate(
            options_size=Length("options"),
            small_options=small,
            message_start=Substr("error_message", 1, _MESSAGE_START),
        )
        return found

    # -- search ------------------------------------------------------------------------------------------------------

    def search_lookups(self, query: str) -> dict[str, Any]:
        """An id, or the beginning of one. Either is a range of the index on ids."""
        query = query.strip()
        if not query:
            return {}
        if connections[self.model._default_manager.db].vendor == "sqlite":
            # Its LIKE is one for small and large letters, which the index is not.
            return {"job_id__gte": query, "job_id__lt": f"{query}\U0010ffff"}
        return {"job_id__startswith": query}

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """See :meth:`search_lookups`."""
        return queryset.filter(**self.search_lookups(search_term)), False

    # -- columns -----------------------------------------------------------------------------------------------------

    @admin.display(description=_("id"))
    def job(self, row: MirroredJob) -> str:
        """The job's id."""
        return row.job_id

    @admin.display(description=_("task and error"))
    def trouble(self, row: MirroredJob) -> SafeString:
        """The task, and below it class and first line of the error."""
        error = shown.error_line(row.error_class, getattr(row, "message_start", None) or "")
        return format_html('<div class="delayq-task">{}</div> {}', row.task or "–", error)

    @admin.display(description=_("attempts"))
    def attempts(self, row: MirroredJob) -> str:
        """How many failed, of how many."""
        options = getattr(row, "small_options", None) if "options" in row.get_deferred_fields() else row.options
        return attempts_of(row, options)

    # -- the page of one job -----------------------------------------------------------------------------------------

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """The job, what Redis says of it, and the buttons of those who may press them."""
        row = self.get_object(request, unquote(object_id))
        extra = {**(extra_context or {}), **self.page_context()}
        if row is not None and self.has_view_permission(request, row):
            look = look_at(row)
            row.delayq_look = look
            request.delayq_row = row  # type: ignore[attr-defined]
            extra |= {
                "look": look,
                "look_facts": look.facts.items(),
                "row": row,
                "buttons": self._buttons(request),
                "edit_url": self.address("edit", row.pk) if look.view is not None and self.may(request, "edit") else "",
                "history_url": self.address("history", row.pk),
                "seen": shown.ago(row.seen_at),
                "checkbox": ACTION_CHECKBOX_NAME,
                "title": row.job_id,
                "subtitle": f"{row.queue} · {row.task}",
            }
        return super().change_view(request, object_id, form_url, extra)

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """The row, once for each request."""
        known = getattr(request, "delayq_row", None)
        if known is not None and str(known.pk) == object_id:
            return known
        return super().get_object(request, object_id, from_field)

    def _buttons(self, request: HttpRequest) -> list[Deed]:
        allowed = self.get_actions(request)
        return [deed for deed in self.deeds if deed.name in allowed]

    @admin.display(description=_("queue"))
    def place(self, row: MirroredJob) -> SafeString:
        """Queue and shard."""
        return format_html(
            "{} <span class='delayq-note'>{}</span>", row.queue, gettext("shard %(n)d") % {"n": row.shard}
        )

    @admin.display(description=_("kind"))
    def kind(self, row: MirroredJob) -> str:
        """Plain or merged."""
        return gettext("merged: its payloads are handled together") if row.merged else gettext("plain")

    @admin.display(description=_("key of the generation"))
    def generation(self, row: MirroredJob) -> str:
        """The key."""
        return str(row.key)

    @admin.display(description=_("message"))
    def message(self, row: MirroredJob) -> SafeString:
        """The whole message."""
        return shown.pre(shown.mask().text(row.error_message) or "–")

    @admin.display(description=_("traceback"))
    def traceback(self, row: MirroredJob) -> SafeString | str:
        """The traceback."""
        return shown.traceback_html(row.error_traceback)

    @admin.display(description=_("arguments"))
    def arguments(self, row: MirroredJob) -> SafeString | str:
        """What the task is called with."""
        if row.merged:
            return gettext("a merged job: its payloads are its arguments")
        look: Look | None = getattr(row, "delayq_look", None)
        if look is not None and look.view is not None:
            return shown.call_table(row.task, look.view.job.args)
        if row.args is None:
            return gettext("too large to be kept here, and no longer in Redis")
        return shown.call_table(row.task, bytes(row.args))

    @admin.display(description=_("payloads"))
    def payloads(self, row: MirroredJob) -> SafeString | str:
        """The payloads of a merged job, from Redis."""
        look: Look | None = getattr(row, "delayq_look", None)
        if not row.merged:
            return "–"
        if look is None or look.view is None:
            return gettext("%(n)d, no longer to be read from Redis") % {"n": row.payload_count}
        return shown.payload_table(look.payloads, look.total)

    @admin.display(description=_("context"))
    def context(self, row: MirroredJob) -> SafeString | str:
        """The values that travel with it."""
        options = _options_of(row.options)
        if isinstance(options, str):
            return "–"
        found = options.get("context")
        if not isinstance(found, dict) or not found:
            return "–"
        return shown.mapping_table(shown.mask().value(found))

    @admin.display(description=_("options of this job"))
    def own_options(self, row: MirroredJob) -> SafeString | str:
        """What the schedule call said, where that differs from the task."""
        options = _options_of(row.options)
        if isinstance(options, str):
            return shown.pre(options)
        rest = {name: value for name, value in options.items() if name != "context"}
        expires = rest.get("expires_ms")
        moment = shown.from_ms(expires) if isinstance(expires, (int, float)) else None
        if moment is not None:
            del rest["expires_ms"]
            rest["expires"] = shown.exact(moment)
        return shown.mapping_table(shown.mask().value(rest)) if rest else "–"


def attempts_of(row: MirroredJob, options: Any) -> str:
    """ "3 of 26", or "3" if nobody here knows how many there are."""
    most = None
    if options is not None:
        own = _options_of(options)
        most = own.get("max_attempts") if isinstance(own, dict) else None
        if not isinstance(most, int):
            task = registry.get(row.task)
            most = None if task is None else task.options.max_attempts
    crashes = gettext(" (%(n)d crashed)") % {"n": row.crashes} if row.crashes else ""
    if most is None:
        return f"{row.failures}{crashes}"
    return gettext("%(n)d of %(most)d") % {"n": row.failures, "most": most} + str(crashes)


def _options_of(stored: Any) -> dict[str, Any] | str:
    """The job's own options; as a text, if they are none."""
    data = bytes(stored or b"")
    try:
        found = json.loads(data) if data else {}
    except (ValueError, RecursionError):
        return shown.raw(data)
    return found if isinstance(found, dict) else shown.raw(data)

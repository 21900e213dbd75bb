"""Base of the pages of failed jobs and of the morgue."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Final
from urllib.parse import urlencode

from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import unquote
from django.db import connections
from django.db.models import BinaryField, Case, F, Q, QuerySet, When
from django.db.models.functions import Length, Substr
from django.utils import timezone
from django.utils.html import format_html
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..connections import hurried_broker
from ..core.errors import DelayQError
from ..core.task import registry
from ..mirror.age import LATE_SECONDS, age
from ..settings.conf import conf, mask
from . import content, formatting
from .base import column
from .edit import EditMixin
from .job_actions import LONG_COLUMNS, JobAction, JobActionsMixin
from .redis_state import RedisState, read_state

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponse
    from django.utils.safestring import SafeString

    from ..models import MirroredJob

#: characters of an error's message that a list reads
_MESSAGE_START: Final = 300
#: longer options (they include the context) are not read for a list
_SMALL_OPTIONS: Final = 4096


class MirroredAdmin(EditMixin, JobActionsMixin):
    """Mirrored jobs with search, details and repair actions."""

    #: actions of the list, and buttons on the page of one job
    job_actions: ClassVar[tuple[JobAction, ...]] = ()
    change_form_template = "django_delayq/admin/mirrored.html"
    change_list_template = "django_delayq/admin/mirrored_list.html"
    search_fields = ("job_id",)
    search_help_text = _("The id of a job, or its beginning")
    list_display_links = ("job",)
    #: tab of the list of live jobs that has the same jobs
    live_place: ClassVar[str]

    def listed(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        """Return the rows without columns that may be long."""
        small = Case(When(Q(options_size__lte=_SMALL_OPTIONS), then=F("options")), output_field=BinaryField())
        listed: QuerySet[Any] = rows.defer(*LONG_COLUMNS).annotate(
            options_size=Length("options"),
            small_options=small,
            message_start=Substr("error_message", 1, _MESSAGE_START),
        )
        return listed

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the rows; none while the mirrors are switched off, because rows of an earlier time would be wrong."""
        rows: QuerySet[Any] = super().get_queryset(request)
        return rows if conf().is_mirrored else rows.none()

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Render the list, with the age of the copies."""
        return super().changelist_view(request, {**(extra_context or {}), "mirror_age": _age_text()})

    # -- search ------------------------------------------------------------------------------------------------------

    def search_lookups(self, query: str) -> dict[str, Any]:
        """Return lookups for the jobs whose id begins with a text. Each form of them can use the index on ids."""
        query = query.strip()
        if not query:
            return {}
        if connections[self.model._default_manager.db].vendor == "sqlite":
            # SQLite's LIKE is case-insensitive, so it cannot use the index.
            return {"job_id__gte": query, "job_id__lt": f"{query}\U0010ffff"}
        return {"job_id__startswith": query}

    def searched(self, rows: QuerySet[Any], term: str) -> QuerySet[Any]:
        """Apply :meth:`search_lookups`."""
        return rows.filter(**self.search_lookups(term))

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """Return the list; its search leads to that in arguments and errors, which needs what Redis has."""
        listed = super().get_changelist_instance(request)
        url = self.url_of("livejob", "changelist")
        if url and request.user.has_perm("django_delayq.view_livejob"):
            query = urlencode({"place": self.live_place, "text": listed.query})
            link = format_html('<a href="{}?{}">{}</a>', url, query, _("search in arguments and errors"))
            listed.search_help_text = format_html("{}; {}", self.search_help_text, link)
        return listed

    # -- columns -----------------------------------------------------------------------------------------------------

    job = column("job_id", formatting.named, _("id"))

    @admin.display(description=_("task and error"))
    def task_and_error(self, row: MirroredJob) -> SafeString:
        """Return the task, and below it class and first line of the error."""
        error = content.error_line(row.error_class, getattr(row, "message_start", None) or "")
        return format_html('<div class="delayq-task">{}</div> {}', formatting.named(row.task), error)

    @admin.display(description=_("attempts"))
    def attempts(self, row: MirroredJob) -> str:
        """Return the number of failed attempts and their maximum."""
        options = getattr(row, "small_options", None) if "options" in row.get_deferred_fields() else row.options
        return attempts_of(row, options)

    # -- the page of one job -----------------------------------------------------------------------------------------

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Render the job, its state in Redis, and the buttons that the user may use."""
        row = self.get_object(request, unquote(object_id))
        extra = {**(extra_context or {}), **self.page_context([(getattr(row, "job_id", ""), "")])}
        if row is not None and self.has_view_permission(request, row):
            state = read_state(row)
            row.delayq_state = state
            request.delayq_row = row  # type: ignore[attr-defined]
            extra |= {
                "state": state,
                "state_facts": state.facts.items(),
                "row": row,
                "buttons": self._buttons(request),
                "edit_url": self.url("edit", row.pk) if state.view is not None and self.may(request, "edit") else "",
                "list_url": self.url("changelist"),
                "history_url": self.url("history", row.pk),
                "seen": formatting.ago(row.seen_at),
                "checkbox": ACTION_CHECKBOX_NAME,
                "title": row.job_id,
                "subtitle": f"{row.queue} · {row.task}",
            }
        return super().change_view(request, object_id, form_url, extra)

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Return the row, read once per request."""
        row = getattr(request, "delayq_row", None)
        if row is not None and str(row.pk) == object_id:
            return row
        return super().get_object(request, object_id, from_field)

    def _buttons(self, request: HttpRequest) -> list[JobAction]:
        allowed = self.get_actions(request)
        return [action for action in self.job_actions if action.name in allowed]

    # -- actions -----------------------------------------------------------------------------------------------------

    def has_retry_permission(self, request: HttpRequest) -> bool:
        """Return True with the permission ``retry_<model>``."""
        return self.may(request, "retry")

    def has_discard_permission(self, request: HttpRequest) -> bool:
        """Return True with the permission ``discard_<model>``."""
        return self.may(request, "discard")

    # -- the fields of one job ---------------------------------------------------------------------------------------

    @admin.display(description=_("queue"))
    def place(self, row: MirroredJob) -> SafeString:
        """Return queue and shard."""
        return format_html(
            "{} <span class='delayq-note'>{}</span>", row.queue, gettext("shard %(n)d") % {"n": row.shard}
        )

    @admin.display(description=_("kind"))
    def kind(self, row: MirroredJob) -> str:
        """Return plain or merged."""
        return gettext("merged: one attempt handles all its payloads") if row.merged else gettext("plain")

    generation = column("key", str, _("key"))
    message = column("error_message", content.message_pre, _("message"))
    traceback = column("error_traceback", content.traceback_html, _("traceback"))

    @admin.display(description=_("arguments"))
    def arguments(self, row: MirroredJob) -> SafeString | str:
        """Return the arguments of the call."""
        if row.merged:
            return gettext("a merged job: its payloads are its arguments")
        state: RedisState | None = getattr(row, "delayq_state", None)
        if state is not None and state.view is not None:
            return content.call_table(row.task, state.view.job.args)
        if row.args is None:
            return gettext("not copied, and no longer in Redis")
        return content.call_table(row.task, bytes(row.args))

    @admin.display(description=_("payloads"))
    def payloads(self, row: MirroredJob) -> SafeString | str:
        """Return the payloads of a merged job, from Redis."""
        state: RedisState | None = getattr(row, "delayq_state", None)
        if not row.merged:
            return formatting.NOTHING
        if state is None or state.view is None:
            return gettext("%(n)d, no longer in Redis") % {"n": row.payload_count}
        return content.payload_table(state.payloads, state.total)

    @admin.display(description=_("context"))
    def context(self, row: MirroredJob) -> SafeString | str:
        """Return the context of the job."""
        options = _options_of(row.options)
        if isinstance(options, str):
            return formatting.NOTHING
        context = options.get("context")
        if not isinstance(context, dict) or not context:
            return formatting.NOTHING
        return content.mapping_table(mask().value(context))

    @admin.display(description=_("options of this job"))
    def own_options(self, row: MirroredJob) -> SafeString | str:
        """Return the options of the schedule call that differ from those of the task."""
        options = _options_of(row.options)
        if isinstance(options, str):
            return content.pre(options)
        rest = {name: value for name, value in options.items() if name != "context"}
        expires = rest.get("expires_ms")
        moment = formatting.from_ms(expires) if isinstance(expires, (int, float)) else None
        if moment is not None:
            del rest["expires_ms"]
            rest["expires"] = formatting.exact(moment)
        return content.mapping_table(mask().value(rest)) if rest else formatting.NOTHING


def _age_text() -> str | SafeString:
    """Return how old the copies are, in a sentence."""
    if not conf().is_mirrored:
        return gettext(
            "Nothing is copied here, because DELAYQ['MIRROR'] is switched off. Use the list of live jobs, the command "
            "delayq_jobs, or the HTTP API."
        )
    try:
        seconds = age(hurried_broker())
    except DelayQError:
        return gettext("Redis does not answer, so it is unknown how old these copies are.")
    if seconds is None:
        return gettext("Nothing was copied from Redis yet. A dispatcher does that: is one running?")
    ago = formatting.ago(timezone.now() - timedelta(seconds=seconds))
    if seconds < LATE_SECONDS:
        return format_html("{} {}", gettext("Copied from Redis:"), ago)
    late = gettext("No dispatcher has copied since, or it is behind.")
    return format_html("{} {}. {}", gettext("Copied from Redis:"), ago, late)


def attempts_of(row: MirroredJob, options: Any) -> str:
    """Return "3 of 26", or "3" if the maximum is unknown here."""
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
    """Return the job's own options, or their text if they are not a JSON object."""
    data = bytes(stored or b"")
    try:
        options = json.loads(data) if data else {}
    except (ValueError, RecursionError):
        return content.raw(data)
    return options if isinstance(options, dict) else content.raw(data)

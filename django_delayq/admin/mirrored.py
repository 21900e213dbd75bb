"""Admin pages of failed jobs and of the morgue: lists over the masked copies, and actions on what Redis has."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Final
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import CHANGE, DELETION
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db import connections
from django.db.models import BinaryField, Case, F, Q, QuerySet, When
from django.db.models.functions import Length, Substr
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import path
from django.utils import timezone
from django.utils.html import format_html, strip_tags
from django.utils.translation import gettext, gettext_lazy as _

from ..connections import broker, hurried_broker
from ..core import codec
from ..core.errors import DelayQError, InvalidJob
from ..core.job import Job, Payload, Undecodable
from ..core.job_view import JobView
from ..core.task import registry
from ..mirror.duty import LATE_SECONDS, age
from ..repair import orders
from ..repair.jobs import act, retry_edited
from ..settings.conf import conf, mask
from ..status.formatting import NOTHING
from ..status.job_content import argument_names, split_call
from . import content, formatting
from .actions import Action, result_message
from .base import CappedCount, TableAdmin, column
from .filters import AgeFilter, AttemptFilter, ValueFilter, lookups_of
from .forms import DelayForm, EditForm

if TYPE_CHECKING:
    from django.utils.safestring import SafeString

    from ..core.reading import Lease
    from ..models import FailedJob, MirroredJob, MorgueJob

#: long columns, which a list does not read
LONG_COLUMNS: Final = ("args", "options", "error_message", "error_traceback")
#: characters of an error's message that a list reads; longer options (they include the context) are not read for it
_MESSAGE_START: Final = 300
_SMALL_OPTIONS: Final = 4096
#: rows in which a confirmation page counts queues and tasks, and kinds of jobs that it lists
_COUNTED_ROWS: Final = 10_000
_MOST_KINDS: Final = 8
#: payloads of one job that are shown
MOST_PAYLOADS: Final = 100

RETRY_NOW: Final = Action(name="retry_now", permission="retry", title=_("Retry now"), run=act)
RETRY_IN: Final = Action(name="retry_in", permission="retry", title=_("Retry in…"), run=act, form=DelayForm)
BURY: Final = Action(name="bury", permission="bury", title=_("Bury"), run=act)
DISCARD: Final = Action(name="discard", permission="discard", title=_("Discard"), run=act, harmful=True)


def _listed(verb: Action) -> Any:
    """Return the function that Django's admin calls for an action."""

    @admin.action(permissions=[verb.permission], description=verb.title)
    def function(page: MirrorAdmin, request: HttpRequest, rows: QuerySet[Any]) -> HttpResponse:
        return page.perform(request, rows, verb)

    function.__name__ = verb.name
    return function


@dataclass(slots=True)
class Chosen:
    """Jobs of an action: selected rows, or all rows that a list shows, as the lookups say."""

    rows: QuerySet[Any]
    total: int
    lookups: dict[str, Any] | None
    until: datetime

    @property
    def background(self) -> bool:
        """True if a worker has to carry out the action."""
        return self.lookups is not None and self.total > conf().admin.bulk_threshold


@dataclass(slots=True)
class RedisState:
    """State of a job in Redis: in a sentence, the kind of its badge, and the job, if it has the key of the row."""

    label: str
    kind: str = "plain"
    view: JobView | None = None
    payloads: Sequence[Payload] = ()


def read_state(row: MirroredJob) -> RedisState:
    """Return the state of a row's job in Redis, or that Redis is unavailable."""
    try:
        inspector = broker().inspector
        live = inspector.get(row.queue, row.job_id)
        records = inspector.graves(row.queue, row.job_id)
    except DelayQError as error:
        return RedisState(gettext("Redis does not answer: %(error)s") % {"error": error}, "bad")
    is_live = live is not None and live.state != "morgue"
    if live is not None and is_live and live.job.key == row.key.bytes:
        payloads = islice(inspector.payloads(row.queue, row.job_id) if live.job.merged else (), MOST_PAYLOADS)
        kind = "good" if live.state == "reserved" else "plain"
        return RedisState(content.state_name(live.state), kind, live, list(payloads))
    buried = next((record for record in records if record.job.key == row.key.bytes), None)
    if buried is not None:
        label, kind = content.state_name("morgue"), "plain"
        if is_live:
            label, kind = gettext("in the morgue, while another job of this id is live"), "late"
        return RedisState(label, kind, buried, buried.payloads[:MOST_PAYLOADS])
    if is_live:
        return RedisState(gettext("gone; another job has this id now"), "bad")
    return RedisState(gettext("gone: it was run, cancelled or removed"), "bad")


class MirrorAdmin(TableAdmin):
    """Mirrored jobs with search, the job as Redis has it, and repair actions."""

    job_actions: ClassVar[tuple[Action, ...]] = ()
    #: field with the time of the failure or burial
    moment: ClassVar[str]
    search_fields = ("job_id",)
    search_help_text = _("The id of a job, or its beginning")
    list_display = ("job", "queue", "task_and_error", "attempts", "when")
    list_display_links = ("job",)
    sortable_by = ("when",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the rows without columns that may be long; none while the mirrors are switched off.

        Rows of an earlier time would be wrong then.
        """
        rows: QuerySet[Any] = super().get_queryset(request).defer(*LONG_COLUMNS)
        small = Case(When(Q(options_size__lte=_SMALL_OPTIONS), then=F("options")), output_field=BinaryField())
        rows = rows.annotate(options_size=Length("options"), small_options=small)
        rows = rows.annotate(message_start=Substr("error_message", 1, _MESSAGE_START))
        return rows if conf().is_mirrored else rows.none()

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Render the list, with the age of the copies."""
        subtitle = f"{self.list_subtitle} · {' '.join(strip_tags(_age_text()).split())}"  # the title has it, too
        return super().changelist_view(request, {**(extra_context or {}), "subtitle": subtitle})

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """Return the list; its search leads to that in arguments and errors, which needs what Redis has."""
        listed = super().get_changelist_instance(request)
        url = self.url_of("livejob", "changelist")
        if url and request.user.has_perm("django_delayq.view_livejob"):
            text = _("search in arguments and errors")
            link = format_html('<a href="{}?{}">{}</a>', url, urlencode({"q": listed.query}), text)
            listed.search_help_text = format_html("{}; {}", self.search_help_text, link)
        return listed

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

    # -- columns -----------------------------------------------------------------------------------------------------

    job = column("job_id", formatting.named, _("id"))

    @admin.display(description=_("task and error"))
    def task_and_error(self, row: Any) -> SafeString:
        """Return the task, and below it class and first line of the error."""
        error = content.error_line(row.error_class, row.message_start or "")
        return format_html('<div class="delayq-task">{}</div> {}', formatting.named(row.task), error)

    @admin.display(description=_("attempts"))
    def attempts(self, row: Any) -> str:
        """Return "3 of 26 (2 crashed)"; only the number of failures if the maximum is unknown here."""
        text, most = str(row.failures), None
        try:
            options = json.loads(bytes(row.small_options or b"{}")) if row.small_options is not None else None
        except (ValueError, RecursionError):
            options = None
        if isinstance(options, dict):
            task = registry.get(row.task)
            most = options.get("max_attempts", None if task is None else task.options.max_attempts)
        if isinstance(most, int):
            text = gettext("%(n)d of %(most)d") % {"n": row.failures, "most": most}
        return text + gettext(" (%(n)d crashed)") % {"n": row.crashes} if row.crashes else text

    # -- the page of one job -----------------------------------------------------------------------------------------

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Render the job as Redis has it, else its masked copy, and the buttons that the user may use."""
        row = self.get_object(request, unquote(object_id))
        if row is None or request.method != "GET" or not self.has_view_permission(request, row):
            return super().change_view(request, object_id, form_url, extra_context)
        state, now_ms = read_state(row), timezone.now().timestamp() * 1000
        allowed = self.get_actions(request)
        context = {
            "item": content.JobText(state.view or _copy_of(row), now_ms, conf().lease * 1000),
            "payloads": content.payload_rows(state.payloads),
            "state": state,
            "row": row,
            "buttons": [one for one in self.job_actions if one.name in allowed],
            "edit_url": self.url("edit", row.pk) if self._may_edit(request) and state.view is not None else "",
            "checkbox": ACTION_CHECKBOX_NAME,
            "list_url": self.url("changelist"),
            "history_url": self.url("history", row.pk),
            "seen": formatting.ago(row.seen_at),
            "is_copy": state.view is None,
        }
        return self.render(request, "job", row.job_id, context, trail=[(row.job_id, "")])

    def _may_edit(self, request: HttpRequest) -> bool:
        return False

    # -- actions -----------------------------------------------------------------------------------------------------

    def has_retry_permission(self, request: HttpRequest) -> bool:
        """Return True with the permission ``retry_<model>``."""
        return self.may(request, "retry")

    def has_discard_permission(self, request: HttpRequest) -> bool:
        """Return True with the permission ``discard_<model>``."""
        return self.may(request, "discard")

    def perform(self, request: HttpRequest, rows: QuerySet[Any], verb: Action) -> HttpResponse:
        """Ask for confirmation, then run the action now or, for many jobs, leave it to a worker as a bulk action."""
        chosen = self._chosen(request, rows)
        confirmed = "confirmed" in request.POST
        form = verb.form(request.POST if confirmed else None) if verb.form is not None else None
        if not confirmed or (form is not None and not form.is_valid()):
            return self._confirm(request, chosen, verb, form)
        delay = form.cleaned_data["seconds"] if form is not None else None
        try:
            if chosen.background:
                return HttpResponseRedirect(self._order(request, chosen, verb, delay))
            level, text = result_message(self._carry_out(request, chosen, verb, delay))
        except DelayQError as error:
            level, text = messages.ERROR, gettext("The action failed: %(error)s") % {"error": error}
        self.message_user(request, text, level)
        return HttpResponseRedirect(request.get_full_path())

    def _chosen(self, request: HttpRequest, rows: QuerySet[Any]) -> Chosen:
        """Return the jobs. "All matching" excludes rows newer than the confirmation page."""
        text, now = request.POST.get("until", ""), timezone.now()
        shown = formatting.from_ms(int(text)) if text.isdecimal() and len(text) < 16 else None
        until = min(shown or now, now)
        if request.POST.get("select_across") != "1":
            return Chosen(rows, rows.count(), None, until)
        changelist = request.delayq_changelist  # type: ignore[attr-defined]
        lookups = {**lookups_of(changelist), **self.search_lookups(changelist.query)}
        rows = rows.filter(**{f"{self.moment}__lte": until})
        # The one count that is not capped: the user must see how many jobs are affected.
        return Chosen(rows, rows.order_by().count(), {**lookups, f"{self.moment}__lte": until.isoformat()}, until)

    def _confirm(self, request: HttpRequest, chosen: Chosen, verb: Action, form: Any) -> HttpResponse:
        kinds = Counter(chosen.rows.order_by().values_list("queue", "task")[:_COUNTED_ROWS])
        named = kinds.most_common(_MOST_KINDS)
        selected = request.POST.getlist(ACTION_CHECKBOX_NAME)
        across = chosen.lookups is not None
        until_ms = int(chosen.until.timestamp() * 1000)
        hidden = [("action", verb.name), ("select_across", int(across)), ("until", until_ms), ("confirmed", "yes")]
        hidden += [(ACTION_CHECKBOX_NAME, one) for one in (selected[:1] if across else selected)]
        context = {
            "action": verb,
            "form": form,
            "chosen": chosen,
            "count": CappedCount(chosen.total),
            "kinds": [(CappedCount(number), queue, task) for (queue, task), number in named],
            "others": sum(kinds.values()) - sum(number for _kind, number in named),
            "counted": CappedCount(_COUNTED_ROWS) if chosen.total > _COUNTED_ROWS else "",
            "hidden": hidden,
            "back": request.get_full_path(),
            "threshold": CappedCount(conf().admin.bulk_threshold),
        }
        return self.render(request, "confirm", verb.title, context, trail=[(str(verb.title), "")])

    def _carry_out(self, request: HttpRequest, chosen: Chosen, verb: Action, delay: float | None) -> Counter[str]:
        rows, flag = list(chosen.rows), DELETION if verb is DISCARD else CHANGE
        try:
            outcomes: Counter[str] = verb.run(verb.permission, rows, delay or None)
        except DelayQError:
            text = gettext("Redis did not answer; the action may be incomplete.")
            self.note(request, rows, flag, f"{verb.title}: {text}")
            raise
        done = ", ".join(f"{outcome} {number}" for outcome, number in sorted(outcomes.items()) if number) or "nothing"
        self.note(request, rows, flag, f"{verb.title}: {done}")
        return outcomes

    def _order(self, request: HttpRequest, chosen: Chosen, verb: Action, delay: float | None) -> str:
        """Order the action as a bulk action and return the URL of its progress page."""
        lookups, total = chosen.lookups or {}, chosen.total
        order = orders.order(verb.permission, self.model, lookups, user=request.user, delay=delay, total=total)
        self.note(request, [order], CHANGE, f"{verb.title}: {total}")
        self.message_user(request, gettext("A worker carries out this action."), messages.INFO)
        return self.url_of("bulkaction", "change", order.pk) or request.get_full_path()


class FailedJobAdmin(MirrorAdmin):
    """Mirror of the failed jobs, which wait for their next attempt."""

    list_subtitle = _("Waiting for retry")
    moment = "failed_at"
    ordering = ("-failed_at",)
    list_filter = (*map(ValueFilter.of, ("queue", "task", "error_class")), AttemptFilter, AgeFilter.of(moment))
    job_actions = (RETRY_NOW, RETRY_IN, BURY, DISCARD)
    actions = tuple(map(_listed, job_actions))

    @admin.display(description=_("failed, next attempt"), ordering="failed_at")
    def when(self, row: FailedJob) -> SafeString:
        """Return the time since the failure, and below it the next due time; of one that runs now, that it does."""
        following = formatting.until(row.due_at, late_after=conf().admin.late_after)
        if getattr(row, "delayq_running", False):
            following = formatting.badge(_("running"), "good")
        return format_html("<div>{}</div> {}", formatting.ago(row.failed_at), following)

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """Return the list. Of the jobs that are due, those that a worker holds now are marked."""
        listed = super().get_changelist_instance(request)
        due = [row for row in listed.result_list if row.due_at <= timezone.now()]
        leases: Mapping[tuple[str, str], Lease] = {}
        if due:
            with suppress(DelayQError):
                hurried = hurried_broker()
                queues = {name: hurried.existing(name) for name in {row.queue for row in due}}
                known = [(queue, row.job_id) for row in due if (queue := queues[row.queue]) is not None]
                leases = hurried.inspector.leases(known)
        for row in due:
            row.delayq_running = (row.queue, row.job_id) in leases
        return listed

    def has_bury_permission(self, request: HttpRequest) -> bool:
        """Return True with the permission ``bury_failedjob``."""
        return self.may(request, "bury")


class MorgueJobAdmin(MirrorAdmin):
    """Mirror of the morgue: jobs that are not retried automatically."""

    list_subtitle = _("Dead jobs, kept for a decision")
    moment = "buried_at"
    ordering = ("-buried_at",)
    list_filter = (
        *map(ValueFilter.of, ("queue", "task", "reason", "error_class")),
        AttemptFilter,
        AgeFilter.of(moment),
    )
    job_actions = (RETRY_NOW, RETRY_IN, DISCARD)
    actions = tuple(map(_listed, job_actions))

    @admin.display(description=_("buried"), ordering="buried_at")
    def when(self, row: MorgueJob) -> SafeString:
        """Return the reason for the burial, and the time since."""
        reason = mask().text(row.reason) or row.outcome or NOTHING
        badge = formatting.badge(reason, "bad" if row.reason == "poison" else "")
        return format_html("<div>{}</div> {}", badge, formatting.ago(row.buried_at))

    # -- retry with other content ------------------------------------------------------------------------------------

    def get_urls(self) -> list[Any]:
        """Return the URLs, with the edit page before the catch-all pattern."""
        view = self.admin_site.admin_view(self.edit_view)
        return [path("<path:object_id>/edit/", view, name=self.url_name("edit")), *super().get_urls()]

    def _may_edit(self, request: HttpRequest) -> bool:
        return self.may(request, "edit")

    def edit_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Render the form, or retry the job with the posted content.

        Raises:
            PermissionDenied: the user may not edit jobs.
        """
        if not self._may_edit(request):
            raise PermissionDenied
        row = self.object_or_404(request, object_id)
        state, title, back = read_state(row), gettext("Retry with other content"), self.url("change", row.pk)
        refusal = _refusal(state)
        if refusal or state.view is None:
            self.message_user(request, refusal, messages.ERROR)
            return HttpResponseRedirect(back)
        posted = request.POST if request.method == "POST" else None
        form = EditForm(posted, call=split_call(state.view.job.args), names=argument_names(row.task))
        if posted is not None and form.is_valid():
            data = form.cleaned_data
            try:
                args, kwargs = _value(data["args"]), _value(data["kwargs"])
                outcome = retry_edited(row, args, kwargs, delay=data["seconds"] or None)
            except (InvalidJob, Undecodable, TypeError, ValueError) as error:
                form.add_error(None, mask().text(str(error)))
            except DelayQError as error:
                form.add_error(None, gettext("The action failed: %(error)s") % {"error": error})
            else:
                self.note(request, [row], CHANGE, f"{title}: {outcome}")
                level, text = result_message({outcome: 1})
                self.message_user(request, text, level)
                return HttpResponseRedirect(self.url("changelist"))
        verb = Action(name="edit", permission="edit", title=_("Retry with this content"), run=retry_edited)
        context = {"action": verb, "form": form, "row": row, "back": back}
        return self.render(request, "confirm", title, context, trail=[(row.job_id, back), (title, "")])


def _refusal(state: RedisState) -> str:
    """Return why there is nothing to edit; empty if there is."""
    view = state.view
    if view is None or view.state != "morgue":
        return gettext("There is nothing to edit (%(state)s).") % {"state": state.label}
    if view.job.merged:
        return gettext("The arguments of a merged job are its payloads. Retry it unchanged, or schedule a new job.")
    try:
        split_call(view.job.args)
    except ValueError:
        return gettext("The stored content is not JSON. Retry the job unchanged, or schedule a new one.")
    return ""


def _value(edited: Any) -> Any:
    """Return the value that the handler will receive, tags decoded.

    Raises:
        Undecodable: a tag is invalid.
        ValueError: it is nested too deep.
    """
    try:
        return codec.decode(json.dumps(edited).encode())
    except RecursionError:
        raise ValueError(gettext("This is nested too deeply. Use a flatter value.")) from None


def _copy_of(row: Any) -> JobView:
    """Return the masked copy of a job, as a job."""
    error = {"class": row.error_class, "message": row.error_message, "traceback": row.error_traceback}
    job = Job(
        *(row.queue, row.shard, row.job_id, row.task, row.key.bytes, bytes(row.args or b""), bytes(row.options)),
        *(row.priority, int(row.due_at.timestamp() * 1000)),
        failures=row.failures,
        crashes=row.crashes,
        error=json.dumps(error).encode(),
        merged=row.merged,
    )
    view = JobView(job, "delayed", job.due_ms, payload_count=row.payload_count)
    if hasattr(row, "buried_at"):
        view.state, view.buried_ms = "morgue", int(row.buried_at.timestamp() * 1000)
        view.reason, view.outcome = row.reason, row.outcome
    else:
        job.failed_at_ms = int(row.failed_at.timestamp() * 1000)
    return view


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
    late = "" if seconds < LATE_SECONDS else gettext("No dispatcher has copied since, or it is behind.")
    return format_html("{} {} {}", gettext("Copied from Redis:"), ago, late)

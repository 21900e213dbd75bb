"""Job browser: jobs as they are in Redis now, those that finished recently, and verbs on one job or on many."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, Final
from urllib.parse import urlencode

from django.contrib import messages
from django.contrib.admin.utils import unquote
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.urls import URLPattern
from django.utils.text import capfirst
from django.utils.translation import gettext as _, gettext_lazy

import django_delayq

from .. import connections
from ..core import bulk
from ..core.errors import InvalidJob
from ..core.events import Event, EventFilter, newest, parts
from ..core.inputs import short
from ..core.job import Generation
from ..core.outcomes import AttemptOutcome
from ..settings.conf import conf
from ..status.formatting import NOTHING, millis
from .actions import Action, ActionPages, Outcome, Target, action, result_message
from .browse import LIMITS, PLACES, SEARCH_SECONDS, BrowseQuery, Listing, browse, count_at, search
from .content import JobText, payload_rows
from .formatting import When, grouped, moment
from .forms import RescheduleForm, TargetForm
from .queues import jobs_url

PAYLOADS: Final = 50
MOST_BURIED: Final = 20
#: maximum seconds of a request that changes all jobs that match
LONGEST: Final = 10.0
MOST_SELECTED: Final = 250
#: ended attempts that are shown
MOST_ATTEMPTS: Final = 200
#: outcomes that can be chosen
OUTCOMES: Final = tuple(str(one) for one in AttemptOutcome if one is not AttemptOutcome.BULK)
_GOOD: Final = (AttemptOutcome.SUCCEEDED, AttemptOutcome.RELEASED, AttemptOutcome.CANCELLED)
_KEY_DIGITS: Final = 32
MEANINGS: Final = {
    "waiting": gettext_lazy("Delayed and ready jobs: their due time is in the future, or has come."),
    "delayed": gettext_lazy("Jobs whose due time is in the future."),
    "ready": gettext_lazy("Jobs whose due time has come; they wait for a worker."),
    "reserved": gettext_lazy("Jobs that a worker or another consumer holds under a lease."),
    "gated": gettext_lazy(
        "Content scheduled for an id while its job is reserved. It becomes a job of its own when that attempt ends."
    ),
    "failed": gettext_lazy("Jobs with a failed attempt that wait for the next one; a retry needs no action."),
    "morgue": gettext_lazy("Dead jobs, kept for a decision: they are not retried until you retry or discard them."),
}


@dataclass(frozen=True, slots=True)
class AttemptText:
    """Texts of an ended attempt, as of ``now_ms``."""

    event: Event
    now_ms: float
    url: str

    @property
    def ended(self) -> When | None:
        """Moment of the end."""
        return moment(parts(self.event.position)[1], self.now_ms)

    @property
    def is_bad(self) -> bool:
        """True if the attempt did not succeed."""
        return self.event.outcome not in _GOOD

    @property
    def error(self) -> str:
        """Name of the error's class, without its module."""
        name = self.event.fields.get("error", "")
        return name.rpartition(".")[2] or name

    @property
    def duration(self) -> str:
        """Duration of the attempt."""
        return millis(self._number("ms"))

    @property
    def lateness(self) -> tuple[str, bool]:
        """Start after the due time, and whether that exceeds ``ADMIN["late_after"]``."""
        due, started = self._number("due"), self._number("started")
        if due is None or not started:
            return NOTHING, False
        late_ms = max(0.0, started - due)
        return millis(late_ms), late_ms > conf().admin.late_after * 1000

    def _number(self, name: str) -> float | None:
        text = self.event.fields.get(name, "")
        return float(text) if text.isascii() and text.isdigit() else None


class LiveJobAdmin(ActionPages):
    """Pages of :class:`LiveJob`."""

    def pages(self) -> list[URLPattern]:
        """Return the URLs of the lists, the job page and each verb."""
        return [
            self.page("", self.list_view, "changelist"),
            self.page("finished/", self.finished_view, "finished"),
            *(
                self.page(
                    f"bulk/{name}/", partial(self.bulk_view, name=name), f"bulk_{name}", verb=name, methods="POST"
                )
                for name in BULK
            ),
            self.page("<path:object_id>/change/", self.job_view, "change"),
            *(self.action_page("<path:object_id>/", one, self.job_target) for one in JOB_ACTIONS),
        ]

    # -- lists -------------------------------------------------------------------------------------------------------

    def list_view(self, request: HttpRequest) -> HttpResponse:
        """Render a page of jobs, or the results of a search."""
        broker = connections.broker()
        counts = broker.inspector.all_counts(partial=True)
        query = BrowseQuery(request.GET)
        try:
            listing = search(broker, query, counts) if query.text else browse(broker, query, counts)
        except InvalidJob as error:
            messages.warning(request, str(error))
            listing = Listing()
        self.warn_of_missing(request, broker, counts)
        now_ms = broker.now_ms()
        counted = [one for one in counts if query.queue in ("", one.queue)]
        may = query.place == "waiting" and not query.text
        context = {
            "query": query,
            "shown": "found" if query.text else query.place,
            "listing": listing,
            "items": [JobText(view, now_ms, broker.lease_ms) for view in listing.jobs],
            "now": moment(now_ms, now_ms),
            "queues": [one.queue for one in counts],
            "queue_url": self.url_of("queueentry", "change", query.queue) if query.queue else "",
            "tabs": [
                (place, name, grouped(sum(count_at(one, place) for one in counted)), query.link(place=place, q=""))
                for place, name in PLACES.items()
            ],
            "others": [
                (name, grouped(sum(getattr(one, place) for one in counted)), jobs_url(self, place, query.queue))
                for place, name in (("failed", _("Failed")), ("morgue", _("Morgue")))
            ],
            "meaning": MEANINGS[query.place],
            "finished_url": f"{self.url('finished')}?{urlencode({'queue': query.queue})}",
            "order_url": query.link(reverse="" if query.reverse else 1),
            "next_url": query.link(cursor=listing.cursor) if listing.cursor else "",
            "first_url": query.link() if query.cursor else "",
            "search_seconds": SEARCH_SECONDS,
            "address": request.GET.urlencode(),
            "verbs": [
                (one, self.url(f"bulk_{one.name}")) for one in BULK.values() if may and self.may(request, one.name)
            ],
            "limits": [(limit, query.link(limit=limit)) for limit in LIMITS],
        }
        trail = [(query.queue, "")] if query.queue else []
        return self.render(request, "jobs", capfirst(str(self.opts.verbose_name_plural)), context, trail=trail)

    def finished_view(self, request: HttpRequest) -> HttpResponse:
        """Render the jobs that finished recently."""
        broker = connections.broker()
        names = ("queue", "task", "outcome", "id")
        conditions = EventFilter(**{name: request.GET.get(name, "").strip()[:255] for name in names})
        now_ms = broker.now_ms()
        context = {
            "conditions": conditions,
            "attempts": self.attempts(conditions, now_ms),
            "most": MOST_ATTEMPTS,
            "queues": broker.queue_names(),
            "outcomes": OUTCOMES,
            "now": moment(now_ms, now_ms),
        }
        title = _("Recently finished")
        return self.render(request, "finished", title, context, trail=[(title, "")])

    def attempts(self, conditions: EventFilter, now_ms: float) -> list[AttemptText]:
        """Return the newest ended attempts, the latest first."""
        return [
            AttemptText(event, now_ms, self.url("change", f"{event.queue}/{event.id}") if event.id else "")
            for event in newest(connections.broker(), conditions, MOST_ATTEMPTS)
        ]

    # -- one job -----------------------------------------------------------------------------------------------------

    def job_target(self, object_id: str) -> Target:
        """Return the job of a URL; its subject is None if there is none.

        Raises:
            Http404: it is not the name of a job.
        """
        queue, slash, ident = unquote(object_id).partition("/")
        if not slash or not ident or "\0" in ident or len(ident.encode(errors="replace")) > 255:
            raise Http404(f"{short(object_id)} is not the name of a job: <queue>/<id>")
        back, listed = self.url("change", f"{queue}/{ident}"), self.queue_url(queue)
        view = connections.broker().inspector.get(queue, ident)
        return Target(f"{queue}/{ident}", back, view, [(queue, listed), (ident, back)], up=listed)

    def queue_url(self, queue: str) -> str:
        """Return the URL of the list of a queue."""
        return f"{self.url('changelist')}?{urlencode({'queue': queue})}"

    def job_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Render everything that Redis stores under an id."""
        target = self.job_target(object_id)
        view = target.subject
        if view is None:
            return self.gone(request, target)
        broker, (queue, _slash, ident) = connections.broker(), target.name.partition("/")
        buried = sorted(broker.inspector.graves(queue, ident), key=lambda one: one.buried_ms or 0, reverse=True)
        others = buried if view.state != "morgue" else [one for one in buried if one.job.key != view.job.key]
        now_ms = broker.now_ms()
        page = int(text) if (text := request.GET.get("payloads", "")).isdecimal() and len(text) < 7 else 1
        payloads = view.payloads if view.state == "morgue" else broker.inspector.payloads(queue, ident)
        begin = (max(1, page) - 1) * PAYLOADS
        may_move = view.state in ("delayed", "ready") or view.gated_due_ms is not None
        allowed = [*((run, reschedule) if may_move else ()), *((cancel,) if view.state != "morgue" else ())]
        base = self.url_of("morguejob", "changelist")
        context = {
            "item": JobText(view, now_ms, broker.lease_ms),
            "now": moment(now_ms, now_ms),
            "payloads": payload_rows(islice(payloads if view.job.merged else (), begin, begin + PAYLOADS)),
            "payloads_next": page + 1 if begin + PAYLOADS < view.payload_count else 0,
            "payloads_before": page - 1,
            "buried": [JobText(one, now_ms, broker.lease_ms) for one in others[:MOST_BURIED]],
            "buried_left_out": max(0, len(others) - MOST_BURIED),
            "attempts": self.attempts(EventFilter(queue, id=ident), now_ms),
            "morgue_url": f"{base}?{urlencode({'q': ident})}" if base and view.state == "morgue" else "",
            "list_url": target.up,
            "verbs": self.offered(request, allowed, target.name),
        }
        return self.render(request, "job", ident, context, trail=target.trail)

    def gone(self, request: HttpRequest, target: Target) -> HttpResponse:
        """Render a 404 page: there is no such job. Completed jobs are gone, too."""
        queue, _slash, ident = target.name.partition("/")
        context: dict[str, Any] = {"queue": queue, "ident": ident, "list_url": target.up}
        context["attempts"] = self.attempts(EventFilter(queue, id=ident), connections.broker().now_ms())
        return self.render(request, "finished", ident, context, trail=target.trail, status=404)

    def ask(self, request: HttpRequest, action: Action, target: Target, form: TargetForm | None) -> HttpResponse:
        """Render the page that asks, with the job; 404 if it is gone."""
        if target.subject is None or target.subject.state == "morgue":
            return self.gone(request, target)
        return super().ask(request, action, target, form)

    def question(self, action: Action, target: Target) -> dict[str, Any]:
        """Return the job."""
        broker = connections.broker()
        return {"job": JobText(target.subject, broker.now_ms(), broker.lease_ms)}

    # -- many jobs ---------------------------------------------------------------------------------------------------

    def bulk_view(self, request: HttpRequest, name: str) -> HttpResponse:
        """Ask about the selected jobs, or all that match the filters; then change them."""
        verb, query = BULK[name], BrowseQuery(QueryDict(request.POST.get("address", "")))
        selected = request.POST.getlist("selected")[:MOST_SELECTED]
        across = request.POST.get("across") == "1" and not query.where.is_empty and not query.text
        back = f"{self.url('changelist')}{query.link()}"
        is_waiting = QueryDict(request.POST.get("address", "")).get("place", "waiting") == query.place == "waiting"
        if not is_waiting or not (selected or across):
            messages.warning(request, _("Nothing was done. Select jobs, or filter the list and choose all that match."))
            return HttpResponseRedirect(back)
        cursor, names = request.POST.get("cursor", ""), [] if across else selected
        if "confirmed" in request.POST:
            run = partial(self.change_matching, query, cursor) if across else partial(self.change_selected, names)
            outcomes, cursor, log = Counter[str](), "", f"{name} selected"
            if across:
                filters = ", ".join(f"{word} {value}" for word, value in query.filters.items())
                log = f"{name} all that match ({filters})"
            try:
                cursor = run(verb.run, outcomes)
            finally:  # also if Redis became unavailable midway
                self.note(request, query.queue or "*", f"{log}: {dict(outcomes)}")
            level, text = result_message(outcomes, _("No job matched."))
            messages.add_message(request, level, text)
            if not cursor:
                return HttpResponseRedirect(back)
            messages.warning(request, _("Stopped after %(n)g s. Some jobs were not read yet.") % {"n": LONGEST})
        hidden = [("across", int(across)), ("address", request.POST.get("address", "")), ("cursor", cursor)]
        hidden += [("confirmed", "yes"), *(("selected", one) for one in names)]
        context = {"action": verb, "query": query, "selected": names, "hidden": hidden, "back": back, "cursor": cursor}
        return self.render(request, "confirm", verb.title, context, trail=[(str(verb.title), "")])

    def change_selected(self, names: Sequence[str], verb: bulk.Verb, outcomes: Counter[str]) -> str:
        """Change the selected jobs, each only in the generation that was shown."""
        for name, ident, key in map(_selected_of, names):
            queue = connections.existing_queue(name)
            outcome = "" if queue is None else verb.action.anywhere(queue, ident, Generation((key,)))
            outcomes["unchanged" if outcome in ("", "gone") else outcome] += 1
        return ""

    def change_matching(self, query: BrowseQuery, after: str, verb: bulk.Verb, outcomes: Counter[str]) -> str:
        """Change all jobs that match, for at most :data:`LONGEST` seconds; return the cursor that continues."""
        verb, end = replace(verb, place=query.place), time.monotonic() + LONGEST
        begin, _sep, cursor = after.partition(":")
        for name in [query.queue] if query.queue else sorted(connections.broker().queue_names()):
            queue = connections.existing_queue(name)
            if queue is None or name < begin:
                continue
            here, left = cursor if name == begin else "", max(0.0, end - time.monotonic())
            changed = bulk.change(queue, verb, query.where, accepts=query.accepts(), cursor=here, seconds=left)
            outcomes.update(changed.counts)
            if changed.cursor:
                return f"{name}:{changed.cursor}"
        return ""


def _selected_of(text: str) -> tuple[str, str, bytes]:
    """Return queue, id and key of a checkbox.

    Raises:
        Http404: it is not the value of one.
    """
    digits, _colon, name = text.partition(":")
    queue, slash, ident = name.partition("/")
    try:
        if len(digits) != _KEY_DIGITS or not slash or not ident:
            raise ValueError(text)
        return queue, ident, bytes.fromhex(digits)
    except ValueError:
        raise Http404("the selection could not be read; select the jobs again") from None


# -- verbs on one job --------------------------------------------------------------------------------------------------


def _reported(result: object, done: str, log: str, missed: str) -> Outcome:
    """Return the outcome of a verb of the package; ``done`` is the message if it was carried out."""
    if result == "on_commit":
        return Outcome(_("The change is sent to Redis when the transaction of this request commits."), log)
    if result == "outbox":
        text = _("The change is stored in the outbox, and is sent to Redis as soon as that is possible.")
        return Outcome(text, log, messages.WARNING)
    if result:
        return Outcome(done, log)
    text = _(
        "Nothing was done: no job with this id is waiting. It has started, ended or been cancelled in the meantime."
    )
    return Outcome(text, missed, messages.WARNING)


def _named(target: Target) -> dict[str, Any]:
    queue, _slash, ident = target.name.partition("/")
    return {"queue": queue, "id": ident}


@action(gettext_lazy("Run now"))
def run(target: Target, data: Mapping[str, Any]) -> Outcome:
    """Make the job due now."""
    moved = django_delayq.run_now(**_named(target))
    return _reported(moved, _("The job is due now."), "run now", "run now: it was not waiting")


@action(gettext_lazy("Reschedule"), "run", asks=True, form=RescheduleForm)
def reschedule(target: Target, data: Mapping[str, Any]) -> Outcome:
    """Give the job another due time."""
    moved = django_delayq.reschedule(**_named(target), **data)
    return _reported(moved, _("The job was rescheduled."), "rescheduled", "reschedule: it was not waiting")


@action(gettext_lazy("Cancel"), asks=True, harmful=True)
def cancel(target: Target, data: Mapping[str, Any]) -> Outcome:
    """Cancel the job; a running one is marked to stop."""
    outcome = django_delayq.cancel(**_named(target))
    log = f"cancel: {outcome or 'no such live job'}"
    if outcome == "stopping":
        text = _(
            "The job is running and was marked to stop. Its handler is notified at the next heartbeat. If it fails, it "
            "is not retried."
        )
        return Outcome(text, log, messages.WARNING)
    return _reported(outcome, _("The waiting job was cancelled."), log, log)


JOB_ACTIONS: Final = (run, reschedule, cancel)
#: verbs on many waiting jobs; each runs a verb of the engine
BULK: Final = {
    "run": Action(name="run", permission="run", title=gettext_lazy("Run now"), run=bulk.RUN_NOW),
    "cancel": Action(name="cancel", permission="cancel", title=gettext_lazy("Cancel"), run=bulk.CANCEL, harmful=True),
}

"""Job browser: jobs as they are in Redis now, and actions to run, reschedule or cancel one."""

from __future__ import annotations

from itertools import islice
from typing import Any, Final

from django.contrib import messages
from django.contrib.admin.utils import unquote
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import URLPattern
from django.utils.translation import gettext as _

import django_delayq

from .. import connections
from ..core.inputs import short
from ..core.job_view import JobView
from .attempts import AttemptPages
from .browse import (
    BrowseQuery,
    whole_number,
)
from .content import json_text
from .formatting import moment
from .forms import RescheduleForm
from .live_bulk import LiveBulkPages

PAYLOADS: Final = 50
MOST_BURIED: Final = 20


class LiveJobAdmin(LiveBulkPages, AttemptPages):
    """Pages of :class:`LiveJob`."""

    def pages(self) -> list[URLPattern]:
        """Return the URLs of the list, the job page and each verb."""
        one = "<path:object_id>/"
        both = "GET HEAD POST"
        return [
            self.page("", self.list_view, "changelist"),
            self.page("finished/", self.finished_view, "finished"),
            *self.bulk_pages(),
            self.page(f"{one}change/", self.job_view, "change"),
            self.page(f"{one}run/", self.run_view, "run", verb="run", methods="POST"),
            self.page(f"{one}reschedule/", self.reschedule_view, "reschedule", verb="run", methods=both),
            self.page(f"{one}cancel/", self.cancel_view, "cancel", verb="cancel", methods=both),
        ]

    # -- one job -----------------------------------------------------------------------------------------------------

    def job_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Render everything that Redis stores under an id."""
        queue, ident = name_of(object_id)
        broker = connections.broker()
        buried = sorted(broker.inspector.graves(queue, ident), key=lambda one: one.buried_ms or 0, reverse=True)
        view = broker.inspector.get(queue, ident)
        if view is None:
            return self.gone(request, queue, ident)
        others = buried if view.state != "morgue" else [one for one in buried if one.job.key != view.job.key]
        now_ms = broker.now_ms()
        item, *earlier = self.items([view, *others[:MOST_BURIED]], now_ms)
        page = whole_number(request.GET.get("payloads", ""), 1)
        payloads = view.payloads if view.state == "morgue" else broker.inspector.payloads(queue, ident)
        begin = (page - 1) * PAYLOADS
        page_of = islice(payloads if view.job.merged else (), begin, begin + PAYLOADS)
        context = {
            "item": item,
            "now": moment(now_ms, now_ms),
            "payloads": [(one.score, json_text(one.data)) for one in page_of],
            "payloads_begin": begin,
            "payloads_next": page + 1 if begin + PAYLOADS < view.payload_count else 0,
            "payloads_before": page - 1,
            "buried": earlier,
            "buried_left_out": max(0, len(others) - MOST_BURIED),
            **self.attempts_of(queue, ident),
            "morgue_url": self.url_of("morguejob", "changelist"),
            "list_url": self.link(BrowseQuery(queue=queue), place=place_of(view)),
            "may_run": self.may(request, "run") and can_move(view),
            "may_cancel": self.may(request, "cancel") and view.state != "morgue",
            **{f"{verb}_url": self.url(verb, item.name) for verb in ("run", "reschedule", "cancel")},
        }
        trail = [(queue, self.link(BrowseQuery(queue=queue))), (ident, "")]
        return self.render(request, "live_job", ident, context, trail=trail)

    def gone(self, request: HttpRequest, queue: str, ident: str) -> HttpResponse:
        """Render a 404 page: there is no such job. Completed jobs are gone, too."""
        context = {"queue": queue, "ident": ident, "list_url": self.link(BrowseQuery(queue=queue))}
        context |= self.attempts_of(queue, ident)
        trail = [(queue, context["list_url"]), (ident, "")]
        return self.render(request, "live_gone", ident, context, trail=trail, status=404)

    # -- verbs -------------------------------------------------------------------------------------------------------

    def run_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Make the job due now."""
        queue, ident = name_of(object_id)

        def act() -> str:
            moved = django_delayq.run_now(id=ident, queue=queue)
            self.note(request, f"{queue}/{ident}", "run now" if moved else "run now: it was not waiting")
            return self.outcome_message(request, moved, _("The job is due now."))

        self.report_result(request, act)
        return self.back(self.url("change", f"{queue}/{ident}"))

    def reschedule_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Render the form for the new due time, or reschedule the job."""
        queue, ident = name_of(object_id)
        form = RescheduleForm(request.POST if request.method == "POST" else None)
        if request.method == "POST" and form.is_valid():

            def act() -> str:
                moved = django_delayq.reschedule(id=ident, queue=queue, **form.when)
                self.note(request, f"{queue}/{ident}", "rescheduled" if moved else "reschedule: it was not waiting")
                return self.outcome_message(request, moved, _("The job was rescheduled."))

            if self.report_result(request, act):
                return self.back(self.url("change", f"{queue}/{ident}"))
        return self.confirm(request, "live_reschedule", _("Reschedule"), queue, ident, form=form, yes=_("Reschedule"))

    def cancel_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Render the confirmation page, or cancel the job."""
        queue, ident = name_of(object_id)
        if request.method != "POST":
            return self.confirm(request, "live_cancel", _("Cancel"), queue, ident, harmful=True)

        def act() -> str:
            outcome = django_delayq.cancel(id=ident, queue=queue)
            self.note(request, f"{queue}/{ident}", f"cancel: {outcome or 'no such live job'}")
            if outcome == "cancelled":
                return _("The waiting job was cancelled.")
            if outcome == "stopping":
                messages.warning(
                    request,
                    _(
                        "The job is running and was marked to stop. Its handler is notified at the next "
                        "heartbeat. If it fails, it is not retried."
                    ),
                )
                return ""
            return self.outcome_message(request, outcome, "")

        self.report_result(request, act)
        return self.back(self.url("change", f"{queue}/{ident}"))

    def outcome_message(self, request: HttpRequest, outcome: object, done: str) -> str:
        """Report the outcome to the user; return ``done`` if the verb was carried out."""
        if outcome == "on_commit":
            return _("The change is sent to Redis when the transaction of this request commits.")
        if outcome == "outbox":
            messages.warning(
                request,
                _("The change is stored in the outbox, and is sent to Redis as soon as that is possible."),
            )
            return ""
        if outcome:
            return done
        messages.warning(
            request,
            _(
                "Nothing was done: no job with this id is waiting. It has started, ended or "
                "been cancelled in the meantime."
            ),
        )
        return ""

    def confirm(
        self, request: HttpRequest, template: str, title: str, queue: str, ident: str, **more: Any
    ) -> HttpResponse:
        """Render a confirmation page that shows the job."""
        broker = connections.broker()
        view = broker.inspector.get(queue, ident)
        if view is None or view.state == "morgue":
            return self.gone(request, queue, ident)
        item = self.items([view], broker.now_ms())[0]
        job_url = self.url("change", item.name)
        trail = [(queue, self.link(BrowseQuery(queue=queue))), (ident, job_url), (title, "")]
        return self.render(request, template, title, {"item": item, "back": job_url, **more}, trail=trail)


def name_of(object_id: str) -> tuple[str, str]:
    """Return ``(queue, id)`` from a URL."""
    queue, slash, ident = unquote(object_id).partition("/")
    if not slash or not ident or "\0" in ident or len(ident.encode(errors="replace")) > 255:
        raise Http404(f"{short(object_id)} is not the name of a job: <queue>/<id>")
    return queue, ident


def can_move(view: JobView) -> bool:
    """Return True if the job, or its gated content, waits."""
    return view.state in ("delayed", "ready") or view.gated_due_ms is not None


def place_of(view: JobView) -> str:
    """Return the place in whose list the job appears."""
    return {"reserved": "reserved", "morgue": "morgue"}.get(view.state, "waiting")

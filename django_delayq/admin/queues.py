"""Queue pages: counts, workers, and actions to pause, run or purge a queue."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final
from urllib.parse import urlencode

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from .. import connections
from ..core import bulk
from ..core.figures import read_depths
from ..core.queue import Queue
from ..core.records.keys import MAX_SHARDS
from ..outbox import row_verbs
from ..repair.sweeping import Sweep
from ..status.snapshot import PLACES
from .depth_chart import SPAN_MINUTES, depth_chart, rows_of
from .formatting import grouped, moment
from .queue_changes import QueueChanges, queue_or_404
from .queue_forms import PurgeForm
from .queue_switches import QueueSwitches
from .queue_view_model import QueueViewModel, workers_of
from .recurring import RecurringPages
from .worker_commands import WorkerCommands

#: seconds after which a sweep over a queue stops; pressing the button again resumes it
LONGEST_SWEEP: Final = 20.0
SPAN_LABELS: Final = {"hour": gettext_lazy("last hour"), "day": gettext_lazy("last day")}
#: maximum number of shards shown individually
MOST_SHARDS: Final = 64


class QueueEntryAdmin(QueueChanges, QueueSwitches, RecurringPages, WorkerCommands):
    """Pages of :class:`QueueEntry`."""

    def pages(self) -> list[URLPattern]:
        """Return the URLs of the list, the queue page and each verb."""
        one = "<path:object_id>/"
        both = "GET HEAD POST"
        return [
            *self.worker_pages(),
            *self.change_pages(),
            *self.switch_pages(),
            *self.recurring_pages(),
            self.page("", self.list_view, "changelist"),
            self.page(f"{one}change/", self.queue_view, "change"),
            self.page(f"{one}run/", self.run_view, "run", verb="run", methods=both),
            self.page(f"{one}purge/", self.purge_view, "purge", verb="purge", methods=both),
        ]

    # -- pages -------------------------------------------------------------------------------------------------------

    def list_view(self, request: HttpRequest) -> HttpResponse:
        """Render the list of all queues."""
        broker = connections.broker()
        queues = {queue.name: queue for queue in broker.reachable_queues()}
        counts = broker.inspector.all_counts(queues=list(queues.values()), partial=True)
        self.warn_of_missing(request, broker, counts)
        items = [QueueViewModel.of(queues[one.queue], one) for one in counts]
        now_ms = broker.now_ms()
        context = {
            "items": items,
            "totals": [grouped(sum(getattr(one, place) for one in counts)) for place in PLACES],
            "workers": self.with_commands(request, workers_of(broker, now_ms)),
            "now": moment(now_ms, now_ms),
            "jobs_url": self.url_of("livejob", "changelist"),
            "producers_paused": broker.registry.producers_paused,
            "producers_url": self.url("producers"),
            "may_pause": self.may(request, "pause"),
            "recurring_url": self.url("recurring"),
            "create_url": self.url("create") if self.may(request, "create") else "",
        }
        return self.render(request, "queue_list", capfirst(str(self.opts.verbose_name_plural)), context)

    def queue_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Render one queue."""
        queue = queue_or_404(object_id)
        broker = connections.broker()
        inspector = broker.inspector
        item = QueueViewModel.of(queue, inspector.counts(queue.name))
        now_ms = broker.now_ms()
        numbers = queue.numbers[-MOST_SHARDS:]
        span = "day" if request.GET.get("span") == "day" else "hour"
        minutes, step = SPAN_MINUTES[span]
        points = read_depths(broker, [queue.name], now_ms, minutes)[queue.name]
        context = {
            "item": item,
            "now": moment(now_ms, now_ms),
            "shards": [
                (*divmod(number, MAX_SHARDS), number, counts)
                for number, counts in zip(numbers, inspector.count_each_shard(queue, numbers), strict=True)
            ],
            "shards_left_out": len(queue.numbers) - len(numbers),
            "workers": self.with_commands(request, workers_of(broker, now_ms, queue.name)),
            "depth": depth_chart(rows_of(points, step=step), keep_s=minutes * 60),
            "spans": [(str(SPAN_LABELS[name]), f"?span={name}", name == span) for name in SPAN_MINUTES],
            "jobs": [
                (name, grouped(number), self.jobs_url(queue.name, place))
                for name, number, place in (
                    (_("delayed"), item.status.counts.delayed, "waiting"),
                    (_("ready"), item.status.counts.ready, "waiting"),
                    (_("reserved"), item.status.counts.reserved, "reserved"),
                    (_("gated"), item.status.counts.gated, "gated"),
                    (_("failed"), item.status.counts.failed, "failed"),
                    (_("in the morgue"), item.status.counts.morgue, "morgue"),
                )
            ],
            **self.switches(queue, now_ms),
            "may_pause": self.may(request, "pause"),
            "may_run": self.may(request, "run"),
            "may_purge": self.may(request, "purge"),
            "changes": self.offered_changes(request, queue.name),
            **{f"{verb}_url": self.url(verb, queue.name) for verb in ("run", "purge")},
        }
        return self.render(request, "queue_detail", queue.name, context, trail=[(queue.name, "")])

    def jobs_url(self, queue: str, place: str) -> str:
        """Return the URL of the queue's jobs; "" if the site has no job pages."""
        base = self.url_of("livejob", "changelist")
        return f"{base}?{urlencode({'queue': queue, 'place': place})}" if base else ""

    # -- verbs -------------------------------------------------------------------------------------------------------

    def run_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Make all waiting jobs due now."""
        queue = queue_or_404(object_id)
        if request.method != "POST":
            return self.confirm(request, "queue_run", _("Run all now"), queue, yes=_("Run all now"))
        counts = self.sweep(request, queue, "run all now", row_verbs.run_all_now)
        if counts is not None:
            moved = counts.get("moved", 0)
            messages.success(request, ngettext("%d job is due now.", "%d jobs are due now.", moved) % moved)
        return self.back(self.url("change", queue.name))

    def purge_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Cancel all waiting jobs, and optionally delete the morgue."""
        queue = queue_or_404(object_id)
        form = PurgeForm(request.POST if request.method == "POST" else None, queue=queue.name)
        if request.method != "POST" or not form.is_valid():
            return self.confirm(
                request, "queue_purge", _("Purge"), queue, form=form, yes=_("Purge the queue"), harmful=True
            )
        verbs = (row_verbs.cancel_all, _discard_all) if form.cleaned_data["morgue"] else (row_verbs.cancel_all,)
        counts = self.sweep(request, queue, "purge", *verbs)
        if counts is not None:
            cancelled, discarded = counts.get("cancelled", 0), counts.get("discarded", 0)
            text = ngettext("%d waiting job was cancelled.", "%d waiting jobs were cancelled.", cancelled) % cancelled
            if form.cleaned_data["morgue"]:
                also = ngettext(
                    "%d job in the morgue was discarded.", "%d jobs in the morgue were discarded.", discarded
                )
                text = f"{text} {also % discarded}"
            messages.success(request, text)
        return self.back(self.url("change", queue.name))

    def sweep(
        self, request: HttpRequest, queue: Queue, name: str, *verbs: Callable[..., dict[str, int]]
    ) -> dict[str, int] | None:
        """Run verbs on all jobs of a queue. Return the counts; None if the time limit was hit, with a warning."""
        sweep = Sweep(LONGEST_SWEEP)
        counts: dict[str, int] = {}
        try:
            for verb in verbs:
                counts |= sweep.run(partial(verb, queue))
        finally:  # also if Redis became unavailable midway
            self.note(request, queue.name, f"{name}: {counts or sweep.seen}")
        if not sweep.over:
            return counts
        numbers = {"seen": sweep.seen, "total": sweep.total, "seconds": f"{sweep.seconds:g}"}
        messages.warning(
            request,
            _("Stopped after %(seconds)s s: %(seen)d of %(total)d jobs were processed. Repeat the action to continue.")
            % numbers,
        )
        return None


def _discard_all(queue: Queue, *, progress: bulk.Progress | None = None) -> dict[str, int]:
    return dict(bulk.change(queue, bulk.DISCARD, progress=progress).counts)

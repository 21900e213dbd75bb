"""Queue pages: numbers, limits, workers and recurring tasks, and the verbs on them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from django.contrib import messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern
from django.utils.text import capfirst
from django.utils.translation import gettext as _, gettext_lazy, ngettext

from .. import connections, limits
from ..core import bulk, layouts
from ..core.errors import InvalidJob, QueueNotEmpty
from ..core.figures import read_depths
from ..core.inputs import short
from ..core.queue import Queue
from ..core.records.keys import MAX_SHARDS
from ..core.registry import pause_recurring
from ..core.task import registry
from ..core.times import datetime_of
from ..outbox import row_verbs
from ..settings.conf import conf
from ..status import read_recurring
from ..status.formatting import duration
from ..status.snapshot import PLACES, queue_status, worker_status
from ..worker import recurring
from .actions import Action, ActionPages, Outcome, Target, action
from .base import AdminPages
from .charts import SPAN_MINUTES, depth_chart, depth_rows
from .formatting import When, exact, grouped, moment
from .forms import CreateForm, DeleteForm, LimitsForm, PauseForm, PurgeForm, ReshardForm, ThrottleForm, WorkerChoiceForm

if TYPE_CHECKING:
    from ..core.broker import Broker
    from ..core.counts import Counts
    from ..status import QueueStatus, WorkerStatus

#: seconds after which a sweep over a queue stops; pressing the button again resumes it
LONGEST_SWEEP: Final = 20.0
#: maximum number of shards shown individually
MOST_SHARDS: Final = 64
SPAN_LABELS: Final = {"hour": gettext_lazy("last hour"), "day": gettext_lazy("last day")}
COUNTER_NAMES: Final = {
    "scheduled": gettext_lazy("scheduled"),
    "done": gettext_lazy("done"),
    "failing": gettext_lazy("failed attempts"),
    "buried": gettext_lazy("buried"),
    "cancelled": gettext_lazy("cancelled"),
}
#: names of :data:`PLACES`
PLACE_NAMES: Final = {
    "delayed": gettext_lazy("delayed"),
    "ready": gettext_lazy("ready"),
    "reserved": gettext_lazy("reserved"),
    "gated": gettext_lazy("gated"),
    "failed": gettext_lazy("failed"),
    "morgue": gettext_lazy("in the morgue"),
}
PAUSED_NAMES: Final = {
    "in": gettext_lazy("paused for new jobs"),
    "out": gettext_lazy("paused for workers"),
    "both": gettext_lazy("paused"),
}
#: how values of limits are shown; other numbers are grouped
LIMIT_TEXTS: Final[dict[str, Callable[[Any], str]]] = {
    "morgue_ttl": duration,
    "starve_after": duration,
    "priorities": str,
}


# -- what the pages show -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class QueueText:
    """Texts of one queue. ``draining`` has (epoch, shards) of former epochs that still hold jobs."""

    status: QueueStatus
    draining: Sequence[tuple[int, int]]

    @classmethod
    def of(cls, queue: Queue, counts: Counts) -> QueueText:
        """Return the texts of a queue with these counts."""
        return cls(queue_status(queue, counts), queue.epochs[:-1])

    @property
    def paused_name(self) -> str:
        """Display name of the paused direction."""
        name = str(PAUSED_NAMES.get(self.status.paused, ""))
        ends = [datetime_of(end) for end in self.status.paused_until.values()]
        return _("%(name)s, ends at %(ends)s") % {"name": name, "ends": " / ".join(map(exact, ends))} if ends else name

    @property
    def lag(self) -> str:
        """Overdue time of the longest waiting ready job; "" below a second."""
        return duration(self.status.lag_seconds) if self.status.lag_seconds >= 1 else ""

    @property
    def lags(self) -> list[tuple[int, str, bool]]:
        """(priority, overdue time, is late) of each priority, if the queue has used several."""
        lags, limit = self.status.counts.lag_by_priority, conf().admin.late_after
        return [(one, duration(lag), lag > limit) for one, lag in lags.items()] if len(lags) > 1 else []

    @property
    def is_late(self) -> bool:
        """True if the lag exceeds ``ADMIN["late_after"]``."""
        return self.status.lag_seconds > conf().admin.late_after

    @property
    def places(self) -> list[str]:
        """Numbers of jobs in each of :data:`PLACES`."""
        return [grouped(getattr(self.status.counts, place)) for place in PLACES]

    @property
    def counters(self) -> list[tuple[str, str]]:
        """(name, number) of events since the queue was created; lists show the first three."""
        return [(str(name), grouped(self.status.counts.counter(word))) for word, name in COUNTER_NAMES.items()]

    @property
    def limits(self) -> str:
        """Names and values of the limits in force."""
        names = {name: LimitsForm.base_fields[name].label for name in self.status.limits}
        texts = {name: LIMIT_TEXTS.get(name, grouped)(value) for name, value in self.status.limits.items()}
        return ", ".join(f"{names[name]}: {text}" for name, text in texts.items())


@dataclass(frozen=True, slots=True)
class WorkerText:
    """Texts of one worker process; ``commands`` are those that the user may send, as :meth:`ActionPages.offered`."""

    status: WorkerStatus
    seen: When | None
    commands: Sequence[Any] = ()


class QueueEntryAdmin(ActionPages):
    """Pages of :class:`QueueEntry`."""

    def pages(self) -> list[URLPattern]:
        """Return the URLs of the list, the queue page, the recurring tasks and each verb."""
        return [
            self.page("workers/<path:name>/dump/", self.dump_view, "dump", verb="dump", methods="GET HEAD POST"),
            *(self.action_page("workers/<path:name>/", one, self.worker_target) for one in (stop, drain)),
            *(self.action_page("", one, self.list_target) for one in (create, *PRODUCER_ACTIONS)),
            self.page("recurring/", self.recurring_view, "recurring", methods="GET HEAD POST"),
            self.page("", self.list_view, "changelist"),
            self.page("<path:object_id>/change/", self.queue_view, "change"),
            *(self.action_page("<path:object_id>/", one, self.queue_target) for one in (*SWITCHES, *QUEUE_ACTIONS)),
        ]

    # -- targets -----------------------------------------------------------------------------------------------------

    def list_target(self) -> Target:
        """Return the target of verbs on no single queue."""
        return Target("", self.url("changelist"))

    def queue_target(self, object_id: str) -> Target:
        """Return the queue of a URL.

        Raises:
            Http404: there is none.
        """
        name = unquote(object_id)
        queue = connections.broker().known_queue(name)
        if queue is None:
            raise Http404(f"no queue {short(name)} exists")
        back = self.url("change", name)
        return Target(name, back, queue, [(name, back)], up=self.url("changelist"))

    def worker_target(self, name: str) -> Target:
        """Return the worker of a URL.

        Raises:
            Http404: none of this name is registered.
        """
        worker = unquote(name)
        if all(one["name"] != worker for one in connections.broker().workers()):
            raise Http404(f"no worker {short(worker)} is registered")
        return Target(worker, self.url("changelist"), worker, [(worker, "")])

    # -- pages -------------------------------------------------------------------------------------------------------

    def list_view(self, request: HttpRequest) -> HttpResponse:
        """Render the list of all queues."""
        broker = connections.broker()
        queues = {queue.name: queue for queue in broker.reachable_queues()}
        counts = broker.inspector.all_counts(queues=list(queues.values()), partial=True)
        self.warn_of_missing(request, broker, counts)
        now_ms = broker.now_ms()
        producers_paused = broker.registry.producers_paused
        context = {
            "items": [QueueText.of(queues[one.queue], one) for one in counts],
            "totals": [grouped(sum(getattr(one, place) for one in counts)) for place in PLACES],
            "workers": self.workers(request, broker, now_ms),
            "now": moment(now_ms, now_ms),
            "producers_paused": producers_paused,
            "switches": self.offered(request, [PRODUCER_ACTIONS[bool(producers_paused)]]),
            "recurring_url": self.url("recurring"),
            "verbs": self.offered(request, [create]),
        }
        return self.render(request, "queue_list", capfirst(str(self.opts.verbose_name_plural)), context)

    def queue_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Render one queue."""
        target = self.queue_target(object_id)
        queue, broker = target.subject, connections.broker()
        counts = broker.inspector.counts(queue.name)
        item, now_ms = QueueText.of(queue, counts), broker.now_ms()
        numbers = queue.numbers[-MOST_SHARDS:]
        span = "day" if request.GET.get("span") == "day" else "hour"
        minutes, step = SPAN_MINUTES[span]
        points = read_depths(broker, [queue.name], now_ms, minutes)[queue.name]
        is_worked = queue.kind == "python"
        context = {
            "item": item,
            "now": moment(now_ms, now_ms),
            "shards": [
                (*divmod(number, MAX_SHARDS), [grouped(getattr(one, place)) for place in PLACES])
                for number, one in zip(numbers, broker.inspector.count_each_shard(queue, numbers), strict=True)
            ],
            "shards_left_out": len(queue.numbers) - len(numbers),
            "workers": self.workers(request, broker, now_ms, queue.name),
            "other_workers": self.workers(request, broker, now_ms, queue.name, others=True) if is_worked else [],
            "is_worked": is_worked,
            "depth": depth_chart(depth_rows(points, step=step)),
            "spans": [(str(label), f"?span={name}", name == span) for name, label in SPAN_LABELS.items()],
            "jobs": [
                (name, grouped(getattr(counts, place)), jobs_url(self, place, queue.name))
                for place, name in PLACE_NAMES.items()
            ],
            "may_pause": self.may(request, "pause"),
            "pause": PauseForm(),
            "directions": [
                (word, label) for word, label in PauseForm.LABELS.items() if item.status.paused not in ("both", word)
            ],
            "switch_urls": {one.name: self.url(one.name, queue.name) for one in SWITCHES},
            "verbs": self.offered(request, QUEUE_ACTIONS, queue.name),
            **self.limits_of(request, queue, now_ms),
        }
        return self.render(request, "queue_detail", queue.name, context, trail=[(queue.name, "")])

    def limits_of(self, request: HttpRequest, queue: Queue, now_ms: float) -> dict[str, Any]:
        """Return the limits of a queue with what waits behind them, a page of its groups."""
        (page,) = limits.pages([queue], after=request.GET.get("after", ""), partial=True)
        url = self.url(throttle.name, queue.name) if self.may(request, throttle.permission) else ""
        return {
            "limits": [
                {
                    "status": one,
                    "jobs": grouped(one.jobs),
                    "since": moment(one.since_ms, now_ms),
                    "next": moment(one.next_ms and max(one.next_ms, now_ms), now_ms) if one.jobs else None,
                    "url": url and f"{url}?{urlencode({one.kind: one.subject} if one.kind != 'queue' else {})}",
                }
                for one in page.limits
            ],
            "limits_due": grouped(page.due),
            "more_limits": f"?{urlencode({'after': page.more})}" if page.more else "",
        }

    def question(self, action: Action, target: Target) -> dict[str, Any]:
        """Return the queue with its numbers, and what the settings say of it."""
        if not isinstance(target.subject, Queue):
            return {}
        counts = connections.broker().inspector.counts(target.name)
        configured = connections.configured_shards(target.name)
        return {
            "item": QueueText.of(target.subject, counts),
            "counts": counts,
            "waiting": counts.delayed + counts.ready,
            "configured_shards": configured,
        }

    def workers(
        self, request: HttpRequest, broker: Broker, now_ms: float, queue: str = "", *, others: bool = False
    ) -> list[WorkerText]:
        """Return the registered worker processes (that serve ``queue``; with ``others`` the rest), lost ones last."""
        statuses = [worker_status(info, now_ms) for info in broker.workers()]
        chosen = [one for one in statuses if not queue or one.serves(queue) != others]
        chosen.sort(key=lambda one: (one.lost, one.name))
        return [
            WorkerText(one, moment(one.seen_ms, now_ms), self.offered(request, WORKER_ACTIONS, one.name))
            for one in chosen
        ]

    def dump_view(self, request: HttpRequest, name: str) -> HttpResponse:
        """Show the stacks of a worker's threads; a POST requests new ones."""
        target = self.worker_target(name)
        if request.method == "POST":
            self.carry_out(request, dump, target)
            return HttpResponseRedirect(self.url("dump", target.name))
        broker = connections.broker()
        taken, now_ms = broker.dump_of(target.name), broker.now_ms()
        context: dict[str, Any] = {"now": moment(now_ms, now_ms), "taken": moment(taken[0], now_ms) if taken else None}
        context["stacks"] = taken[1] if taken else ""
        title = f"{dump.title}: {target.name}"
        return self.render(request, "worker_dump", title, context, trail=[*target.trail, (str(dump.title), "")])

    def recurring_view(self, request: HttpRequest) -> HttpResponse:
        """Render the recurring tasks, or act on one: below this URL, pages of a queue of its name may lie."""
        if request.method == "POST":
            verb = RECURRING_ACTIONS.get(request.POST.get("verb", ""))
            if verb is None or not self.may(request, verb.permission):
                raise PermissionDenied
            back, name = self.url("recurring"), request.POST.get("task", "")
            self.carry_out(request, verb, Target(name, back))
            return HttpResponseRedirect(back)
        broker = connections.broker()
        now_ms = broker.now_ms()
        context = {
            "tasks": [
                {
                    "status": one,
                    "last": moment(one.last_tick_ms, now_ms),
                    "next": moment(one.next_tick_ms, now_ms),
                    "paused": moment(one.paused_ms, now_ms),
                }
                for one in read_recurring(broker)
            ],
            "now": moment(now_ms, now_ms),
            "may_pause": self.may(request, "pause"),
            "may_run": self.may(request, "run"),
        }
        return self.render(request, "recurring", _("Recurring tasks"), context, trail=[(_("Recurring tasks"), "")])


def jobs_url(pages: AdminPages, place: str, queue: str = "") -> str:
    """Return the URL of the list that has the jobs of a place, of a queue or of all; "" if the site has none."""
    query = {"queue": queue} if queue else {}
    if place in ("failed", "morgue"):
        base = pages.url_of(f"{place}job", "changelist")
    else:
        base = pages.url_of("livejob", "changelist")
        query["place"] = "waiting" if place in ("delayed", "ready") else place
    return f"{base}?{urlencode(query)}" if base and query else base


# -- verbs on a queue --------------------------------------------------------------------------------------------------


@action(gettext_lazy("Pause"), form=PauseForm)
def pause(target: Target, data: Mapping[str, Any]) -> Outcome:
    """Pause a queue for new jobs, for workers, or for both."""
    direction, length = data["direction"], data["for"]
    connections.broker().pause(target.name, direction, seconds=length)
    texts = {
        "in": _("Paused for new jobs: schedule() is refused; jobs that are already waiting still run."),
        "out": _("Paused for workers: no job is started; running jobs finish."),
        "both": _("Paused: new jobs are refused and no job is started; running jobs finish."),
    }
    return Outcome(texts[direction], f"pause {direction}{f' for {length} s' if length else ''}")


@action(gettext_lazy("Resume"), "pause")
def resume(target: Target, data: Mapping[str, Any]) -> Outcome:
    """Resume a queue in both directions."""
    connections.broker().resume(target.name)
    return Outcome(_("The queue is no longer paused."), "resume")


@action(gettext_lazy("Watch or ignore"), "pause", form=WorkerChoiceForm)
def worker(target: Target, data: Mapping[str, Any]) -> Outcome:
    """Let a worker watch or ignore a queue."""
    if not connections.broker().tell_worker(data["worker"], data["word"], target.name):
        raise InvalidJob(_("There is no such worker any more. Nothing was changed."))
    text = _("All processes of this worker follow with their next heartbeat, until the worker is restarted.")
    return Outcome(text, f"{data['word']} by {data['worker']}")


def _sweep(name: str, target: Target, *verbs: Callable[..., bulk.Changed]) -> tuple[dict[str, int], Outcome | None]:
    """Run verbs on all jobs of a queue. Return the counts, and the outcome if the time limit was hit."""
    counts, give_up = dict[str, int](), time.monotonic() + LONGEST_SWEEP
    for verb in verbs:
        changed = verb(target.subject, seconds=give_up - time.monotonic())
        counts |= changed.counts
        if changed.cursor:
            numbers = {"seen": changed.examined, "total": changed.total, "seconds": f"{LONGEST_SWEEP:g}"}
            text = _(
                "Stopped after %(seconds)s s: %(seen)d of %(total)d jobs were processed. Repeat the action to continue."
            )
            return counts, Outcome(text % numbers, f"{name}: {counts}", messages.WARNING)
    return counts, None


@action(gettext_lazy("Run all now"), asks=True)
def run(target: Target, data: Mapping[str, Any]) -> Outcome:
    """Make all waiting jobs due now."""
    counts, stopped = _sweep("run all now", target, row_verbs.run_all_now)
    moved = counts.get("moved", 0)
    text = ngettext("%d job is due now.", "%d jobs are due now.", moved) % moved
    return stopped or Outcome(text, f"run all now: {counts}")


@action(gettext_lazy("Purge"), asks=True, form=PurgeForm, yes=gettext_lazy("Purge the queue"), harmful=True)
def purge(target: Target, data: Mapping[str, Any]) -> Outcome:
    """Cancel all waiting jobs, and optionally discard the morgue."""
    more = [partial(bulk.change, verb=bulk.DISCARD)] if data["morgue"] else []
    counts, stopped = _sweep("purge", target, row_verbs.cancel_all, *more)
    cancelled, discarded = counts.get("cancelled", 0), counts.get("discarded", 0)
    text = ngettext("%d waiting job was cancelled.", "%d waiting jobs were cancelled.", cancelled) % cancelled
    if data["morgue"]:
        also = ngettext("%d job in the morgue was discarded.", "%d jobs in the morgue were discarded.", discarded)
        text = f"{text} {also % discarded}"
    return stopped or Outcome(text, f"purge: {counts}")


@action(gettext_lazy("Change limits"), asks=True, form=LimitsForm, yes=gettext_lazy("Change the limits"))
def limit(target: Target, data: Mapping[str, Any]) -> Outcome:
    """Change the limits of a queue."""
    changed = {name: data[name] for name in layouts.LIMITS}
    connections.broker().limit(target.name, **changed)
    return Outcome(_("The limits were changed."), f"limits: {changed}")


@action(
    gettext_lazy("Limit starts"),
    "limit",
    asks=True,
    form=ThrottleForm,
    yes=gettext_lazy("Set the limit"),
    prefilled=("group", "task"),
)
def throttle(target: Target, data: Mapping[str, Any]) -> Outcome:
    """Set or clear a limit over all workers at run time."""
    jobs, numbers = data["jobs"], data["numbers"]
    if not numbers:
        limits.clear(**jobs)
        return Outcome(_("Cleared: the limits of settings and code hold."), f"clear limit: {jobs}")
    limits.set(**jobs, **numbers)
    return Outcome(_("The limit was set."), f"limit {jobs}: {numbers}")


@action(gettext_lazy("Change shards"), asks=True, form=ReshardForm, yes=gettext_lazy("Change the number of shards"))
def reshard(target: Target, data: Mapping[str, Any]) -> Outcome:
    """Change the number of shards of a queue."""
    shards, configured = data["shards"], connections.configured_shards(target.name)
    connections.broker().reshard(target.name, shards)
    hint = ""
    if configured not in (None, shards):
        hint = _("The settings, or a task, name %(number)d shards. Change the number there, too.")
        hint %= {"number": configured}
    return Outcome(_("New jobs go to the new shards. Workers empty the old ones."), f"reshard: {shards}", hint=hint)


@action(gettext_lazy("Delete"), asks=True, form=DeleteForm, yes=gettext_lazy("Delete the queue"), harmful=True)
def delete(target: Target, data: Mapping[str, Any]) -> Outcome:
    """Delete a queue; one that holds jobs only if the user demands it."""
    try:
        connections.broker().delete_queue(target.name, force=data["force"])
    except QueueNotEmpty as error:
        raise QueueNotEmpty(str(error).replace("with --force (force=True)", _("by ticking this box"))) from None
    if data["force"]:  # outbox rows would re-create it
        row_verbs.forget_queue(conf().outbox.databases, target.name)
    text = _("The queue %s was deleted.") % target.name
    return Outcome(text, f"delete{' with its jobs' if data['force'] else ''}", back=target.up)


@action(gettext_lazy("Create a queue"), asks=True, form=CreateForm, yes=gettext_lazy("Create the queue"))
def create(target: Target, data: Mapping[str, Any]) -> Outcome:
    """Create a queue."""
    given = {name: data[name] for name in layouts.LIMITS}
    name, kind, shards = data["name"], data["kind"], data["shards"]
    if connections.is_configured(name):
        connections.queue(name)
        return Outcome(_("The queue was created as the settings say."), "create: as configured", about=name)
    _queue, is_new = connections.broker().registry.create_with(name, kind=kind, shards=shards, **given)
    if is_new:
        return Outcome(_("The queue was created."), f"create: {kind}, shards {shards}, {given}", about=name)
    text = _("The queue was created by another request a moment ago; it keeps those properties.")
    return Outcome(text, level=messages.WARNING, about=name)


# -- verbs on producers, workers and recurring tasks -------------------------------------------------------------------


@action(gettext_lazy("Pause all producers"), "pause")
def pause_producers(target: Target, data: Mapping[str, Any]) -> Outcome:
    """Pause the producers of all queues."""
    connections.broker().pause_producers()
    return Outcome(_("No queue takes new jobs any more; stored jobs run."), "pause all producers")


@action(gettext_lazy("Resume all producers"), "pause")
def resume_producers(target: Target, data: Mapping[str, Any]) -> Outcome:
    """Resume the producers of all queues."""
    connections.broker().resume_producers()
    return Outcome(_("All queues take new jobs again."), "resume all producers")


@action(gettext_lazy("Stop"), asks=True, yes=gettext_lazy("Stop the worker"), harmful=True)
def stop(target: Target, data: Mapping[str, Any]) -> Outcome:
    """Stop all processes of a worker's program."""
    return _send("stop", target)


@action(gettext_lazy("Drain"), "stop", asks=True, yes=gettext_lazy("Drain the worker"), harmful=True)
def drain(target: Target, data: Mapping[str, Any]) -> Outcome:
    """Let all processes of a worker's program reserve no more."""
    return _send("drain", target)


@action(gettext_lazy("Stacks"))
def dump(target: Target, data: Mapping[str, Any]) -> Outcome:
    """Request the stacks of a worker's threads."""
    return _send("dump", target)


def _send(word: str, target: Target) -> Outcome:
    if connections.broker().tell_worker(target.name, word):
        text = _("The command was sent. The worker receives it with its next heartbeat.")
        return Outcome(text, f"worker: {word}")
    return Outcome(_("Nothing was sent: the worker is gone."), level=messages.WARNING)


@action(gettext_lazy("Pause"), "pause")
def pause_ticks(target: Target, data: Mapping[str, Any]) -> Outcome:
    """Pause a recurring task."""
    name = recurring.work_of(registry, target.name).task.name
    pause_recurring(connections.broker(), name)
    text = _("Paused: the ticks of %s do not fire until it is resumed.") % name
    return Outcome(text, "pause recurring task", about=name)


@action(gettext_lazy("Resume"), "pause")
def resume_ticks(target: Target, data: Mapping[str, Any]) -> Outcome:
    """Resume a recurring task."""
    name = recurring.resume(connections.broker(), registry, target.name)
    return Outcome(_("The ticks of %s fire again.") % name, "resume recurring task", about=name)


@action(gettext_lazy("Run now"), "run")
def run_task(target: Target, data: Mapping[str, Any]) -> Outcome:
    """Run a recurring task now."""
    work = recurring.work_of(registry, target.name)
    is_gated = recurring.run_now(connections.broker(), work) == "gated"
    text = _("A run of %s begins when the present one ends.") if is_gated else _("A run of %s is due now.")
    return Outcome(text % work.task.name, "run recurring task", about=work.task.name)


SWITCHES: Final = (pause, resume, worker)
QUEUE_ACTIONS: Final = (run, limit, throttle, reshard, delete, purge)
PRODUCER_ACTIONS: Final = (pause_producers, resume_producers)
WORKER_ACTIONS: Final = (stop, drain, dump)
RECURRING_ACTIONS: Final = {"pause": pause_ticks, "resume": resume_ticks, "run": run_task}

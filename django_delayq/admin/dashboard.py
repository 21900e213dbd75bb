"""Dashboard with live numbers of all queues. The page is complete without a script, which only swaps its parts."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote as url_quote

from django.contrib.admin.utils import quote
from django.http import HttpRequest, HttpResponse
from django.template.defaultfilters import filesizeformat
from django.template.response import TemplateResponse
from django.urls import URLPattern
from django.utils.html import escape, format_html
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext as _, gettext_lazy, ngettext
from redis.exceptions import RedisError

from .. import connections
from ..core import figures
from ..core.errors import DelayQError, Misconfigured, QueueUnavailable
from ..core.figures import TOTAL, DepthPoint
from ..settings.conf import conf
from ..status import RunningJob, Snapshot, take
from ..status.formatting import NOTHING, duration, millis
from ..status.snapshot import PLACES, RATE_MS
from ..status.warnings import listed, warnings_of
from .actions import Action
from .base import RedisPages
from .charts import Chart, Row, depth_cells, depth_chart, depth_rows, number, timed_row
from .formatting import clock, grouped, rate
from .jobs import MEANINGS
from .queues import PAUSED_NAMES, PLACE_NAMES, WORKER_ACTIONS, jobs_url

if TYPE_CHECKING:
    from ..connections import DjangoBroker
    from ..status import QueueStatus, RedisStatus, WorkerStatus

#: seconds for which a snapshot, or a failure of Redis, is shared
SHARED: Final = 0.9
#: factor between the cost of a snapshot and the polling interval: snapshots take less than 1 % of Redis's time
PAUSE: Final = 100
SHORTEST_MS: Final = 1_000
#: interval from which on the page explains why it is updated so seldom, ms
SLOW_MS: Final = 5_000
#: span of the backlog → (number of bars, length of each, ms)
SPANS: Final[Mapping[str, tuple[int, int]]] = {"hour": (60, 60_000), "day": (24, 3_600_000)}
SPAN_NAMES: Final = {"hour": gettext_lazy("in the next hour"), "day": gettext_lazy("in the next day")}
#: maximum numbers of queues, workers and running jobs on a page; leases are read of the latter
MOST_QUEUES: Final = 100
MOST_WORKERS: Final = 50
MOST_RUNNING: Final = 48
COLUMNS: Final = (gettext_lazy("Queue"), *PLACE_NAMES.values(), gettext_lazy("Lag"), gettext_lazy("Done/s"))
#: key and name of each total
TILES: Final = (
    ("lag", gettext_lazy("lag")),
    ("busy", gettext_lazy("busy threads")),
    *PLACE_NAMES.items(),
    ("done_rate", gettext_lazy("done per second")),
    ("failing_rate", gettext_lazy("failing per second")),
    ("p50", gettext_lazy("lateness, p50")),
    ("p99", gettext_lazy("lateness, p99")),
)

Facts = list[tuple[str, str]]

#: row of the queue table, and parts of it that depend on the user and the queue
_ROW: Final = (
    '<tr id="dq-q-{name}"><th scope="row">{link}{paused}</th><td class="dq-number">{numbers}</td>'
    '<td class="dq-number{late}">{lag}</td><td class="dq-number">{rate}</td>{button}</tr>'
)
_LINK: Final = '<a data-link="queue" href="{url}" title="{name}">{name}</a>'
_NO_LINK: Final = '<span data-link="queue" title="{name}">{name}</span>'
_PAUSED: Final = ' <span class="dq-pill dq-paused" data-paused>{}</span>'
_NUMBERS: Final = '</td><td class="dq-number">'
_LATE: Final = SafeString(" dq-is-late")
_EMPTY: Final = SafeString("")
_BUTTON: Final = (
    '<td class="dq-act"><button type="submit" form="dq-pause" formaction="{verb_url}" class="dq-button" '
    'aria-label="{verb} {name}">{verb}</button></td>'
)


# -- snapshots ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DashboardSnapshot:
    """Snapshot with its cost.

    Attributes:
        span: the key of ``SPANS`` by which the backlog is divided; "" = without backlog, charts and outbox.
        cost_ms: time it took.
        leases: (queue, id) → end of a running job's lease, Unix ms.
        depths: points of the last hour of all queues together.
    """

    snapshot: Snapshot
    span: str = ""
    cost_ms: float = 0.0
    leases: Mapping[tuple[str, str], int] = field(default_factory=dict)
    depths: Sequence[DepthPoint] = ()

    @property
    def next_ms(self) -> int:
        """Interval after which a page may poll again, ms."""
        return max(SHORTEST_MS, round(self.cost_ms * PAUSE))


class SnapshotCache:
    """Snapshot cache of this process: one thread takes a snapshot, concurrent ones share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._broker: DjangoBroker | None = None
        self._forget()

    def _forget(self) -> None:
        self._kept: dict[str, tuple[float, DashboardSnapshot]] = {}
        self._error: tuple[float, DelayQError] | None = None
        self._read_at = 0
        self._depths: Sequence[DepthPoint] = ()
        self._samples: Mapping[str, DepthPoint] = {}

    def latest(self, broker: DjangoBroker, span: str = "") -> DashboardSnapshot:
        """Return a snapshot that is at most ``SHARED`` seconds old.

        Raises:
            QueueUnavailable, Misconfigured: Redis cannot be queried.
        """
        with self._lock:
            if self._broker is not broker:
                self._broker = broker
                self._forget()
            now = time.monotonic()
            for kept, (at, snapshot) in self._kept.items():
                if now - at < SHARED and span in ("", kept):
                    return snapshot
            # Threads that waited for a failed snapshot fail at once instead of waiting again.
            if self._error is not None and now - self._error[0] < SHARED:
                raise self._error[1]
            try:
                latest = self._take(broker, span)
            except DelayQError as error:
                self._error = time.monotonic(), error
                raise
            self._kept[span] = time.monotonic(), latest
            return latest

    def _take(self, broker: DjangoBroker, span: str) -> DashboardSnapshot:
        began = time.monotonic()
        bars, step = SPANS.get(span, (0, 0))
        horizon = [step * (place + 1) for place in range(bars)]
        snapshot = take(broker, horizon=horizon, outbox=bool(span))
        leases = _leases(broker, (job for _, job in running(snapshot)))
        cost_ms = (time.monotonic() - began) * 1000
        self._read_samples(broker, snapshot)
        return DashboardSnapshot(replace(snapshot, samples=self._samples), span, cost_ms, leases, self._depths)

    def _read_samples(self, broker: DjangoBroker, snapshot: Snapshot) -> None:
        """Read the samples. Dispatchers take one a minute, so they are read as often."""
        minute = int((snapshot.now_ms - RATE_MS) // 60_000)
        if self._read_at != minute:
            names = [TOTAL, *(queue.name for queue in snapshot.queues)]
            self._depths = figures.read_depths(broker, [TOTAL], snapshot.now_ms)[TOTAL]
            self._samples = figures.last_samples(broker, names, snapshot.now_ms - RATE_MS)
            self._read_at = minute


SNAPSHOTS: Final = SnapshotCache()


def running(snapshot: Snapshot) -> list[tuple[str, RunningJob]]:
    """Return (worker, job) for the running jobs that are shown: those that started first."""
    jobs = [(worker.name, job) for worker in snapshot.workers if not worker.lost for job in worker.jobs]
    return sorted(jobs, key=lambda one: one[1].started_ms)[:MOST_RUNNING]


def _leases(broker: DjangoBroker, jobs: Iterable[RunningJob]) -> dict[tuple[str, str], int]:
    """Return the ends of the leases of these jobs, without expired ones. One round trip per node."""
    running_jobs = [(queue, job.id) for job in jobs if (queue := broker.existing(job.queue)) is not None]
    return {name: lease.ends_ms for name, lease in broker.inspector.leases(running_jobs).items()}


# -- pages -------------------------------------------------------------------------------------------------------------


class DashboardAdmin(RedisPages):
    """Page of :class:`Dashboard`, and its parts for the script."""

    def pages(self) -> list[URLPattern]:
        """Return the URLs of the page and of its parts."""
        return [self.page("", self.page_view, "changelist"), self.page("parts/", self.parts_view, "parts")]

    def page_view(self, request: HttpRequest) -> HttpResponse:
        """Render the page. It is rendered without Redis, too, so that it recovers by itself."""
        return self._respond(request, live=False)

    def parts_view(self, request: HttpRequest) -> HttpResponse:
        """Render the parts that change; with ``all`` also the expensive ones: charts and outbox."""
        return self._respond(request, live=True)

    def _respond(self, request: HttpRequest, *, live: bool) -> HttpResponse:
        span = request.GET.get("span", "")
        span = span if span in SPANS else "hour"
        source, error = None, ""
        try:
            broker = connections.hurried_broker()
            source = SNAPSHOTS.latest(broker, span if "all" in request.GET or not live else "")
        except (QueueUnavailable, Misconfigured, RedisError) as failure:
            error = str(failure)
        context: dict[str, Any] = {
            "live": live,
            "view": DashboardText(self, request, source),
            "error": error,
            "columns": COLUMNS,
            "spans": [(label, f"?span={name}", name == span) for name, label in SPAN_NAMES.items()],
            "parts_url": f"{self.url('parts')}?{request.GET.urlencode()}",
        }
        status = 503 if error else 200
        if live:
            parts = "django_delayq/admin/dashboard_parts.html"
            response: HttpResponse = TemplateResponse(request, parts, context, status=status)
        else:
            title = capfirst(str(self.opts.verbose_name))
            response = self.render(request, "dashboard", title, context, status=status)
        if error:
            response["Retry-After"] = "5"
        return response


class DashboardText:
    """Texts of one response, with the links that the user may follow; without a snapshot those of an empty page."""

    def __init__(self, pages: DashboardAdmin, request: HttpRequest, source: DashboardSnapshot | None) -> None:
        label, user = pages.opts.app_label, request.user
        may_see = user.has_perm(f"{label}.view_queueentry")
        self.pages = pages
        self.text = request.GET.get("q", "").strip()[:64]
        self.source = source or DashboardSnapshot(Snapshot(0.0))
        self.is_empty = source is None
        self._totals, self._rates = self.source.snapshot.totals, self.source.snapshot.rates()
        self.see_jobs = user.has_perm(f"{label}.view_livejob")
        self._jobs_url = pages.url_of("livejob", "changelist") if self.see_jobs else ""
        self.queues_url = pages.url_of("queueentry", "changelist") if may_see else ""
        self.may_pause = bool(self.queues_url) and user.has_perm(f"{label}.pause_queueentry")
        permitted = [one for one in WORKER_ACTIONS if user.has_perm(f"{label}.{one.permission}_queueentry")]
        self.commands = [(_label(one), one.name) for one in permitted] if self.queues_url else []

    @property
    def time(self) -> str:
        """Time of the snapshot."""
        return clock(self.source.snapshot.now_ms)

    @property
    def slow(self) -> str:
        """Reason why the page is updated so seldom; "" if it is not."""
        if self.source.next_ms <= SLOW_MS:
            return ""
        text = _("live, every %(time)s, because a snapshot takes %(cost)s")
        return text % {"time": duration(self.source.next_ms / 1000), "cost": millis(self.source.cost_ms)}

    @property
    def warnings(self) -> list[str]:
        """Warnings that need an operator's attention."""
        return [one.text for one in warnings_of(self.source.snapshot)]

    @property
    def tiles(self) -> list[tuple[str, str, str, str, str, bool]]:
        """(key, name, text, URL, meaning, is late) of the totals."""
        totals, rates, depths = self._totals, self._rates, self.source.depths
        p50, p99 = (depths[-1].p50_ms, depths[-1].p99_ms) if depths else (None, None)
        texts = {
            **{place: grouped(getattr(totals, place)) for place in PLACES},
            "lag": duration(totals.lag_seconds),
            "busy": f"{grouped(totals.busy)} / {grouped(totals.threads)}",
            "done_rate": rate(rates.done),
            "failing_rate": rate(rates.failing),
            "p50": millis(p50),
            "p99": millis(p99),
        }
        limit_ms = conf().admin.late_after * 1000
        late = {"lag": totals.lag_seconds * 1000 > limit_ms, "p50": (p50 or 0) > limit_ms, "p99": (p99 or 0) > limit_ms}
        return [
            (
                key,
                str(name),
                NOTHING if self.is_empty else texts[key],
                jobs_url(self.pages, key) if key in PLACES and self.see_jobs else "",
                str(MEANINGS.get(key, "")),
                late.get(key, False),
            )
            for key, name in TILES
        ]

    # -- charts ------------------------------------------------------------------------------------------------------

    @cached_property
    def charts(self) -> list[Chart]:
        """Charts over time, each with a row of this moment where there is a value for it, and of what falls due."""
        if not self.source.span:
            return []
        rates, depths = self._rates, self.source.depths
        values = (rates.done, rates.failing, rates.scheduled)
        now = self._now([(rate(value), number(value)) for value in values]) if rates.done is not None else []
        head = ((_("Time"), 0), (_("done"), 1), (_("failing"), 2), (_("scheduled"), 3))
        points = depth_rows(depths, lambda one: [(rate(n), number(n)) for n in (one.done, one.failing, one.scheduled)])
        throughput = Chart("dq-throughput", _("Throughput"), _("jobs per second"), head, [*now, *points], kind="lines")
        late_head, note = ((_("Time"), 0), ("p50", 1), ("p99", 2)), _("start after due time, log scale")
        points = depth_rows(depths, lambda one: [(millis(n), number(n)) for n in (one.p50_ms, one.p99_ms)])
        lateness = Chart("dq-lateness", _("Lateness"), note, late_head, points, kind="lines", log="ms")
        depth = depth_chart([*self._now(depth_cells(self._totals)), *depth_rows(depths)])
        return [throughput, lateness, depth, self._backlog()]

    def _now(self, cells: Any) -> list[Row]:
        return [timed_row(self.source.snapshot.now_ms, cells, 60)]

    def _backlog(self) -> Chart:
        """Return the chart of what falls due: in each minute or hour of the span."""
        span = self.source.span
        due, *bins, later = self.source.snapshot.backlog or (0,) * (SPANS[span][0] + 2)
        unit = _("min") if span == "hour" else _("h")
        rows = [
            Row(f"{place}–{place + 1} {unit}", [(grouped(count), str(count))], brief=f"{place} {unit}")
            for place, count in enumerate(bins)
        ]
        text = _("due now %(due)s · %(span)s %(soon)s · later %(later)s · as of %(time)s")
        numbers = {"due": grouped(due), "soon": grouped(sum(bins)), "later": grouped(later)}
        summary = text % {**numbers, "span": SPAN_NAMES[span], "time": self.time}
        return Chart("dq-backlog", _("Falls due"), "", ((_("Due"), 0), (_("Jobs"), 1)), rows, summary)

    # -- queues ------------------------------------------------------------------------------------------------------

    @cached_property
    def _found(self) -> list[QueueStatus]:
        text = self.text.lower()
        return [queue for queue in self.source.snapshot.queues if text in queue.name.lower()]

    @property
    def queues_note(self) -> str:
        """Note on how many of the queues are shown."""
        found, total = len(self._found), len(self.source.snapshot.queues)
        if found > MOST_QUEUES:
            numbers = {"shown": grouped(MOST_QUEUES), "found": grouped(found)}
            return _("%(shown)s of %(found)s; type a part of a name to find others") % numbers
        return grouped(total) if found == total else f"{grouped(found)} / {grouped(total)}"

    @cached_property
    def queues(self) -> list[SafeString]:
        """Rows of the queue table: those with the largest lag, then the fullest; late ones first, then by name."""
        limit = conf().admin.late_after
        chosen = sorted(self._found, key=lambda queue: (queue.lag_seconds, queue.counts.live), reverse=True)
        chosen = sorted(chosen[:MOST_QUEUES], key=lambda queue: (queue.lag_seconds <= limit, queue.name))
        row = _ROW.replace("{link}", _LINK if self.queues_url else _NO_LINK)
        row = row.replace("{button}", _BUTTON if self.may_pause else "")
        verbs = {"resume": escape(_("Resume")), "pause": escape(_("Pause"))}
        return [self._row(row, queue, verbs, limit) for queue in chosen]

    def _row(self, row: str, queue: QueueStatus, verbs: Mapping[str, str], limit: float) -> SafeString:
        """Return a row of the queue table. The template of a loop takes five times as long.

        Numbers need no escaping, which is half of what a row costs.
        """
        verb, lag = "resume" if queue.paused else "pause", queue.lag_seconds
        return format_html(
            row,
            name=queue.name,
            url=_page_url(self.queues_url, queue.name, "change"),
            paused=format_html(_PAUSED, PAUSED_NAMES[queue.paused]) if queue.paused else _EMPTY,
            numbers=SafeString(_NUMBERS.join(grouped(getattr(queue.counts, place)) for place in PLACES)),
            late=_LATE if lag > limit else _EMPTY,
            lag=SafeString(duration(lag)),
            rate=SafeString(rate(self.source.snapshot.rates(queue).done)),
            verb=verbs[verb],
            verb_url=_page_url(self.queues_url, queue.name, verb),
        )

    # -- workers -----------------------------------------------------------------------------------------------------

    @cached_property
    def workers(self) -> list[dict[str, Any]]:
        """Worker processes and their jobs: lost ones first, because they need attention, then by name."""
        workers = sorted(self.source.snapshot.workers, key=lambda worker: (not worker.lost, worker.name))
        jobs = running(self.source.snapshot)
        return [
            self._worker(worker, [job for name, job in jobs if name == worker.name])
            for worker in workers[:MOST_WORKERS]
        ]

    @property
    def workers_note(self) -> str:
        """Note on workers that are left out."""
        return _more(len(self.source.snapshot.workers) - MOST_WORKERS)

    def _worker(self, worker: WorkerStatus, jobs: Sequence[RunningJob]) -> dict[str, Any]:
        now_ms = self.source.snapshot.now_ms
        pid = _("pid %d") % worker.pid if worker.pid is not None else ""
        memory = filesizeformat(worker.rss_mib * 2**20) if worker.rss_mib is not None else ""
        seen = {"ago": duration((now_ms - worker.seen_ms) / 1000), "time": clock(worker.seen_ms)}
        return {
            "status": worker,
            "facts": " · ".join(filter(None, (worker.host, pid, listed(worker.queues), memory))),
            "busy": _("%(running)s of %(threads)s busy") % {"running": worker.running, "threads": worker.threads},
            "seen": _("last heartbeat %(ago)s ago, at %(time)s") % seen,
            "jobs": [self._job(job, now_ms) for job in jobs],
            "commands": [
                (label, _page_url(self.queues_url, worker.name, verb, "workers/")) for label, verb in self.commands
            ],
            "note": _more(0 if worker.lost else len(worker.jobs) - len(jobs)),
        }

    def _job(self, job: RunningJob, now_ms: float) -> dict[str, Any]:
        lease_ms = self.source.leases.get((job.queue, job.id))
        ident = job.id if self.see_jobs else ""
        since = {"time": millis(max(0.0, now_ms - job.started_ms)), "start": clock(job.started_ms)}
        return {
            "task": job.task,
            "id": f"{ident} +{job.ids - 1}".strip() if job.ids > 1 else ident,
            "url": _page_url(self._jobs_url, f"{job.queue}/{job.id}", "change"),
            "since": _("for %(time)s, since %(start)s") % since,
            "lease": "" if lease_ms is None else _("lease: %s") % millis(max(0.0, lease_ms - now_ms)),
        }

    # -- servers -----------------------------------------------------------------------------------------------------

    @property
    def redis(self) -> Facts:
        """Facts about the Redis server."""
        return [] if self.is_empty else _redis_facts(self.source.snapshot.redis)

    @property
    def outbox(self) -> Facts:
        """Facts about durable jobs; empty if the outbox is."""
        stock = self.source.snapshot.outbox
        if stock is None or not any(stock.values()):
            return []
        waiting = grouped(stock["waiting"])
        if stock["oldest_waiting_seconds"] is not None:
            since = duration(stock["oldest_waiting_seconds"])
            waiting = _("%(n)s, the oldest for %(time)s") % {"n": waiting, "time": since}
        return [
            (_("To be sent"), waiting),
            (_("Sent, not done yet"), grouped(stock["sent"])),
            (_("In the morgue"), grouped(stock["buried"])),
            (_("Refused"), grouped(stock["refused"])),
        ]


def _page_url(listed: str, name: str, page: str, folder: str = "") -> str:
    """Return the URL of a page of what a list has; "" without the URL of that. Made here, since reversing is slow."""
    return f"{listed}{folder}{url_quote(quote(name))}/{page}/" if listed else ""


def _label(verb: Action) -> str:
    return f"{verb.title}…" if verb.asks else str(verb.title)


def _more(count: int) -> str:
    """Return a note on what is left out; "" if nothing is."""
    return _("%s more are not shown.") % grouped(count) if count > 0 else ""


def _redis_facts(redis: RedisStatus) -> Facts:
    """Return (name, text) of the main facts about the server."""
    server = [
        redis.version,
        redis.mode if redis.mode != "standalone" else "",
        redis.role if redis.role != "master" else "",
        ngettext("%d node", "%d nodes", redis.nodes) % redis.nodes if redis.nodes > 1 else "",
    ]
    memory = NOTHING if redis.used_memory is None else filesizeformat(redis.used_memory)
    if redis.used_memory_peak is not None:
        memory = _("%(used)s, peak %(peak)s") % {"used": memory, "peak": filesizeformat(redis.used_memory_peak)}
    limit = filesizeformat(redis.maxmemory) if redis.maxmemory else _("no limit")
    saved = NOTHING if redis.rdb_last_save_seconds is None else _("%s ago") % duration(redis.rdb_last_save_seconds)
    log = _("append-only file: on") if redis.aof else _("append-only file: off")
    return [
        (_("Server"), ", ".join(filter(None, server)) or NOTHING),
        (_("Up for"), NOTHING if redis.uptime_seconds is None else duration(redis.uptime_seconds)),
        (_("Memory"), memory),
        (_("Limit"), f"{limit}, {redis.maxmemory_policy or NOTHING}"),
        (_("Persistence"), f"{log}; {_('last snapshot: %s') % saved}"),
        (_("Clients"), NOTHING if redis.clients is None else grouped(redis.clients)),
        (_("Commands per second"), NOTHING if redis.ops_per_sec is None else grouped(redis.ops_per_sec)),
    ]

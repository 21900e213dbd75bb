"""View model of the dashboard: the texts of its template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..settings.conf import conf
from ..status import warnings_of
from ..status.snapshot import PLACES
from .charts import number
from .dashboard_charts import DashboardCharts, lateness_of
from .dashboard_facts import Facts, outbox_facts, redis_facts, worker_facts
from .dashboard_query import DashboardQuery
from .dashboard_rates import counters_of
from .dashboard_shards import ShardMap
from .dashboard_snapshots import DashboardSnapshot, running
from .formatting import NOTHING, clock, duration, grouped, millis, rate
from .places import PLACE_MEANINGS
from .queue_view_model import PAUSED_NAMES

if TYPE_CHECKING:
    from ..status import Change, QueueStatus, RunningJob, WorkerStatus
    from .dashboard_urls import DashboardUrls

#: maximum number of queues and workers on a page
MOST_QUEUES: Final = 100
MOST_WORKERS: Final = 50
#: interval from which on the page explains why it is updated so seldom, ms
SLOW_MS: Final = 5_000
#: key and name of each total
TILES: Final = (
    ("lag", gettext_lazy("lag")),
    ("busy", gettext_lazy("busy threads")),
    ("delayed", gettext_lazy("delayed")),
    ("ready", gettext_lazy("ready")),
    ("reserved", gettext_lazy("reserved")),
    ("gated", gettext_lazy("gated")),
    ("failed", gettext_lazy("failed")),
    ("morgue", gettext_lazy("in the morgue")),
    ("done_rate", gettext_lazy("done per second")),
    ("failing_rate", gettext_lazy("failing per second")),
    ("p50", gettext_lazy("lateness, p50")),
    ("p99", gettext_lazy("lateness, p99")),
)


@dataclass(frozen=True)
class DashboardView:
    """Texts of one response.

    Attributes:
        source: the snapshot; one without a span has no backlog, shards and outbox.
        query: the query.
        urls: URLs of the linked pages.
        change: difference from an earlier snapshot; without one no rates are shown.
    """

    source: DashboardSnapshot
    query: DashboardQuery
    urls: DashboardUrls
    change: Change | None

    @property
    def full(self) -> bool:
        """True if the snapshot has the expensive parts."""
        return bool(self.source.span)

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
    def counters(self) -> str:
        """Counters that the page returns with a later request."""
        return counters_of(self.source.snapshot, self._listed)

    @property
    def warnings(self) -> list[str]:
        """Warnings that need an operator's attention."""
        return [one.text for one in warnings_of(self.source.snapshot)]

    @property
    def totals(self) -> dict[str, str]:
        """Texts of the tiles."""
        totals, change = self.source.snapshot.totals, self.change.total if self.change else None
        p50, p99 = lateness_of(change)
        return {
            **{place: grouped(getattr(totals, place)) for place in PLACES},
            "lag": duration(totals.lag_seconds),
            "busy": f"{grouped(totals.busy)} / {grouped(totals.threads)}",
            "done_rate": rate(change.done if change else None),
            "failing_rate": rate(change.failing if change else None),
            "p50": millis(p50),
            "p99": millis(p99),
        }

    @property
    def late(self) -> frozenset[str]:
        """Keys of the totals that exceed ``ADMIN["late_after"]``."""
        p50, p99 = lateness_of(self.change.total if self.change else None)
        lag_ms = self.source.snapshot.totals.lag_seconds * 1000
        limit_ms = conf().admin.late_after * 1000
        return frozenset(key for key, ms in (("lag", lag_ms), ("p50", p50), ("p99", p99)) if (ms or 0) > limit_ms)

    @cached_property
    def charts(self) -> DashboardCharts:
        """Charts over time, and of what falls due."""
        return DashboardCharts(self.source, self.change.total if self.change else None)

    # -- queues ------------------------------------------------------------------------------------------------------

    @cached_property
    def _found(self) -> list[QueueStatus]:
        return self.query.matching(self.source)

    @cached_property
    def _listed(self) -> list[QueueStatus]:
        return self._found[:MOST_QUEUES]

    @property
    def queues_note(self) -> str:
        """Note on how many of the queues are shown."""
        matching, total = len(self._found), len(self.source.snapshot.queues)
        if matching > MOST_QUEUES:
            numbers = {"shown": grouped(MOST_QUEUES), "found": grouped(matching)}
            return _("%(shown)s of %(found)s; type a part of a name to find others") % numbers
        if matching < total:
            return _("%(found)s of %(total)s") % {"found": grouped(matching), "total": grouped(total)}
        return grouped(total)

    @cached_property
    def queues(self) -> list[dict[str, Any]]:
        """Rows of the queue table."""
        return [self._queue(queue) for queue in self._listed]

    def _queue(self, queue: QueueStatus) -> dict[str, Any]:
        name = queue.name
        rates = self.change.queues.get(name) if self.change else None
        verb, label = ("resume", _("Resume")) if queue.paused else ("pause", _("Pause"))
        return {
            "name": name,
            "url": self.urls.queue(name),
            "paused": PAUSED_NAMES.get(queue.paused, ""),
            "places": [(place, grouped(getattr(queue.counts, place)), self.urls.jobs(place, name)) for place in PLACES],
            "lag": duration(queue.lag_seconds),
            "is_late": queue.lag_seconds > conf().admin.late_after,
            "done": rate(rates.done if rates else None),
            "rate": number(rates.done if rates else None),
            "verb": label,
            "verb_url": self.urls.verb(verb, name),
        }

    @cached_property
    def shards(self) -> ShardMap:
        """Heat map of the shards."""
        return ShardMap(self._listed, self.query.heat)

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
        return more_note(len(self.source.snapshot.workers) - MOST_WORKERS)

    def _worker(self, worker: WorkerStatus, jobs: Sequence[RunningJob]) -> dict[str, Any]:
        now_ms = self.source.snapshot.now_ms
        busy = {"running": worker.running, "threads": worker.threads}
        seen = {"ago": duration((now_ms - worker.seen_ms) / 1000), "time": clock(worker.seen_ms)}
        return {
            "status": worker,
            "facts": worker_facts(worker),
            "busy": _("%(running)s of %(threads)s busy") % busy,
            "seen": _("last heartbeat %(ago)s ago, at %(time)s") % seen,
            "jobs": [self._job(job, now_ms) for job in jobs],
            "commands": self.urls.commands(worker.name),
            "note": more_note(0 if worker.lost else len(worker.jobs) - len(jobs)),
        }

    def _job(self, job: RunningJob, now_ms: float) -> dict[str, Any]:
        lease_ms = self.source.leases.get((job.queue, job.id))
        ident = job.id if self.urls.see_jobs else ""
        return {
            "key": f"{job.slot}/{job.started_ms}/{job.queue}/{ident}",
            "task": job.task,
            "id": f"{ident} +{job.ids - 1}".strip() if job.ids > 1 else ident,
            "url": self.urls.job(job.queue, job.id),
            "since": _("for %(time)s, since %(start)s")
            % {"time": millis(max(0.0, now_ms - job.started_ms)), "start": clock(job.started_ms)},
            "lease": "" if lease_ms is None else _("lease: %s") % millis(max(0.0, lease_ms - now_ms)),
        }

    # -- servers -----------------------------------------------------------------------------------------------------

    @property
    def redis(self) -> Facts:
        """Facts about the Redis server."""
        return redis_facts(self.source.snapshot.redis)

    @cached_property
    def outbox(self) -> Facts:
        """Facts about the outbox."""
        return outbox_facts(self.source.snapshot.outbox)


def tiles(view: DashboardView | None, urls: DashboardUrls) -> list[tuple[str, str, str, str, str]]:
    """Return (key, name, text, URL, meaning) of the totals."""
    texts = view.totals if view else {}
    return [
        (
            key,
            str(name),
            texts.get(key, NOTHING),
            urls.jobs(key) if key in PLACES else "",
            str(PLACE_MEANINGS.get(key, "")),
        )
        for key, name in TILES
    ]


def more_note(count: int) -> str:
    """Return a note on what is left out; "" if nothing is."""
    return _("%s more are not shown.") % grouped(count) if count > 0 else ""

"""All metrics: name, meaning, what to do about it, and how each is read from a snapshot of the deployment.

The table in the documentation is generated from this list. Prometheus and OpenTelemetry export the same values.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from operator import attrgetter
from typing import Any, Final, TypeAlias

from .. import __version__, connections
from ..core.errors import DelayQError
from ..core.figures import Histogram
from ..core.redis.faults import REDIS_ERRORS
from ..status import QueueStatus, Snapshot, WorkerStatus, take

logger: Final = logging.getLogger(__name__)

Value: TypeAlias = float | Histogram
#: label values, in the order of the metric's labels → value
Values: TypeAlias = dict[tuple[str, ...], Value]
#: what a reader may return: a value, None (there is none), or values by label values
Reading: TypeAlias = Value | Mapping[Any, Value] | None

#: suffixes of names in base units, and the unit in OpenTelemetry (UCUM); other metrics are plain numbers
_UNITS: Final = {"_seconds": "s", "_bytes": "By", "_total": "1"}
_STATES: Final = ("delayed", "ready", "reserved", "gated", "morgue")


class Metric:
    """Definition of one metric.

    Attributes:
        name: in Prometheus, in base units; counters end in ``_total``.
        kind: gauge, counter or histogram (of seconds).
        otel, unit: name and unit in OpenTelemetry, made of the name: ``delayq.redis_memory_used`` and ``By`` for
            ``delayq_redis_memory_used_bytes``. It has no observable histogram, so those are for Prometheus only.
        help: what it means, and what to do about it.
        labels: in the order of the values.
    """

    def __init__(
        self, name: str, help: str, read: Callable[[Any], Reading], *labels: str, is_histogram: bool = False
    ) -> None:
        self.name = name
        self.kind = "histogram" if is_histogram else "counter" if name.endswith("_total") else "gauge"
        self.help = help
        self.labels = labels
        suffix = next((suffix for suffix in _UNITS if name.endswith(suffix)), "")
        self.otel = f"delayq.{name.removeprefix('delayq_').removesuffix(suffix)}"
        self.unit = _UNITS.get(suffix, "1")
        self._read = read

    @property
    def samples(self) -> tuple[str, ...]:
        """Names under which its values are exported to Prometheus."""
        parts = ("_bucket", "_sum", "_count") if self.kind == "histogram" else ("",)
        return tuple(f"{self.name}{part}" for part in parts)

    def values(self, snapshot: Snapshot) -> Values:
        """Return its values, by label values."""
        return dict(_by_labels(self._read(snapshot)))


class QueueMetric(Metric):
    """Metric of each queue of a snapshot that is counted in full: a part of its counters would look like a reset."""

    def __init__(self, name: str, help: str, read: Callable[[QueueStatus], Reading], *labels: str) -> None:
        super().__init__(name, help, read, "queue", *labels)

    def values(self, snapshot: Snapshot) -> Values:
        complete = (queue for queue in snapshot.queues if not queue.counts.unreachable)
        return {(queue.name, *key): value for queue in complete for key, value in _by_labels(self._read(queue))}


def _by_labels(reading: Reading) -> Iterator[tuple[tuple[str, ...], Value]]:
    if isinstance(reading, Mapping):
        yield from ((key if isinstance(key, tuple) else (key,), value) for key, value in reading.items())
    elif reading is not None:
        yield (), reading


# -- readers of more than an attribute -------------------------------------------------------------------------------


def _counters(names: Iterable[str], queue: QueueStatus) -> Mapping[str, float]:
    """Return counters of a queue.

    Those that are still 0, too: a rate would miss the rise of a series that did not exist before.
    """
    return {name: queue.counts.counters.get(name, 0) for name in names}


def _live(snapshot: Snapshot) -> list[WorkerStatus]:
    return [worker for worker in snapshot.workers if not worker.lost]


def _sum(name: str, snapshot: Snapshot) -> float | None:
    """Return a sum over the live workers; None if the registry did not answer."""
    values = (getattr(worker, name) or 0 for worker in _live(snapshot))
    return sum(values) if snapshot.has_registry else None


def _workers(snapshot: Snapshot) -> Mapping[str, float]:
    if not snapshot.has_registry:
        return {}
    live = _live(snapshot)
    stopping = sum(worker.stopping for worker in live)
    return {"running": len(live) - stopping, "stopping": stopping, "lost": len(snapshot.workers) - len(live)}


def _queue_workers(snapshot: Snapshot) -> Mapping[str, float]:
    workers = [worker for worker in _live(snapshot) if worker.threads > 0 and not worker.quarantine]
    serving = Counter(name for worker in workers for name in set(worker.queues))
    queues = [queue for queue in snapshot.queues if queue.kind == "python"]
    return {queue.name: serving[queue.name] for queue in queues} if snapshot.has_registry else {}


def _longest_runs(snapshot: Snapshot) -> Mapping[str, float]:
    """Return how long the oldest attempt of each queue has been running, as reported by workers."""
    longest = dict.fromkeys((queue.name for queue in snapshot.queues), 0.0)
    for job in (job for worker in _live(snapshot) for job in worker.jobs):
        if job.started_ms and job.queue in longest:
            longest[job.queue] = max(longest[job.queue], (snapshot.now_ms - job.started_ms) / 1000)
    return longest if snapshot.has_registry else {}


def _priority_lags(queue: QueueStatus) -> Mapping[str, float]:
    lags = queue.counts.lag_by_priority
    return {str(priority): lag for priority, lag in lags.items()} if len(lags) > 1 else {}


def _outbox(snapshot: Snapshot) -> Mapping[str, float]:
    stock = snapshot.outbox
    if stock is None:
        return {}
    return {"waiting": stock["waiting"], "sent": stock["sent"], "buried": stock["buried"], "refused": stock["refused"]}


def _outbox_age(snapshot: Snapshot) -> float | None:
    return None if snapshot.outbox is None else snapshot.outbox["oldest_waiting_seconds"] or 0.0


def _redis_info(snapshot: Snapshot) -> Mapping[tuple[str, ...], float]:
    redis = snapshot.redis
    return {(redis.version, redis.mode, redis.role, redis.maxmemory_policy or ""): 1.0}


def _redis_errors(snapshot: Snapshot) -> Mapping[str, float]:
    return {label: count for (name, label), count in snapshot.figures.counts.items() if name == "redis_error"}


# -- the list --------------------------------------------------------------------------------------------------------

#: counters of a queue in Redis that are one metric with a label
RESULTS: Final = ("created", "changed", "refused")
OUTCOMES: Final = ("acked", "failed", "timeout", "crashed", "released", "buried", "expired", "superseded")
VERBS: Final = ("cancelled", "run_now", "deleted", "killed", "kicked", "discarded", "trimmed")


#: the first ones have no reader but what :func:`measure` adds
UP: Final = Metric(
    "delayq_up",
    "1: Redis answered. 0: it did not, and nothing else is exported; check Redis and the network.",
    lambda _: 1.0,
)
SCRAPE: Final = Metric(
    "delayq_scrape_seconds",
    "Duration of this collection. Near the scrape timeout: scrape less often, or raise the timeout.",
    lambda _: None,
)
CLOCK_SKEW: Final = Metric(
    "delayq_clock_skew_seconds",
    "Clock of the responding machine minus Redis's clock, about. Jobs follow Redis's clock; above a second: check NTP "
    "on both.",
    lambda _: None,
)

METRICS: Final = (
    UP,
    Metric(
        "delayq_info",
        "Always 1; the release of django_delayq in the responding process.",
        lambda _: {__version__: 1.0},
        "version",
    ),
    SCRAPE,
    CLOCK_SKEW,
    Metric(
        "delayq_producers_paused",
        "1: the producers of all queues are paused, so no queue takes new jobs. Resume: delayq_queue resume-producers.",
        lambda snapshot: float(snapshot.producers_paused_ms is not None),
    ),
    # queues
    QueueMetric(
        "delayq_jobs",
        "Jobs by state: delayed, ready, reserved (running), gated (new content behind a running attempt) and morgue. "
        "Ready grows: add workers. Morgue grows: repair its jobs.",
        lambda queue: {state: getattr(queue.counts, state) for state in _STATES},
        "state",
    ),
    QueueMetric(
        "delayq_failed_jobs",
        "Jobs that failed at least once and wait for their next attempt; also counted as delayed or ready.",
        attrgetter("counts.failed"),
    ),
    QueueMetric(
        "delayq_quarantined_jobs",
        "Jobs whose process died during an attempt and that wait to run alone in one; also counted as delayed or "
        "ready. Stays above 0: no worker with a supervisor serves the queue, or its quarantine processes are busy.",
        attrgetter("counts.quarantine"),
    ),
    QueueMetric(
        "delayq_parked_jobs",
        "Due jobs that wait for a free permit of their task (`concurrency`); also counted as ready. Grows: raise the "
        "limit, or make the task faster.",
        attrgetter("counts.parked"),
    ),
    QueueMetric(
        "delayq_lag_seconds",
        "Seconds by which the longest waiting job is overdue, except those in quarantine or behind a limit. Grows: too "
        "few workers, none, or the queue is paused.",
        attrgetter("lag_seconds"),
    ),
    QueueMetric(
        "delayq_priority_lag_seconds",
        "The same for each priority of a queue that has used several. Grows for one while more urgent ones stay low: "
        "it starves; add workers, or set starve_after.",
        _priority_lags,
        "priority",
    ),
    QueueMetric("delayq_queue_shards", "Shards of the queue.", attrgetter("shards")),
    Metric(
        "delayq_queue_unreachable_shards",
        "Shards on nodes of a cluster that do not answer. Above 0 the queue has no other values.",
        lambda snapshot: {queue.name: len(queue.counts.unreachable) for queue in snapshot.queues},
        "queue",
    ),
    QueueMetric(
        "delayq_queue_paused",
        "1: the queue is paused in this direction (in: new jobs are refused, out: no jobs are reserved).",
        lambda queue: {direction: float(queue.paused in (direction, "both")) for direction in ("in", "out")},
        "direction",
    ),
    Metric(
        "delayq_queue_workers",
        "Worker processes that serve the queue. 0 for a queue with ready jobs: start one. Queues of kind pull have "
        "none.",
        _queue_workers,
        "queue",
    ),
    Metric(
        "delayq_longest_run_seconds",
        "Duration of the oldest running attempt, as of the last heartbeat. Longer than any should take: dump that "
        "worker's stacks.",
        _longest_runs,
        "queue",
    ),
    QueueMetric(
        "delayq_reaper_hold_seconds",
        "Seconds until leases are reaped again after an outage or a restart of Redis, or a jump of its clock.",
        lambda queue: max(0.0, queue.counts.hold_ms / 1000),
    ),
    QueueMetric(
        "delayq_settled_marks",
        "Ended durable jobs that are not recorded in the database yet. Grows: no dispatcher runs.",
        attrgetter("counts.marks"),
    ),
    QueueMetric(
        "delayq_scheduled_total",
        "Scheduled jobs: created, changed (the id was waiting or running already) or refused (tries that found the "
        "queue paused, or their shard or id full; a job that found room later counts, too).",
        partial(_counters, RESULTS),
        "result",
    ),
    QueueMetric(
        "delayq_reserved_total",
        "Reserved jobs, with any outcome.",
        lambda queue: queue.counts.counters.get("reserved", 0),
    ),
    QueueMetric(
        "delayq_settled_total",
        "Ends of leases by outcome. acked: done. failed, timeout, crashed: counted attempts. buried: to the morgue. "
        "released: back, not counted (a stop, a lost worker). expired: too late to be of use. superseded: newer "
        "content took the place.",
        partial(_counters, OUTCOMES),
        "outcome",
    ),
    QueueMetric(
        "delayq_stale_settlements_total",
        "Settlements after the lease was lost, which changed nothing. More than a few: processes freeze for longer "
        "than a lease, or cannot reach Redis.",
        lambda queue: queue.counts.counters.get("late", 0),
    ),
    QueueMetric(
        "delayq_interventions_total",
        "Jobs changed by callers, people and limits: cancelled, run_now, deleted and killed (failed jobs), kicked and "
        "discarded (out of the morgue), trimmed (the morgue was full, or they were too old).",
        partial(_counters, VERBS),
        "verb",
    ),
    QueueMetric(
        "delayq_lost_bodies_total",
        "Jobs whose content Redis has lost. Above 0: run delayq_fsck, and check Redis's eviction policy.",
        lambda queue: queue.counts.counters.get("lost_body", 0),
    ),
    Metric(
        "delayq_start_lateness_seconds",
        "From the due time to the start of each attempt. Late with idle workers: check Redis; late with busy workers: "
        "add workers.",
        attrgetter("figures.lateness"),
        "queue",
        is_histogram=True,
    ),
    Metric(
        "delayq_run_seconds", "Duration of each attempt.", attrgetter("figures.run"), "queue", "task", is_histogram=True
    ),
    # workers
    Metric(
        "delayq_workers",
        "Worker processes: running, stopping, lost (no heartbeat for 30 seconds). None running: start one.",
        _workers,
        "state",
    ),
    Metric(
        "delayq_dispatchers",
        "Processes with a dispatcher. 0: no expired lease is reaped and no outbox is relayed; start one.",
        partial(_sum, "dispatcher"),
    ),
    Metric("delayq_worker_threads", "Threads of the live workers.", partial(_sum, "threads")),
    Metric(
        "delayq_worker_busy",
        "Threads that run a job now. All threads busy while the lag grows: add workers.",
        partial(_sum, "running"),
    ),
    Metric(
        "delayq_worker_resident_bytes",
        "Resident memory of all live workers together.",
        lambda snapshot: None if (mib := _sum("rss_mib", snapshot)) is None else mib * 1024 * 1024,
    ),
    # the outbox of durable jobs
    Metric(
        "delayq_outbox_rows",
        "Durable jobs in the database: waiting (to be sent), sent, buried, refused (see delayq_reconcile --refused).",
        _outbox,
        "state",
    ),
    Metric(
        "delayq_outbox_oldest_age_seconds",
        "Age of the oldest row that waits to be sent; 0 = none. Grows: no dispatcher runs, or Redis refuses.",
        _outbox_age,
    ),
    # Redis
    Metric(
        "delayq_redis_info",
        "Always 1; the server. Of a cluster the first master; the other numbers are totals of all masters.",
        _redis_info,
        "version",
        "mode",
        "role",
        "policy",
    ),
    Metric(
        "delayq_redis_memory_used_bytes",
        "Memory that Redis uses. Near delayq_redis_memory_max_bytes schedule() is refused; give it more in time.",
        attrgetter("redis.used_memory"),
    ),
    Metric("delayq_redis_memory_peak_bytes", "Peak memory of Redis.", attrgetter("redis.used_memory_peak")),
    Metric(
        "delayq_redis_memory_max_bytes", "Memory limit of Redis (maxmemory); 0 = none.", attrgetter("redis.maxmemory")
    ),
    Metric(
        "delayq_redis_uptime_seconds",
        "Seconds since the start of Redis; a fall is a restart.",
        attrgetter("redis.uptime_seconds"),
    ),
    Metric("delayq_redis_clients", "Connections to Redis.", attrgetter("redis.clients")),
    Metric(
        "delayq_redis_commands_per_second",
        "Present rate of commands from all clients.",
        attrgetter("redis.ops_per_sec"),
    ),
    Metric(
        "delayq_redis_evicted_keys_total",
        "Keys that Redis evicted. Above 0: set maxmemory-policy noeviction, then run delayq_fsck.",
        attrgetter("redis.evicted_keys"),
    ),
    Metric(
        "delayq_redis_aof",
        "1: Redis keeps an append-only file. 0: a restart loses the changes since its last snapshot.",
        lambda snapshot: float(snapshot.redis.aof),
    ),
    Metric(
        "delayq_redis_saved",
        "0: the last write of the append-only file or of a snapshot failed; check the disk of Redis.",
        lambda snapshot: float(snapshot.redis.aof_ok and snapshot.redis.rdb_ok),
    ),
    Metric(
        "delayq_redis_last_save_age_seconds",
        "Seconds since the last snapshot.",
        attrgetter("redis.rdb_last_save_seconds"),
    ),
    Metric(
        "delayq_redis_replicas",
        "Connected replicas. Fewer than configured: a failover has fewer candidates, or loses more.",
        attrgetter("redis.replicas"),
    ),
    Metric(
        "delayq_redis_errors_total",
        "Calls to Redis that failed in workers and in processes that pull, by kind. transient: a restart or the "
        "network. overload: it is full. saturation: too few connections. config: change the configuration.",
        _redis_errors,
        "class",
    ),
    Metric(
        "delayq_script_seconds",
        'Duration of calls of each script; only with METRICS = {"scripts": True}.',
        attrgetter("figures.script"),
        "script",
        is_histogram=True,
    ),
    Metric(
        "delayq_fsck_violations",
        "Violations found by the last delayq_fsck. Above 0: run it again and follow its advice.",
        lambda snapshot: snapshot.figures.counts.get(("fsck", "violations")),
    ),
    Metric(
        "delayq_fsck_timestamp_seconds",
        "Time of the last delayq_fsck, Unix time.",
        lambda snapshot: None if (ms := snapshot.figures.counts.get(("fsck", "at_ms"))) is None else ms / 1000,
    ),
)
#: metric by its name without the prefix
BY_NAME: Final[Mapping[str, Metric]] = {metric.name.removeprefix("delayq_"): metric for metric in METRICS}


# -- reading ---------------------------------------------------------------------------------------------------------


def measure() -> dict[Metric, Values]:
    """Return every metric that has values, in at most 6 round trips. While Redis is down: only ``delayq_up``, 0."""
    began = time.time()
    try:
        # A stalled Redis would block the thread for minutes, and a scraper with a shorter timeout would not see it.
        snapshot = take(connections.hurried_broker())
    except (DelayQError, *REDIS_ERRORS) as error:
        logger.warning("no metrics, Redis does not answer: %s", error)
        return {UP: {(): 0.0}}
    ended = time.time()
    skew = clock_skew(began, ended, snapshot.now_ms / 1000)
    return read(snapshot) | {CLOCK_SKEW: {(): skew}, SCRAPE: {(): ended - began}}


def read(snapshot: Snapshot) -> dict[Metric, Values]:
    """Return the values of a snapshot by metric."""
    return {metric: values for metric in METRICS if (values := metric.values(snapshot))}


def clock_skew(began: float, ended: float, redis: float) -> float:
    """Return the seconds by which this machine's clock is ahead of Redis's.

    ``redis`` is the reading of Redis's clock, taken between ``began`` and ``ended`` on this machine's clock.
    """
    return began - redis if redis < began else min(0.0, ended - redis)


def table() -> str:
    """Return the metrics as a Markdown table for the documentation."""
    lines = ["| name | labels | OpenTelemetry | meaning |", "|---|---|---|---|"]
    for metric in METRICS:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        otel = "" if metric.kind == "histogram" else f"`{metric.otel}`"
        lines.append(f"| `{metric.name}` ({metric.kind}) | {labels} | {otel} | {metric.help} |")
    return "\n".join(lines)

"""All metrics: name, meaning, what to do about it, and how each is read from a snapshot of the deployment.

A metric is a function: its name is that of the metric without ``delayq_``, its docstring the help text. The table in
the documentation is made from them. Prometheus and OpenTelemetry export the same values.
"""

from __future__ import annotations

import inspect
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from .. import __version__, connections
from ..core.errors import DelayQError
from ..core.figures import Histogram
from ..core.redis.faults import REDIS_ERRORS
from ..status import QueueStatus, Snapshot, take

logger: Final = logging.getLogger(__name__)

Value: TypeAlias = float | Histogram
#: label values, in the order of the metric's labels → value
Values: TypeAlias = dict[tuple[str, ...], Value]
#: what a reader may return: a value, None (there is none), or values by label values
Reading: TypeAlias = Value | Mapping[Any, Value] | None

#: suffixes of names in base units, and the unit in OpenTelemetry (UCUM); other metrics are plain numbers
_UNITS: Final = {"_seconds": "s", "_bytes": "By", "_total": "1"}
_STATES: Final = ("delayed", "ready", "reserved", "gated", "morgue")
#: counters of a queue in Redis that are one metric with a label
RESULTS: Final = ("created", "changed", "refused")
OUTCOMES: Final = ("acked", "failed", "timeout", "crashed", "released", "buried", "expired", "superseded")
VERBS: Final = ("cancelled", "run_now", "deleted", "killed", "kicked", "discarded", "trimmed")


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

    def __init__(self, read: Callable[[Any], Reading], labels: tuple[str, ...], *, histogram: bool = False) -> None:
        name = read.__name__
        self.name = f"delayq_{name}"
        self.kind = "histogram" if histogram else "counter" if name.endswith("_total") else "gauge"
        self.help = " ".join((inspect.getdoc(read) or "").split())
        self.labels = labels
        suffix = next((suffix for suffix in _UNITS if name.endswith(suffix)), "")
        self.otel = f"delayq.{name.removesuffix(suffix)}"
        self.unit = _UNITS.get(suffix, "1")
        self._read = read

    def values(self, snapshot: Snapshot) -> Values:
        """Return its values, by label values."""
        return dict(_by_labels(self._read(snapshot)))


class QueueMetric(Metric):
    """Metric of each queue of a snapshot that is counted in full: a part of its counters would look like a reset."""

    def values(self, snapshot: Snapshot) -> Values:
        complete = (queue for queue in snapshot.queues if not queue.counts.unreachable)
        return {(queue.name, *key): value for queue in complete for key, value in _by_labels(self._read(queue))}


def _by_labels(reading: Reading) -> Iterator[tuple[tuple[str, ...], Value]]:
    if isinstance(reading, Mapping):
        yield from ((key if isinstance(key, tuple) else (key,), value) for key, value in reading.items())
    elif reading is not None:
        yield (), reading


def metric(*labels: str, histogram: bool = False) -> Callable[[Callable[[Snapshot], Reading]], Metric]:
    """Define a metric by the function that reads it from a snapshot."""
    return lambda read: Metric(read, labels, histogram=histogram)


def queue_metric(*labels: str) -> Callable[[Callable[[QueueStatus], Reading]], Metric]:
    """Define a metric by the function that reads it from a queue of a snapshot."""
    return lambda read: QueueMetric(read, ("queue", *labels))


def _counters(names: Iterable[str], queue: QueueStatus) -> Mapping[str, float]:
    """Return counters of a queue.

    Those that are still 0, too: a rate would miss the rise of a series that did not exist before.
    """
    return {name: queue.counts.counters.get(name, 0) for name in names}


def _sum(name: str, snapshot: Snapshot) -> float | None:
    """Return a sum over the live workers; None if the registry did not answer."""
    values = (getattr(worker, name) or 0 for worker in snapshot.alive)
    return sum(values) if snapshot.has_registry else None


# -- the responding process; what has no reading is added by :func:`measure` -------------------------------------------


@metric()
def up(_: Snapshot) -> Reading:
    """1: Redis answered. 0: it did not, and nothing else is exported; check Redis and the network."""
    return 1.0


@metric("version")
def info(_: Snapshot) -> Reading:
    """Always 1; the release of django_delayq in the responding process."""
    return {__version__: 1.0}


@metric()
def scrape_seconds(_: Snapshot) -> Reading:
    """Duration of this collection. Near the scrape timeout: scrape less often, or raise the timeout."""
    return None


@metric()
def clock_skew_seconds(_: Snapshot) -> Reading:
    """Clock of the responding machine minus Redis's clock, about.

    Jobs follow Redis's clock; above a second: check NTP on both.
    """
    return None


@metric()
def producers_paused(snapshot: Snapshot) -> Reading:
    """1: the producers of all queues are paused, so no queue takes new jobs.

    Resume: delayq_queue resume-producers.
    """
    return float(snapshot.producers_paused_ms is not None)


# -- queues ------------------------------------------------------------------------------------------------------------


@queue_metric("state")
def jobs(queue: QueueStatus) -> Reading:
    """Jobs by state: delayed, ready, reserved (running), gated (new content behind a running attempt) and morgue.

    Ready grows: add workers. Morgue grows: repair its jobs.
    """
    return {state: getattr(queue.counts, state) for state in _STATES}


@queue_metric()
def failed_jobs(queue: QueueStatus) -> Reading:
    """Jobs that failed at least once and wait for their next attempt; also counted as delayed or ready."""
    return queue.counts.failed


@queue_metric()
def quarantined_jobs(queue: QueueStatus) -> Reading:
    """Jobs whose process died during an attempt and that wait to run alone in one; also counted as delayed or ready.

    Stays above 0: no worker with a supervisor serves the queue, or its quarantine processes are busy.
    """
    return queue.counts.quarantine


@queue_metric()
def parked_jobs(queue: QueueStatus) -> Reading:
    """Due jobs of groups, and those behind a limit of their task or queue; also counted as ready.

    Grows: see delayq_status, which names the limits; raise them, make the tasks faster, or add workers.
    """
    return queue.counts.parked


@queue_metric()
def parked_seconds(queue: QueueStatus) -> Reading:
    """Seconds since the first of the parked jobs was due. Grows: its limit, or no worker, lets it wait."""
    return queue.counts.parked_seconds


@queue_metric()
def lag_seconds(queue: QueueStatus) -> Reading:
    """Seconds by which the longest waiting job is overdue, except those in quarantine or behind a limit.

    Grows: too few workers, none, or the queue is paused.
    """
    return queue.lag_seconds


@queue_metric("priority")
def priority_lag_seconds(queue: QueueStatus) -> Reading:
    """The same for each priority of a queue that has used several.

    Grows for one while more urgent ones stay low: it starves; add workers, or set starve_after.
    """
    lags = queue.counts.lag_by_priority
    return {str(priority): lag for priority, lag in lags.items()} if len(lags) > 1 else {}


@queue_metric()
def queue_shards(queue: QueueStatus) -> Reading:
    """Shards of the queue."""
    return queue.shards


@metric("queue")
def queue_unreachable_shards(snapshot: Snapshot) -> Reading:
    """Shards on nodes of a cluster that do not answer. Above 0 the queue has no other values."""
    return {queue.name: len(queue.counts.unreachable) for queue in snapshot.queues}


@queue_metric("direction")
def queue_paused(queue: QueueStatus) -> Reading:
    """1: the queue is paused in this direction (in: new jobs are refused, out: no jobs are reserved)."""
    return {direction: float(queue.is_paused(direction)) for direction in ("in", "out")}


@metric("queue")
def queue_workers(snapshot: Snapshot) -> Reading:
    """Worker processes that serve the queue.

    0 for a queue with ready jobs: start one. Queues of kind pull have none.
    """
    workers = [worker for worker in snapshot.alive if worker.threads > 0 and not worker.quarantine]
    serving = Counter(name for worker in workers for name in set(worker.queues))
    queues = [queue for queue in snapshot.queues if queue.kind == "python"]
    return {queue.name: serving[queue.name] for queue in queues} if snapshot.has_registry else {}


@metric("queue")
def longest_run_seconds(snapshot: Snapshot) -> Reading:
    """Duration of the oldest running attempt, as of the last heartbeat.

    Longer than any should take: dump that worker's stacks.
    """
    longest = dict.fromkeys((queue.name for queue in snapshot.queues), 0.0)
    for job in (job for worker in snapshot.alive for job in worker.jobs):
        if job.started_ms and job.queue in longest:
            longest[job.queue] = max(longest[job.queue], (snapshot.now_ms - job.started_ms) / 1000)
    return longest if snapshot.has_registry else {}


@queue_metric()
def reaper_hold_seconds(queue: QueueStatus) -> Reading:
    """Seconds until leases are reaped again after an outage or a restart of Redis, or a jump of its clock."""
    return max(0.0, queue.counts.hold_ms / 1000)


@queue_metric()
def settled_marks(queue: QueueStatus) -> Reading:
    """Ended durable jobs that are not recorded in the database yet. Grows: no dispatcher runs."""
    return queue.counts.marks


@queue_metric("result")
def scheduled_total(queue: QueueStatus) -> Reading:
    """Scheduled jobs: created, changed (the id was waiting or running already) or refused (tries that found the queue
    paused, or their shard or id full; a job that found room later counts, too).
    """
    return _counters(RESULTS, queue)


@queue_metric()
def reserved_total(queue: QueueStatus) -> Reading:
    """Reserved jobs, with any outcome."""
    return queue.counts.counters.get("reserved", 0)


@queue_metric("outcome")
def settled_total(queue: QueueStatus) -> Reading:
    """Ends of leases by outcome.

    acked: done. failed, timeout, crashed: counted attempts. buried: to the morgue. released: back, not counted (a stop,
    a lost worker). expired: too late to be of use. superseded: newer content took the place.
    """
    return _counters(OUTCOMES, queue)


@queue_metric()
def stale_settlements_total(queue: QueueStatus) -> Reading:
    """Settlements after the lease was lost, which changed nothing.

    More than a few: processes freeze for longer than a lease, or cannot reach Redis.
    """
    return queue.counts.counters.get("late", 0)


@queue_metric("verb")
def interventions_total(queue: QueueStatus) -> Reading:
    """Jobs changed by callers, people and limits: cancelled, run_now, deleted and killed (failed jobs), kicked and
    discarded (out of the morgue), trimmed (the morgue was full, or they were too old).
    """
    return _counters(VERBS, queue)


@queue_metric()
def lost_bodies_total(queue: QueueStatus) -> Reading:
    """Jobs whose content Redis has lost. Above 0: run delayq_fsck, and check Redis's eviction policy."""
    return queue.counts.counters.get("lost_body", 0)


@metric("queue", histogram=True)
def start_lateness_seconds(snapshot: Snapshot) -> Reading:
    """From the due time to the start of each attempt.

    Late with idle workers: check Redis; late with busy workers: add workers.
    """
    return snapshot.figures.lateness


@metric("queue", "task", histogram=True)
def run_seconds(snapshot: Snapshot) -> Reading:
    """Duration of each attempt."""
    return snapshot.figures.run


# -- workers -----------------------------------------------------------------------------------------------------------


@metric("state")
def workers(snapshot: Snapshot) -> Reading:
    """Worker processes: running, stopping, lost (no heartbeat for 30 seconds). None running: start one."""
    if not snapshot.has_registry:
        return {}
    alive = snapshot.alive
    stopping = sum(worker.stopping for worker in alive)
    return {"running": len(alive) - stopping, "stopping": stopping, "lost": len(snapshot.workers) - len(alive)}


@metric()
def dispatchers(snapshot: Snapshot) -> Reading:
    """Processes with a dispatcher. 0: no expired lease is reaped and no outbox is relayed; start one."""
    return _sum("dispatcher", snapshot)


@metric()
def worker_threads(snapshot: Snapshot) -> Reading:
    """Threads of the live workers."""
    return _sum("threads", snapshot)


@metric()
def worker_busy(snapshot: Snapshot) -> Reading:
    """Threads that run a job now. All threads busy while the lag grows: add workers."""
    return _sum("running", snapshot)


@metric()
def worker_resident_bytes(snapshot: Snapshot) -> Reading:
    """Resident memory of all live workers together."""
    return None if (mib := _sum("rss_mib", snapshot)) is None else mib * 1024 * 1024


# -- the outbox of durable jobs ----------------------------------------------------------------------------------------


@metric("state")
def outbox_rows(snapshot: Snapshot) -> Reading:
    """Durable jobs in the database: waiting (to be sent), sent, buried, refused (see delayq_reconcile --refused)."""
    stock = snapshot.outbox
    return stock and {state: stock[state] for state in ("waiting", "sent", "buried", "refused")}


@metric()
def outbox_oldest_age_seconds(snapshot: Snapshot) -> Reading:
    """Age of the oldest row that waits to be sent; 0 = none. Grows: no dispatcher runs, or Redis refuses."""
    return None if snapshot.outbox is None else snapshot.outbox["oldest_waiting_seconds"] or 0.0


# -- Redis -------------------------------------------------------------------------------------------------------------


@metric("version", "mode", "role", "policy")
def redis_info(snapshot: Snapshot) -> Reading:
    """Always 1; the server. Of a cluster the first master; the other numbers are totals of all masters."""
    redis = snapshot.redis
    return {(redis.version, redis.mode, redis.role, redis.maxmemory_policy or ""): 1.0}


@metric()
def redis_memory_used_bytes(snapshot: Snapshot) -> Reading:
    """Memory that Redis uses. Near delayq_redis_memory_max_bytes schedule() is refused; give it more in time."""
    return snapshot.redis.used_memory


@metric()
def redis_memory_peak_bytes(snapshot: Snapshot) -> Reading:
    """Peak memory of Redis."""
    return snapshot.redis.used_memory_peak


@metric()
def redis_memory_max_bytes(snapshot: Snapshot) -> Reading:
    """Memory limit of Redis (maxmemory); 0 = none."""
    return snapshot.redis.maxmemory


@metric()
def redis_uptime_seconds(snapshot: Snapshot) -> Reading:
    """Seconds since the start of Redis; a fall is a restart."""
    return snapshot.redis.uptime_seconds


@metric()
def redis_clients(snapshot: Snapshot) -> Reading:
    """Connections to Redis."""
    return snapshot.redis.clients


@metric()
def redis_commands_per_second(snapshot: Snapshot) -> Reading:
    """Present rate of commands from all clients."""
    return snapshot.redis.ops_per_sec


@metric()
def redis_evicted_keys_total(snapshot: Snapshot) -> Reading:
    """Keys that Redis evicted. Above 0: set maxmemory-policy noeviction, then run delayq_fsck."""
    return snapshot.redis.evicted_keys


@metric()
def redis_aof(snapshot: Snapshot) -> Reading:
    """1: Redis keeps an append-only file. 0: a restart loses the changes since its last snapshot."""
    return float(snapshot.redis.aof)


@metric()
def redis_saved(snapshot: Snapshot) -> Reading:
    """0: the last write of the append-only file or of a snapshot failed; check the disk of Redis."""
    return float(snapshot.redis.aof_ok and snapshot.redis.rdb_ok)


@metric()
def redis_last_save_age_seconds(snapshot: Snapshot) -> Reading:
    """Seconds since the last snapshot."""
    return snapshot.redis.rdb_last_save_seconds


@metric()
def redis_replicas(snapshot: Snapshot) -> Reading:
    """Connected replicas. Fewer than configured: a failover has fewer candidates, or loses more."""
    return snapshot.redis.replicas


@metric("class")
def redis_errors_total(snapshot: Snapshot) -> Reading:
    """Calls to Redis that failed in workers and in processes that pull, by kind.

    transient: a restart or the network. overload: it is full. saturation: too few connections. config: change the
    configuration.
    """
    return {label: count for (name, label), count in snapshot.figures.counts.items() if name == "redis_error"}


@metric("script", histogram=True)
def script_seconds(snapshot: Snapshot) -> Reading:
    """Duration of calls of each script; only with METRICS = {"scripts": True}."""
    return snapshot.figures.script


@metric()
def fsck_violations(snapshot: Snapshot) -> Reading:
    """Violations found by the last delayq_fsck. Above 0: run it again and follow its advice."""
    return snapshot.figures.counts.get(("fsck", "violations"))


@metric()
def fsck_timestamp_seconds(snapshot: Snapshot) -> Reading:
    """Time of the last delayq_fsck, Unix time."""
    return None if (ms := snapshot.figures.counts.get(("fsck", "at_ms"))) is None else ms / 1000


METRICS: Final = tuple(one for one in list(vars().values()) if isinstance(one, Metric))


# -- reading ---------------------------------------------------------------------------------------------------------


def measure() -> dict[Metric, Values]:
    """Return every metric that has values, in at most 6 round trips. While Redis is down: only ``delayq_up``, 0."""
    began = time.time()
    try:
        # A stalled Redis would block the thread for minutes, and a scraper with a shorter timeout would not see it.
        snapshot = take(connections.hurried_broker(), limits=False)
    except (DelayQError, *REDIS_ERRORS) as error:
        logger.warning("no metrics, Redis does not answer: %s", error)
        return {up: {(): 0.0}}
    ended = time.time()
    skew = clock_skew(began, ended, snapshot.now_ms / 1000)
    return read(snapshot) | {clock_skew_seconds: {(): skew}, scrape_seconds: {(): ended - began}}


def read(snapshot: Snapshot) -> dict[Metric, Values]:
    """Return the values of a snapshot by metric."""
    return {metric: values for metric in METRICS if (values := metric.values(snapshot))}


def clock_skew(began: float, ended: float, redis: float) -> float:
    """Return the seconds by which this machine's clock is ahead of Redis's.

    ``redis`` is the reading of Redis's clock, taken between ``began`` and ``ended`` on this machine's clock.
    """
    return began - redis if redis < began else min(0.0, ended - redis)

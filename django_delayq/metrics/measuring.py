"""Current values of all metrics from one snapshot of the deployment, for Prometheus and OpenTelemetry alike."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

from .. import __version__, connections
from ..core.errors import DelayQError
from ..core.figures import Figures, Histogram
from ..core.redis.faults import REDIS_ERRORS
from ..status import QueueStatus, RedisStatus, Snapshot, WorkerStatus, take
from . import names, redis_names
from .metric import MOST_LABELS, OTHER, Metric
from .names import COUNTERS

logger: Final = logging.getLogger(__name__)

Value: TypeAlias = float | Histogram
#: label values, in the order of the metric's labels → value
Values: TypeAlias = dict[tuple[str, ...], Value]
_Sample: TypeAlias = tuple[Metric, tuple[str, ...], Value]
_STATES: Final = ("delayed", "ready", "reserved", "gated", "morgue")


def measure() -> dict[Metric, Values]:
    """Return every metric that has values, in at most 6 round trips. While Redis is down: only ``delayq_up``, 0."""
    began = time.time()
    try:
        # A stalled Redis would block the thread for minutes, and a scraper with a shorter timeout would not see it.
        snapshot = take(connections.hurried_broker())
    except (DelayQError, *REDIS_ERRORS) as error:
        logger.warning("no metrics, Redis does not answer: %s", error)
        return {names.UP: {(): 0.0}}
    ended = time.time()
    values = read(snapshot)
    values[names.CLOCK_SKEW] = {(): skew(began, ended, snapshot.now_ms / 1000)}
    values[names.SCRAPE] = {(): ended - began}
    return values


def skew(began: float, ended: float, redis: float) -> float:
    """Return the seconds by which this machine's clock is ahead of Redis's.

    ``redis`` is the reading of Redis's clock, taken between ``began`` and ``ended`` on this machine's clock.
    """
    return began - redis if redis < began else min(0.0, ended - redis)


def read(snapshot: Snapshot) -> dict[Metric, Values]:
    """Return the values of a snapshot by metric, the number of label values limited by :func:`bounded`."""
    by_metric: dict[Metric, Values] = {}
    for metric, labels, value in _samples(snapshot):
        by_metric.setdefault(metric, {})[labels] = value
    return {metric: bounded(metric, values) for metric, values in by_metric.items()}


def bounded(metric: Metric, values: Values, most: int = MOST_LABELS) -> Values:
    """Return the values with at most ``most`` values of the open labels; the rest is merged into ``other``.

    The first label values in alphabetical order are kept, because that order is the same in every process and at all
    times. An order by frequency would move counts from one label value to another.
    """
    size = metric.open_labels
    chosen = {labels[:size] for labels in values}
    if len(chosen) <= most:
        return values
    kept = set(sorted(chosen)[:most])
    limited: Values = {}
    for labels, value in values.items():
        under = labels if labels[:size] in kept else (OTHER,) * size + labels[size:]
        limited[under] = _merged(metric, limited[under], value) if under in limited else value
    return limited


def _merged(metric: Metric, one: Value, other: Value) -> Value:
    if isinstance(one, Histogram) or isinstance(other, Histogram):
        return one + other  # type: ignore[operator]
    return max(one, other) if metric.merge == "max" else one + other


def _samples(snapshot: Snapshot) -> Iterator[_Sample]:
    yield names.UP, (), 1.0
    yield names.INFO, (__version__,), 1.0
    yield names.PRODUCERS_PAUSED, (), float(snapshot.producers_paused_ms is not None)
    for queue in snapshot.queues:
        yield from _of_queue(queue)
    if snapshot.has_registry:
        yield from _of_workers(snapshot)
    yield from _of_redis(snapshot.redis)
    yield from _of_figures(snapshot.figures)
    kept = snapshot.outbox
    if kept is not None:
        yield names.OUTBOX, ("waiting",), kept["waiting"]
        yield names.OUTBOX, ("sent",), kept["sent"]
        yield names.OUTBOX, ("buried",), kept["buried"]
        yield names.OUTBOX, ("refused",), kept["refused"]
        yield names.OUTBOX_AGE, (), kept["oldest_waiting_seconds"] or 0.0


def _of_queue(queue: QueueStatus) -> Iterator[_Sample]:
    name, counts = queue.name, queue.counts
    yield names.UNREACHABLE, (name,), len(counts.unreachable)
    if counts.unreachable:
        return  # a part of the counters would look like their reset
    for state in _STATES:
        yield names.JOBS, (name, state), getattr(counts, state)
    yield names.FAILED, (name,), counts.failed
    yield names.QUARANTINED, (name,), counts.quarantine
    yield names.PARKED, (name,), counts.parked
    yield names.LAG, (name,), queue.lag_seconds
    lags = counts.lag_by_priority
    for priority, lag in lags.items() if len(lags) > 1 else ():
        yield names.PRIORITY_LAG, (name, str(priority)), lag
    yield names.SHARDS, (name,), queue.shards
    for direction in ("in", "out"):
        yield names.PAUSED, (name, direction), float(queue.paused in (direction, "both"))
    yield names.HOLD, (name,), max(0.0, counts.hold_ms / 1000)
    yield names.MARKS, (name,), counts.marks
    # Also counters that are still 0: a rate would miss the rise of a series that did not exist before.
    for counter, (metric, label) in COUNTERS.items():
        yield metric, (name, label) if label else (name,), counts.counters.get(counter, 0)


def _of_workers(snapshot: Snapshot) -> Iterator[_Sample]:
    live = [worker for worker in snapshot.workers if not worker.lost]
    stopping = sum(worker.stopping for worker in live)
    yield names.WORKERS, ("running",), len(live) - stopping
    yield names.WORKERS, ("stopping",), stopping
    yield names.WORKERS, ("lost",), len(snapshot.workers) - len(live)
    yield names.DISPATCHERS, (), sum(worker.dispatcher for worker in live)
    yield names.WORKER_THREADS, (), sum(worker.threads for worker in live)
    yield names.WORKER_BUSY, (), sum(worker.running for worker in live)
    yield names.WORKER_MEMORY, (), sum(worker.rss_mib or 0 for worker in live) * 1024 * 1024
    serving = Counter(
        name for worker in live if worker.threads > 0 and not worker.quarantine for name in set(worker.queues)
    )
    began = _oldest_runs(live)
    for queue in snapshot.queues:
        if queue.kind == "python":
            yield names.QUEUE_WORKERS, (queue.name,), serving[queue.name]
        oldest = began.get(queue.name, snapshot.now_ms)
        yield names.LONGEST_RUN, (queue.name,), max(0.0, snapshot.now_ms - oldest) / 1000


def _oldest_runs(workers: Sequence[WorkerStatus]) -> dict[str, float]:
    """Return the start of the oldest running attempt of each queue, Unix ms, as reported by workers."""
    starts: dict[str, float] = {}
    for job in (job for worker in workers for job in worker.jobs if job.started_ms):
        starts[job.queue] = min(starts.get(job.queue, math.inf), job.started_ms)
    return starts


def _of_redis(redis: RedisStatus) -> Iterator[_Sample]:
    yield redis_names.REDIS_INFO, (redis.version, redis.mode, redis.role, redis.maxmemory_policy or ""), 1.0
    numbers = (
        (redis_names.REDIS_MEMORY, redis.used_memory),
        (redis_names.REDIS_MEMORY_PEAK, redis.used_memory_peak),
        (redis_names.REDIS_MEMORY_MAX, redis.maxmemory),
        (redis_names.REDIS_UPTIME, redis.uptime_seconds),
        (redis_names.REDIS_CLIENTS, redis.clients),
        (redis_names.REDIS_COMMANDS, redis.ops_per_sec),
        (redis_names.REDIS_EVICTED, redis.evicted_keys),
        (redis_names.REDIS_SAVE_AGE, redis.rdb_last_save_seconds),
        (redis_names.REDIS_REPLICAS, redis.replicas),
        (redis_names.REDIS_AOF, float(redis.aof)),
        (redis_names.REDIS_SAVED, float(redis.aof_ok and redis.rdb_ok)),
    )
    for metric, number in numbers:
        if number is not None:
            yield metric, (), number


def _of_figures(figures: Figures) -> Iterator[_Sample]:
    for queue, histogram in figures.lateness.items():
        yield names.LATENESS, (queue,), histogram
    for (queue, task), histogram in figures.run.items():
        yield names.RUN, (queue, task), histogram
    for script, histogram in figures.script.items():
        yield redis_names.SCRIPT, (script,), histogram
    for (name, label), count in figures.counts.items():
        if name == "redis_error":
            yield redis_names.REDIS_ERRORS, (label,), count
    if ("fsck", "at_ms") in figures.counts:
        yield redis_names.FSCK, (), figures.counts["fsck", "violations"]
        yield redis_names.FSCK_AT, (), figures.counts["fsck", "at_ms"] / 1000

"""Status as JSON, for ``delayq_status --json`` and the HTTP API. Keys are only ever added."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from ..core.figures import Histogram
from ..core.limit_status import LimitStatus
from ..core.times import iso_of
from .formatting import size
from .snapshot import (
    PLACES,
    QueueStatus,
    Rates,
    RecurringStatus,
    RedisStatus,
    Snapshot,
    WorkerStatus,
    by_queue,
    united,
)
from .warnings import idle_beside_due


def as_json(snapshot: Snapshot) -> dict[str, Any]:
    """Return a snapshot as JSON values.

    ``lateness_so_far`` and ``run_so_far`` of a queue are counted since the counters began (the deployment's first
    attempt, or since Redis lost them), with ``count``, ``mean_ms``, ``p50_ms`` and ``p99_ms``. With samples each queue
    and the totals have ``rates``.
    """
    totals = asdict(snapshot.totals)
    totals["lag_seconds"] = round(totals["lag_seconds"], 3)
    totals["lateness_so_far"] = lengths(united(snapshot.figures.lateness.values()))
    totals["run_so_far"] = lengths(united(snapshot.figures.run.values()))
    attempts, idle = by_queue(snapshot.figures.run), idle_beside_due(snapshot)
    behind = {page.queue: page.waiting for page in snapshot.limits}
    values: dict[str, Any] = {
        "now": iso_of(snapshot.now_ms),
        "totals": totals,
        "queues": [
            {
                **_queue(queue, snapshot.figures.lateness.get(queue.name), attempts.get(queue.name)),
                "waiting": [limit_as_json(one) for one in behind.get(queue.name, ())],
                "idle_worker": idle[queue.name].name if queue.name in idle else None,
            }
            for queue in snapshot.queues
        ],
        "workers": [_worker(worker) for worker in snapshot.workers],
        "recurring": [recurring_as_json(one) for one in snapshot.recurring],
        "redis": _redis(snapshot.redis),
        "producers_paused": iso_of(snapshot.producers_paused_ms),
        "unreachable": [asdict(part) for part in snapshot.unreachable],
    }
    if snapshot.outbox is not None:
        values["outbox"] = snapshot.outbox
    if snapshot.samples:
        totals["rates"] = _rates(snapshot.rates(snapshot.totals))
        for shown, queue in zip(values["queues"], snapshot.queues, strict=True):
            shown["rates"] = _rates(snapshot.rates(queue))
    return values


#: values of a queue, and of its counts, that are JSON as they are
_OF_QUEUE: Final = ("name", "paused", "kind", "shards", "epoch", "draining", "scheduled", "done", "failing")
_OF_COUNTS: Final = (*PLACES, "quarantine", "parked", "counters", "marks")


def _queue(queue: QueueStatus, lateness: Histogram | None, run: Histogram | None) -> dict[str, Any]:
    counts = queue.counts
    values: dict[str, Any] = {
        **{name: getattr(queue, name) for name in _OF_QUEUE},
        **{name: getattr(counts, name) for name in _OF_COUNTS},
        "lag_seconds": round(queue.lag_seconds, 3),
        "lag_by_priority": {str(priority): round(lag, 3) for priority, lag in counts.lag_by_priority.items()},
        "starving": None if queue.starving is None else queue.starving.priority,
        "paused_until": {word: iso_of(end) for word, end in queue.paused_until.items()},
        "limits": dict(queue.limits),
        "unreachable_shards": len(counts.unreachable),
        "hold_seconds": round(counts.hold_ms / 1000, 3),
        "lateness_so_far": lengths(lateness),
        "run_so_far": lengths(run),
    }
    if len(counts.backlog) > 2:
        values["backlog"] = list(counts.backlog)
    if counts.shards:
        values["by_shard"] = [
            {
                "shard": number,
                **{place: getattr(one, place) for place in PLACES},
                "lag_seconds": round(one.lag_seconds, 3),
            }
            for number, one in counts.shards
        ]
    return values


def lengths(durations: Histogram | None) -> dict[str, Any]:
    """Return count, mean and quantiles of durations, in ms; None for missing values."""
    histogram = durations or Histogram()
    count = histogram.count
    statistics = {
        "mean_ms": histogram.sum_ms / count if count else None,
        "p50_ms": histogram.quantile(0.5),
        "p99_ms": histogram.quantile(0.99),
    }
    return {"count": count, **{name: None if value is None else round(value, 1) for name, value in statistics.items()}}


def _rates(rates: Rates) -> dict[str, float | None]:
    return {name: None if value is None else round(value, 1) for name, value in asdict(rates).items()}


def _worker(worker: WorkerStatus) -> dict[str, Any]:
    """Return the complete heartbeat payload of a worker of any release, with derived values."""
    return {
        **worker.payload,
        "seen_seconds_ago": round(worker.seconds_ago, 1),
        "lost": worker.lost,
        "jobs": [asdict(job) for job in worker.jobs],
    }


def recurring_as_json(one: RecurringStatus) -> dict[str, Any]:
    """Return a recurring task as JSON values."""
    return {
        "task": one.task,
        "queue": one.queue or None,
        "schedule": one.schedule or None,
        "timezone": one.timezone or None,
        "missed": one.missed or None,
        "last_tick": iso_of(one.last_tick_ms),
        "next_tick": iso_of(one.next_tick_ms),
        "paused": iso_of(one.paused_ms),
    }


def limit_as_json(one: LimitStatus) -> dict[str, Any]:
    """Return a limit and what waits behind it as JSON values."""
    return {
        "kind": one.kind,
        "name": one.subject,
        "concurrency": one.numbers.total,
        "rate": one.per_second,
        "burst": one.numbers.burst or None,
        "at_run_time": one.at_run_time,
        "leases": one.leases,
        "jobs": one.jobs,
        "since": iso_of(one.since_ms),
        "next_start": iso_of(one.next_ms),
    }


def _redis(redis: RedisStatus) -> dict[str, Any]:
    human = None if redis.used_memory is None else size(redis.used_memory)
    return {**asdict(redis), "used_memory_human": human}

"""Status as JSON, for ``delayq_status --json`` and the HTTP API. Keys are only ever added."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from django.template.defaultfilters import filesizeformat

from ..core.figures import Histogram
from ..core.times import iso_of
from ..limits import LimitStatus
from .snapshot import PLACES, QueueStatus, RecurringStatus, Snapshot, WorkerStatus
from .warnings import idle_beside_due

#: values of a queue, and of its counts, that are JSON as they are
_OF_QUEUE: Final = ("name", "paused", "kind", "shards", "epoch", "draining", "limits")
_OF_COUNTS: Final = (*PLACES, "quarantine", "parked", "counters", "marks", "unreachable_shards")


def as_json(snapshot: Snapshot) -> dict[str, Any]:
    """Return a snapshot as JSON values.

    ``lateness_so_far`` and ``run_so_far`` of a queue are counted since the counters began (the deployment's first
    attempt, or since Redis lost them), with ``count``, ``mean_ms``, ``p50_ms`` and ``p99_ms``. With samples each queue
    and the totals have ``rates``.
    """
    figures, redis = snapshot.figures, snapshot.redis
    return {
        "now": iso_of(snapshot.now_ms),
        "totals": {
            **_rounded(vars(snapshot.totals), 3),
            "lateness_so_far": lengths(sum(figures.lateness.values(), Histogram())),
            "run_so_far": lengths(sum(figures.run.values(), Histogram())),
            **_rates(snapshot),
        },
        "queues": _queues(snapshot),
        "workers": list(map(_worker, snapshot.workers)),
        "recurring": list(map(recurring_as_json, snapshot.recurring)),
        "redis": {
            **asdict(redis),
            "used_memory_human": None if redis.used_memory is None else filesizeformat(redis.used_memory),
        },
        "producers_paused": iso_of(snapshot.producers_paused_ms),
        "unreachable": list(map(asdict, snapshot.unreachable)),
        **({} if snapshot.outbox is None else {"outbox": snapshot.outbox}),
    }


def _queues(snapshot: Snapshot) -> list[dict[str, Any]]:
    figures, idle = snapshot.figures, idle_beside_due(snapshot)
    behind = {page.queue: page.waiting for page in snapshot.limits}
    run: dict[str, Histogram] = defaultdict(Histogram)
    for (name, _), attempts in figures.run.items():
        run[name] += attempts
    return [
        {
            **_queue(queue),
            **snapshot.counters(queue),
            "lateness_so_far": lengths(figures.lateness.get(queue.name, Histogram())),
            "run_so_far": lengths(run[queue.name]),
            "waiting": list(map(limit_as_json, behind.get(queue.name, ()))),
            "idle_worker": idle[queue.name].name if queue.name in idle else None,
            **_rates(snapshot, queue),
        }
        for queue in snapshot.queues
    ]


def _queue(queue: QueueStatus) -> dict[str, Any]:
    counts = queue.counts
    return {
        **{name: getattr(queue, name) for name in _OF_QUEUE},
        **{name: getattr(counts, name) for name in _OF_COUNTS},
        "lag_seconds": round(queue.lag_seconds, 3),
        "lag_by_priority": {str(priority): round(lag, 3) for priority, lag in counts.lag_by_priority.items()},
        "starving": None if queue.starving is None else queue.starving.priority,
        "paused_until": {word: iso_of(end) for word, end in queue.paused_until.items()},
        "hold_seconds": round(counts.hold_ms / 1000, 3),
        **({"backlog": list(counts.backlog)} if len(counts.backlog) > 2 else {}),
    }


def lengths(durations: Histogram) -> dict[str, Any]:
    """Return count, mean and quantiles of durations, in ms; None for missing values."""
    count = durations.count
    mean = durations.sum_ms / count if count else None
    values = {"mean_ms": mean, "p50_ms": durations.quantile(0.5), "p99_ms": durations.quantile(0.99)}
    return {"count": count, **_rounded(values, 1)}


def _rates(snapshot: Snapshot, queue: QueueStatus | None = None) -> dict[str, Any]:
    return {"rates": _rounded(asdict(snapshot.rates(queue)), 1)} if snapshot.samples else {}


def _rounded(values: Mapping[str, Any], digits: int) -> dict[str, Any]:
    return {name: round(value, digits) if isinstance(value, float) else value for name, value in values.items()}


def _worker(worker: WorkerStatus) -> dict[str, Any]:
    """Return the complete heartbeat payload of a worker of any release, with derived values."""
    return {
        **worker.payload,
        "seen_seconds_ago": round(worker.seconds_ago, 1),
        "lost": worker.lost,
        "jobs": list(map(asdict, worker.jobs)),
    }


def recurring_as_json(one: RecurringStatus) -> dict[str, Any]:
    """Return a recurring task as JSON values: texts, and moments without the ``_ms`` of their names."""
    return {
        name.removesuffix("_ms"): iso_of(value) if name.endswith("_ms") else value or None
        for name, value in asdict(one).items()
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

"""Data of the dashboard: a snapshot as plain JSON, with the queues filtered and sorted as requested.

Counters and histograms are sent as they are in Redis, and the page computes the difference of two responses. So any
process of the site can answer, and none keeps state for a page.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..core.records.keys import MAX_SHARDS
from ..core.timings import BUCKETS_MS
from ..status.change import united
from .dashboard_snapshots import SPANS, DashboardSnapshot, running
from .dashboard_texts import grouped, outbox_facts, redis_facts, warnings_of, worker_facts

if TYPE_CHECKING:
    from django.http import HttpRequest

    from ..status import QueueStatus, Snapshot, WorkerStatus

__all__ = ["COLUMNS", "HEATS", "PLACES", "DashboardQuery", "answer", "chosen", "level", "wish_of"]

#: maximum number of queues, rows of the heat map, shards in such a row, and workers on a page
MOST_QUEUES: Final = 100
MOST_HEAT_ROWS: Final = 30
MOST_SHARDS: Final = 64
MOST_WORKERS: Final = 50
PLACES: Final = ("delayed", "ready", "reserved", "gated", "failed", "morgue")
HEATS: Final[Mapping[str, Any]] = {
    "ready": gettext_lazy("ready"),
    "delayed": gettext_lazy("delayed"),
    "reserved": gettext_lazy("reserved"),
}
#: columns by which queues can be sorted
COLUMNS: Final = ("name", *PLACES, "lag", "done")
#: colours of the heat map, besides that of zero
LEVELS: Final = 8


@dataclass(frozen=True, slots=True)
class DashboardQuery:
    """Query of the dashboard.

    Attributes:
        text: a part of the names of the queues.
        sort: one of ``COLUMNS``; "" = by lag, then by activity.
        reverse: largest first.
        span: how far the backlog looks ahead, a key of ``SPANS``.
        heat: number that colours the shards, a key of ``HEATS``.
    """

    text: str = ""
    sort: str = ""
    reverse: bool = True
    span: str = "hour"
    heat: str = "ready"


def wish_of(request: HttpRequest) -> DashboardQuery:
    """Return the query of a request; invalid parameters are ignored."""
    asked = request.GET
    sort, span, heat, down = (asked.get(name, "") for name in ("sort", "span", "heat", "down"))
    sort = sort if sort in COLUMNS else ""
    return DashboardQuery(
        text=asked.get("q", "").strip()[:64],
        sort=sort,
        reverse=down == "1" if down in ("0", "1") else sort != "name",
        span=span if span in SPANS else "hour",
        heat=heat if heat in HEATS else "ready",
    )


def chosen(look: DashboardSnapshot, wish: DashboardQuery) -> tuple[list[QueueStatus], int]:
    """Return the queues to show, and how many matched."""
    wanted = wish.text.lower()
    found = [queue for queue in look.snapshot.queues if wanted in queue.name.lower()]
    rates = look.change.queues if look.change is not None else {}

    def done(queue: QueueStatus) -> tuple[float, ...]:
        """Return the rate, or 0 if unknown, and the total."""
        rate = rates.get(queue.name)
        return (rate.done if rate else 0.0, queue.done)

    keys: dict[str, Any] = {
        "name": lambda queue: queue.name,
        "": lambda queue: (
            queue.lag_seconds,
            *done(queue),
            queue.counts.ready,
            queue.counts.reserved,
            queue.counts.delayed,
        ),
        "lag": lambda queue: queue.lag_seconds,
        "done": done,
        **{place: lambda queue, place=place: getattr(queue.counts, place) for place in PLACES},
    }
    found.sort(key=lambda queue: queue.name)
    found.sort(key=keys[wish.sort], reverse=wish.reverse)
    return found[:MOST_QUEUES], len(found)


def answer(look: DashboardSnapshot, wish: DashboardQuery, *, ids: bool) -> dict[str, Any]:
    """Return all data of the page; ``backlog``, ``shards`` and ``outbox`` only if the snapshot has them.

    Args:
        look: the snapshot.
        wish: the query.
        ids: True if the user may see job ids.
    """
    snapshot = look.snapshot
    queues, found = chosen(look, wish)
    lateness = united(snapshot.figures.lateness.values())
    told = {
        "now_ms": snapshot.now_ms,
        "cost_ms": round(look.cost_ms, 1),
        "next_ms": look.next_ms,
        "totals": _totals(snapshot),
        "lateness": list(lateness.counts),
        "bounds_ms": list(BUCKETS_MS),
        "queues": [_queue(queue) for queue in queues],
        "queues_said": _said(len(queues), found, len(snapshot.queues)),
        "workers": [_worker(look, worker, ids=ids) for worker in _workers(snapshot)],
        "workers_more": _more(len(snapshot.workers) - MOST_WORKERS),
        "redis": redis_facts(snapshot.redis),
        "warnings": warnings_of(snapshot),
    }
    if look.span:
        told |= {"backlog": backlog(look), "outbox": outbox_facts(snapshot.outbox)} | _heat(queues)
    return told


def _totals(snapshot: Snapshot) -> dict[str, Any]:
    totals = snapshot.totals
    numbers = {name: getattr(totals, name) for name in (*PLACES, "busy", "threads", "done", "failing", "scheduled")}
    return {**numbers, "lag": round(totals.lag_seconds, 3)}


def _queue(queue: QueueStatus) -> dict[str, Any]:
    return {
        "name": queue.name,
        "paused": queue.paused,
        **{place: getattr(queue.counts, place) for place in PLACES},
        "lag": round(queue.lag_seconds, 3),
        "done": queue.done,
    }


def _said(shown: int, found: int, total: int) -> str:
    """Return a note on how many of the queues are shown."""
    if shown < found:
        words = {"shown": grouped(shown), "found": grouped(found)}
        return _("%(shown)s of %(found)s; type a part of a name to find others") % words
    if found < total:
        return _("%(found)s of %(total)s") % {"found": grouped(found), "total": grouped(total)}
    return grouped(total)


def _more(number: int) -> str:
    return _("%s more are not shown.") % grouped(number) if number > 0 else ""


def _workers(snapshot: Snapshot) -> Sequence[WorkerStatus]:
    """Return the workers to show: lost ones first, because they need attention, then by name."""
    return sorted(snapshot.workers, key=lambda worker: (not worker.lost, worker.name))[:MOST_WORKERS]


def _worker(look: DashboardSnapshot, worker: WorkerStatus, *, ids: bool) -> dict[str, Any]:
    jobs = [job for name, job in running(look.snapshot) if name == worker.name]
    return {
        "name": worker.name,
        "facts": worker_facts(worker),
        "threads": worker.threads,
        "running": worker.running,
        "seen_ms": worker.seen_ms,
        "dispatcher": worker.dispatcher,
        "stopping": worker.stopping,
        "quarantine": worker.quarantine,
        "lost": worker.lost,
        "jobs": [
            {
                "queue": job.queue,
                "id": job.id if ids else "",
                "task": job.task,
                "slot": job.slot,
                "started_ms": job.started_ms,
                "ids": job.ids,
                "lease_ms": look.leases.get((job.queue, job.id)),
            }
            for job in jobs
        ],
        "more": _more(len(worker.jobs) - len(jobs) if not worker.lost else 0),
    }


def backlog(look: DashboardSnapshot) -> dict[str, Any]:
    """Return the backlog: due already, by bars of the span, and later."""
    bars, step_ms = SPANS[look.span]
    due, *bins, later = look.snapshot.backlog or (0,) * (bars + 2)
    return {"span": look.span, "step_ms": step_ms, "due": due, "bins": bins, "later": later}


def _heat(queues: Sequence[QueueStatus]) -> dict[str, Any]:
    """Return the rows of the heat map: one per queue and epoch, [ready, delayed, reserved] of each shard."""
    rows: list[dict[str, Any]] = []
    for queue in queues:
        by_epoch: dict[int, list[list[int]]] = {}
        for number, counts in queue.counts.shards:
            cells = [getattr(counts, name) for name in HEATS]
            by_epoch.setdefault(number // MAX_SHARDS, []).append(cells)
        many = len(by_epoch) > 1
        rows += [
            {
                "name": queue.name,
                "epoch": epoch if many else None,
                "shards": cells[:MOST_SHARDS],
                "more": max(0, len(cells) - MOST_SHARDS),
            }
            for epoch, cells in by_epoch.items()
        ]
    cut = [row["name"] for row in rows if row["more"]]
    said = [_more(len(rows) - MOST_HEAT_ROWS)]
    if cut:
        said.append(
            _("Only the first %(shards)d shards are shown of: %(queues)s")
            % {"shards": MOST_SHARDS, "queues": ", ".join(cut[:5])}
        )
    return {"heat": rows[:MOST_HEAT_ROWS], "heat_more": " ".join(filter(None, said))}


def level(number: int, most: int) -> int:
    """Return the colour of a number, 0 (zero) to ``LEVELS`` (the maximum).

    Scaled by the square root, so that 5 is visible beside 500,000. heatmap.js does the same.
    """
    return math.ceil(LEVELS * math.sqrt(number / max(number, most))) if number > 0 else 0

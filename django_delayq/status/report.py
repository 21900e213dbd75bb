"""Report of ``delayq_status``: a snapshot as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo

from django.template.defaultfilters import filesizeformat

from ..core.times import datetime_of
from .formatting import NOTHING, duration, millis, printable, table
from .snapshot import PLACES, QueueStatus, RecurringStatus, RunningJob, Snapshot, WorkerStatus
from .warnings import warnings_of

if TYPE_CHECKING:
    from ..outbox.durability import Stock

NO_QUEUE: Final = "No queue yet: nothing was ever scheduled."
NO_WORKER: Final = "No worker is running. Start one: manage.py delayq_worker"
#: maximum number of limits in the report
MOST_LIMITS: Final = 20
#: due times that the report counts: within the next hour, and later
HORIZON: Final = (3_600_000,)


def report(snapshot: Snapshot) -> list[str]:
    """Return the report in paragraphs, separated by empty lines.

    Args:
        snapshot: taken with :data:`HORIZON`, or without one; with samples there are rates.
    """
    nothing = snapshot.has_registry  # without the registry queues and workers are only unknown
    paragraphs = [
        [_server_line(snapshot), _totals_line(snapshot)],
        _queues(snapshot) if snapshot.queues else [NO_QUEUE] * nothing,
        _limits(snapshot),
        [_backlog_line(snapshot.backlog)] if len(snapshot.backlog) > 2 else [],
        [_outbox_line(snapshot.outbox)] if snapshot.outbox is not None and any(snapshot.outbox.values()) else [],
        [f"{one.level.ljust(5)} {one.check}: {one.text}" for one in warnings_of(snapshot)],
        list(_workers(snapshot)) or [NO_WORKER] * nothing,
        recurring_table(snapshot.recurring),
    ]
    return [line for lines in paragraphs if lines for line in (*lines, "")][:-1]


def _server_line(snapshot: Snapshot) -> str:
    redis = snapshot.redis
    used = "?" if redis.used_memory is None else filesizeformat(redis.used_memory)
    nodes = f" on {redis.nodes} nodes" if redis.nodes > 1 else ""
    log = "AOF" if redis.aof else "no AOF"
    return f"{datetime_of(snapshot.now_ms):%H:%M:%S} UTC  Redis {redis.version}{nodes}, {used} used, {log}"


def _totals_line(snapshot: Snapshot) -> str:
    sums = snapshot.totals
    pieces = {
        "lag": duration(sums.lag_seconds),
        "busy": f"{sums.busy}/{sums.threads}",
        **{place: getattr(sums, place) for place in PLACES},
        **_rates(snapshot),
    }
    return "  ".join(f"{name} {value}" for name, value in pieces.items())


def _rates(snapshot: Snapshot, queue: QueueStatus | None = None) -> dict[str, str]:
    """Return the rates of a queue or of all by their names, if there are samples."""
    if not snapshot.samples:
        return {}
    rates = snapshot.rates(queue)
    ended = {"done": rates.done, "failing": rates.failing}
    return {
        **{name: NOTHING if rate is None else f"{rate:.1f}/s" for name, rate in ended.items()},
        "late p50": millis(rates.p50_ms),
        "late p99": millis(rates.p99_ms),
    }


def _queues(snapshot: Snapshot) -> list[str]:
    rows = [
        {
            "queue": queue.name,
            **{place: getattr(queue.counts, place) for place in PLACES},
            "lag": duration(queue.lag_seconds),
            **(_rates(snapshot, queue) or {"done": queue.counts.counter("done")}),
            "rules": _rules_of(queue, snapshot.now_ms),
        }
        for queue in snapshot.queues
    ]
    return table(rows)


def _rules_of(queue: QueueStatus, now_ms: float) -> str:
    """Return the pauses and limits of a queue as a short text."""
    words = {"both": "paused", "in": "paused in", "out": "paused out"}.get(queue.paused, "")
    left = [f"{word} {duration((end - now_ms) / 1000)}" for word, end in queue.paused_until.items()]
    words += f" (ends: {', '.join(left)})" if left else ""
    return ", ".join(filter(None, (words, *(f"{name} {value}" for name, value in queue.limits.items()))))


def _limits(snapshot: Snapshot) -> list[str]:
    """Return the limits behind which jobs wait as lines of a table."""
    found = sorted(((page, one) for page in snapshot.limits for one in page.waiting), key=lambda each: -each[1].jobs)
    rows = [
        {
            "queue": page.queue,
            "limit": one.name,
            "running": one.leases if one.numbers.total is None else f"{one.leases}/{one.numbers.total}",
            "rate": one.rate or None,
            "waiting": one.jobs,
            "for": None if one.since_ms is None else duration(max(0.0, snapshot.now_ms - one.since_ms) / 1000),
            "next start": next_start(one.next_ms, snapshot.now_ms),
        }
        for page, one in found[:MOST_LIMITS]
    ]
    left = [f"{len(found) - MOST_LIMITS} more limits have waiting jobs"] if len(found) > MOST_LIMITS else []
    left += [
        f"{printable(page.queue)}: groups behind {printable(page.more)} are not shown; {page.due} jobs are due in all"
        for page in snapshot.limits
        if page.more
    ]
    return [*table(rows, left=2), *left]


def next_start(next_ms: float | None, now_ms: float) -> str:
    """Return in readable form when a limit lets the next job start."""
    if next_ms is None:
        return "when one ends"
    return f"in {duration((next_ms - now_ms) / 1000)}" if next_ms > now_ms else "now"


def _backlog_line(backlog: Sequence[int]) -> str:
    """Return a line with the due times of waiting jobs."""
    ready, *soon, later = backlog
    return f"next hour: {sum(soon)} due, {later} later, {ready} ready now"


def _outbox_line(stock: Stock) -> str:
    """Return the numbers of durable jobs in the database in one line."""
    age = stock["oldest_waiting_seconds"]
    since = "" if age is None else f" (for {duration(age)})"
    return (
        f"outbox: {stock['waiting']} waiting{since}, {stock['sent']} sent, {stock['buried']} buried, "
        f"{stock['refused']} refused"
    )


def _workers(snapshot: Snapshot) -> Iterator[str]:
    """Yield a line for each worker process, followed by the running jobs of its threads."""
    for worker in snapshot.workers:
        yield "  ".join(filter(None, _worker(worker)))
        for job in () if worker.lost else worker.jobs:
            yield f"  {_job(job, snapshot.now_ms)}"


def _worker(worker: WorkerStatus) -> Iterator[str]:
    yield printable(worker.name)
    yield printable(", ".join((*worker.queues, *(f"not {name}" for name in worker.ignored))))
    yield f"busy {worker.running}/{worker.threads}"
    yield "" if worker.rss_mib is None else f"{worker.rss_mib} MiB"
    for mark in ("dispatcher", "quarantine", "stopping"):
        yield mark if getattr(worker, mark) else ""
    yield "lost" if worker.lost else f"{duration(worker.seconds_ago)} ago"


def _job(job: RunningJob, now_ms: float) -> str:
    more = f" and {job.ids - 1} more" if job.ids > 1 else ""
    length = duration(max(0.0, now_ms - job.started_ms) / 1000) if job.started_ms else "?"
    return f"#{job.slot} {length}  {printable(job.task)} {printable(job.id)}{more}  {printable(job.queue)}"


def recurring_table(tasks: Sequence[RecurringStatus]) -> list[str]:
    """Return recurring tasks with their ticks as lines of a table."""
    rows = []
    for one in tasks:
        zone = one.timezone or "UTC"
        last, following = (_local(tick, zone) for tick in (one.last_tick_ms, one.next_tick_ms))
        row = {"recurring task": one.task, "schedule": one.schedule or "not in this project", "time zone": zone}
        rows.append({**row, "last tick": last, "next tick": following if one.paused_ms is None else "paused"})
    return table(rows, left=5)


def _local(tick: float | None, zone: str) -> str | None:
    """Return a tick in local time of the given time zone."""
    return None if tick is None else f"{datetime.fromtimestamp(tick / 1000, ZoneInfo(zone)):%Y-%m-%d %H:%M:%S}"

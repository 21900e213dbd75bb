"""Contents of the screen of ``delayq_status --watch`` for a snapshot, as texts."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ..core.figures import Histogram
from ..core.times import datetime_of
from .change import Change, Rates
from .drawing import (
    NO_QUEUE,
    PRODUCERS_PAUSED,
    no_worker,
    outbox_line,
    rules_of,
    seen,
    server_line,
    spark,
    unreachable_lines,
    waiting_lines,
)
from .formatting import duration, printable, table
from .snapshot import PLACES, QueueStatus, RunningJob, Snapshot, WorkerStatus

#: number of snapshots in a trail
LOOKS: Final = 30
#: the next hour, in steps of two minutes
HORIZON: Final = tuple(range(120_000, 3_600_001, 120_000))
COLUMNS: Final = (
    "queue",
    *PLACES,
    "lag",
    "done/s",
    "failing/s",
    "p50 late",
    "p99 late",
    "trend",
)


@dataclass(slots=True)
class Trail:
    """Rates of done jobs of each queue in the last snapshots, the newest last."""

    done: dict[str, deque[float]] = field(default_factory=dict)

    def add(self, change: Change) -> None:
        """Add the rates of a change; queues that no longer exist are removed."""
        self.done = {name: self.done.get(name) or deque(maxlen=LOOKS) for name in change.queues}
        for name, rates in change.queues.items():
            self.done[name].append(rates.done)

    def of(self, queue: str) -> Sequence[float]:
        """Return the rates of one queue."""
        return tuple(self.done.get(queue, ()))


@dataclass(frozen=True, slots=True)
class Screen:
    """Contents of the screen, top down."""

    server: str
    #: totals of all queues, in pieces
    totals: Sequence[str]
    #: a row of :data:`COLUMNS` for each queue
    queues: Sequence[Sequence[str]]
    #: pauses and limits, due times, outbox, quarantine, jobs behind limits
    notes: Sequence[str]
    workers: Sequence[str]

    def lines(self) -> list[str]:
        """Return all of it as lines of text, for a pipe."""
        queues = table(COLUMNS, self.queues) if self.queues else [NO_QUEUE]
        return [self.server, "  ".join(self.totals), "", *queues, "", *self.notes, "", *self.workers]


def screen(snapshot: Snapshot, change: Change, trail: Trail) -> Screen:
    """Return the contents of the screen.

    Args:
        change: change since the previous snapshot; empty for the first one.
        trail: rates of the snapshots until now, including this one.
    """
    rules = [
        f"{printable(queue.name)}: {text}" for queue in snapshot.queues if (text := rules_of(queue, snapshot.now_ms))
    ]
    rules += [PRODUCERS_PAUSED] if snapshot.producers_paused_ms is not None else []
    outbox = [outbox_line(snapshot.outbox)] if snapshot.outbox is not None and any(snapshot.outbox.values()) else []
    backlog = [backlog_line(snapshot.backlog)] if snapshot.queues else []
    return Screen(
        f"{datetime_of(snapshot.now_ms):%H:%M:%S} UTC  {server_line(snapshot)}",
        totals(snapshot, change),
        [_row(queue, change.queues.get(queue.name, Rates()), trail) for queue in snapshot.queues],
        [*unreachable_lines(snapshot), *rules, *backlog, *outbox, *waiting_lines(snapshot)],
        workers(snapshot) if snapshot.workers else no_worker(snapshot),
    )


def totals(snapshot: Snapshot, change: Change) -> list[str]:
    """Return the totals of all queues, in pieces."""
    all_, rates = snapshot.totals, change.total
    return [
        f"lag {duration(all_.lag_seconds)}",
        f"busy {all_.busy}/{all_.threads}",
        f"delayed {all_.delayed}",
        f"ready {all_.ready}",
        f"failed {all_.failed}",
        f"morgue {all_.morgue}",
        f"done {rates.done:.1f}/s",
        f"failing {rates.failing:.1f}/s",
        f"late p50 {late(rates.lateness, 0.5)}",
        f"p99 {late(rates.lateness, 0.99)}",
    ]


def late(histogram: Histogram, q: float) -> str:
    """Return a quantile of a histogram in readable form."""
    ms = histogram.quantile(q)
    if ms is None:
        return "-"
    return f"{ms:.0f}ms" if ms < 1000 else duration(ms / 1000)


def _row(queue: QueueStatus, rates: Rates, trail: Trail) -> tuple[str, ...]:
    return (
        printable(queue.name),
        *(str(getattr(queue.counts, place)) for place in PLACES),
        duration(queue.lag_seconds),
        f"{rates.done:.1f}",
        f"{rates.failing:.1f}",
        late(rates.lateness, 0.5),
        late(rates.lateness, 0.99),
        spark(trail.of(queue.name)),
    )


def backlog_line(backlog: Sequence[int]) -> str:
    """Return a line with the due times of waiting jobs: ready now, within the hour, later."""
    ready, *soon, later = backlog
    return f"next hour: {sum(soon)} due, {later} later, {ready} ready now  {spark(soon)}"


def workers(snapshot: Snapshot) -> list[str]:
    """Return a line for each worker process, followed by the running jobs of its threads."""
    lines = []
    for worker in snapshot.workers:
        lines.append("  ".join(_worker(worker)))
        if not worker.lost:
            lines += [f"  {_job(job, snapshot.now_ms)}" for job in worker.jobs]
    return lines


def _worker(worker: WorkerStatus) -> list[str]:
    marks: Mapping[str, bool] = {
        "dispatcher": worker.dispatcher,
        "quarantine": worker.quarantine,
        "stopping": worker.stopping,
    }
    queues = printable(", ".join(worker.queues))
    return [
        printable(worker.name),
        *([queues] if queues else []),
        f"busy {worker.running}/{worker.threads}",
        *([] if worker.rss_mib is None else [f"{worker.rss_mib} MiB"]),
        *(word for word, true in marks.items() if true),
        seen(worker),
    ]


def _job(job: RunningJob, now_ms: float) -> str:
    more = f" and {job.ids - 1} more" if job.ids > 1 else ""
    length = duration(max(0.0, now_ms - job.started_ms) / 1000) if job.started_ms else "?"
    return f"#{job.slot} {length}  {printable(job.task)} {printable(job.id)}{more}  {printable(job.queue)}"

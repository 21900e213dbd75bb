"""What ``delayq_status --watch`` draws, each time anew: data in, lines out."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from ..core.timings import Histogram
from .change import Change, Rates
from .drawing import (
    NO_QUEUE,
    NO_WORKER,
    clipped,
    fitted,
    flowing,
    outbox_line,
    quarantine_line,
    regrouped,
    rules_of,
    seen,
    server_line,
    spark,
)
from .formatting import duration, printable
from .snapshot import QueueStatus, RunningJob, Snapshot, WorkerStatus

#: how many looks a trail is long
LOOKS: Final = 30
#: the next hour, in steps of two minutes
HORIZON: Final = tuple(range(120_000, 3_600_001, 120_000))
#: columns of the queues that go first where the terminal is narrow: those of which the totals or other lines say most.
#: What is reserved stays longest, because of a pull queue nothing else says that it is worked on
_DROPPED: Final = ("p50 late", "gated", "failing/s", "p99 late", "rules", "morgue", "failed", "reserved")
_LOOKS_HEAD: Final = "trend"


@dataclass(slots=True)
class Trail:
    """The done/s of each queue in the last looks, the newest last."""

    done: dict[str, deque[float]] = field(default_factory=dict)

    def add(self, change: Change) -> None:
        """What a look found; queues that are no more are forgotten."""
        self.done = {name: self.done.get(name) or deque(maxlen=LOOKS) for name in change.queues}
        for name, rates in change.queues.items():
            self.done[name].append(rates.done)

    def of(self, queue: str) -> Sequence[float]:
        """Those of one queue."""
        return tuple(self.done.get(queue, ()))


def screen(snapshot: Snapshot, change: Change, trail: Trail, width: int, height: int | None = None) -> list[str]:
    """The whole of it, no line wider than ``width``.

    Args:
        change: since the look before; empty at the first one.
        trail: of the looks until now, this one among them.
        height: the most lines; None = as many as there are.
    """
    when = f"{datetime.fromtimestamp(snapshot.now_ms / 1000, UTC):%H:%M:%S} UTC"
    lines = [f"{when}  {server_line(snapshot)}", *flowing(totals(snapshot, change), width), ""]
    lines += queues(snapshot, change, trail, width) if snapshot.queues else [NO_QUEUE]
    if snapshot.queues:
        lines += ["", backlog_line(snapshot.backlog, width)]
    if snapshot.outbox is not None and any(snapshot.outbox.values()):
        lines.append(outbox_line(snapshot.outbox))
    lines += [line] if (line := quarantine_line(snapshot)) else []
    lines += ["", *(workers(snapshot) if snapshot.workers else [NO_WORKER])]
    lines = [clipped(line, width) for line in lines]
    if height is None or len(lines) <= height:
        return lines
    left_out = len(lines) - height + 1
    return [*lines[: height - 1], clipped(f"… {left_out} more lines: make the terminal higher", width)]


def totals(snapshot: Snapshot, change: Change) -> list[str]:
    """All queues together, in pieces."""
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
    """A quantile for people."""
    ms = histogram.quantile(q)
    if ms is None:
        return "-"
    return f"{ms:.0f}ms" if ms < 1000 else duration(ms / 1000)


def queues(snapshot: Snapshot, change: Change, trail: Trail, width: int) -> list[str]:
    """A table of them, and behind each the trail of its done/s: as much of it as there is room for.

    Pauses and limits are told below it where they have no column: a queue that stands still must say why.
    """
    head: tuple[str, ...] = (
        "queue",
        "delayed",
        "ready",
        "reserved",
        "gated",
        "failed",
        "morgue",
        "lag",
        "done/s",
        "failing/s",
        "p50 late",
        "p99 late",
        "rules",
    )
    rows = [_row(queue, change.queues.get(queue.name, Rates())) for queue in snapshot.queues]
    drop: tuple[str, ...] = _DROPPED
    rules = [f"{row[0]}: {row[-1]}" for row in rows if row[-1]]
    if not rules:
        head, rows = head[:-1], [row[:-1] for row in rows]
        drop = tuple(name for name in drop if name in head)
    lines = fitted(head, rows, drop, width - 2 - len(_LOOKS_HEAD))
    widest = max(map(len, lines))
    room = min(LOOKS, width - 2 - widest)
    looks = [spark(trail.of(queue.name)[-room:]) for queue in snapshot.queues] if room > 0 else []
    longest = max(map(len, looks), default=0)
    tails = [_LOOKS_HEAD, *(one.rjust(longest) for one in looks)] if longest else [""] * len(lines)
    drawn = [f"{line.ljust(widest)}  {tail}".rstrip() for line, tail in zip(lines, tails, strict=True)]
    return drawn if "rules" in lines[0].split() else [*drawn, *flowing(rules, width)]


def _row(queue: QueueStatus, rates: Rates) -> tuple[str, ...]:
    counts = queue.counts
    numbers = (counts.delayed, counts.ready, counts.reserved, counts.gated, counts.failed, counts.morgue)
    return (
        printable(queue.name),
        *map(str, numbers),
        duration(queue.lag_seconds),
        f"{rates.done:.1f}",
        f"{rates.failing:.1f}",
        late(rates.lateness, 0.5),
        late(rates.lateness, 0.99),
        rules_of(queue),
    )


def backlog_line(backlog: Sequence[int], width: int) -> str:
    """When what waits falls due: now, within the hour, later."""
    ready, *soon, later = backlog
    words = f"next hour: {sum(soon)} due, {later} later, {ready} ready now"
    room = width - len(words) - 2
    return f"{words}  {spark(regrouped(soon, room))}" if room >= 6 else words


def workers(snapshot: Snapshot) -> list[str]:
    """Each process, and under it what each of its threads runs."""
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

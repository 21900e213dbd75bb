"""Change between two snapshots: a pure function of both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from ..core.figures import Histogram
from .snapshot import QueueStatus, Snapshot

NOTHING: Final = Histogram()


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates of scheduled and ended jobs, per second, and histograms of the lateness and duration of attempts."""

    scheduled: float = 0.0
    done: float = 0.0
    failing: float = 0.0
    lateness: Histogram = NOTHING
    run: Histogram = NOTHING


@dataclass(frozen=True, slots=True)
class Change:
    """Change during ``seconds`` on Redis's clock: in total, by queue, and the attempts by queue and task."""

    seconds: float = 0.0
    total: Rates = Rates()
    queues: Mapping[str, Rates] = field(default_factory=dict)
    runs: Mapping[tuple[str, str], Histogram] = field(default_factory=dict)


def compare(before: Snapshot, after: Snapshot) -> Change:
    """Return the change between two snapshots of a deployment.

    A queue that did not exist before starts at zero. Counters that decreased (the queue was deleted meanwhile, or Redis
    lost them) count as no change.
    """
    seconds = max(0.0, after.now_ms - before.now_ms) / 1000
    then = {queue.name: queue for queue in before.queues}
    lateness = {name: one.since(before.figures.lateness.get(name)) for name, one in after.figures.lateness.items()}
    runs = {name: one.since(before.figures.run.get(name)) for name, one in after.figures.run.items()}
    attempts = by_queue(runs)
    queues = {
        queue.name: _rates(
            then.get(queue.name), queue, seconds, lateness.get(queue.name, NOTHING), attempts.get(queue.name, NOTHING)
        )
        for queue in after.queues
    }
    total = Rates(
        scheduled=round(sum(one.scheduled for one in queues.values()), 3),
        done=round(sum(one.done for one in queues.values()), 3),
        failing=round(sum(one.failing for one in queues.values()), 3),
        lateness=united(lateness.values()),
        run=united(runs.values()),
    )
    return Change(seconds, total, queues, {name: run for name, run in runs.items() if run.count})


def united(histograms: Iterable[Histogram]) -> Histogram:
    """Return the sum of all histograms."""
    return sum(histograms, NOTHING)


def by_queue(runs: Mapping[tuple[str, str], Histogram]) -> dict[str, Histogram]:
    """Return the attempts of all tasks, summed by queue."""
    sums: dict[str, Histogram] = {}
    for (queue, _), run in runs.items():
        sums[queue] = sums[queue] + run if queue in sums else run
    return sums


def _rates(then: QueueStatus | None, now: QueueStatus, seconds: float, lateness: Histogram, run: Histogram) -> Rates:
    if now.counts.unreachable or (then is not None and then.counts.unreachable):
        return Rates(lateness=lateness, run=run)  # a difference would be that of other shards

    def rate(was: int, is_: int) -> float:
        return round(max(0, is_ - was) / seconds, 3) if seconds else 0.0

    return Rates(
        rate(then.scheduled if then else 0, now.scheduled),
        rate(then.done if then else 0, now.done),
        rate(then.failing if then else 0, now.failing),
        lateness,
        run,
    )

"""Snapshots for the dashboard, shared by concurrent requests, with their cost measured."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ..core import figures
from ..core.errors import DelayQError
from ..status import Change, RunningJob, Snapshot, compare, take

if TYPE_CHECKING:
    from ..connections import DjangoBroker
    from ..core.figures import DepthPoint

#: seconds for which a snapshot, or a failure of Redis, is shared
SHARED: Final = 0.9
#: factor between the cost of a snapshot and the polling interval: snapshots take less than 1 % of Redis's time
PAUSE: Final = 100
SHORTEST_MS: Final = 1_000
#: span of the backlog → (number of bars, length of each, ms)
SPANS: Final[Mapping[str, tuple[int, int]]] = {"hour": (60, 60_000), "day": (24, 3_600_000)}
#: running jobs that are shown and whose leases are read
MOST_RUNNING: Final = 48
#: minimum and maximum age of the snapshot that rates of the first page are computed from
_RATE_SECONDS: Final = (1.0, 120.0)
_KEEP: Final = 10.0


@dataclass(frozen=True, slots=True)
class DashboardSnapshot:
    """Snapshot with its cost.

    Attributes:
        span: the key of ``SPANS`` by which the backlog is divided; "" = without backlog, shards and outbox.
        leases: (queue, id) → end of a running job's lease, Unix ms.
        cost_ms: time it took.
        depths: points of the last hour of all queues together; empty without a span.
        change: difference from an earlier snapshot of this process; None if there is no suitable one.
    """

    snapshot: Snapshot
    span: str
    leases: Mapping[tuple[str, str], int]
    cost_ms: float
    change: Change | None = None
    depths: Sequence[DepthPoint] = ()

    @property
    def next_ms(self) -> int:
        """Interval after which a page may poll again, ms."""
        return max(SHORTEST_MS, round(self.cost_ms * PAUSE))


class SnapshotCache:
    """Snapshot cache of this process: one thread takes a snapshot, concurrent ones share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._broker: DjangoBroker | None = None
        self._forget()

    def _forget(self) -> None:
        self._kept: dict[str, tuple[float, DashboardSnapshot]] = {}
        self._error: tuple[float, DelayQError] | None = None
        self._earlier: list[tuple[float, Snapshot]] = []
        self._depths: tuple[int, Sequence[DepthPoint]] | None = None

    def latest(self, broker: DjangoBroker, span: str = "") -> DashboardSnapshot:
        """Return a snapshot that is at most ``SHARED`` seconds old.

        Raises:
            QueueUnavailable, Misconfigured: Redis cannot be queried.
        """
        with self._lock:
            if self._broker is not broker:
                self._broker = broker
                self._forget()
            now = time.monotonic()
            for kept, (at, snapshot) in self._kept.items():
                if now - at < SHARED and span in ("", kept):
                    return snapshot
            # Threads that waited for a failed snapshot fail at once instead of waiting again.
            if self._error is not None and now - self._error[0] < SHARED:
                raise self._error[1]
            try:
                latest = self._take(broker, span)
            except DelayQError as error:
                self._error = time.monotonic(), error
                raise
            self._kept[span] = time.monotonic(), latest
            return latest

    def _take(self, broker: DjangoBroker, span: str) -> DashboardSnapshot:
        began = time.monotonic()
        bars, step = SPANS.get(span, (0, 0))
        horizon = [step * (place + 1) for place in range(bars)]
        snapshot = take(broker, horizon=horizon, by_shard=bool(span), outbox=bool(span))
        leases = _leases(broker, (job for _, job in running(snapshot)))
        cost_ms = (time.monotonic() - began) * 1000
        points = self._depth_points(broker, snapshot.now_ms) if span else ()
        return DashboardSnapshot(snapshot, span, leases, cost_ms, self._change(snapshot), points)

    def _depth_points(self, broker: DjangoBroker, now_ms: float) -> Sequence[DepthPoint]:
        """Return the points of the last hour. There is a new one once a minute, so they are read as often."""
        minute = int(now_ms // 60_000)
        if self._depths is None or self._depths[0] != minute:
            self._depths = minute, figures.read_depths(broker, [figures.TOTAL], now_ms)[figures.TOTAL]
        return self._depths[1]

    def _change(self, snapshot: Snapshot) -> Change | None:
        now = time.monotonic()
        least, most = _RATE_SECONDS
        self._earlier = [one for one in self._earlier if now - one[0] < most]
        before = next((earlier for at, earlier in self._earlier if now - at >= least), None)
        if not self._earlier or now - self._earlier[-1][0] > _KEEP:
            self._earlier = [*self._earlier[-1:], (now, snapshot)]
        return compare(before, snapshot) if before is not None else None


SNAPSHOTS: Final = SnapshotCache()


def running(snapshot: Snapshot) -> list[tuple[str, RunningJob]]:
    """Return (worker, job) for the running jobs that are shown: those that started first."""
    jobs = [(worker.name, job) for worker in snapshot.workers if not worker.lost for job in worker.jobs]
    return sorted(jobs, key=lambda one: one[1].started_ms)[:MOST_RUNNING]


def _leases(broker: DjangoBroker, jobs: Iterable[RunningJob]) -> dict[tuple[str, str], int]:
    """Return the ends of the leases of these jobs, without expired ones. One round trip per node."""
    running_jobs = [(queue, job.id) for job in jobs if (queue := broker.existing(job.queue)) is not None]
    leases = broker.inspector.leases(running_jobs)
    return {
        (queue.name, ident): lease.ends_ms for (queue, ident), lease in zip(running_jobs, leases, strict=True) if lease
    }

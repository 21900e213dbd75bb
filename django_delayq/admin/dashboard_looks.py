"""Looks at a deployment for the dashboard: shared by all who ask at the same moment, and their price is measured."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ..core.errors import DelayQError
from ..status import Change, RunningJob, Snapshot, compare, take

if TYPE_CHECKING:
    from ..connections import DjangoBroker

__all__ = ["LOOKS", "SPANS", "Look", "Looks", "running"]

#: seconds for which a look, or the news that Redis does not answer, is shared
SHARED: Final = 0.9
#: how many times as long as a look takes a page waits for the next one: so it costs Redis less than 1 %
PAUSE: Final = 100
SHORTEST_MS: Final = 1_000
#: what falls due in the next hour, or day: bars, and the length of each, ms
SPANS: Final[Mapping[str, tuple[int, int]]] = {"hour": (60, 60_000), "day": (24, 3_600_000)}
#: running jobs that are shown, and whose leases are asked for
MOST_RUNNING: Final = 48
#: rates of a first picture are taken over so many seconds
_RATE_SECONDS: Final = (1.0, 120.0)
_KEEP: Final = 10.0


@dataclass(frozen=True, slots=True)
class Look:
    """What was found, and what it cost.

    Attributes:
        span: the key of ``SPANS`` by which the backlog is divided; "" = neither that, nor shards, nor outbox.
        leases: by queue and id, when the lease of a running job ends, Unix ms.
        cost_ms: how long it took.
        change: since an earlier look of this process; None when there is none that is of use.
    """

    snapshot: Snapshot
    span: str
    leases: Mapping[tuple[str, str], int]
    cost_ms: float
    change: Change | None = None

    @property
    def next_ms(self) -> int:
        """After how long a page may ask again."""
        return max(SHORTEST_MS, round(self.cost_ms * PAUSE))


class Looks:
    """Of this process. Many threads may ask; one looks, the others get what it found."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._broker: DjangoBroker | None = None
        self._forget()

    def _forget(self) -> None:
        self._kept: dict[str, tuple[float, Look]] = {}
        self._error: tuple[float, DelayQError] | None = None
        self._earlier: list[tuple[float, Snapshot]] = []

    def look(self, broker: DjangoBroker, span: str = "") -> Look:
        """What there is now, or was up to ``SHARED`` seconds ago.

        Raises:
            QueueUnavailable, Misconfigured: Redis cannot be asked.
        """
        with self._lock:
            if self._broker is not broker:
                self._broker = broker
                self._forget()
            now = time.monotonic()
            for kept, (at, look) in self._kept.items():
                if now - at < SHARED and span in ("", kept):
                    return look
            # Whoever waited for a look that failed does not wait as long for another one.
            if self._error is not None and now - self._error[0] < SHARED:
                raise self._error[1]
            try:
                found = self._look(broker, span)
            except DelayQError as error:
                self._error = time.monotonic(), error
                raise
            self._kept[span] = time.monotonic(), found
            return found

    def _look(self, broker: DjangoBroker, span: str) -> Look:
        began = time.monotonic()
        bars, step = SPANS.get(span, (0, 0))
        horizon = [step * (place + 1) for place in range(bars)]
        snapshot = take(broker, horizon=horizon, by_shard=bool(span), outbox=bool(span))
        leases = _leases(broker, (job for _, job in running(snapshot)))
        cost_ms = (time.monotonic() - began) * 1000
        return Look(snapshot, span, leases, cost_ms, self._change(snapshot))

    def _change(self, snapshot: Snapshot) -> Change | None:
        now = time.monotonic()
        least, most = _RATE_SECONDS
        self._earlier = [one for one in self._earlier if now - one[0] < most]
        before = next((earlier for at, earlier in self._earlier if now - at >= least), None)
        if not self._earlier or now - self._earlier[-1][0] > _KEEP:
            self._earlier = [*self._earlier[-1:], (now, snapshot)]
        return compare(before, snapshot) if before is not None else None


LOOKS: Final = Looks()


def running(snapshot: Snapshot) -> list[tuple[str, RunningJob]]:
    """Which worker runs what, as far as it is shown: the jobs that began first."""
    found = [(worker.name, job) for worker in snapshot.workers if not worker.lost for job in worker.jobs]
    return sorted(found, key=lambda one: one[1].started_ms)[:MOST_RUNNING]


def _leases(broker: DjangoBroker, jobs: Iterable[RunningJob]) -> dict[tuple[str, str], int]:
    """When the leases of these jobs end; those that ended meanwhile are left out. One round trip for each node."""
    wanted = [(queue, job.id) for job in jobs if (queue := broker.existing(job.queue)) is not None]
    leases = broker.inspector.leases(wanted)
    return {(queue.name, ident): lease.ends_ms for (queue, ident), lease in zip(wanted, leases, strict=True) if lease}

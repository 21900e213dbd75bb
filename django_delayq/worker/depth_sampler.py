"""Duty that samples the depth of all queues once a minute (:mod:`..core.figures`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from ..core import figures
from ..core.figures import TOTAL, DepthPoint, Histogram
from .parts import Parts

if TYPE_CHECKING:
    from ..core.broker import Broker
    from ..core.counts import Counts
    from ..core.queue import Queue

#: seconds between two samples
PERIOD: Final = 60.0
#: queues with a series of their own; a series takes about 100 KB of Redis's memory
MOST_QUEUES: Final = 500


class DepthSampler:
    """Duty that stores a sample of each queue and of all together. Of several dispatchers one does it.

    Args:
        own: name of the worker.
        most_queues: number of queues with a series of their own, those that did most.
    """

    def __init__(self, broker: Broker, own: str, *, most_queues: int = MOST_QUEUES) -> None:
        self._broker = broker
        self._own = own
        self._most_queues = most_queues
        self._has_begun = False
        self._parts = Parts("depth-sampler", broker)
        #: lateness so far by queue, as of the last sample that this process took
        self._lateness: Mapping[str, Histogram] | None = None

    def run(self) -> float:
        """Store a sample unless another dispatcher did. The first turn only waits: a process may end soon."""
        if self._has_begun and figures.claim_depths(self._broker, self._own):
            self._sample()
        self._has_begun = True
        return PERIOD

    def _sample(self) -> None:
        counts = self._counts()
        if not counts:
            return
        before, self._lateness = self._lateness, self._broker.figures().lateness
        late = {} if before is None else {name: it.since(before.get(name)) for name, it in self._lateness.items()}
        busiest = sorted(counts, key=lambda one: -one.counter("scheduled") - one.counter("done"))[: self._most_queues]
        samples = {one.queue: sample_of([one], late.get(one.queue)) for one in busiest}
        samples[TOTAL] = sample_of(counts, sum(late.values(), Histogram()))
        figures.record_depths(self._broker, samples, max(one.now_ms for one in counts))

    def _counts(self) -> list[Counts]:
        """Return the counts of each queue that can be read: of all together, and if that fails one by one."""
        counts: list[Counts] = []
        queues = self._broker.queues()

        def count(some: list[Queue]) -> None:
            counts.extend(self._broker.inspector.all_counts(queues=some, partial=True))

        try:
            count(queues)
        except Exception:
            for queue in queues:
                self._parts.attempt(queue.name, partial(count, [queue]))
        return [one for one in counts if not one.unreachable]


def sample_of(counts: Iterable[Counts], lateness: Histogram | None = None) -> DepthPoint:
    """Return the sample of these queues together.

    Args:
        counts: their present counts.
        lateness: of the attempts since the sample before.
    """
    queues = list(counts)
    p50, p99 = (lateness.quantile(q) if lateness else None for q in (0.5, 0.99))
    places = ("delayed", "ready", "reserved", "failed", "morgue")
    return DepthPoint(
        **{place: sum(getattr(one, place) for one in queues) for place in places},
        lag_seconds=max((one.lag_seconds for one in queues), default=0.0),
        **{group: sum(one.counter(group) for one in queues) for group in ("scheduled", "done", "failing")},
        p50_ms=p50,
        p99_ms=p99,
    )

"""Broker of a test: the real one on a Redis in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from ..connections import DjangoBroker
from ..core import layouts
from ..core.job import NewJob
from ..core.layouts import Layout
from ..core.outcomes import ScheduleOutcome
from ..core.queue import Queue
from ..settings.conf import Conf, conf
from .faults import reachable
from .server import MemoryServer
from .times import Clock

#: outcomes after which the requested job waits
_WAITING: Final = (ScheduleOutcome.CREATED, ScheduleOutcome.MERGED, ScheduleOutcome.REPLACED)


class MemoryQueue(Queue):
    """Queue that runs new jobs at once while the test has requested that."""

    def __init__(self, broker: MemoryBroker, name: str, layout: Layout) -> None:
        super().__init__(broker.registry, name, layout, broker.tally)
        self.broker = broker

    def schedule(
        self, new: NewJob, *, not_after_ms: float | None = None, request: bytes | None = None
    ) -> ScheduleOutcome:
        """See :meth:`Queue.schedule`."""
        outcome = super().schedule(*self._timed([new]), not_after_ms=not_after_ms, request=request)
        self._run_at_once({new.id} if outcome in _WAITING else {})
        return outcome

    def schedule_many(
        self, news: Iterable[NewJob], *, not_after_ms: float | None = None, all_or_none: bool = False
    ) -> list[ScheduleOutcome]:
        """See :meth:`Queue.schedule_many`."""
        jobs = list(self._timed(news))
        outcomes = super().schedule_many(jobs, not_after_ms=not_after_ms, all_or_none=all_or_none)
        pairs = zip(jobs, outcomes, strict=True)
        self._run_at_once(dict.fromkeys(new.id for new, outcome in pairs if outcome in _WAITING))
        return outcomes

    def count_many(
        self, news: Iterable[NewJob], *, not_after_ms: float | None = None, all_or_none: bool = False
    ) -> dict[str, int]:
        """See :meth:`Queue.count_many`."""
        if self.broker.on_scheduled is None:
            return super().count_many(self._timed(news), not_after_ms=not_after_ms, all_or_none=all_or_none)
        return dict(Counter(self.schedule_many(news, not_after_ms=not_after_ms, all_or_none=all_or_none)))

    def _timed(self, news: Iterable[NewJob]) -> Iterator[NewJob]:
        for new in news:
            if new.due_ms is not None:
                self.broker.clock.catch_up()
            yield new

    def _run_at_once(self, idents: Iterable[str]) -> None:
        if self.broker.on_scheduled is not None:
            self.broker.on_scheduled(self, list(idents))


class MemoryBroker(DjangoBroker):
    """Broker with a server of its own in this process, and a clock that moves only on request."""

    #: a test uses room at once
    full_seconds = 0.0

    def __init__(self, clock: Clock | None = None, *, prefix: str = "delayq", lease_ms: int = 15_000) -> None:
        self.clock = clock or Clock()
        self.server = MemoryServer(self.clock)
        super().__init__(self.server.connection(), prefix=prefix, lease_ms=lease_ms)
        #: there was an outage, so the outbox may hold jobs that were never sent
        self.has_unsent = False
        #: called with the ids of scheduled jobs: :func:`~django_delayq.testing.immediate`
        self.on_scheduled: Callable[[Queue, Sequence[str]], None] | None = None
        self._settings: Conf | None = None
        self.clock.on_set_back = self._forget_time

    def make_queue(self, name: str, layout: Layout) -> MemoryQueue:
        """See :meth:`Broker.make_queue`."""
        return MemoryQueue(self, name, layout)

    def _forget_time(self) -> None:
        """Let the shards accept an earlier time. After a small step back their time would stand still instead."""
        with reachable(self):
            for queue in self.queues():
                for number in queue.numbers:
                    self.client.hdel(queue.shard(number).names["meta"], "clock")

    def queue(self, name: str, *, shards: int | None = None, kind: str | None = None) -> Queue:
        """See :meth:`DjangoBroker.queue`."""
        if self._settings is not conf():  # a test may override them at any time
            self._follow(conf())
        return super().queue(name, shards=shards, kind=kind)

    def _follow(self, settings: Conf) -> None:
        """Remove the limits of the previous settings; in tests there are no limits from another source."""
        former = self._settings.queues.keys() if self._settings is not None else ()
        self._settings = settings
        self._limited.clear()
        for name in former:
            if name not in settings.queues and self.existing(name) is not None:
                self.limit(name, **layouts.NO_LIMITS)

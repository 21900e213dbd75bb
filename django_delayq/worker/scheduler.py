"""Schedulers of a project's own: functions that decide which of several shards with due work is next."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from .shard_selector import Source

logger = logging.getLogger(__name__)


class DueShard(NamedTuple):
    """Shard with due work, as a scheduler sees it."""

    queue: str
    shard: int
    #: weight of the queue
    weight: float
    #: seconds since its first job fell due; inf = it is not known when
    overdue: float
    #: seconds since this process reserved from it; inf = it has not yet
    idle: float


#: returns one of the shards that it gets, at least two. It is called in the fetch loop, so it must not block
Scheduler: TypeAlias = Callable[[Sequence[DueShard]], DueShard]


class OwnScheduler:
    """Guard around a project's scheduler: its errors cannot harm the worker."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._logged = False

    def choose(self, sources: Sequence[Source], now: float) -> Source | None:
        """Return the shard that the scheduler chooses; None if there is nothing to choose, or it failed."""
        if len(sources) < 2:
            return None
        shards = tuple(_due_shard(source, now) for source in sources)
        try:
            return sources[shards.index(self._scheduler(shards))]
        except Exception as error:
            self._log(error)
        return None

    def _log(self, error: Exception) -> None:
        if not self._logged:
            self._logged = True
            logger.error(
                'the scheduler %r failed, or did not return one of the shards that it got; "weighted" decides whenever '
                "that happens. Correct it: this is logged once",
                self._scheduler,
                exc_info=error,
            )


def _due_shard(source: Source, now: float) -> DueShard:
    return DueShard(
        source.queue.name,
        source.shard,
        1.0 / source.stride,
        now - source.due_at if source.due_at else math.inf,
        now - source.sent_at if source.sent_at else math.inf,
    )

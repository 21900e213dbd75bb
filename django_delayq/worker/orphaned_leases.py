"""Orphaned leases: leases that Redis holds under this process's name, although it does not hold the jobs.

They come from a reserve whose reply was lost, and which was given up or retried too late for Redis to repeat the reply.
These jobs are neither run nor renewed; without this module they would wait for the reaper.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING

from .ends import give_back, policy_of

if TYPE_CHECKING:
    from ..core.task import Registry
    from .settler import Settler
    from .shard_selector import ShardSelector, Source

logger = logging.getLogger(__name__)


class OrphanedLeases:
    """Shards that may have orphaned leases.

    Belongs to the fetch loop's thread: only while no reserve is under way can a lease be called orphaned.
    """

    def __init__(self, name: str, settler: Settler, selector: ShardSelector, registry: Registry) -> None:
        self._name = name
        self._selector = selector
        self._settler = settler
        self._registry = registry
        self._doubtful: dict[Source, None] = {}

    def __bool__(self) -> bool:
        """Return True if a shard has to be checked, and can be."""
        return any(source not in self._settler.unreachable for source in self._doubtful)

    def doubt(self, source: Source) -> None:
        """Add a shard: a reserve may have won jobs there without a reply."""
        self._doubtful[source] = None

    def give_back(self) -> None:
        """Give back the orphaned leases of the doubtful shards, uncounted.

        A shard of a cluster that cannot be reached is checked later; any other that cannot be read now is left to the
        reaper.
        """
        doubtful, self._doubtful = self._doubtful, {}
        for source in doubtful:
            released = None
            if source not in self._settler.unreachable:
                call = partial(self._release, source)
                released = self._settler.call_with_retries(call, [], source)
            if source in self._settler.unreachable:
                self.doubt(source)
            if released:
                self._selector.expect(source, time.monotonic())
                logger.warning(
                    "%d jobs of %s were reserved for this process without its knowledge; given back",
                    released,
                    source.queue.name,
                )

    def _release(self, source: Source) -> int:
        ours = {(attempt.job.queue, attempt.job.id, attempt.job.token) for attempt in self._settler.held} | set(
            self._settler.abandoned
        )
        orphaned = [
            job
            for job in source.queue.leases(source.shard)
            if job.worker == self._name and (job.queue, job.id, job.token) not in ours
        ]
        if not orphaned:
            return 0
        reason = "reserved, but the reply was lost"
        return sum(
            source.queue.settle(
                [give_back(job, policy_of(self._registry.get(job.task), job), reason=reason) for job in orphaned]
            )
        )

"""Strays: leases that Redis holds under this process's name although the process never heard of them.

They come from a reserve whose reply was lost, and that was given up or asked again too late to be remembered. Nobody
works on them, nobody renews them; without this they would wait for the reaper.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from . import decision

if TYPE_CHECKING:
    from ..core.task import Registry
    from .horizon import Horizon, Source
    from .settler import Settler

logger = logging.getLogger(__name__)


class Strays:
    """Belongs to the fetch loop's thread: only while no reserve is on its way can a lease be called unknown."""

    def __init__(self, name: str, settler: Settler, horizon: Horizon, registry: Registry) -> None:
        self._name = name
        self._horizon = horizon
        self._settler = settler
        self._registry = registry
        self._doubtful: dict[Source, None] = {}

    def __bool__(self) -> bool:
        """Whether a shard has to be looked at."""
        return bool(self._doubtful)

    def doubt(self, source: Source) -> None:
        """A reserve from this shard may have won jobs of which nothing was heard."""
        self._doubtful[source] = None

    def give_back(self) -> None:
        """Give back what is found in the doubtful shards, uncounted. What cannot be asked now is left to the reaper."""
        doubtful, self._doubtful = self._doubtful, {}
        for source in doubtful:
            found = self._settler.patiently(lambda source=source: self._release(source), [])  # type: ignore[misc]
            if found:
                self._horizon.expect(source, time.monotonic())
                logger.warning(
                    "%d jobs of %s were reserved for this process without its knowledge; given back",
                    found,
                    source.queue.name,
                )

    def _release(self, source: Source) -> int:
        known = {(run.job.queue, run.job.id, run.job.token) for run in self._settler.held} | set(self._settler.left)
        strays = [
            job
            for job in source.queue.leases(source.shard)
            if job.worker == self._name and (job.queue, job.id, job.token) not in known
        ]
        if not strays:
            return 0
        reason = "reserved, but the reply was lost"
        return sum(
            source.queue.settle(
                [
                    decision.give_back(job, decision.policy_of(self._registry.get(job.task), job), reason=reason)
                    for job in strays
                ]
            )
        )

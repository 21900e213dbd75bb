"""Settler: stores how attempts ended, and retries calls to Redis until they succeed or are pointless."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias, TypeVar

from ..core.job import DURABLE, Settlement
from ..core.records.settle_frames import waits_for_end
from ..core.redis.faults import Backoff, Fault
from .changes import Changes
from .redis_health import RedisHealth
from .run import NEVER, Run
from .shard_selector import ShardSelector, Source

logger = logging.getLogger(__name__)
T = TypeVar("T")
#: receives how jobs of one queue ended
Ended: TypeAlias = Callable[[str, Sequence[Settlement]], object]

_BATCH: Final = 250
#: number of leases after which one that is not renewed is surely gone: its own, the reaper hold, and time for the
#: reaper
_REMEMBERED: Final = 4


class Settler:
    """Attempts that the fetch loop holds, and which of them have ended. Belongs to the fetch loop's thread.

    Args:
        ended: called with the settlements of one queue when they are stored, whether each of them counted or not.
    """

    def __init__(
        self,
        selector: ShardSelector,
        health: RedisHealth,
        lease: float,
        changes: Changes | None = None,
        ended: Ended = lambda queue, settlements: None,
    ) -> None:
        #: all attempts that this process has not settled yet; the heartbeat reads it too
        self.held: set[Run] = set()
        #: number of settled attempts
        self.settled = 0
        #: (queue, id, token) → when storing the end was given up, although it may be stored: these leases are not
        #: orphaned
        self.left: dict[tuple[str, str, int], float] = {}
        #: when the oldest unsettled end arrived
        self.since = NEVER
        #: stop retrying calls that settle nothing / any call
        self.stopping = False
        self.halted = False
        self._selector = selector
        self._health = health
        self._lease = lease
        self._changes = changes or Changes()
        self._ended = ended
        self._unsettled: dict[Source, list[Run]] = {}

    def __bool__(self) -> bool:
        """Return True if an attempt has ended that is not settled yet."""
        return bool(self._unsettled)

    def add(self, source: Source, runs: list[Run]) -> None:
        """Add attempts that have ended."""
        if not self._unsettled:
            self.since = time.monotonic()
        self._unsettled.setdefault(source, []).extend(runs)

    def take_acks(self, source: Source) -> list[Run]:
        """Remove and return the attempts of this shard that the next reserve can ack; settle its others now."""
        runs = self._unsettled.pop(source, [])
        if not self._unsettled:
            self.since = NEVER
        acks = [run for run in runs if run.settlement is not None and run.settlement.verb == "ack"][:_BATCH]
        if len(acks) < len(runs):
            chosen = set(acks)
            self.settle([run for run in runs if run not in chosen])
        return acks

    def settle_all(self) -> None:
        """Settle all ended attempts."""
        unsettled, self._unsettled = self._unsettled, {}
        self.since = NEVER
        by_queue: dict[str, list[Run]] = {}
        for source, runs in unsettled.items():
            by_queue.setdefault(source.queue.name, []).extend(runs)
        for runs in by_queue.values():
            for start in range(0, len(runs), _BATCH):
                self.settle(runs[start : start + _BATCH])

    def settle(self, runs: list[Run]) -> None:
        """Settle these attempts, which belong to one queue."""
        queue = runs[0].source.queue
        settlements = settlements_of(runs)
        also = [one.also for one in settlements if one.also is not None]
        counted = self.patiently(lambda: queue.settle([*settlements, *also])[: len(settlements)], runs)
        if counted is None:
            return
        self.account(runs, counted)
        now = time.monotonic()
        for run, settlement in zip(runs, settlements, strict=True):
            if settlement.verb not in ("ack", "record"):
                self._tell(run)
                self._selector.expect(run.source, now + (settlement.delay_ms or 0) / 1000)

    def account(self, runs: list[Run], counted: list[bool]) -> None:
        """Record that Redis replied to the settlements of these attempts, which are not held any more."""
        self.held.difference_update(runs)
        self.settled += len(runs)
        if runs:
            self._ended(runs[0].job.queue, settlements_of(runs))
        for run in [run for run in runs if run.job.failures or run.job.key >= DURABLE or run.job.merged]:
            self._tell(run)
        if not all(counted):
            for run, good in zip(runs, counted, strict=True):
                if not good and not run.lost:
                    logger.warning(
                        "%s: the end of a run (%s) came too late, the lease was lost or the answer was",
                        run.job.id,
                        _outcome(run),
                    )

    def _tell(self, run: Run) -> None:
        """Note what has to be updated outside Redis because of this end."""
        job, changes, verb = run.job, self._changes, run.settlement.verb if run.settlement is not None else ""
        if verb != "release" and waits_for_end(job):  # a record belongs to a job that was acked when its attempt began
            changes.note(job.queue, job.shard, "settled")
        if verb == "fail" or job.failures:
            changes.note(job.queue, job.shard, "failed")
        if verb == "bury":
            changes.note(job.queue, job.shard, "morgue")

    def patiently(self, call: Callable[[], T], runs: list[Run]) -> T | None:
        """Call ``call()`` and retry it until it succeeds.

        Args:
            call: the call to Redis.
            runs: the attempts that it settles.

        Returns:
            The result, or None when it was given up: on a bug, when the worker halts, or when the leases of ``runs``
                ended so long ago that the reaper has surely taken them.
        """
        pause = Backoff()
        while True:
            try:
                answer = call()
                self._health.recovered()
                return answer
            except Exception as error:
                fault = self._health.failed("fetch loop", error)
            hopeless = max((run.deadline for run in runs), default=NEVER) + self._lease < time.monotonic()
            if fault is Fault.BUG or self.halted or hopeless or (self.stopping and not runs):
                self._give_up(runs, one_by_one=fault is Fault.BUG)
                return None
            until = time.monotonic() + pause.next(fault)
            while not self.halted and (left := until - time.monotonic()) > 0:
                time.sleep(min(left, 0.2))

    def _give_up(self, runs: list[Run], *, one_by_one: bool) -> None:
        """Drop attempts that could not be settled together. If one of them may be the cause, first retry each alone."""
        if one_by_one and len(runs) > 1:
            for run in runs:
                self.settle([run])
            return
        for run in runs:
            logger.error(
                "%s: the end of a run (%s) could not be stored; %s",
                run.job.id,
                _outcome(run),
                "it was acked before" if run.acked else "its lease will run out",
            )
        self.held.difference_update(runs)
        now = time.monotonic()
        self.left = {place: since for place, since in self.left.items() if now - since < _REMEMBERED * self._lease}
        self.left.update(((run.job.queue, run.job.id, run.job.token), now) for run in runs)


def settlements_of(runs: list[Run]) -> list[Settlement]:
    """Return the settlements of these attempts."""
    return [run.settlement for run in runs if run.settlement is not None]


def _outcome(run: Run) -> str:
    return run.settlement.outcome if run.settlement is not None else "?"

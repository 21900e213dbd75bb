"""Settler: stores how attempts ended, and retries calls to Redis until they succeed or are pointless."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias, TypeVar

from ..core.job import DURABLE
from ..core.outcomes import Settlement
from ..core.records.frames import waits_for_end
from ..core.redis.faults import Backoff, Fault
from .attempt import NEVER, Attempt
from .changes import Changes
from .redis_health import RedisHealth
from .shards import CALL_SECONDS, ShardSelector, Source, UnreachableShards

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
        self.held: set[Attempt] = set()
        #: number of settled attempts
        self.settled = 0
        #: when the last of them were settled
        self.settled_at = 0.0
        #: (queue, id, token) → when storing the end was given up, although it may be stored: these leases are not
        #: orphaned
        self.abandoned: dict[tuple[str, str, int], float] = {}
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
        self._unsettled: dict[Source, list[Attempt]] = {}
        #: shards of a cluster that cannot be reached; the ends of their attempts are kept
        self.unreachable = UnreachableShards(selector)

    def __bool__(self) -> bool:
        """Return True if an attempt has ended that can be settled now."""
        if not self.unreachable:
            return bool(self._unsettled)
        return any(source not in self.unreachable for source in self._unsettled)

    @property
    def keeps_ends(self) -> bool:
        """True if an attempt has ended that is not settled yet, though perhaps its shard cannot be reached."""
        return bool(self._unsettled)

    def add(self, source: Source, attempts: list[Attempt]) -> None:
        """Add attempts that have ended."""
        if self.since == NEVER:
            self.since = time.monotonic()
        self._unsettled.setdefault(source, []).extend(attempts)

    def take_acks(self, source: Source) -> list[Attempt]:
        """Remove and return the attempts of this shard that the next reserve can ack; settle its others now."""
        attempts = self._unsettled.pop(source, [])
        if not self._unsettled:
            self.since = NEVER
        acks = [attempt for attempt in attempts if attempt.settlement is not None and attempt.settlement.verb == "ack"][
            :_BATCH
        ]
        if len(acks) < len(attempts):
            chosen = set(acks)
            self.settle([attempt for attempt in attempts if attempt not in chosen])
        return acks

    def settle_all(self) -> None:
        """Settle all ended attempts but those of shards that cannot be reached; they are kept, unless it halts."""
        unsettled, self._unsettled = self._unsettled, {}
        self.since = NEVER
        together: dict[object, list[Attempt]] = {}
        for source, attempts in unsettled.items():
            if source not in self.unreachable:
                # The shards of a queue share a round trip, but not those of a cluster, which fail one by one.
                key = source if source.queue.deployment.connection.cluster else source.queue.name
                together.setdefault(key, []).extend(attempts)
            elif self.halted:
                self._give_up(attempts, one_by_one=False)
            else:
                self._unsettled.setdefault(source, []).extend(attempts)
        for attempts in together.values():
            for start in range(0, len(attempts), _BATCH):
                self.settle(attempts[start : start + _BATCH])

    def settle(self, attempts: list[Attempt]) -> None:
        """Settle these attempts, which belong to one queue; on a cluster, to one shard."""
        queue = attempts[0].source.queue
        settlements = settlements_of(attempts)
        also = [one.also for one in settlements if one.also is not None]
        counted = self.call_with_retries(
            lambda: queue.settle([*settlements, *also])[: len(settlements)],
            attempts,
            attempts[0].source,
            alone=len(attempts) == 1,
        )
        if counted is None:
            return
        self.account(attempts, counted)
        now = time.monotonic()
        for attempt, settlement in zip(attempts, settlements, strict=True):
            if settlement.verb not in ("ack", "record"):
                self._note_changes(attempt)
                self._selector.expect(attempt.source, now + (settlement.delay_ms or 0) / 1000)

    def account(self, attempts: list[Attempt], counted: list[bool]) -> None:
        """Record that Redis replied to the settlements of these attempts, which are not held any more."""
        self.held.difference_update(attempts)
        self.settled += len(attempts)
        if attempts:
            self.settled_at = time.monotonic()
            self._ended(attempts[0].job.queue, settlements_of(attempts))
        for attempt in [
            attempt for attempt in attempts if attempt.job.failures or attempt.job.key >= DURABLE or attempt.job.merged
        ]:
            self._note_changes(attempt)
        if not all(counted):
            for attempt, good in zip(attempts, counted, strict=True):
                if not good and not attempt.lost:
                    logger.warning(
                        "%s: the end of the attempt (%s) came too late: its lease or the reply was lost",
                        attempt.job.id,
                        _outcome(attempt),
                    )

    def _note_changes(self, attempt: Attempt) -> None:
        """Note what has to be updated outside Redis because of this end."""
        job, changes, verb = (
            attempt.job,
            self._changes,
            attempt.settlement.verb if attempt.settlement is not None else "",
        )
        if verb != "release" and waits_for_end(job):  # a record belongs to a job that was acked when its attempt began
            changes.note(job.queue, job.shard, "marks")
        if verb == "fail" or job.failures:
            changes.note(job.queue, job.shard, "failed")
        if verb == "bury":
            changes.note(job.queue, job.shard, "morgue")

    def call_with_retries(
        self, call: Callable[[], T], attempts: list[Attempt], source: Source, *, alone: bool = False
    ) -> T | None:
        """Call ``call()`` and retry it until it succeeds. On a cluster it is called once, because others wait.

        Args:
            call: the call to Redis.
            attempts: the attempts that it settles.
            source: the shard.
            alone: the call only settles one attempt, so nothing else can be the cause of an error.

        Returns:
            The result, or None when it was given up: on a bug, when the worker halts, or when the leases of
                ``attempts`` ended so long ago, with Redis reachable, that the reaper has surely taken them. Also None
                when the shard was set aside; then the attempts are settled as soon as it can be reached.
        """
        pause, others_wait = Backoff(), source.queue.deployment.connection.cluster
        while True:
            try:
                with source.queue.deployment.connection.limited(CALL_SECONDS):
                    answer = call()
                self._health.recovered()
                return answer
            except Exception as error:
                fault = self._health.failed("fetch loop", error)
                if others_wait and fault is not Fault.BUG and not self.halted:
                    self.unreachable.add(source, error)
                    if attempts:
                        self._unsettled[source] = [*attempts, *self._unsettled.get(source, ())]
                    return None
            reachable_until = time.monotonic() - self._health.lasting()  # during an outage nobody takes a lease
            hopeless = max((attempt.lease_end for attempt in attempts), default=NEVER) + self._lease < reachable_until
            if fault is Fault.BUG or self.halted or hopeless or (self.stopping and not attempts):
                self._give_up(attempts, one_by_one=fault is Fault.BUG and not alone)
                return None
            until = time.monotonic() + pause.next(fault)
            while not self.halted and (left := until - time.monotonic()) > 0:
                time.sleep(min(left, 0.2))

    def _give_up(self, attempts: list[Attempt], *, one_by_one: bool) -> None:
        """Drop attempts that could not be settled. If anything else may be the cause, first retry each alone."""
        if one_by_one:
            for attempt in attempts:
                self.settle([attempt])
            return
        for attempt in attempts:
            logger.error(
                "%s: the end of the attempt (%s) could not be stored; %s",
                attempt.job.id,
                _outcome(attempt),
                "it was acked before" if attempt.acked else "its lease will run out",
            )
        self.held.difference_update(attempts)
        now = time.monotonic()
        self.abandoned = {
            place: since for place, since in self.abandoned.items() if now - since < _REMEMBERED * self._lease
        }
        self.abandoned.update(((attempt.job.queue, attempt.job.id, attempt.job.token), now) for attempt in attempts)


def settlements_of(attempts: list[Attempt]) -> list[Settlement]:
    """Return the settlements of these attempts."""
    return [attempt.settlement for attempt in attempts if attempt.settlement is not None]


def _outcome(attempt: Attempt) -> str:
    return attempt.settlement.outcome if attempt.settlement is not None else "?"

"""The dispatcher: housekeeping of shards for those who cannot do it themselves.

It wakes other consumers when a job falls due and its own process's consumer did not take it, reaps expired leases and
takes dead workers off the registry. Several dispatchers are harmless: every move of theirs is one guarded script.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from ..core.records import layout as layouts
from .changes import Changes, What
from .run import NEVER
from .weather import Weather

if TYPE_CHECKING:
    from ..core.broker import Broker
    from ..core.queue import Queue
    from ..core.shards import Tick
    from .reaper import LeaseReaper

logger = logging.getLogger(__name__)

#: seconds between two looks without a reason
LOOK: Final = 3.0
#: how long after a due time the process's own consumer may take to ask for the job
OWN_CONSUMER: Final = 0.05
#: a jump between Redis's clock and ours that makes leases doubtful
_JUMP: Final = 2.0
#: an answer that takes this part of a lease means that Redis stood still
_SLOW: Final = 10.0
#: the longest time between two looks at a shard, as a part of a lease
_OF_A_LEASE: Final = 0.95
_AGAIN: Final = 1.0
_SOON: Final = 0.02
_FORGET_AFTER_MS: Final = 60_000
#: seconds between two looks after old epochs
CARE: Final = 30.0


@dataclass(slots=True)
class Beat:
    """One shard on the round. Times are of ``time.monotonic()``."""

    queue: Queue
    shard: int
    look_at: float
    looked_at: float = 0.0
    #: Redis's clock minus ours at the last look (seconds); None before the first
    offset: float | None = None
    deadline_at: float = NEVER
    due_at: float = NEVER
    hold: bool = False
    #: the last look
    tick: Tick | None = None


class Overdue(Protocol):
    """Who in this process takes care of due times."""

    def overdue(self, queue: str, shard: int, now: float, patience: float) -> bool:
        """Whether a due time of the shard passed ``patience`` seconds ago and nobody here has asked since."""
        ...


class Patrol:
    """The duty of looking at every shard in time: almost once per lease, and at each known deadline.

    ``pace`` is the number of seconds between two looks without a reason, as long as the shards are few. Without a
    ``reaper`` expired leases are left to others.
    """

    def __init__(
        self,
        queues: Callable[[], Sequence[Queue]],
        lease: float,
        heartbeat: float,
        weather: Weather,
        horizon: Overdue | None = None,
        *,
        reaper: LeaseReaper | None = None,
        pace: float = LOOK,
        changes: Changes | None = None,
    ) -> None:
        self._queues = queues
        self._reaper = reaper
        self._lease = lease
        self._heartbeat = heartbeat
        self._weather = weather
        self._horizon = horizon
        self._pace = pace
        self._changes = changes or Changes()
        self._beats: list[Beat] = []
        self._outage_seen = weather.cleared_at

    def run(self) -> float:
        """Look where it is time to look. Returns the seconds until that is the case again."""
        now = time.monotonic()
        self._meet(self._queues(), now)
        # Still lasting, as far as is known: the look below may be the first call that comes through again.
        outage = self._weather.lasting()
        if self._weather.cleared_at != self._outage_seen:
            self._outage_seen = self._weather.cleared_at
            outage = max(outage, self._weather.last_outage)
        if outage > self._heartbeat:
            self._hold_all()
        for beat in self._beats:
            if self._wants_a_look(beat, time.monotonic()):
                self._look(beat)
        now = time.monotonic()
        return max(0.0, min((self._next_look(beat) for beat in self._beats), default=now + LOOK) - now)

    def _hold_all(self) -> None:
        """Holders could not renew: nothing is taken from them until they had one lease of time to do so."""
        for beat in self._beats:
            beat.hold = True

    def _meet(self, queues: Sequence[Queue], now: float) -> None:
        served = {(queue.name, shard) for queue in queues for shard in queue.numbers}
        self._beats = [beat for beat in self._beats if (beat.queue.name, beat.shard) in served]
        known = {(beat.queue.name, beat.shard) for beat in self._beats}
        fresh = [(queue, shard) for queue in queues for shard in queue.numbers if (queue.name, shard) not in known]
        self._beats += [Beat(queue, shard, now) for queue, shard in fresh]

    @property
    def _period(self) -> float:
        """Seconds between two looks at one shard. A lease is renewed or won within that time before it ends, so each
        end of a lease is known before it comes."""
        return min(self._pace * len(self._beats), _OF_A_LEASE * self._lease)

    def _next_look(self, beat: Beat) -> float:
        if beat.hold:
            return 0.0
        at = min(beat.look_at, beat.deadline_at, beat.due_at + OWN_CONSUMER)
        return max(at, beat.looked_at + _SOON)

    def _wants_a_look(self, beat: Beat, now: float) -> bool:
        if self._next_look(beat) > now:
            return False
        if beat.hold or min(beat.look_at, beat.deadline_at) <= now or self._horizon is None:
            return True
        if self._horizon.overdue(beat.queue.name, beat.shard, now, OWN_CONSUMER):
            return True
        beat.due_at = NEVER  # our own consumer asked since; it knows the next due time better than we do
        return False

    def _look(self, beat: Beat) -> None:
        asked_at = time.monotonic()
        tick = beat.queue.tick(beat.shard, hold=beat.hold)
        now = time.monotonic()
        beat.hold = False
        beat.looked_at = now
        # The looks at a queue's shards are spread over the period by their first, not all at one moment.
        beat.look_at = now + self._period * (1.0 if beat.offset is not None else self._phase(beat))
        self._remember(beat, tick, now)
        self._tell(beat, tick)
        offset = tick.now_ms / 1000 - now
        jumped = beat.offset is not None and abs(offset - beat.offset) > _JUMP
        beat.offset = offset
        if jumped:
            logger.warning("Redis's clock jumped; no lease of %s is taken for %.0f s", beat.queue.name, self._lease)
            beat.hold = True
        elif now - asked_at > self._lease / _SLOW and not tick.held_back:
            logger.warning("Redis took %.1f s for an answer; no lease is taken for %.0f s", now - asked_at, self._lease)
            self._hold_all()  # it stood still, and those who wanted to renew stood in the same line
        elif (
            self._reaper is not None
            and tick.expired
            and not tick.held_back
            and self._reaper.reap(beat.queue, beat.shard, tick.now_ms)
        ):
            beat.look_at = now + _SOON
        if self._reaper is not None and tick.begun and not tick.held_back:
            self._reaper.reap_runs(beat.queue, beat.shard, tick.now_ms)

    def _phase(self, beat: Beat) -> float:
        return (self._beats.index(beat) + 1) / len(self._beats)

    def _remember(self, beat: Beat, tick: Tick, now: float) -> None:
        def at(ms: float | None) -> float:
            return NEVER if ms is None else now + (ms - tick.now_ms) / 1000

        beat.deadline_at = NEVER if self._reaper is None else at(tick.next_deadline_ms)
        beat.due_at = at(tick.next_due_ms)
        if beat.deadline_at <= now:
            beat.deadline_at = now + _AGAIN  # expired: reaped right now, or held back
        if beat.due_at + OWN_CONSUMER <= now:
            beat.due_at = now + _AGAIN  # everybody is busy; the token lies there for the first who is not

    def _tell(self, beat: Beat, tick: Tick) -> None:
        """What is other than at the last look; of the first look nobody knows what is new."""
        before, beat.tick = beat.tick, tick

        def note(what: What) -> None:
            self._changes.note(beat.queue.name, beat.shard, what)

        if tick.settled:
            note("settled")
        if before is None or before.failed != tick.failed:
            note("failed")
        if before is None or before.morgue != tick.morgue:
            note("morgue")
        if before is not None and (before.born, before.run_id) != (tick.born, tick.run_id):
            note("lost")


class Registrar:
    """The duty of taking workers off the registry that were not heard of for a minute."""

    def __init__(self, broker: Broker, own: str) -> None:
        self._broker = broker
        self._own = own

    def run(self) -> float:
        """Once a minute is enough for what is only looked at by people."""
        workers = self._broker.workers()
        if len(workers) > 1 or (workers and workers[0]["name"] != self._own):
            now_ms = self._broker.now_ms()
            for worker in workers:
                if worker["name"] != self._own and now_ms - worker["seen_ms"] > _FORGET_AFTER_MS:
                    self._broker.forget(worker["name"])
        return 60.0


class Caretaker:
    """The duty of ending what a change of the number of shards left behind. It asks Redis only where there is such."""

    def __init__(self, broker: Broker, queues: Callable[[], Sequence[Queue]]) -> None:
        self._broker = broker
        self._queues = queues

    def run(self) -> float:
        """Finish what its author did not, take off the epochs in which nothing lies any more."""
        for queue in list(self._queues()):
            if layouts.is_pending(queue.layout):
                self._broker.epochs.finish(queue.name)
            if len(queue.epochs) > 1:
                self._broker.epochs.retire(queue.name)
        return CARE

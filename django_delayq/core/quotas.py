"""Quotas: the parts of a queue's ``max_length`` that its shards may use.

No script sees two shards (on a cluster they lie on different nodes), so every shard has a quota, and the quotas
together never exceed the limit. A shard whose quota is used up refuses a job. Then the sender looks for room in the
other shards, and sends the job again:

* It *moves* unused places: it takes them from another shard and gives them to this one. If it dies in between they
  belong to no shard, which refuses jobs too early, but never stores too many.
* It *divides* the limit, if places belong to no shard: at first, after a change of the limit or of the number of
  shards, after a loss. A division clears the quotas of all shards, which fixes their lengths, then sets new ones. It
  has a number; moves and divisions under an earlier number are refused.

``lua/quota.lua`` carries out the steps.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from typing import Final, NamedTuple, cast

from .errors import QueueUnavailable
from .job import new_request
from .records.frames import unpack_fields
from .redis.pool import within
from .redis.scripts import Call, clear_errors
from .registry import ShardSet

#: most attempts to make room for one call
MOST_ATTEMPTS: Final = 6
#: a process believes that a queue is full for so many times the time that reading it took
BELIEF: Final = 99
#: longest search of one call, seconds
MOST_SECONDS: Final = 2.0
#: seconds for which no room is searched after a search that took that long, or after a shard did not answer
OUTAGE_SECONDS: Final = 1.0
#: shortest and longest pause while another process moves places or divides the limit, seconds
_PAUSE: Final = (0.002, 0.006)
#: the same, for each shard besides
_PAUSE_OF_SHARD: Final = 1e-4
#: a division that has not ended after so many ms, and so many for each shard, is given up, and another one may begin
DIVISION_MS: Final = 100
DIVISION_MS_OF_SHARD: Final = 1


class ShardRoom(NamedTuple):
    """Room of one shard, as read."""

    number: int
    length: int
    #: None: none was set since the last division began
    quota: int | None
    #: number of the division; 0: the shard was never part of one
    division: int
    #: the queue's
    max_length: int
    is_closed: bool

    @property
    def spare(self) -> int:
        """Number of unused places."""
        return max(0, (self.quota or 0) - self.length)


def read_room(queue: ShardSet) -> list[ShardRoom]:
    """Return the room of every shard of a queue, in one round trip (on a cluster: of each node)."""
    numbers = queue.numbers
    with clear_errors(), queue.deployment.client.pipeline(transaction=False) as pipe:
        for names in (queue.shard(number).names for number in numbers):
            pipe.hlen(names["body"])
            pipe.hmget(names["meta"], "quota", "division", "rules")
        found = pipe.execute()
    return [_room(*each) for each in zip(numbers, found[::2], found[1::2], strict=True)]


def _room(number: int, length: int, meta: tuple[bytes | None, bytes | None, bytes | None]) -> ShardRoom:
    quota, division, stored = meta
    known = unpack_fields(stored or b"")
    own = None if quota is None else int(quota)
    return ShardRoom(number, length, own, int(division or 0), known.get("max_length", 0), "closing" in known)


class RoomSearch:
    """Search of one call for room, after a shard refused jobs because its quota was used up."""

    def __init__(self, queue: ShardSet) -> None:
        self._queue = queue
        #: when (monotonic) the search ends; None = it has not begun
        self._until: float | None = None
        self._attempts = 0
        self._has_paused = False

    def find(self, number: int, jobs: int = 1, *, least: int = 1) -> bool:
        """Make room in a shard if the queue has some elsewhere; return True if the jobs should be sent again.

        Args:
            number: the shard.
            jobs: number of jobs that need a place.
            least: with fewer places for them the shard takes none.
        """
        queue, now = self._queue, time.monotonic()
        if now < queue.full_until or self._attempts == MOST_ATTEMPTS:
            return False
        if self._until is None:
            self._until = now + min(MOST_SECONDS, queue.deployment.connection.patience)
        try:
            with within(self._until):
                return self._make_room(number, jobs, least)
        except QueueUnavailable:  # a part of it: the shard itself has answered
            queue.full_until = time.monotonic() + OUTAGE_SECONDS
            return False

    def _make_room(self, number: int, jobs: int, least: int) -> bool:
        queue = self._queue
        while (began := time.monotonic()) < cast(float, self._until):
            shards = read_room(queue)
            here = next((room for room in shards if room.number == number), None)
            if here is None:
                return False
            if not here.max_length:
                self._attempts += 1
                return True  # the limit was removed meanwhile
            free = here.max_length - sum(room.length for room in shards)
            are_unused = free <= 0 and any(room.spare for room in shards)  # jobs were kicked above the quotas
            if are_unused or not is_divided(queue, shards):
                if not divide(queue, number, shards):
                    self._pause(shards)
                continue
            if free <= 0:
                now = time.monotonic()
                queue.full_until = now + min(BELIEF * (now - began), queue.deployment.full_seconds)
                return False
            if free < least:
                return False
            self._attempts += 1
            if here.spare >= least:
                return True  # another producer has made room
            if places := self._take(here, shards, min(jobs, free)):
                self._call(number, here, b"give", places)
            elif not self._find_lost(here, shards):
                self._pause(shards)
            return True
        queue.full_until = began + OUTAGE_SECONDS
        return False

    def _call(self, number: int, here: ShardRoom, act: bytes, places: int) -> int:
        shard, scripts = self._queue.shard(number), self._queue.deployment.scripts
        args = (new_request(), shard.constants, here.max_length, here.division, act, places)
        return int(scripts.call("quota", shard.keys, *args))

    def _take(self, here: ShardRoom, shards: list[ShardRoom], jobs: int) -> int:
        """Take places for ``jobs`` jobs from other shards, and more from one that has many; return their number."""
        taken = 0
        for donor in sorted(shards, key=lambda room: room.spare, reverse=True):
            if taken >= jobs or not donor.spare:
                break
            most = max(jobs - taken, donor.spare // 2)
            taken += max(0, self._call(donor.number, here, b"take", most))
        return taken

    def _find_lost(self, here: ShardRoom, shards: list[ShardRoom]) -> bool:
        """Divide the limit if places belong to no shard, unless another process may be about to give them away."""
        total = sum(room.quota or 0 for room in shards)
        return total < here.max_length and (self._has_paused or not total) and divide(self._queue, here.number, shards)

    def _pause(self, shards: list[ShardRoom]) -> None:
        self._has_paused = True
        time.sleep(random.uniform(*_PAUSE) + _PAUSE_OF_SHARD * len(shards))


def is_divided(queue: ShardSet, shards: list[ShardRoom]) -> bool:
    """Return True if each shard has a quota of the same division, and no place is given out twice.

    After a failover a shard may have forgotten that places were taken from it.
    """
    if any(room.quota is None for room in shards) or len({room.division for room in shards}) > 1:
        return False
    return not (_exceed(shards) and _exceed(read_room(queue)))


def _exceed(shards: list[ShardRoom]) -> bool:
    """Return True if the quotas exceed the limit. Places that are moved between the reads of shards count twice."""
    return bool(shards) and sum(room.quota or 0 for room in shards) > shards[0].max_length


def divide(queue: ShardSet, first: int = -1, shards: list[ShardRoom] | None = None) -> bool:
    """Divide the limit of a queue among its shards, by their lengths.

    Args:
        first: the shard that gets a free place before the others.
        shards: the shards as read; if the limit was divided since then, it is not divided again.

    Returns:
        False if nothing was divided: there is no limit, or another process changes it or divides it.
    """
    shards = shards or read_room(queue)
    if len({room.max_length for room in shards}) != 1:
        queue.registry.restore_rules(queue)
        return False
    limit, division = shards[0].max_length, max(room.division for room in shards) + 1

    def call(act: bytes, numbers: Mapping[int, tuple[int, ...]]) -> dict[int, int]:
        calls = [Call.on_shard("quota", queue.shard(number), limit, division, act, *n) for number, n in numbers.items()]
        return dict(zip(numbers, queue.deployment.scripts.call_many(calls), strict=True))

    # Of several processes, the one that clears the first shard divides: until it has set that shard's quota, which it
    # does last, or is late, the shard refuses others.
    leader, *others = (room.number for room in shards)
    was_unset = int(shards[0].quota is None)
    patience_ms = DIVISION_MS + DIVISION_MS_OF_SHARD * len(shards)
    lengths = call(b"clear", {leader: (patience_ms, was_unset)}) if limit else {leader: -1}
    if lengths[leader] >= 0:
        lengths |= call(b"clear", dict.fromkeys(others, (0, 0)))
    if min(lengths.values()) < 0:
        return False
    takers = sorted((room.number for room in shards if not room.is_closed), key=lambda number: number != first)
    parts = {number: (quota,) for number, quota in quotas_of(limit, lengths, takers).items()}
    last = {leader: parts.pop(leader)}
    return min((call(b"set", parts) | call(b"set", last)).values()) >= 0


def quotas_of(limit: int, lengths: Mapping[int, int], takers: list[int]) -> dict[int, int]:
    """Return quotas whose sum is the limit: what each shard holds, and free places in equal parts for the takers.

    All are 0 where the shards hold more than the limit: whichever shard's jobs end, none takes a new one before the
    limit is divided again, when the queue is below it.
    """
    free = limit - sum(lengths.values())
    if free < 0:
        return dict.fromkeys(lengths, 0)
    parts = {number: (free + place) // len(takers) for place, number in enumerate(reversed(takers))}
    return {number: length + parts.get(number, 0) for number, length in lengths.items()}


def violations(queue: ShardSet) -> list[str]:
    """Return a sentence if the quotas of a queue exceed its limit together."""
    shards: list[ShardRoom] = []
    for _ in range(MOST_ATTEMPTS):
        shards = read_room(queue)
        if not _exceed(shards):
            return []
    limit, total = shards[0].max_length, sum(room.quota or 0 for room in shards)
    return [f"{queue.name}: the quotas of the shards are {total} together, above its max_length {limit}"]

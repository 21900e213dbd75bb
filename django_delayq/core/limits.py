"""Limits over all workers: what a reserve says of them to a shard, and the permits that jobs need (``lua/limit.lua``).

Three steps lead to a job behind a limit. The shard *offers* jobs of its lanes, the limiter *grants* permits for as many
as its limits allow, and the next reserve hands these out. A permit is returned after the end of the job is stored; it
runs out a moment after the lease of its job, so a holder that dies returns it, too. docs/decisions/limits.md explains
why.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from .deployment import Deployment
from .errors import DelayQError
from .options import Concurrency
from .outcomes import Offer
from .records.frames import pack, unpack_fields
from .redis.scripts import clear_errors

if TYPE_CHECKING:
    from .registry import QueueRegistry, ShardSet
    from .task import Task

logger: Final = logging.getLogger(__name__)

#: queue and number of a shard
Place = tuple[str, int]
#: ms for which lanes rest whose limiter cannot be reached
UNREACHABLE_MS: Final = 1000
#: arguments of a reserve that takes no job
_OF_NOBODY: Final = (b"", 0, b"", b"0", b"", b"", b"1", b"9")


class Limit(NamedTuple):
    """Limit over all workers: its name, and how many of its jobs may run at the same time."""

    name: str
    total: int


def limits_of(queue: str, of_queue: Concurrency | None, task: Task | None) -> list[Limit]:
    """Return the limits over all workers of a job."""
    of_task = task.options.concurrency if task else None
    found = (f"queue:{queue}", of_queue), (f"task:{task.name if task else ''}", of_task)
    return [Limit(name, one.total) for name, one in found if isinstance(one, Concurrency) and one.total is not None]


def has_total(concurrency: Concurrency | None) -> bool:
    """Return True if a limit of concurrency holds over all workers."""
    return concurrency is not None and concurrency.total is not None


def lasting_ms(lease_ms: int) -> int:
    """Return how long a permit lasts: longer than a lease that is won or renewed after it."""
    return lease_ms + lease_ms // 10


@dataclass(frozen=True, slots=True)
class Grant:
    """Permission to hand out jobs of a lane. Each job gets a permit, unless no limit counts it."""

    offer: Offer
    jobs: int
    limits: tuple[str, ...] = ()
    name: bytes = field(default_factory=lambda: os.urandom(8).hex().encode())

    @property
    def _ends(self) -> tuple[bytes, bytes]:
        """First and last part of its permits; the number of each is between them."""
        if not self.limits:
            return b"", b""
        return self.name + b".", b"\0" + "\0".join(self.limits).encode()

    @property
    def permits(self) -> list[bytes]:
        """Permits of its jobs."""
        first, last = self._ends
        return [b"%b%d%b" % (first, number, last) for number in range(1, self.jobs + 1)] if first else []

    @property
    def fields(self) -> tuple[bytes, int, int, bytes, bytes]:
        """Grant as the shard takes it."""
        return self.offer.lane, self.jobs, self.offer.ends_ms, *self._ends


@dataclass(frozen=True, slots=True)
class Block:
    """What the limiter said of a limit: that it grants nothing for ``ms``, or, if that is 0, that it may again.

    Attributes:
        at_us: when, on the limiter's clock; 0 = it could not be asked.
        code: code of a task in its shard that has this limit; b"" = those that the shard knows.
    """

    limit: str
    at_us: float
    ms: float = 0
    code: bytes = b""

    @property
    def scope(self) -> str:
        """What it is about in a shard: the whole queue, or the tasks with a limit."""
        return "" if self.limit.startswith("queue:") else self.limit

    @property
    def fields(self) -> tuple[str, float, int, bytes]:
        """Block as the shard takes it."""
        return self.scope, self.at_us, max(1, round(self.ms)) if self.ms else 0, self.code


@dataclass(slots=True)
class LaneNotes:
    """What a caller of a reserve says of limits to the shard (``lua/lib/offers.lua``).

    Attributes:
        tasks: names of limited tasks.
        whole: the queue is limited.
        full: names of tasks of which the caller may hold no more jobs.
        most: number of jobs that are offered at most.
    """

    tasks: Sequence[str] = ()
    whole: bool = False
    full: Sequence[str] = ()
    most: int = 0
    blocks: list[Block] = field(default_factory=list)
    grants: list[Grant] = field(default_factory=list)

    def pack(self) -> bytes:
        """Return the argument of the script."""
        fields: dict[str, Any] = {
            "tasks": self.tasks,
            "whole": self.whole,
            "full": self.full,
            "most": self.most,
            "blocks": [block.fields for block in self.blocks],
            "grants": [grant.fields for grant in self.grants],
        }
        return pack({name: value for name, value in fields.items() if value})


@dataclass(frozen=True, slots=True, eq=False)
class Ask:
    """Request for the permits of an offer. ``place`` waits if they are too few."""

    place: Place
    offer: Offer
    limits: Sequence[Limit]
    #: which permits it gets, if it gets all
    grant: Grant

    @classmethod
    def of(cls, place: Place, offer: Offer, jobs: int, limits: Sequence[Limit]) -> Ask:
        """Return the request for ``jobs`` of an offer."""
        return cls(place, offer, limits, Grant(offer, jobs, tuple(limit.name for limit in limits)))

    @property
    def fields(self) -> tuple[str, int, int, bytes, tuple[str, ...]]:
        """Request as the limiter takes it."""
        queue, shard = self.place
        return f"{shard}:{queue}", self.grant.jobs, self.offer.ms, self.grant.name + b".", self.grant.limits

    def blocked(self, limit: str, at_us: float, ms: float) -> Block:
        """Return the block of this offer's lane, or of the scope in which it is."""
        return Block(limit, at_us, ms, self.offer.lane[-3:-1] if limit.startswith("task:") else b"")


@dataclass(frozen=True, slots=True)
class Answer:
    """Reply of the limiter: what each ask gets, and whose shards may ask again.

    Attributes:
        grants: for each ask; None = nothing.
        blocks: for each ask; None = it got all that it wanted.
        freed: limit and place of those that waited.
    """

    grants: Sequence[Grant | None]
    blocks: Sequence[Block | None]
    freed: Sequence[tuple[str, Place]]
    at_us: float


class Limiter:
    """Limiter of a deployment.

    Args:
        registry: its queues, whose shards are told when they may ask again.
    """

    def __init__(self, registry: QueueRegistry[ShardSet]) -> None:
        self._registry = registry
        self._deployment = registry.deployment

    def call(
        self,
        asks: Sequence[Ask] = (),
        *,
        release: Sequence[bytes] = (),
        renew: Iterable[tuple[bytes, int]] = (),
        pass_on: Sequence[str] = (),
    ) -> Answer:
        """Return and renew permits, and ask for others.

        Args:
            release: permits of jobs that have ended.
            renew: permits, and for how many ms from now.
            pass_on: limits of which a freed permit found no job.
        """
        totals = {limit.name: limit.total for ask in asks for limit in ask.limits}
        fields = {
            "release": release,
            "renew": list(renew),
            "pass_on": pass_on,
            "totals": totals,
            "asks": [ask.fields for ask in asks],
        }
        packed = pack({name: value for name, value in fields.items() if value})
        reply = unpack_fields(self._deployment.scripts.call("limit", (self._deployment.key("").encode(),), packed))
        at_us = reply["now"]
        granted, blocked = zip(asks, reply["granted"], strict=True), zip(asks, reply["blocked"], strict=True)
        return Answer(
            [replace(ask.grant, jobs=jobs) if jobs else None for ask, jobs in granted],
            [ask.blocked(one[0].decode(), at_us, one[1]) if one else None for ask, one in blocked],
            [(limit.decode(), _place_of(place.decode())) for limit, place in reply["freed"]],
            at_us,
        )

    def free(self, answer: Answer) -> None:
        """Let shards whose jobs wait ask again. If a shard has none any more, the next one that waits gets its turn."""
        waiting = [(*one, answer.at_us) for one in answer.freed]
        while waiting:
            limit, place, at_us = waiting.pop()
            if not self._free_shard(place, Block(limit, at_us)):
                later = self.call(pass_on=[limit])
                waiting += [(*one, later.at_us) for one in later.freed]

    def _free_shard(self, place: Place, block: Block) -> bool:
        """End a block in a shard, which wakes a consumer; return False if nothing waits for that there."""
        queue = self._registry.believed(place[0]) or self._registry.known_queue(place[0])
        if queue is None or place[1] not in queue.numbers:
            return False
        frame = queue.call("reserve", place[1], *_OF_NOBODY, LaneNotes(blocks=[block]).pack())
        return not unpack_fields(frame).get("idle")

    def give_back(self, permits: Sequence[bytes]) -> None:
        """Return the permits of jobs whose ends are stored. Errors are logged; the permits run out then."""
        permits = [permit for permit in permits if permit]
        try:
            if permits:
                self.free(self.call(release=permits))
        except DelayQError as error:
            logger.info("%d permits are not returned, they run out: %s", len(permits), error)


def _place_of(word: str) -> Place:
    number, _, queue = word.partition(":")
    return queue, int(number)


def taken(deployment: Deployment, limit: str) -> int:
    """Return how many permits of a limit are taken."""
    key, now_ms = deployment.key(f"permits:{limit}"), deployment.now_ms()
    with clear_errors():
        return int(deployment.client.zcount(key, f"({now_ms}", "+inf"))

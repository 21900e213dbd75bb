"""Limits over all workers: what a reserve says of them to a shard, and the permits that jobs need (``lua/limit.lua``).

Three steps lead to a job behind a limit. The shard *offers* jobs of its lanes, the limiter *grants* permits for as many
as its limits allow, and the next reserve hands these out. A permit is returned after the end of the job is stored; it
runs out a moment after the lease of its job, so a holder that dies returns it, too. docs/decisions/limits.md explains
why.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Final, TypeAlias

from .errors import DelayQError, QueueUnavailable
from .job import random_block
from .options import GROUP_LIMITS, Limits
from .outcomes import Offer
from .records.frames import pack, unpack_fields
from .redis.scripts import clear_errors

if TYPE_CHECKING:
    from .job import Job
    from .outcomes import Settlement
    from .registry import QueueRegistry, ShardSet
    from .task import Task

logger: Final = logging.getLogger(__name__)

#: queue and number of a shard
Place = tuple[str, int]
#: ms for which lanes rest whose limiter cannot be reached
UNREACHABLE_MS: Final = 1000
#: arguments of a reserve that takes no job
_OF_NOBODY: Final = (b"", 0, b"", b"0", b"", b"", b"1", b"9")


def limits_of(
    queue: str, of_queue: Limits | None, task: Task | None, offer: Offer, own: Container[str] = ()
) -> dict[str, Limits]:
    """Return the limits over all workers of the jobs of an offer, by their names.

    Args:
        queue, of_queue: name and limits of the queue.
        task: that of the jobs, if this process knows it.
        own: limits that were set at run time. Their numbers are known to the limiter.
    """
    found = [(f"queue:{queue}", of_queue), (f"task:{task.name if task else offer.task}", task and task.options.limits)]
    limits = {name: one or Limits() for name, one in found if (one and one.is_shared) or name in own}
    if offer.group:  # always, if only because it may be paused
        of_group = _limits_in(offer.options_json) or (task and task.options.group_limits)  # Spark stores none
        limits[f"group:{queue}:{offer.group}"] = of_group or Limits()
    return limits


def offer_of(job: Job, ms: int = 0) -> Offer:
    """Return the offer of one job, whose permit has to last for ``ms``."""
    return Offer(job.group.encode() + bytes(4), job.task, 1, ms, 0, job.options_json)


@lru_cache(1024)
def _limits_in(options_json: bytes) -> Limits | None:
    """Return the limits of a group that are stored with a job."""
    try:
        total, interval_us, burst, *_ = json.loads(options_json)[GROUP_LIMITS]
        return Limits(total or None, interval_us=interval_us or None, burst=burst)
    except (ValueError, TypeError, LookupError, RecursionError):
        return None


def lasting_ms(lease_ms: int) -> int:
    """Return how long a permit lasts: longer than a lease that is won or renewed after it."""
    return lease_ms + lease_ms // 10


@dataclass(frozen=True, slots=True)
class Grant:
    """Permission to hand out jobs of a lane. Each job gets a permit, unless no limit over all workers concerns it.

    Attributes:
        limits: names of its limits.
        at_us: when it was granted, on the limiter's clock.
    """

    offer: Offer
    jobs: int
    limits: tuple[str, ...] = ()
    name: bytes = field(default_factory=lambda: random_block()[:8].hex().encode())
    at_us: float = field(default=0, compare=False)

    @property
    def _ends(self) -> tuple[bytes, bytes]:
        """First and last part of its permits; the number of each is between them."""
        if not self.limits:
            return b"", b""
        return self.name + b".", "".join(f"\0{limit}" for limit in self.limits).encode()

    @property
    def permits(self) -> list[bytes]:
        """Permits of its jobs."""
        first, last = self._ends
        return [b"%b%c%b" % (first, number, last) for number in range(1, self.jobs + 1)] if first else []

    def unused(self, used: Container[bytes] = ()) -> Unused:
        """Return its permits but those that jobs have."""
        return self, [permit for permit in self.permits if permit not in used]

    @property
    def fields(self) -> tuple[bytes, int, int, bytes, bytes]:
        """Grant as the shard takes it."""
        return self.offer.lane, self.jobs, self.offer.ends_ms, *self._ends


@dataclass(frozen=True, slots=True)
class Block:
    """Answer of the limiter about a limit: it grants nothing for ``ms``, or, if that is 0, it may again.

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
        """Part of a shard that it concerns: the whole queue, a group, or the tasks with a limit."""
        if self.limit.startswith("group:"):
            return self.limit.split(":", 2)[2] + "\0"
        return "" if self.limit.startswith("queue:") else self.limit

    @property
    def fields(self) -> tuple[str, float, int, bytes]:
        """Block as the shard takes it."""
        return self.scope, self.at_us, max(1, round(self.ms)) if self.ms else 0, self.code


#: grant, and those of its permits that no job has
Unused: TypeAlias = tuple[Grant, list[bytes]]


@dataclass(slots=True)
class LaneNotes:
    """Information of a caller of a reserve about limits, for the shard (``lua/lib/offers.lua``).

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

    def name(self, queue: str, of_queue: Limits | None, limited: Iterable[str], own: Iterable[str]) -> None:
        """Name the limited tasks and whether the queue is limited, by code, settings and ``own`` limits at run time."""
        self.tasks = [*limited, *(limit.removeprefix("task:") for limit in own)]
        self.whole = (of_queue is not None and of_queue.is_shared) or f"queue:{queue}" in own

    @property
    def granted(self) -> int:
        """Number of jobs that the shard hands out, beside those that the reserve asks for."""
        return sum([grant.jobs for grant in self.grants])

    def pack(self) -> bytes:
        """Return the argument of the script."""
        lists = {"blocks": [block.fields for block in self.blocks], "grants": [grant.fields for grant in self.grants]}
        told = {one.name: value for one in fields(self) if (value := lists.get(one.name) or getattr(self, one.name))}
        return b"%d" % self.most if told.keys() <= {"most"} else pack(told)


@dataclass(frozen=True, slots=True, eq=False)
class Ask:
    """Request for the permits of an offer. ``place`` waits if they are too few."""

    place: Place
    offer: Offer
    limits: Mapping[str, Limits]
    #: which permits it gets, if it gets all
    grant: Grant

    @classmethod
    def of(cls, place: Place, offer: Offer, jobs: int, limits: Mapping[str, Limits], block: bytes = b"") -> Ask:
        """Return the request for ``jobs`` of an offer; ``block`` are random bytes for the name of its grant."""
        name = (block or random_block())[:8].hex().encode()
        return cls(place, offer, limits, Grant(offer, jobs, tuple(limits), name=name))

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
        unused: Sequence[Unused] = (),
        renew: Iterable[tuple[bytes, int]] = (),
        pass_on: Sequence[str] = (),
        pause: Sequence[tuple[str, int]] = (),
    ) -> Answer:
        """Return and renew permits, and ask for others.

        Args:
            release: permits of jobs that have ended.
            unused: grants, and permits of jobs that were not handed out: the rates get these starts back, less the time
                to the last start that they granted.
            renew: permits, and for how many ms from now.
            pass_on: limits of which a freed permit found no job.
            pause: limits that grant nothing for so many ms.
        """
        limits = {name: limit.fields for ask in asks for name, limit in ask.limits.items()}
        released: dict[bytes, list[bytes]] = {}
        for permit in chain(release, *(permits for _, permits in unused)):
            name, _, counted_by = permit.partition(b"\0")
            released.setdefault(counted_by, []).append(name)
        request = {
            "release": released,
            "renew": [(*permit.split(b"\0", 1), ms) for permit, ms in renew],
            "pass_on": pass_on,
            "pause": pause,
            "limits": limits,
            "refund": [(name, len(left), one.at_us, one.name) for one, left in unused for name in one.limits],
            "asks": [ask.fields for ask in asks],
        }
        packed = pack({name: value for name, value in request.items() if value})
        reply = unpack_fields(self._deployment.scripts.call("limit", (self._deployment.key("").encode(),), packed))
        at_us = reply["now"]
        granted, blocked = zip(asks, reply["granted"], strict=True), zip(asks, reply["blocked"], strict=True)
        return Answer(
            [
                Grant(ask.offer, jobs, ask.grant.limits, ask.grant.name, at_us) if jobs else None
                for ask, jobs in granted
            ],
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
        for find in (self._registry.believed, self._registry.known_queue):  # the shard may be new to this process
            if (queue := find(place[0])) and place[1] in queue.numbers:
                frame = queue.call("reserve", place[1], *_OF_NOBODY, LaneNotes(blocks=[block]).pack())
                return not unpack_fields(frame).get("idle")
        return False

    def set(self, limit: str, numbers: Limits | None) -> None:
        """Set a limit at run time; None = clear it. Those who wait for it ask again at once."""
        key, client = self._deployment.key("limits"), self._deployment.client
        with clear_errors():
            if numbers is None:
                client.hdel(key, limit)
            else:
                client.hset(key, limit, pack(numbers.fields))
            client.delete(self._deployment.key(f"rate:{limit}"))  # what it counted was in other intervals
        kind, queue, *_ = limit.split(":", 2)
        queues = self._registry.queues() if kind == "task" else [self._registry.known_queue(queue)]
        at_us = self.call().at_us
        for one in filter(None, queues):
            for number in one.numbers:
                self._free_shard((one.name, number), Block(limit, at_us))

    def get(self, limit: str) -> Limits | None:
        """Return the numbers of a limit that was set at run time."""
        with clear_errors():
            stored = self._deployment.client.hget(self._deployment.key("limits"), limit)
        return Limits.of_fields(unpack_fields(stored)) if stored else None

    def own_limits(self) -> frozenset[str]:
        """Return the names of the limits that were set at run time."""
        with clear_errors():
            return frozenset(name.decode() for name in self._deployment.client.hkeys(self._deployment.key("limits")))

    def give_back(self, permits: Iterable[bytes], unused: Sequence[Unused] = ()) -> None:
        """Return the permits of jobs whose ends are stored; see :meth:`call`. If that fails, they run out."""
        permits = list(filter(is_counted, permits))
        try:
            if permits or any(left for _, left in unused):
                self.free(self.call(release=permits, unused=unused))
        except DelayQError as error:
            logger.info("permits are not returned, they run out: %s", error)


def pause_scope(limiter: Limiter, settlement: Settlement, limits: Iterable[str]) -> None:
    """Let the jobs of a scope wait, before the job that met the refusal goes back to its place.

    If the job has no such limit, or the limiter cannot be reached, it waits alone.
    """
    scope, ms = settlement.pause or ("", 0)
    name = next((limit for limit in limits if limit.startswith(f"{scope}:")), None)
    try:
        if name is not None:
            limiter.call(pause=[(name, ms)])
            return
    except QueueUnavailable as error:
        logger.warning("%s: only this job waits, %s cannot be paused: %s", settlement.job.id, name, error)
    settlement.delay_ms = ms


def is_counted(permit: bytes) -> bool:
    """Return True if a permit has to be renewed and returned, because a limit of concurrency counts it."""
    return b"\0" in permit


def _place_of(word: str) -> Place:
    number, _, queue = word.partition(":")
    return queue, int(number)

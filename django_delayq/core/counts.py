"""Numbers of jobs by state, as ``stats.lua`` counts them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from operator import attrgetter
from typing import Any, Final, NamedTuple

from .deployment import Deployment
from .errors import InvalidJob, QueueUnavailable
from .records.frames import named, unpack
from .records.keys import joint
from .redis.scripts import Call
from .registry import ShardSet

#: shards that one call counts; Redis serves others about a millisecond later
COUNTED_TOGETHER: Final = 32
#: groups of a queue's counters, in the order of a job's life
GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "scheduled": ("created", "changed"),
    "done": ("acked",),
    # The last attempt of a job counts as buried: without it a task with one attempt would never fail.
    "failing": ("failed", "timeout", "crashed", "buried"),
    "buried": ("buried",),
    "cancelled": ("cancelled",),
}
#: members of a reply that are added up
_ADDED: Final = (
    *("ready", "delayed", "reserved", "gated", "failed", "morgue"),
    *("marks", "quarantine", "begun", "parked"),
)


class Starving(NamedTuple):
    """Priority that more urgent jobs keep waiting, and the seconds by which its most overdue job is late."""

    priority: int
    seconds: float


@dataclass(slots=True)
class Counts:
    """Numbers of jobs of a queue by state. ``failed`` jobs are also counted as delayed or ready."""

    queue: str
    now_ms: float = 0
    ready: int = 0
    delayed: int = 0
    reserved: int = 0
    gated: int = 0
    failed: int = 0
    morgue: int = 0
    #: due time of the most overdue job of each priority that was ever used; None = none waits
    oldest_due_ms_of: dict[int, float | None] = field(default_factory=dict)
    #: completion marks of durable jobs that no worker has processed yet
    marks: int = 0
    #: jobs whose next attempt runs in quarantine; also counted as delayed or ready
    quarantine: int = 0
    #: open attempts of jobs that were acked before they began
    begun: int = 0
    #: due jobs in lanes: behind a limit, or of a group whose turn has not come; also counted as ready
    parked: int = 0
    #: when the first of these was due; None = there are none
    parked_since_ms: float | None = None
    counters: dict[str, int] = field(default_factory=dict)
    #: numbers of the shards that did not answer, and whose jobs are missing here
    unreachable: list[int] = field(default_factory=list)
    #: numbers of waiting jobs: due by now, then up to each offset of the requested horizon, then later
    backlog: tuple[int, ...] = (0, 0)
    #: remaining reaper hold, the longest of all shards, ms
    hold_ms: float = 0
    #: most overdue priority behind a more urgent one of the same shard; None if there is none
    starving: Starving | None = None
    #: number and counts of each shard, if requested
    shards: list[tuple[int, Counts]] = field(default_factory=list)

    @property
    def live(self) -> int:
        """Number of live jobs."""
        return self.ready + self.delayed + self.reserved

    @property
    def is_empty(self) -> bool:
        """True if there is no job, morgue record, completion mark or open attempt."""
        return not (self.live or self.morgue or self.marks or self.begun)

    @property
    def unreachable_shards(self) -> int:
        """Number of shards that did not answer."""
        return len(self.unreachable)

    @property
    def lag_seconds(self) -> float:
        """Seconds by which the most overdue job is late, without those in quarantine or in lanes."""
        return _lag(self.now_ms, min((ms for ms in self.oldest_due_ms_of.values() if ms is not None), default=None))

    @property
    def lag_by_priority(self) -> dict[int, float]:
        """The same for each priority that was ever used."""
        return {priority: _lag(self.now_ms, due_ms) for priority, due_ms in sorted(self.oldest_due_ms_of.items())}

    @property
    def parked_seconds(self) -> float:
        """Seconds since the first of the parked jobs was due."""
        return _lag(self.now_ms, self.parked_since_ms)

    def counter(self, group: str) -> int:
        """Return the sum of a group of counters, a key of :data:`GROUPS`."""
        return sum(self.counters.get(name, 0) for name in GROUPS[group])

    @classmethod
    def joint(cls, queue: str, answers: Iterable[Mapping[str, Any]]) -> Counts:
        """Return the joint counts of the shards with these replies."""
        counts = cls(queue)
        for answer in answers:
            counts.add(answer)
        return counts

    def add(self, answer: Mapping[str, Any]) -> None:
        """Add the reply of ``stats.lua`` for one shard."""
        now_ms, ready, delayed, heads = (answer[name] for name in ("now", "ready", "delayed", "oldest"))
        for name in _ADDED:
            setattr(self, name, getattr(self, name) + answer[name])
        self.now_ms = max(self.now_ms, float(now_ms))
        self.hold_ms = max(self.hold_ms, float(answer["hold"] - now_ms))
        if answer["parked"]:
            self.parked_since_ms = _earlier(self.parked_since_ms, float(answer["parked_us"] // 1000))
        due_ms_of = {
            priority: float(oldest // 1000) if oldest >= 0 else None
            for priority, oldest in zip(heads[::2], heads[1::2], strict=True)
        }
        if len(due_ms_of) > 1:
            starving = starving_of({priority: _lag(now_ms, due_ms) for priority, due_ms in due_ms_of.items()})
            self.starving = max(filter(None, (self.starving, starving)), key=attrgetter("seconds"), default=None)
        for priority, due_ms in due_ms_of.items():
            self.oldest_due_ms_of[priority] = _earlier(self.oldest_due_ms_of.get(priority), due_ms)
        bins = [later - sooner for sooner, later in pairwise((0, ready, *answer["due"], ready + delayed))]
        before = self.backlog if len(self.backlog) == len(bins) else (0,) * len(bins)
        self.backlog = tuple(map(sum, zip(before, bins, strict=True)))
        for name, value in zip(answer["counters"][::2], answer["counters"][1::2], strict=True):
            self.counters[name.decode()] = self.counters.get(name.decode(), 0) + int(value)


def starving_of(lags: Mapping[int, float]) -> Starving | None:
    """Return the most overdue priority of a shard behind a more urgent one with due jobs that are less late, if any.

    Args:
        lags: seconds by which the most overdue job of each priority is late; 0 = none is due.
    """
    best, found = math.inf, Starving(0, 0.0)
    for priority, lag in sorted(lags.items()):
        if lag > max(best, found.seconds):
            found = Starving(priority, lag)
        best = min(best, lag or best)
    return found if found.seconds else None


def _lag(now_ms: float, due_ms: float | None) -> float:
    return 0.0 if due_ms is None else max(0.0, now_ms - due_ms) / 1000


def _earlier(one: float | None, other: float | None) -> float | None:
    return min((ms for ms in (one, other) if ms is not None), default=None)


def check_horizon(horizon: Sequence[int]) -> tuple[int, ...]:
    """Return the offsets from now at which a backlog is divided, ms.

    Raises:
        InvalidJob: they are not increasing whole numbers above 0.
    """
    offsets = tuple(horizon)
    if not all(type(one) is int for one in offsets) or any(one >= two for one, two in pairwise((0, *offsets))):
        raise InvalidJob(f"a horizon is a list of increasing whole milliseconds above 0, not {offsets[:5]}")
    return offsets


def read_stats(
    deployment: Deployment,
    places: Sequence[tuple[ShardSet, int]],
    offsets: tuple[int, ...] = (),
    *,
    partial: bool = False,
) -> list[Any]:
    """Return the replies of ``stats.lua`` for many shards. Without a cluster, a call counts several of them.

    Args:
        partial: see :meth:`.Scripts.call_many`.
    """
    shards = [queue.shard(number) for queue, number in places]
    together = 1 if deployment.connection.cluster else COUNTED_TOGETHER
    calls = [
        Call.on_shard("stats", joint(shards[start : start + together]), *offsets)
        for start in range(0, len(shards), together)
    ]
    answers = deployment.scripts.call_many(calls, partial=partial)
    lists = ([one] if isinstance(one, QueueUnavailable) else map(named, unpack(one)) for one in answers)
    return list(chain.from_iterable(lists))


def count_shards(queue: ShardSet, numbers: Sequence[int]) -> Counts:
    """Return the joint counts of some shards of a queue, whatever their epochs."""
    return Counts.joint(queue.name, read_stats(queue.deployment, [(queue, number) for number in numbers]))


def count_each_shard(queue: ShardSet, numbers: Sequence[int]) -> list[Counts]:
    """Return the counts of each of these shards."""
    answers = read_stats(queue.deployment, [(queue, number) for number in numbers])
    return [Counts.joint(queue.name, [answer]) for answer in answers]

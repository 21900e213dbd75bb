"""Status of limits for people: numbers in force, leases, the due jobs that wait behind them, and the next start.

Each shard returns its lanes with due jobs, and the limiter how many its limits allow to start now. So many of them, the
first due ones, wait for a worker only; the others wait behind the limit that allows the fewest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from .errors import QueueUnavailable
from .limits import Limit, limits_of
from .options import Limits
from .outcomes import Offer
from .records.frames import named, names_of, pack, unpack_fields
from .redis.scripts import Call

if TYPE_CHECKING:
    from .registry import ShardSet
    from .task import Registry

#: lanes of groups that one call reads of a shard at most, which takes Redis about a millisecond
LANES: Final = 100
#: limits that one call of the limiter looks at
_LIMITS: Final = 100


@dataclass(slots=True)
class LimitStatus:
    """Status of a limit.

    Attributes:
        kind, subject: queue, task or group, and its name.
        numbers: those in force.
        at_run_time: some of them were set at run time.
        leases: jobs that run under a limit of concurrency.
        jobs: due jobs that wait behind it.
        since_ms: when the first of their lanes had its first due job, Unix ms.
        next_ms: when the next one may start, Unix ms; None = when a running one ends.
    """

    kind: str
    subject: str
    numbers: Limits
    at_run_time: bool
    leases: int
    next_ms: float | None
    free: float = field(repr=False)
    jobs: int = 0
    since_ms: float | None = None

    @property
    def name(self) -> str:
        """Name for people."""
        return f"{self.kind} {self.subject}"

    @property
    def per_second(self) -> float | None:
        """Rate in starts per second; None = none."""
        return 1e6 / self.numbers.interval_us if self.numbers.interval_us else None

    @property
    def rate(self) -> str:
        """Rate for people; "" = none."""
        return f"{self.per_second:g}/s" if self.per_second else ""


@dataclass(slots=True)
class LimitsPage:
    """Limits of a queue with what waits behind them, those with the most waiting jobs first.

    Attributes:
        due: all due jobs in lanes: of groups, or behind a limit of their task or queue, also those that may start now.
        since_ms: when the first of these was due, Unix ms.
        limits: those of the groups of this page, on the first one also those of the queue and its tasks, and on each
            one those behind which jobs of these groups wait.
        more: group behind which the next page begins; "" = there is none.
        unreachable: some shards did not answer.
    """

    queue: str
    due: int = 0
    since_ms: float | None = None
    limits: list[LimitStatus] = field(default_factory=list)
    more: str = ""
    unreachable: bool = False

    @property
    def waiting(self) -> list[LimitStatus]:
        """Limits behind which jobs wait."""
        return [one for one in self.limits if one.jobs]


def read_limits(
    queues: Sequence[ShardSet],
    of_queue: Callable[[str], Limits | None],
    tasks: Registry,
    *,
    after: str = "",
    lanes: int = LANES,
    partial: bool = False,
) -> list[LimitsPage]:
    """Return a page of limits for each queue. Two round trips to each node, whatever the number of queues.

    Args:
        of_queue: returns the limits of a queue in the settings.
        tasks: those that this process knows.
        after: group behind which to begin.
        lanes: number of lanes of groups that are read of each shard, about.
        partial: see :meth:`.Scripts.call_many`.

    Raises:
        QueueUnavailable: Redis cannot be reached, or on a cluster the node of the limiter.
    """
    if not queues:
        return []
    scripts, key = queues[0].deployment.scripts, (queues[0].deployment.key("").encode(),)
    shards = [[queue.shard(number) for number in queue.numbers] for queue in queues]
    calls = [Call.on_shard("waiting", shard, after.encode(), lanes) for each in shards for shard in each]
    replies = iter(scripts.call_many(calls, partial=partial))
    readers = [
        _Reader(queue.name, [next(replies) for _ in each], of_queue(queue.name), tasks, after)
        for queue, each in zip(queues, shards, strict=True)
    ]
    limits = [(limit.name, limit.fields) for reader in readers for limit in reader.limits.values()]
    parts = [dict(limits[at : at + _LIMITS]) for at in range(0, len(limits), _LIMITS)]
    asks = [Call("limit", key, (pack({"look": True, "limits": part}),)) for part in parts]
    states = dict[str, tuple[Any, ...]]()
    for reply in map(unpack_fields, scripts.call_many(asks)):
        states |= {name.decode(): (reply["now"] / 1000, *state) for name, state in reply["states"]}
    return [reader.finish(states) for reader in readers]


class _Reader:
    """Page of one queue while it is read."""

    def __init__(
        self, queue: str, replies: Sequence[Any], of_queue: Limits | None, tasks: Registry, after: str
    ) -> None:
        self.page = LimitsPage(queue)
        self._tasks, self._of_queue, self._after = tasks, of_queue, after
        self.limits: dict[str, Limit] = {}
        for name in ("", *(task.name for task in tasks if task.options.queue == queue)):
            self._add(Offer(bytes(4), name, 0, 0, 0))
        self._lanes = sorted(self._read(replies))

    def _add(self, offer: Offer) -> list[str]:
        """Add the limits of an offer; return their names."""
        queue, task = self.page.queue, self._tasks.get(offer.task)
        own = [f"queue:{queue}", *([f"task:{task.name if task else offer.task}"] if offer.task else ())]
        limits = limits_of(queue, self._of_queue, task, offer, own)
        for limit in limits:
            if limit.fields or limit.name not in self.limits:
                self.limits[limit.name] = limit
        return [limit.name for limit in limits]

    def _read(self, replies: Sequence[Any]) -> Iterator[tuple[float, int, list[str]]]:
        """Yield due time, number of due jobs and limits of each lane, of the groups that all shards have read."""
        parts = [unpack_fields(reply) for reply in replies if not isinstance(reply, QueueUnavailable)]
        last = min((part["last"] for part in parts if part["more"]), default=None)
        sinces = [part["since"] // 1000 for part in parts if part["since"] is not False and part["due"]]
        self.page.due, self.page.since_ms = sum(part["due"] for part in parts), min(sinces, default=None)
        self.page.more, self.page.unreachable = (last or b"").decode(), len(parts) < len(replies)
        for part in parts:
            names = names_of(part["tasks"])
            for group, code, jobs, due_us, options in part["lanes"]:
                if last is None or group <= last:
                    offer = Offer(group + bytes(4), names.get(int.from_bytes(code, "little"), ""), jobs, 0, 0, options)
                    yield due_us // 1000, jobs, self._add(offer)

    def finish(self, states: Mapping[str, tuple[Any, ...]]) -> LimitsPage:
        """Return the page: jobs that may start now are given out, the first due ones first; the others wait."""
        limits = {name: _status_of(name, *states[name]) for name in self.limits}
        for due_ms, jobs, names in self._lanes:
            tightest = min((limits[name] for name in names), key=lambda one: one.free)
            starts = min(jobs, tightest.free)
            for name in names:
                limits[name].free -= starts
            if jobs > starts:
                tightest.jobs += int(jobs - starts)
                tightest.since_ms = due_ms if tightest.since_ms is None else tightest.since_ms
        here = ("group",) if self._after else ("queue", "task", "group")
        used = (one for one in limits.values() if one.jobs or one.leases or one.numbers.is_shared)
        self.page.limits = sorted((one for one in used if one.jobs or one.kind in here), key=lambda one: -one.jobs)
        return self.page


def _status_of(
    name: str, now_ms: float, numbers: Any, at_run_time: bool, leases: int, free: float, ms: float
) -> LimitStatus:
    kind, subject = name.split(":", 1)
    found = named(numbers)
    limits = Limits(found.get("total"), None, found.get("interval"), found.get("burst", 0))
    subject = subject.partition(":")[2] if kind == "group" else subject
    return LimitStatus(kind, subject, limits, at_run_time, leases, None if ms < 0 else now_ms + ms, free)

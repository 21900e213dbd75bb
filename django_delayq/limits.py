"""Limits at run time: ``limits.set("mail", rate="10/s")``, for a queue, a task, or a group of a queue; and what waits.

They stand above those in settings and code, for all processes, until they are cleared. Those of groups hold at once,
those of tasks and queues within a few seconds in processes that knew no limit of them.

Of what waits, each shard returns its lanes with due jobs, and the limiter how many its limits allow to start now. So
many of them, the first due ones, wait for a worker only; the others wait behind the limit that allows the fewest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from .connections import broker
from .core.errors import InvalidJob, QueueUnavailable
from .core.inputs import check_int, check_queue_name, check_task_name
from .core.limits import Limiter, limits_of
from .core.options import Limits, check_group, check_rate, joint_limits
from .core.outcomes import Offer
from .core.records.frames import named, names_of, pack, unpack_fields
from .core.redis.scripts import Call
from .core.task import registry
from .settings.conf import conf

if TYPE_CHECKING:
    from .core.registry import ShardSet

__all__ = ["LimitStatus", "LimitsPage", "clear", "get", "set", "waiting"]

#: lanes of groups that one call reads of a shard, about, which takes Redis about a millisecond
LANES: Final = 100
#: limits that one call of the limiter looks at
_LIMITS: Final = 100


def set(
    queue: str | None = None,
    *,
    task: str | None = None,
    group: str | None = None,
    concurrency: int | None = None,
    rate: str | float | None = None,
    burst: int | None = None,
) -> None:
    """Set limits over all workers.

    Args:
        queue, task, group: of these jobs: one of a queue, a task, or a group with its queue.
        concurrency: most jobs at a time; None = as code and settings say.
        rate, burst: starts in a time, and how many may follow each other at once; None = as code and settings say.

    Raises:
        InvalidJob: a wrong value, or it is not clear which jobs are meant.
        QueueUnavailable: Redis could not be reached.
    """
    _limiter().set(name_of(queue, task, group), numbers_of(concurrency, rate, burst))


def get(queue: str | None = None, *, task: str | None = None, group: str | None = None) -> dict[str, Any]:
    """Return what :func:`set` has set, by the names of its arguments; the rate as starts per second."""
    numbers = _limiter().get(name_of(queue, task, group)) or Limits()
    found = {
        "concurrency": numbers.total,
        "rate": 1e6 / numbers.interval_us if numbers.interval_us else None,
        "burst": numbers.burst or None,
    }
    return {name: value for name, value in found.items() if value is not None}


def clear(queue: str | None = None, *, task: str | None = None, group: str | None = None) -> None:
    """Remove what :func:`set` has set: code and settings hold again."""
    _limiter().set(name_of(queue, task, group), None)


def _limiter() -> Limiter:
    return Limiter(broker().registry)


def numbers_of(concurrency: int | None = None, rate: str | float | None = None, burst: int | None = None) -> Limits:
    """Return the numbers of a limit; see :func:`set`."""
    total = None if concurrency is None else Limits(check_int("concurrency", concurrency, 1))
    at_once = None if burst is None else check_int("burst", burst, 1)
    numbers = joint_limits(total, None if rate is None else check_rate("rate", rate), at_once)
    if numbers is None:
        raise InvalidJob("give concurrency= or rate=, or call limits.clear()")
    return numbers


def name_of(queue: str | None = None, task: str | None = None, group: str | None = None) -> str:
    """Return the name of the limit of these jobs; see :func:`set`."""
    if queue is not None and task is None:
        name = check_queue_name(queue)
        return f"queue:{name}" if group is None else f"group:{name}:{check_group('group', group)}"
    if task is not None and queue is group is None:
        known = registry.get(task)
        return f"task:{known.name if known else check_task_name(task)}"
    raise InvalidJob("name the jobs: queue=, task=, or group= together with queue=")


# -- what waits ------------------------------------------------------------------------------------------------------


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


def waiting(queue: str, *, after: str = "") -> LimitsPage:
    """Return the limits of a queue with the due jobs that wait behind them, since when, and when the next one starts.

    Of groups a page is read, at least 100 if so many have due jobs; its ``more``, as ``after``, leads to the next one.

    Raises:
        InvalidJob: there is no such queue.
        QueueUnavailable: Redis could not be reached.
    """
    (page,) = pages([broker().require_queue(queue)], after=after)
    return page


def pages(queues: Sequence[ShardSet], *, after: str = "", partial: bool = False) -> list[LimitsPage]:
    """Return a page of limits for each queue. Two round trips to each node, whatever the number of queues.

    Args:
        after: group behind which to begin.
        partial: see :meth:`.Scripts.call_many`.

    Raises:
        QueueUnavailable: Redis cannot be reached, or on a cluster the node of the limiter.
    """
    if not queues:
        return []
    scripts, key = queues[0].deployment.scripts, (queues[0].deployment.key("").encode(),)
    shards = [[queue.shard(number) for number in queue.numbers] for queue in queues]
    calls = [Call.on_shard("waiting", shard, after.encode(), LANES) for each in shards for shard in each]
    replies = iter(scripts.call_many(calls, partial=partial))
    readers = [
        _Reader(queue.name, [next(replies) for _ in each], after) for queue, each in zip(queues, shards, strict=True)
    ]
    limits = [(name, one.fields) for reader in readers for name, one in reader.limits.items()]
    parts = [dict(limits[at : at + _LIMITS]) for at in range(0, len(limits), _LIMITS)]
    asks = [Call("limit", key, (pack({"look": True, "limits": part}),)) for part in parts]
    states = dict[str, tuple[Any, ...]]()
    for reply in map(unpack_fields, scripts.call_many(asks)):
        states |= {name.decode(): (reply["now"] / 1000, *state) for name, state in reply["states"]}
    return [reader.finish(states) for reader in readers]


class _Reader:
    """Page of one queue while it is read."""

    def __init__(self, queue: str, replies: Sequence[Any], after: str) -> None:
        self.page = LimitsPage(queue)
        self._after = after
        self._of_queue = conf().queue(queue).limits
        self.limits: dict[str, Limits] = {}
        for name in ("", *(task.name for task in registry if task.options.queue == queue)):
            self._add(Offer(bytes(4), name, 0, 0, 0))
        self._lanes = sorted(self._read(replies))

    def _add(self, offer: Offer) -> list[str]:
        """Add the limits of an offer; return their names."""
        queue, task = self.page.queue, registry.get(offer.task)
        own = [f"queue:{queue}", *([f"task:{task.name if task else offer.task}"] if offer.task else ())]
        limits = limits_of(queue, self._of_queue, task, offer, own)
        self.limits |= {name: one for name, one in limits.items() if one.fields or name not in self.limits}
        return list(limits)

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
    subject = subject.partition(":")[2] if kind == "group" else subject
    next_ms = None if ms < 0 else now_ms + ms
    return LimitStatus(kind, subject, Limits.of_fields(named(numbers)), at_run_time, leases, next_ms, free)

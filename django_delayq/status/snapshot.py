"""Snapshot of a deployment, created by :mod:`.reading`: frozen values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ..core.counts import Counts, Starving
from ..core.figures import TOTAL, DepthPoint, Figures, Histogram
from ..core.limit_status import LimitsPage

if TYPE_CHECKING:
    from ..outbox.durability import Stock

#: where a job may be, in the order in which numbers are shown
PLACES: Final = ("delayed", "ready", "reserved", "gated", "failed", "morgue")
#: seconds without a heartbeat after which a worker counts as lost
LOST_AFTER: Final = 30.0
#: seconds behind more urgent jobs, beyond those that the queue allows, after which a priority counts as starving
STARVING_AFTER: Final = 60.0


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """Status of one queue. ``scheduled``, ``done`` and ``failing`` are counted since the queue was created."""

    name: str
    #: python or pull
    kind: str
    counts: Counts
    #: in the current epoch
    shards: int
    epoch: int
    #: former epochs are still being emptied
    draining: bool = False
    #: "", in, out or both
    paused: str = ""
    #: direction → when its pause ends by itself, Unix ms
    paused_until: Mapping[str, int] = field(default_factory=dict)
    #: limits in force, by their names in the settings
    limits: Mapping[str, Any] = field(default_factory=dict)
    #: permits of its limit of concurrency that are taken; None: no such limit
    permits: int | None = None

    @property
    def lag_seconds(self) -> float:
        """Seconds since the oldest ready job became due."""
        return self.counts.lag_seconds

    @property
    def starts_nothing(self) -> bool:
        """True if it is paused for workers."""
        return self.paused in ("out", "both")

    @property
    def starving(self) -> Starving | None:
        """Priority whose jobs have waited too long for more urgent ones; None if there is none."""
        if self.starts_nothing:
            return None
        found, allowed = self.counts.starving, self.limits.get("starve_after", 0)
        return found if found is not None and found.seconds > allowed + STARVING_AFTER else None

    @property
    def scheduled(self) -> int:
        """Number of calls that stored or changed a job."""
        return self.counts.counter("scheduled")

    @property
    def done(self) -> int:
        """Number of jobs that succeeded."""
        return self.counts.counter("done")

    @property
    def failing(self) -> int:
        """Number of attempts that did not succeed, including the last ones of buried jobs."""
        return self.counts.counter("failing")


@dataclass(frozen=True, slots=True)
class RunningJob:
    """Job that a worker thread ran at its last heartbeat; ``ids`` is the number of jobs in this attempt."""

    slot: int
    queue: str
    id: str
    task: str
    #: Unix ms
    started_ms: int
    ids: int = 1


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """Status of one worker process from its last heartbeat.

    Times are Unix ms on Redis's clock, except ``started_ms`` (the worker's own clock).
    """

    name: str
    seen_ms: float
    #: since then
    seconds_ago: float
    host: str = ""
    pid: int | None = None
    #: queues it serves; empty = not reported
    queues: tuple[str, ...] = ()
    #: queues that operators took from its program
    ignored: tuple[str, ...] = ()
    threads: int = 0
    running: int = 0
    #: time for which it had free slots and began nothing, at that heartbeat
    idle_seconds: float = 0.0
    dispatcher: bool = False
    stopping: bool = False
    #: it runs only jobs that wait for quarantine
    quarantine: bool = False
    started_ms: int | None = None
    rss_mib: int | None = None
    jobs: tuple[RunningJob, ...] = ()
    #: the complete heartbeat payload, for printing
    payload: Mapping[str, Any] = field(default_factory=dict)

    def serves(self, queue: str) -> bool:
        """Return True if it runs the jobs of a queue."""
        return queue in self.queues or (bool(self.payload.get("all_queues")) and queue not in self.ignored)

    @property
    def lost(self) -> bool:
        """True if there was no heartbeat for so long that the worker counts as dead."""
        return self.seconds_ago > LOST_AFTER


@dataclass(frozen=True, slots=True)
class RedisStatus:
    """Status of Redis. For a cluster the values of all masters combined: sums, or the worst value."""

    version: str = ""
    #: standalone or cluster
    mode: str = ""
    #: master or replica
    role: str = ""
    nodes: int = 1
    uptime_seconds: int | None = None
    #: bytes
    used_memory: int | None = None
    used_memory_peak: int | None = None
    #: 0 = no limit
    maxmemory: int | None = None
    maxmemory_policy: str | None = None
    evicted_keys: int | None = None
    aof: bool = False
    #: the last write to the append-only file succeeded
    aof_ok: bool = True
    #: seconds since a snapshot was written, and whether that succeeded
    rdb_last_save_seconds: float | None = None
    rdb_ok: bool = True
    clients: int | None = None
    blocked_clients: int | None = None
    ops_per_sec: int | None = None
    replicas: int | None = None
    loading: bool = False


@dataclass(frozen=True, slots=True)
class RecurringStatus:
    """Recurring task registered in this process, or a pause of one that is not (another release may have it).

    Such a pause has no queue, schedule and ticks.
    """

    task: str
    queue: str = ""
    #: as written in the task's options
    schedule: str = ""
    #: "" = UTC
    timezone: str = ""
    missed: str = ""
    #: Unix ms
    last_tick_ms: int | None = None
    #: None while it is paused
    next_tick_ms: float | None = None
    #: since when its ticks do not fire; None = they do
    paused_ms: int | None = None


@dataclass(frozen=True, slots=True)
class UnreachablePart:
    """Node of a cluster that does not answer, so that its part is missing in a snapshot."""

    #: slots and address, for people
    slots: str
    #: it holds the registry of queues and workers
    registry: bool = False
    #: queue → number of its shards there
    shards: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        missing = ["the registry of queues and workers"] if self.registry else []
        missing += [f"{number} shard{'' if number == 1 else 's'} of {name}" for name, number in self.shards.items()]
        return f"{self.slots}: no answer; missing here: {', '.join(missing)}"


@dataclass(frozen=True, slots=True)
class Totals:
    """Totals of all queues.

    ``busy`` of ``threads`` are running jobs, without lost workers; ``lag`` is the longest of all queues.
    """

    delayed: int = 0
    ready: int = 0
    reserved: int = 0
    gated: int = 0
    failed: int = 0
    morgue: int = 0
    lag_seconds: float = 0.0
    busy: int = 0
    threads: int = 0
    done: int = 0
    failing: int = 0
    scheduled: int = 0


@dataclass(frozen=True, slots=True)
class Rates:
    """Changing calls and ended attempts per second since a sample, and the lateness in it; None = unknown."""

    scheduled: float | None = None
    done: float | None = None
    failing: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """State of a deployment at one moment (``now_ms``: Unix ms on Redis's clock).

    Queues and workers are ordered by name.
    """

    now_ms: float
    queues: tuple[QueueStatus, ...] = ()
    workers: tuple[WorkerStatus, ...] = ()
    redis: RedisStatus = RedisStatus()
    #: None: there is no table, or it was not requested
    outbox: Stock | None = None
    figures: Figures = field(default_factory=Figures)
    #: since when the producers of all queues are paused, Unix ms; None = they are not
    producers_paused_ms: int | None = None
    recurring: tuple[RecurringStatus, ...] = ()
    #: parts of a cluster that do not answer
    unreachable: tuple[UnreachablePart, ...] = ()
    #: limits of the queues with parked jobs, if they were requested and the limiter answers
    limits: tuple[LimitsPage, ...] = ()
    #: queue → sample since which its rates are taken; :data:`TOTAL` = of all queues. Empty: not requested, or none yet
    samples: Mapping[str, DepthPoint] = field(default_factory=dict)

    def rates(self, of: QueueStatus | Totals) -> Rates:
        """Return the rates of a queue or of all; unknown without a sample, or while a part of a cluster is missing.

        A counter that has decreased belongs to a queue that was deleted meanwhile, or Redis lost it.
        """
        sample = self.samples.get(of.name if isinstance(of, QueueStatus) else TOTAL)
        if sample is None or self.unreachable:
            return Rates()
        seconds = (self.now_ms - sample.at_ms) / 1000
        scheduled, done, failing = (
            max(0.0, getattr(of, counter) - getattr(sample, counter)) / seconds
            for counter in ("scheduled", "done", "failing")
        )
        return Rates(scheduled, done, failing, sample.p50_ms, sample.p99_ms)

    @property
    def has_registry(self) -> bool:
        """True unless the registry did not answer: then workers and counters of attempts are missing here."""
        return not any(part.registry for part in self.unreachable)

    @property
    def totals(self) -> Totals:
        """Totals of all queues."""
        alive = [worker for worker in self.workers if not worker.lost]
        return Totals(
            **{place: sum(getattr(queue.counts, place) for queue in self.queues) for place in PLACES},
            lag_seconds=max((queue.lag_seconds for queue in self.queues), default=0.0),
            busy=sum(worker.running for worker in alive),
            threads=sum(worker.threads for worker in alive),
            done=sum(queue.done for queue in self.queues),
            failing=sum(queue.failing for queue in self.queues),
            scheduled=sum(queue.scheduled for queue in self.queues),
        )

    @property
    def backlog(self) -> tuple[int, ...]:
        """:attr:`Counts.backlog` summed over all queues."""
        bins = [queue.counts.backlog for queue in self.queues]
        return tuple(map(sum, zip(*bins, strict=True)))

    def queue(self, name: str) -> QueueStatus | None:
        """Return the queue of this name, or None."""
        return next((queue for queue in self.queues if queue.name == name), None)

    def as_json(self) -> dict[str, Any]:
        """Return the value that ``delayq_status --json`` prints; see :mod:`.json_form`."""
        from .json_form import as_json

        return as_json(self)


# -- attempts so far ---------------------------------------------------------------------------------------------------


def united(histograms: Iterable[Histogram]) -> Histogram:
    """Return the sum of all histograms."""
    return sum(histograms, Histogram())


def by_queue(runs: Mapping[tuple[str, str], Histogram]) -> dict[str, Histogram]:
    """Return the attempts of all tasks, summed by queue."""
    sums: dict[str, Histogram] = {}
    for (queue, _), run in runs.items():
        sums[queue] = sums[queue] + run if queue in sums else run
    return sums

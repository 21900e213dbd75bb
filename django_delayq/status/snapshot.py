"""Snapshot of a deployment: frozen values, and their reading in a few round trips, whatever the number of queues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from django.conf import settings
from django.db import connections as databases

from ..core.counts import Counts, Starving
from ..core.errors import QueueUnavailable
from ..core.figures import TOTAL, DepthPoint, Figures, last_samples
from ..core.layouts import queue_policy
from ..core.redis.connection import PARTIAL_SECONDS
from ..core.registry import recurring_pauses
from ..core.task import registry as tasks
from ..limits import LimitsPage, pages
from ..outbox.durability import stock
from ..settings.conf import conf
from ..worker.recurring import works_of

if TYPE_CHECKING:
    from ..core.broker import Broker
    from ..core.queue import Queue
    from ..outbox.durability import Stock

T = TypeVar("T")
U = TypeVar("U")
#: rates are taken since a sample that is at least so old, ms
RATE_MS: Final = 10_000
#: largest whole number that every JSON reader handles exactly
_LARGEST: Final = 2**53
#: where a job may be, in the order in which numbers are shown
PLACES: Final = ("delayed", "ready", "reserved", "gated", "failed", "morgue")
#: what is counted since a queue was created: calls that stored or changed a job, jobs that succeeded, other attempts
COUNTERS: Final = ("scheduled", "done", "failing")
#: seconds without a heartbeat after which a worker counts as lost
LOST_AFTER: Final = 30.0
#: seconds behind more urgent jobs, beyond those that the queue allows, after which a priority counts as starving
STARVING_AFTER: Final = 60.0


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """Status of one queue."""

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

    @property
    def lag_seconds(self) -> float:
        """Seconds since the oldest ready job became due."""
        return self.counts.lag_seconds

    def is_paused(self, direction: str) -> bool:
        """Return True if it is paused in this direction: in, or out (for workers)."""
        return self.paused in (direction, "both")

    @property
    def starving(self) -> Starving | None:
        """Priority whose jobs have waited too long for more urgent ones; None if there is none."""
        if self.is_paused("out"):
            return None
        found, allowed = self.counts.starving, self.limits.get("starve_after", 0)
        return found if found is not None and found.seconds > allowed + STARVING_AFTER else None


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


def _reported(name: str, combine: Callable[[list[Any]], Any], default: Any = None) -> Any:
    """Return a field that combines what all masters report in ``INFO`` under this name; the default if none does."""
    return field(default=default, metadata={"name": name, "combine": combine})


def _first(found: list[Any]) -> str:
    return str(found[0])


def _are_fine(found: list[Any]) -> bool:
    return set(found) == {"ok"}


@dataclass(frozen=True, slots=True)
class RedisStatus:
    """Status of Redis. For a cluster the values of all masters combined: sums, or the worst value."""

    version: str = _reported("redis_version", _first, "")
    #: standalone or cluster
    mode: str = _reported("redis_mode", _first, "")
    #: master or replica
    role: str = _reported("role", lambda found: _first(found).replace("slave", "replica"), "")
    nodes: int = 1
    uptime_seconds: int | None = _reported("uptime_in_seconds", min)
    #: bytes
    used_memory: int | None = _reported("used_memory", sum)
    used_memory_peak: int | None = _reported("used_memory_peak", sum)
    #: 0 = no limit
    maxmemory: int | None = _reported("maxmemory", sum)
    maxmemory_policy: str | None = _reported("maxmemory_policy", _first)
    evicted_keys: int | None = _reported("evicted_keys", sum)
    aof: bool = _reported("aof_enabled", all, default=False)
    #: the last write to the append-only file succeeded
    aof_ok: bool = _reported("aof_last_write_status", _are_fine, default=True)
    #: seconds since a snapshot was written (``INFO`` has the moment), and whether that succeeded
    rdb_last_save_seconds: float | None = _reported("rdb_last_save_time", min)
    rdb_ok: bool = _reported("rdb_last_bgsave_status", _are_fine, default=True)
    clients: int | None = _reported("connected_clients", sum)
    blocked_clients: int | None = _reported("blocked_clients", sum)
    ops_per_sec: int | None = _reported("instantaneous_ops_per_sec", sum)
    replicas: int | None = _reported("connected_slaves", sum)
    loading: bool = _reported("loading", any, default=False)


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

    def rates(self, queue: QueueStatus | None = None) -> Rates:
        """Return the rates of a queue, or of all; unknown without a sample, or while a part of a cluster is missing.

        A counter that has decreased belongs to a queue that was deleted meanwhile, or Redis lost it.
        """
        sample = self.samples.get(TOTAL if queue is None else queue.name)
        if sample is None or self.unreachable:
            return Rates()
        seconds = (self.now_ms - sample.at_ms) / 1000
        grown = ((name, count - getattr(sample, name)) for name, count in self.counters(queue).items())
        return Rates(
            **{name: max(0.0, more) / seconds for name, more in grown}, p50_ms=sample.p50_ms, p99_ms=sample.p99_ms
        )

    def counters(self, queue: QueueStatus | None = None) -> dict[str, int]:
        """Return the counters (:data:`COUNTERS`) of a queue, or of all."""
        counted = self.queues if queue is None else (queue,)
        return {name: sum(one.counts.counter(name) for one in counted) for name in COUNTERS}

    @property
    def has_registry(self) -> bool:
        """True unless the registry did not answer: then workers and counters of attempts are missing here."""
        return not any(part.registry for part in self.unreachable)

    @property
    def alive(self) -> list[WorkerStatus]:
        """Workers that are not lost."""
        return [worker for worker in self.workers if not worker.lost]

    @property
    def totals(self) -> SimpleNamespace:
        """Totals of all queues: jobs by place, the longest lag, ``busy`` of ``threads`` of live workers, counters."""
        return SimpleNamespace(
            **{place: sum(getattr(queue.counts, place) for queue in self.queues) for place in PLACES},
            lag_seconds=max((queue.lag_seconds for queue in self.queues), default=0.0),
            busy=sum(worker.running for worker in self.alive),
            threads=sum(worker.threads for worker in self.alive),
            **self.counters(),
        )

    @property
    def backlog(self) -> tuple[int, ...]:
        """:attr:`Counts.backlog` summed over all queues."""
        bins = [queue.counts.backlog for queue in self.queues]
        return tuple(map(sum, zip(*bins, strict=True)))


# -- reading ----------------------------------------------------------------------------------------------------------


def take(
    broker: Broker,
    *,
    horizon: Sequence[int] = (),
    recurring: bool = False,
    outbox: bool = True,
    limits: bool = True,
    rates: bool = False,
) -> Snapshot:
    """Return a snapshot of a deployment.

    This takes one round trip each for the registry, the workers, the counters, ``INFO``, all shards of all queues (on a
    cluster: each of its nodes), the recurring tasks, and the samples; two for the limits, if jobs are parked. The
    outbox is read from the database.

    On a cluster of which a part does not answer, the rest is returned, and :attr:`Snapshot.unreachable` names that
    part. If it has the registry, the queues are those that this process knows.

    Args:
        horizon: growing offsets from now in ms, between which :attr:`Counts.backlog` divides waiting jobs.
        recurring: include the recurring tasks registered in this process.
        outbox: include the numbers of rows in the outbox.
        limits: include the limits of queues with parked jobs.
        rates: include the samples for :meth:`.Snapshot.rates`.

    Raises:
        QueueUnavailable, Misconfigured: Redis cannot be queried.
        InvalidJob: the horizon is invalid.
    """
    unknown = broker.opened_queues(), list[Mapping[str, Any]](), dict[str, Any]()
    queues, workers, others = _partly(broker, lambda: _read_registry(broker), unknown)
    servers = broker.inspector.servers()
    counts = broker.inspector.all_counts(horizon=horizon, queues=queues, partial=True)
    now_ms = max((one.now_ms for one in counts), default=0.0) or broker.now_ms()
    unreachable = tuple(unreachable_parts(broker, counts, registry=not others))
    sampled = [TOTAL, *(queue.name for queue in queues)] if rates and not unreachable else []
    parked = [queue for queue, one in zip(queues, counts, strict=True) if one.parked and limits]
    return Snapshot(
        now_ms=now_ms,
        queues=tuple(map(queue_status, queues, counts)),
        workers=tuple(worker_status(payload, now_ms) for payload in workers),
        redis=redis_status(servers, now_ms),
        outbox=_outbox() if outbox else None,
        recurring=_partly(broker, lambda: recurring_of(broker, queues, now_ms), ()) if recurring else (),
        unreachable=unreachable,
        limits=_partly(broker, lambda: tuple(pages(parked, partial=True)), ()),
        samples=last_samples(broker, sampled, now_ms - RATE_MS) if sampled else {},
        **others,
    )


def _read_registry(broker: Broker) -> tuple[Sequence[Queue], Sequence[Mapping[str, Any]], dict[str, Any]]:
    """Return what is in the registry's slot: queues, heartbeats of workers, and other values of a snapshot by name."""
    queues = broker.queues()  # this call learns of a pause of the producers
    paused_ms = broker.producers_paused_since() if broker.registry.producers_paused else None
    return queues, broker.workers(), {"producers_paused_ms": paused_ms, "figures": broker.figures()}


def _partly(broker: Broker, read: Callable[[], T], without: U) -> T | U:
    """Return what is read, or on a cluster ``without`` if the node that has it does not answer."""
    try:
        with broker.connection.limited(PARTIAL_SECONDS):
            return read()
    except QueueUnavailable:
        if not broker.connection.cluster:
            raise
        return without


def unreachable_parts(broker: Broker, counts: Sequence[Counts], *, registry: bool = False) -> list[UnreachablePart]:
    """Return the nodes of a cluster that do not answer.

    Args:
        counts: of all queues, read with ``partial=True``.
        registry: the registry does not answer either.
    """
    slots_of = broker.connection.slots_of
    registry_slots = slots_of(broker.queues_key.encode()) if registry else ""
    shards: dict[str, Counter[str]] = {registry_slots: Counter()} if registry else {}
    for one in counts:
        for number in one.unreachable:
            shards.setdefault(slots_of(broker.shard(one.queue, number).keys[0]), Counter())[one.queue] += 1
    return [UnreachablePart(slots, slots == registry_slots, dict(missing)) for slots, missing in sorted(shards.items())]


def queue_status(queue: Queue, counts: Counts) -> QueueStatus:
    """Return the status of one queue from its registry entry and its counts."""
    policy = queue_policy(queue.layout, counts.now_ms or None)
    epoch, is_draining = int(queue.layout["epoch"]), len(queue.epochs) > 1
    return QueueStatus(queue.name, queue.kind, counts, queue.shards, epoch, is_draining, **policy)


def worker_status(payload: Mapping[str, Any], now_ms: float) -> WorkerStatus:
    """Return the status of a worker from its heartbeat payload (:meth:`Broker.workers`).

    The worker may be of another release, so every field is checked.
    """
    values: dict[str, Any] = {name: _whole(payload.get(name)) for name in ("pid", "rss_mib")}
    values |= {name: _whole(payload.get(name)) or 0 for name in ("threads", "running")}
    values |= {name: bool(payload.get(name)) for name in ("dispatcher", "stopping", "quarantine")}
    values |= {name: tuple(map(str, _listed(payload.get(name)))) for name in ("queues", "ignored")}
    seen_ms = float(payload["seen_ms"])
    return WorkerStatus(
        **values,
        name=str(payload["name"]),
        seen_ms=seen_ms,
        seconds_ago=max(0.0, now_ms - seen_ms) / 1000,
        host=str(payload.get("host") or ""),
        idle_seconds=(_whole(payload.get("idle_ms")) or 0) / 1000,
        started_ms=_whole(payload.get("started")),
        jobs=tuple(_running_job(one) for one in _listed(payload.get("jobs")) if isinstance(one, dict)),
        payload=payload,
    )


def _running_job(job: Mapping[str, Any]) -> RunningJob:
    slot, started_ms, ids = (_whole(job.get(name)) for name in ("slot", "started_ms", "ids"))
    queue, ident, task = (str(job.get(name, "")) for name in ("queue", "id", "task"))
    return RunningJob(slot or 0, queue, ident, task, started_ms or 0, ids or 1)


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _whole(value: object) -> int | None:
    return int(value) if isinstance(value, (int, float)) and abs(value) <= _LARGEST else None


def redis_status(infos: Sequence[Mapping[str, Any]], now_ms: float) -> RedisStatus:
    """Return the combined status of the servers from their ``INFO``."""
    masters = [info for info in infos if info.get("role", "master") == "master"] or list(infos)
    values: dict[str, Any] = {"nodes": len(masters)}
    for one in fields(RedisStatus):
        if found := [info[one.metadata["name"]] for info in masters if one.metadata.get("name") in info]:
            values[one.name] = one.metadata["combine"](found)
    if "rdb_last_save_seconds" in values:
        values["rdb_last_save_seconds"] = max(0.0, round(now_ms / 1000 - values["rdb_last_save_seconds"], 1))
    return RedisStatus(**values)


def _outbox() -> Any:
    aliases = conf().outbox.databases
    for connection in (databases[alias] for alias in aliases if alias in databases):
        # Outside of requests (a terminal, the thread of an exporter) nothing else closes broken connections.
        if connection.errors_occurred:
            connection.close_if_unusable_or_obsolete()
    return stock(aliases)


def read_recurring(broker: Broker) -> tuple[RecurringStatus, ...]:
    """Return the status of the recurring tasks of this process and the pauses of others, ordered by task name."""
    return recurring_of(broker, broker.queues(), broker.now_ms())


def recurring_of(broker: Broker, queues: Sequence[Queue], now_ms: float) -> tuple[RecurringStatus, ...]:
    """Return the status of recurring tasks and the pauses of unknown ones, ordered by task name.

    A task whose queue is not among ``queues`` has no last tick.
    """
    by_name, paused = {queue.name: queue for queue in queues}, recurring_pauses(broker)
    works = works_of(tasks, settings.TIME_ZONE or "UTC")
    places = [(by_name[work.task.options.queue], work.id) for work in works if work.task.options.queue in by_name]
    last = dict(zip((ident for _, ident in places), broker.inspector.last_ticks(places), strict=True))
    found = []
    for work in works:
        since = [paused.pop(name) for name in work.task.names if name in paused]  # it may be paused under an old name
        found.append(
            RecurringStatus(
                task=work.task.name,
                queue=work.task.options.queue,
                schedule=work.recurrence.text,
                timezone=work.recurrence.zone,
                missed=work.task.options.missed,
                last_tick_ms=last.get(work.id),
                next_tick_ms=None if since else work.recurrence.following(now_ms),
                paused_ms=min(since, default=None),
            )
        )
    unknown = (RecurringStatus(name, paused_ms=since_ms) for name, since_ms in paused.items())
    return tuple(sorted((*found, *unknown), key=attrgetter("task")))

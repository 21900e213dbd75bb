"""Reading of a snapshot: a handful of round trips, whatever the number of queues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from django.conf import settings
from django.db import connections as databases

from ..core.errors import QueueUnavailable
from ..core.figures import TOTAL, Figures, last_samples
from ..core.layouts import queue_policy
from ..core.limits import taken
from ..core.redis.connection import PARTIAL_SECONDS
from ..core.registry import recurring_pauses
from ..core.task import registry as tasks
from ..limits import pages
from ..outbox.durability import stock
from ..settings.conf import conf
from ..worker.recurring import Work, works_of
from .snapshot import QueueStatus, RecurringStatus, RedisStatus, RunningJob, Snapshot, UnreachablePart, WorkerStatus

if TYPE_CHECKING:
    from ..core.broker import Broker
    from ..core.counts import Counts
    from ..core.queue import Queue

#: rates are taken since a sample that is at least so old, ms
RATE_MS: Final = 10_000
#: largest whole number that every JSON reader handles exactly
_LARGEST: Final = 2**53


def take(
    broker: Broker,
    *,
    horizon: Sequence[int] = (),
    by_shard: bool = False,
    recurring: bool = False,
    outbox: bool = True,
    limits: bool = True,
    rates: bool = False,
) -> Snapshot:
    """Return a snapshot of a deployment.

    This takes one round trip each for the registry, the workers, the counters, ``INFO``, all shards of all queues (on a
    cluster: each of its nodes), each queue with a limit of concurrency, the recurring tasks, and the samples; two for
    the limits, if jobs are parked. The outbox is read from the database.

    On a cluster of which a part does not answer, the rest is returned, and :attr:`Snapshot.unreachable` names that
    part. If it has the registry, the queues are those that this process knows.

    Args:
        horizon: growing offsets from now in ms, between which :attr:`Counts.backlog` divides waiting jobs.
        by_shard: include the counts of each shard (:attr:`Counts.shards`).
        recurring: include the recurring tasks registered in this process.
        outbox: include the numbers of rows in the outbox.
        limits: include the limits of queues with parked jobs.
        rates: include the samples for :meth:`.Snapshot.rates`.

    Raises:
        QueueUnavailable, Misconfigured: Redis cannot be queried.
        InvalidJob: the horizon is invalid.
    """
    registry = _read_registry(broker)
    queues, servers = registry.queues, broker.inspector.servers()
    counts = broker.inspector.all_counts(horizon=horizon, by_shard=by_shard, queues=queues, partial=True)
    now_ms = max((one.now_ms for one in counts), default=0.0) or broker.now_ms()
    unreachable = tuple(unreachable_parts(broker, counts, registry=not registry.answers))
    sampled = [TOTAL, *(queue.name for queue in queues)] if rates and not unreachable else []
    return Snapshot(
        now_ms=now_ms,
        queues=tuple(
            queue_status(queue, one, _permits_of(broker, queue.name)) for queue, one in zip(queues, counts, strict=True)
        ),
        workers=tuple(worker_status(payload, now_ms) for payload in registry.workers),
        redis=redis_status(servers, now_ms),
        outbox=_outbox() if outbox else None,
        figures=registry.figures,
        producers_paused_ms=registry.producers_paused_ms,
        recurring=_recurring(broker, queues, now_ms) if recurring else (),
        unreachable=unreachable,
        limits=_limits(broker, [queue for queue, one in zip(queues, counts, strict=True) if one.parked and limits]),
        samples=last_samples(broker, sampled, now_ms - RATE_MS) if sampled else {},
    )


@dataclass(frozen=True, slots=True)
class _Registry:
    """Contents of the registry's slot; without an answer the queues that this process knows."""

    queues: Sequence[Queue]
    workers: Sequence[Mapping[str, Any]] = ()
    figures: Figures = field(default_factory=Figures)
    producers_paused_ms: int | None = None
    answers: bool = True


def _read_registry(broker: Broker) -> _Registry:
    try:
        with broker.connection.limited(PARTIAL_SECONDS):
            queues = broker.queues()
            paused_ms = broker.producers_paused_since() if broker.registry.producers_paused else None
            return _Registry(queues, broker.workers(), broker.figures(), paused_ms)
    except QueueUnavailable:
        if not broker.connection.cluster:
            raise
        return _Registry(broker.opened_queues(), answers=False)


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


def _permits_of(broker: Broker, queue: str) -> int | None:
    """Return the permits of a queue's limit that are taken: all of them, if that cannot be read."""
    limit = conf().queue(queue).limits
    if limit is None or limit.total is None:
        return None
    try:
        with broker.connection.limited(PARTIAL_SECONDS):
            return taken(broker, f"queue:{queue}")
    except QueueUnavailable:
        return limit.total


def _limits(broker: Broker, queues: Sequence[Queue]) -> Any:
    try:
        with broker.connection.limited(PARTIAL_SECONDS):
            return tuple(pages(queues, partial=True))
    except QueueUnavailable:
        if not broker.connection.cluster:
            raise
        return ()


def queue_status(queue: Queue, counts: Counts, permits: int | None = None) -> QueueStatus:
    """Return the status of one queue from its registry entry and its counts."""
    orders = queue_policy(queue.layout, counts.now_ms or None)
    return QueueStatus(
        name=queue.name,
        kind=queue.kind,
        counts=counts,
        shards=queue.shards,
        epoch=int(queue.layout["epoch"]),
        draining=len(queue.epochs) > 1,
        paused=orders["paused"],
        paused_until=orders["until"],
        limits=orders["limits"],
        permits=permits,
    )


def worker_status(payload: Mapping[str, Any], now_ms: float) -> WorkerStatus:
    """Return the status of a worker from its heartbeat payload (:meth:`Broker.workers`).

    The worker may be of another release, so every field is checked.
    """
    queues, ignored = payload.get("queues") or (), payload.get("ignored")
    return WorkerStatus(
        name=str(payload["name"]),
        seen_ms=float(payload["seen_ms"]),
        seconds_ago=max(0.0, now_ms - float(payload["seen_ms"])) / 1000,
        host=str(payload.get("host") or ""),
        pid=_whole(payload.get("pid")),
        queues=tuple(map(str, queues)) if isinstance(queues, (list, tuple)) else (str(queues),),
        ignored=tuple(map(str, ignored)) if isinstance(ignored, list) else (),
        threads=_whole(payload.get("threads")) or 0,
        running=_whole(payload.get("running")) or 0,
        idle_seconds=(_whole(payload.get("idle_ms")) or 0) / 1000,
        dispatcher=bool(payload.get("dispatcher")),
        stopping=bool(payload.get("stopping")),
        quarantine=bool(payload.get("quarantine")),
        started_ms=_whole(payload.get("started")),
        rss_mib=_whole(payload.get("rss_mib")),
        jobs=tuple(_jobs(payload.get("jobs"))),
        payload=payload,
    )


def _jobs(payload: object) -> Iterable[RunningJob]:
    for one in payload if isinstance(payload, list) else ():
        if isinstance(one, dict):
            yield RunningJob(
                _whole(one.get("slot")) or 0,
                str(one.get("queue", "")),
                str(one.get("id", "")),
                str(one.get("task", "")),
                _whole(one.get("started_ms")) or 0,
                _whole(one.get("ids")) or 1,
            )


def _whole(value: object) -> int | None:
    return int(value) if isinstance(value, (int, float)) and abs(value) <= _LARGEST else None


def redis_status(infos: Sequence[Mapping[str, Any]], now_ms: float) -> RedisStatus:
    """Return the combined status of the servers from their ``INFO``."""
    masters = [info for info in infos if info.get("role", "master") == "master"] or list(infos)
    first = masters[0]

    def numbers(name: str) -> list[int]:
        return [int(info[name]) for info in masters if name in info]

    def total(name: str) -> int | None:
        return sum(values) if (values := numbers(name)) else None

    def fine(name: str) -> bool:
        return all(info.get(name, "ok") == "ok" for info in masters)

    saved = min(numbers("rdb_last_save_time"), default=None)
    return RedisStatus(
        version=str(first.get("redis_version", "")),
        mode=str(first.get("redis_mode", "")),
        role="replica" if first.get("role") == "slave" else str(first.get("role", "")),
        nodes=len(masters),
        uptime_seconds=min(numbers("uptime_in_seconds"), default=None),
        used_memory=total("used_memory"),
        used_memory_peak=total("used_memory_peak"),
        maxmemory=total("maxmemory"),
        maxmemory_policy=first.get("maxmemory_policy"),
        evicted_keys=total("evicted_keys"),
        aof=all(bool(info.get("aof_enabled")) for info in masters),
        aof_ok=fine("aof_last_write_status"),
        rdb_last_save_seconds=None if saved is None else max(0.0, round(now_ms / 1000 - saved, 1)),
        rdb_ok=fine("rdb_last_bgsave_status"),
        clients=total("connected_clients"),
        blocked_clients=total("blocked_clients"),
        ops_per_sec=total("instantaneous_ops_per_sec"),
        replicas=total("connected_slaves"),
        loading=any(info.get("loading") for info in masters),
    )


def _outbox() -> Any:
    aliases = conf().outbox.databases
    for connection in (databases[alias] for alias in aliases if alias in databases):
        # Outside of requests (a terminal, the thread of an exporter) nothing else closes broken connections.
        if connection.errors_occurred:
            connection.close_if_unusable_or_obsolete()
    return stock(aliases)


def _recurring(broker: Broker, queues: Sequence[Queue], now_ms: float) -> Any:
    try:
        with broker.connection.limited(PARTIAL_SECONDS):
            return recurring_of(broker, queues, now_ms)
    except QueueUnavailable:
        if not broker.connection.cluster:
            raise
        return ()


# -- recurring tasks -------------------------------------------------------------------------------------------------


def read_recurring(broker: Broker) -> tuple[RecurringStatus, ...]:
    """Return the status of the recurring tasks of this process and the pauses of others, ordered by task name."""
    return recurring_of(broker, broker.queues(), broker.now_ms())


def recurring_of(broker: Broker, queues: Sequence[Queue], now_ms: float) -> tuple[RecurringStatus, ...]:
    """Return the status of recurring tasks and the pauses of unknown ones, ordered by task name.

    A task whose queue is not among ``queues`` has no last tick.
    """
    by_name = {queue.name: queue for queue in queues}
    works = works_of(tasks, settings.TIME_ZONE or "UTC")
    of_known_queues = [work for work in works if work.task.options.queue in by_name]
    ticks = broker.inspector.last_ticks([(by_name[work.task.options.queue], work.id) for work in of_known_queues])
    last = dict(zip((work.id for work in of_known_queues), ticks, strict=True))
    paused = recurring_pauses(broker)
    since = {work.id: _paused_ms(work, paused) for work in works}
    known = {name for work in works for name in work.task.names}
    statuses = [
        RecurringStatus(
            task=work.task.name,
            queue=work.task.options.queue,
            schedule=work.recurrence.text,
            timezone=work.recurrence.zone,
            missed=work.task.options.missed,
            last_tick_ms=last.get(work.id),
            next_tick_ms=work.recurrence.following(now_ms) if since[work.id] is None else None,
            paused_ms=since[work.id],
        )
        for work in works
    ]
    statuses += [RecurringStatus(name, paused_ms=since_ms) for name, since_ms in paused.items() if name not in known]
    return tuple(sorted(statuses, key=lambda one: one.task))


def _paused_ms(work: Work, paused: dict[str, int]) -> int | None:
    """Return since when a task is paused, under whichever of its names."""
    return min((paused[name] for name in work.task.names if name in paused), default=None)

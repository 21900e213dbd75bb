"""Warnings of a snapshot: the one list that ``delayq_status``, ``delayq_check`` and the dashboard show.

A finding of level ``INFO`` is a reason, other than its due time, for which a job waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from django.utils.translation import gettext as _

from ..settings.conf import conf
from .formatting import duration, printable
from .snapshot import LOST_AFTER, QueueStatus, RedisStatus, Snapshot, WorkerStatus

if TYPE_CHECKING:
    from ..outbox.durability import Stock

#: seconds for which a job has been due and a slot free
IDLE_AFTER: Final = 5.0
#: seconds after which a due job is overdue
OVERDUE_AFTER: Final = LOST_AFTER
#: jobs in a morgue without a limit above which there is a warning
LARGE_MORGUE: Final = 100_000
#: seconds that a durable job may wait to be sent
WAITING: Final = 300.0
#: seconds for which a limit lets no job start above which there is a warning
LONG_BLOCK: Final = 3600.0
#: fraction of maxmemory above which there is a warning
NEARLY_FULL: Final = 0.9
#: names that a warning lists
MOST_NAMES: Final = 4

Level = Literal["OK", "INFO", "WARN", "ERROR"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of a check: one sentence, or several."""

    level: Level
    check: str
    text: str

    def values(self) -> dict[str, str]:
        """Return it for JSON."""
        return {"level": self.level, "what": self.check, "text": self.text}


def warnings_of(snapshot: Snapshot) -> list[Finding]:
    """Return what an operator has to know about a deployment, by check."""
    return [
        *(Finding("ERROR", "connection", printable(str(part), 1000)) for part in snapshot.unreachable),
        *_of_redis(snapshot.redis),
        *_of_pauses(snapshot),
        *_of_workers(snapshot),
        *_of_waiting_jobs(snapshot),
        *_of_morgues(snapshot),
        *(outbox_warnings(snapshot.outbox) if snapshot.outbox is not None else ()),
    ]


def _of_redis(redis: RedisStatus) -> Iterator[Finding]:
    policy, limit, used = redis.maxmemory_policy or "", redis.maxmemory or 0, redis.used_memory or 0
    full = f"{100 * used // limit} %" if limit else ""
    rules: tuple[tuple[bool, Level, str, str], ...] = (
        (redis.loading, "WARN", "version", _("Redis is loading its data, so the numbers are incomplete.")),
        (
            redis.role == "replica",
            "ERROR",
            "version",
            _("This Redis is a replica and refuses writes: configure the primary, or Sentinel."),
        ),
        (
            not redis.aof,
            "WARN",
            "persistence",
            _("Redis keeps no append-only file, so a restart loses jobs: set “appendonly yes”."),
        ),
        (
            redis.aof and not redis.aof_ok,
            "ERROR",
            "persistence",
            _("Redis could not write its append-only file: check if its disk is full."),
        ),
        (
            not redis.rdb_ok,
            "WARN",
            "persistence",
            _("Redis could not write its last snapshot: check its log, and if its disk is full."),
        ),
        (
            policy.startswith("allkeys"),
            "ERROR",
            "eviction",
            _("maxmemory-policy %s deletes jobs when memory is full: set “noeviction”.") % policy,
        ),
        (
            used > NEARLY_FULL * limit > 0,
            "WARN",
            "eviction",
            _("%s of Redis's memory limit is used: new jobs are refused when it is full.") % full,
        ),
    )
    return (Finding(level, check, text) for is_so, level, check, text in rules if is_so)


def _of_pauses(snapshot: Snapshot) -> Iterator[Finding]:
    """Yield the pauses that do not end by themselves."""
    effects = {"in": _("takes no new jobs"), "out": _("starts no jobs")}
    if snapshot.producers_paused_ms is not None:
        text = _(
            "Producers are paused for %s, so no queue takes new jobs. Resume: manage.py delayq_queue resume-producers, "
            "or the page of the queues in the admin."
        )
        age = duration((snapshot.now_ms - snapshot.producers_paused_ms) / 1000)
        yield Finding("WARN", "pauses", text % age)
    for queue in snapshot.queues:
        lasting = [
            effect
            for direction, effect in effects.items()
            if queue.paused in (direction, "both") and direction not in queue.paused_until
        ]
        if lasting:
            text = _("Queue %(queue)s is paused and %(effect)s. Resume: manage.py delayq_queue resume %(queue)s")
            names = {"queue": printable(queue.name), "effect": _(" and ").join(lasting)}
            yield Finding("WARN", "pauses", text % names)
    for one in snapshot.recurring:
        if one.paused_ms is not None:
            text = _(
                "Recurring task %(task)s is paused for %(time)s. Resume: manage.py delayq_recurring resume %(task)s"
            )
            age = duration((snapshot.now_ms - one.paused_ms) / 1000)
            yield Finding("WARN", "pauses", text % {"task": printable(one.task), "time": age})


def _of_workers(snapshot: Snapshot) -> Iterator[Finding]:
    if not snapshot.has_registry:
        return
    alive = [worker for worker in snapshot.workers if not worker.lost]
    lost = [worker.name for worker in snapshot.workers if worker.lost]
    reserved = snapshot.totals.reserved
    ready = [
        queue for queue in snapshot.queues if queue.counts.ready and queue.kind == "python" and not queue.starts_nothing
    ]
    if lost:
        yield Finding("WARN", "workers", _("No heartbeat for a while from: %s") % _listed(lost))
    if reserved and not any(worker.dispatcher for worker in alive):
        text = _(
            "%d jobs are reserved and no dispatcher is running, so jobs of dead workers are not run again. Start: "
            "manage.py delayq_dispatcher"
        )
        yield Finding("WARN", "workers", text % reserved)
    if ready and not alive:
        level: Level = "ERROR" if any(queue.lag_seconds > OVERDUE_AFTER for queue in ready) else "WARN"
        text = _("Jobs are due and no worker is running. Start: manage.py delayq_worker")
        yield Finding(level, "workers", text)


def _of_waiting_jobs(snapshot: Snapshot) -> Iterator[Finding]:
    for queue in snapshot.queues:
        name, counts = printable(queue.name), queue.counts
        if counts.ready and queue.lag_seconds > OVERDUE_AFTER and not queue.starts_nothing:
            text = _("Queue %(queue)s: %(n)d jobs are due, the oldest for %(time)s.")
            age = duration(queue.lag_seconds)
            yield Finding("WARN", "workers", text % {"queue": name, "n": counts.ready, "time": age})
        if queue.starving is not None:
            text = _(
                "Jobs of priority %(priority)d of %(queue)s have waited %(time)s for more urgent ones: add workers, or "
                "set starve_after."
            )
            priority, seconds = queue.starving
            yield Finding("WARN", "starving", text % {"priority": priority, "queue": name, "time": duration(seconds)})
    for queue_name, worker in idle_beside_due(snapshot).items():
        text = _(
            "Queue %(queue)s has due jobs, and worker %(worker)s, which serves it, has had free slots for %(time)s: "
            "see its log; if that gives no reason, restart it and report it."
        )
        names = {"queue": printable(queue_name), "worker": printable(worker.name)}
        yield Finding("WARN", "idle", text % {**names, "time": duration(worker.idle_seconds)})
    held = [queue for queue in snapshot.queues if queue.counts.hold_ms > 0]
    if held:
        seconds = max(queue.counts.hold_ms for queue in held) / 1000
        text = _(
            "After an outage of Redis or a clock jump, no job is taken from a silent worker for another %(time)s "
            "(%(names)s)."
        )
        names = {"time": duration(seconds), "names": _listed(queue.name for queue in held)}
        yield Finding("INFO", "leases", text % names)
    alone = {queue.name: queue.counts.quarantine for queue in snapshot.queues if queue.counts.quarantine}
    if alone:
        text = _("Jobs of %s wait to run alone in a process, because their last one died while running them.")
        yield Finding("INFO", "quarantine", text % _counted(alone))
    yield from _of_limits(snapshot)


def _of_limits(snapshot: Snapshot) -> Iterator[Finding]:
    behind = {page.queue: sum(one.jobs for one in page.waiting) for page in snapshot.limits if page.waiting}
    if behind:
        yield Finding("INFO", "concurrency", _("Due jobs of %s wait behind limits.") % _counted(behind))
    for page in snapshot.limits:
        for one in page.waiting:
            seconds = ((one.next_ms or 0) - snapshot.now_ms) / 1000
            if seconds > LONG_BLOCK:
                text = _("Queue %(queue)s: the limit of %(limit)s lets no job start for another %(time)s.")
                names = {"queue": printable(page.queue), "limit": printable(one.name), "time": duration(seconds)}
                yield Finding("WARN", "concurrency", text % names)


def _of_morgues(snapshot: Snapshot) -> Iterator[Finding]:
    for queue in snapshot.queues:
        if queue.counts.morgue > LARGE_MORGUE and not queue.limits.keys() & {"morgue_max", "morgue_ttl"}:
            text = _(
                "Queue %(queue)s: %(n)s jobs in a morgue without a limit. Set morgue_max or morgue_ttl in QUEUES, and "
                "repair or discard what is there."
            )
            names = {"queue": printable(queue.name), "n": f"{queue.counts.morgue:,}"}
            yield Finding("WARN", "morgue", text % names)


def outbox_warnings(stock: Stock, most_seconds: float | None = None) -> Iterator[Finding]:
    """Yield findings about durable jobs in the database.

    Args:
        most_seconds: time that one may wait to be sent; more is an error. None: more than five minutes is a warning.
    """
    age = stock["oldest_waiting_seconds"] or 0.0
    if age > (WAITING if most_seconds is None else most_seconds):
        level: Level = "WARN" if most_seconds is None else "ERROR"
        text = _("A durable job has waited %s to be sent: is a dispatcher running?") % duration(age)
        yield Finding(level, "outbox", text)
    if stock["refused"]:
        text = _("%d durable jobs were refused: see the outbox in the admin.") % stock["refused"]
        yield Finding("WARN", "outbox", text)


def idle_beside_due(snapshot: Snapshot) -> dict[str, WorkerStatus]:
    """Return the queues with due jobs for which a process has free slots, each with one such process.

    Neither a pause nor a limit of concurrency is the reason: jobs behind limits of tasks do not count as due here.
    """
    found = ((queue, _idle_worker(queue, snapshot)) for queue in snapshot.queues)
    return {queue.name: worker for queue, worker in found if worker is not None}


def _idle_worker(queue: QueueStatus, snapshot: Snapshot) -> WorkerStatus | None:
    limit = conf().queue(queue.name).limits
    if queue.kind != "python" or queue.starts_nothing:
        return None
    if limit is not None and limit.total is not None and (queue.permits or 0) >= limit.total:
        return None
    local = None if limit is None else limit.local
    return next((worker for worker in snapshot.workers if _could_run(worker, queue, local)), None)


def _could_run(worker: WorkerStatus, queue: QueueStatus, local: int | None) -> bool:
    """Return True if at its last heartbeat the process had been idle for long beside a job that was due for long."""
    running = sum(job.ids for job in worker.jobs if job.queue == queue.name)
    return (
        not (worker.lost or worker.stopping or worker.quarantine)
        and worker.serves(queue.name)
        and min(worker.idle_seconds, queue.lag_seconds - worker.seconds_ago) >= IDLE_AFTER
        and (local is None or running < local)
    )


def _listed(names: Iterable[str]) -> str:
    all_ = [printable(name) for name in names]
    more = _(" and %d more") % (len(all_) - MOST_NAMES) if len(all_) > MOST_NAMES else ""
    return ", ".join(all_[:MOST_NAMES]) + more


def _counted(numbers: dict[str, int]) -> str:
    return _listed(f"{name} ({number})" for name, number in numbers.items())

"""Warnings of a snapshot: the one list that ``delayq_status``, ``delayq_check`` and the dashboard show.

A finding of level ``INFO`` is a reason, other than its due time, for which a job waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from django.utils.translation import gettext as _

from ..core.options import Limits
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


def _finding(level: Level, check: str, text: str, **values: Any) -> Finding:
    """Return a finding with values in its text: stored names are made printable, a float is a time in seconds."""
    texts = {name: duration(value) if isinstance(value, float) else value for name, value in values.items()}
    return Finding(level, check, text % {name: printable(str(value), 1000) for name, value in texts.items()})


def warnings_of(snapshot: Snapshot) -> list[Finding]:
    """Return what an operator has to know about a deployment, by check."""
    return [
        *(_finding("ERROR", "connection", "%(part)s", part=part) for part in snapshot.unreachable),
        *_of_redis(snapshot.redis),
        *_of_pauses(snapshot),
        *(_of_workers(snapshot) if snapshot.has_registry else ()),
        *_of_waiting_jobs(snapshot),
        *_of_limits(snapshot),
        *_of_morgues(snapshot),
        *(outbox_warnings(snapshot.outbox) if snapshot.outbox is not None else ()),
    ]


def _of_redis(redis: RedisStatus) -> Iterator[Finding]:
    policy, limit, used = redis.maxmemory_policy or "", redis.maxmemory or 0, redis.used_memory or 0
    if redis.loading:
        yield _finding("WARN", "version", _("Redis is loading its data, so the numbers are incomplete."))
    if redis.role == "replica":
        text = _("This Redis is a replica and refuses writes: configure the primary, or Sentinel.")
        yield _finding("ERROR", "version", text)
    if not redis.aof:
        text = _("Redis keeps no append-only file, so a restart loses jobs: set “appendonly yes”.")
        yield _finding("WARN", "persistence", text)
    elif not redis.aof_ok:
        text = _("Redis could not write its append-only file: check if its disk is full.")
        yield _finding("ERROR", "persistence", text)
    if not redis.rdb_ok:
        text = _("Redis could not write its last snapshot: check its log, and if its disk is full.")
        yield _finding("WARN", "persistence", text)
    if policy.startswith("allkeys"):
        text = _("maxmemory-policy %(policy)s deletes jobs when memory is full: set “noeviction”.")
        yield _finding("ERROR", "eviction", text, policy=policy)
    if used > NEARLY_FULL * limit > 0:
        text = _("%(full)d %% of Redis's memory limit is used: new jobs are refused when it is full.")
        yield Finding("WARN", "eviction", text % {"full": 100 * used // limit})


def _of_pauses(snapshot: Snapshot) -> Iterator[Finding]:
    """Yield the pauses that do not end by themselves."""
    if snapshot.producers_paused_ms is not None:
        text = _(
            "Producers are paused for %(time)s, so no queue takes new jobs. Resume: manage.py delayq_queue "
            "resume-producers, or the page of the queues in the admin."
        )
        yield _finding("WARN", "pauses", text, time=_seconds(snapshot.now_ms, snapshot.producers_paused_ms))
    effects = {"in": _("takes no new jobs"), "out": _("starts no jobs")}
    for queue in snapshot.queues:
        lasting = [effects[word] for word in effects if queue.is_paused(word) and word not in queue.paused_until]
        if lasting:
            text = _("Queue %(queue)s is paused and %(effect)s. Resume: manage.py delayq_queue resume %(queue)s")
            yield _finding("WARN", "pauses", text, queue=queue.name, effect=_(" and ").join(lasting))
    for one in snapshot.recurring:
        if one.paused_ms is not None:
            text = _(
                "Recurring task %(task)s is paused for %(time)s. Resume: manage.py delayq_recurring resume %(task)s"
            )
            yield _finding("WARN", "pauses", text, task=one.task, time=_seconds(snapshot.now_ms, one.paused_ms))


def _of_workers(snapshot: Snapshot) -> Iterator[Finding]:
    lost = [worker.name for worker in snapshot.workers if worker.lost]
    lags = [queue.lag_seconds for queue in snapshot.queues if queue.counts.ready and _starts_here(queue)]
    reserved = sum(queue.counts.reserved for queue in snapshot.queues)
    if lost:
        yield _finding("WARN", "workers", _("No heartbeat for a while from: %(names)s"), names=listed(lost))
    if reserved and not any(worker.dispatcher for worker in snapshot.alive):
        text = _(
            "%(n)d jobs are reserved and no dispatcher is running, so jobs of dead workers are not run again. Start: "
            "manage.py delayq_dispatcher"
        )
        yield Finding("WARN", "workers", text % {"n": reserved})
    if lags and not snapshot.alive:
        text = _("Jobs are due and no worker is running. Start: manage.py delayq_worker")
        yield _finding("ERROR" if max(lags) > OVERDUE_AFTER else "WARN", "workers", text)


def _of_waiting_jobs(snapshot: Snapshot) -> Iterator[Finding]:
    for queue in snapshot.queues:
        ready, lag = queue.counts.ready, queue.lag_seconds
        if ready and lag > OVERDUE_AFTER and not queue.is_paused("out"):
            text = _("Queue %(queue)s: %(n)s jobs are due, the oldest for %(time)s.")
            yield _finding("WARN", "workers", text, queue=queue.name, n=ready, time=lag)
        if queue.starving is not None:
            text = _(
                "Jobs of priority %(priority)s of %(queue)s have waited %(time)s for more urgent ones: add workers, or "
                "set starve_after."
            )
            priority, seconds = queue.starving
            yield _finding("WARN", "starving", text, priority=priority, queue=queue.name, time=float(seconds))
    for name, worker in idle_beside_due(snapshot).items():
        text = _(
            "Queue %(queue)s has due jobs, and worker %(worker)s, which serves it, has had free slots for %(time)s: "
            "see its log; if that gives no reason, restart it and report it."
        )
        yield _finding("WARN", "idle", text, queue=name, worker=worker.name, time=worker.idle_seconds)
    held = {queue.name: queue.counts.hold_ms / 1000 for queue in snapshot.queues if queue.counts.hold_ms > 0}
    if held:
        text = _(
            "After an outage of Redis or a clock jump, no job is taken from a silent worker for another %(time)s "
            "(%(names)s)."
        )
        yield _finding("INFO", "leases", text, time=max(held.values()), names=listed(held))
    alone = {queue.name: queue.counts.quarantine for queue in snapshot.queues if queue.counts.quarantine}
    if alone:
        text = _("Jobs of %(names)s wait to run alone in a process, because their last one died while running them.")
        yield _finding("INFO", "quarantine", text, names=_counted(alone))


def _of_limits(snapshot: Snapshot) -> Iterator[Finding]:
    behind = {page.queue: sum(one.jobs for one in page.waiting) for page in snapshot.limits if page.waiting}
    if behind:
        text = _("Due jobs of %(names)s wait behind limits.")
        yield _finding("INFO", "concurrency", text, names=_counted(behind))
    for queue, one in ((page.queue, one) for page in snapshot.limits for one in page.waiting):
        seconds = _seconds(one.next_ms or 0, snapshot.now_ms)
        if seconds > LONG_BLOCK:
            text = _("Queue %(queue)s: the limit of %(limit)s lets no job start for another %(time)s.")
            yield _finding("WARN", "concurrency", text, queue=queue, limit=one.name, time=seconds)


def _of_morgues(snapshot: Snapshot) -> Iterator[Finding]:
    for queue in snapshot.queues:
        if queue.counts.morgue > LARGE_MORGUE and not queue.limits.keys() & {"morgue_max", "morgue_ttl"}:
            text = _(
                "Queue %(queue)s: %(n)s jobs in a morgue without a limit. Set morgue_max or morgue_ttl in QUEUES, and "
                "repair or discard what is there."
            )
            yield _finding("WARN", "morgue", text, queue=queue.name, n=f"{queue.counts.morgue:,}")


def outbox_warnings(stock: Stock, most_seconds: float | None = None) -> Iterator[Finding]:
    """Yield findings about durable jobs in the database.

    Args:
        most_seconds: time that one may wait to be sent; more is an error. None: more than five minutes is a warning.
    """
    age = stock["oldest_waiting_seconds"] or 0.0
    if age > (WAITING if most_seconds is None else most_seconds):
        text = _("A durable job has waited %(time)s to be sent: is a dispatcher running?")
        yield _finding("WARN" if most_seconds is None else "ERROR", "outbox", text, time=float(age))
    if stock["refused"]:
        text = _("%(n)s durable jobs were refused: see the outbox in the admin.")
        yield _finding("WARN", "outbox", text, n=stock["refused"])


def idle_beside_due(snapshot: Snapshot) -> dict[str, WorkerStatus]:
    """Return the queues with due jobs for which a process has free slots, each with one such process.

    Neither a pause nor a limit of concurrency is the reason: jobs behind limits of tasks do not count as due here.
    """
    waiting = ((queue, queue.lag_seconds) for queue in snapshot.queues if _starts_here(queue))
    found = (
        (queue.name, worker)
        for queue, lag in waiting
        if lag >= IDLE_AFTER
        for worker in snapshot.workers
        if min(worker.idle_seconds, lag - worker.seconds_ago) >= IDLE_AFTER and _could_run(worker, queue)
    )
    return dict(found)


def _could_run(worker: WorkerStatus, queue: QueueStatus) -> bool:
    """Return True if the process takes jobs of the queue, and no limit forbids it to run another one."""
    is_taking = not (worker.lost or worker.stopping or worker.quarantine)
    return is_taking and worker.serves(queue.name) and not _is_limited(worker, queue)


def _is_limited(worker: WorkerStatus, queue: QueueStatus) -> bool:
    """Return True if as many jobs of the queue run as its limit allows, in all or in the process."""
    limit = conf().queue(queue.name).limits or Limits()
    here = sum(job.ids for job in worker.jobs if job.queue == queue.name)
    numbers = ((queue.counts.reserved, limit.total), (here, limit.local))
    return any(most is not None and running >= most for running, most in numbers)


def _starts_here(queue: QueueStatus) -> bool:
    """Return True if workers of this package start the jobs of a queue."""
    return queue.kind == "python" and not queue.is_paused("out")


def _seconds(later_ms: float, earlier_ms: float) -> float:
    return (later_ms - earlier_ms) / 1000


def listed(names: Iterable[str]) -> str:
    """Return the first names as a text, and the number of the others."""
    all_ = list(names)
    more = _(" and %d more") % (len(all_) - MOST_NAMES) if len(all_) > MOST_NAMES else ""
    return ", ".join(map(printable, all_[:MOST_NAMES])) + more


def _counted(numbers: dict[str, int]) -> str:
    return listed(f"{name} ({number})" for name, number in numbers.items())

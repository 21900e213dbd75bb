"""Actions on rows of the mirrors: retry, discard, bury, and retry with other arguments."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from django.db import transaction

from .. import connections
from ..core import actions, bulk
from ..core.builder import JobBuilder, JobRules
from ..core.errors import IdTaken, InvalidJob, QueueFull, QueuePaused
from ..core.job import Job, NewJob, is_durable, new_key
from ..core.options import TaskOptions
from ..core.queue import Queue
from ..core.records.frames import CHUNK
from ..core.task import Task, registry
from ..core.times import delay_ms_of
from ..mirror.index_mirror import DELETE_CHUNK, Index, IndexMirror, database_of, table
from ..mirror.rows import FAILED, MORGUE, Entry, Place, Row, is_readable, member_of, place_of, store
from ..outbox import rows as outbox
from ..settings.conf import conf


def retry(rows: Iterable[Row], *, delay: timedelta | float | None = None, replace: bool = False) -> Counter[str]:
    """Retry jobs. A failed job skips the rest of its back-off, the failures of a job from the morgue are reset.

    Args:
        rows: rows of either mirror.
        delay: delay from now on, ``timedelta`` or seconds; None = due now.
        replace: jobs from the morgue replace live plain jobs of the same ids.

    Returns:
        Counts by outcome: retried, live, running, gone.

    Raises:
        InvalidJob: an implausible delay.
        QueueUnavailable: Redis cannot be reached; some jobs may be retried already.
    """
    delay_ms = delay_ms_of_action(delay)
    kick = actions.Kick(delay_ms or 0, replace=replace)
    return bulk.retried(_each(rows, {FAILED: actions.retry_failed(delay_ms), MORGUE: kick}))


def discard(rows: Iterable[Row]) -> Counter[str]:
    """Delete jobs and their payloads for good.

    Returns:
        Counts by outcome: discarded, running, gone.

    Raises:
        QueueUnavailable: Redis cannot be reached; some jobs may be discarded already.
    """
    return _each(rows, {FAILED: actions.delete_failed(), MORGUE: actions.Discard()})


def bury(rows: Iterable[Row]) -> Counter[str]:
    """Move failed jobs to the morgue, where they are not retried any more.

    Returns:
        Counts by outcome: buried, running, gone.

    Raises:
        InvalidJob: a job that is in the morgue already.
        QueueUnavailable: Redis cannot be reached; some jobs may be buried already.
    """
    rows = list(rows)
    if any(place_of(type(row)) is MORGUE for row in rows):
        raise InvalidJob("these jobs are in the morgue already; bury is for failed jobs")
    counts = _each(rows, {FAILED: actions.kill_failed()})
    for group in grouped(rows):
        if group.queue is not None:
            _copy_page(group.queue, group.number, MORGUE)
    return counts


#: verb → its function, with the rows and the delay of a retry
VERBS: Final[Mapping[str, Callable[[Sequence[Row], float | None], Counter[str]]]] = {
    "retry": lambda rows, delay: retry(rows, delay=delay),
    "discard": lambda rows, delay: discard(rows),
    "bury": lambda rows, delay: bury(rows),
}


def delay_ms_of_action(delay: timedelta | float | None) -> int | None:
    """Return a delay in ms; None stays None.

    Raises:
        InvalidJob: an implausible delay.
    """
    return None if delay is None else delay_ms_of(delay, allow_far=conf().allow_far)


def _each(rows: Iterable[Row], by_place: Mapping[Place, actions.Action]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for group in grouped(rows):
        # The row of a record with an unreadable name identifies no job that could be looked up.
        readable = [row for row in group.rows if group.queue is not None and is_readable(member_of(row))]
        if group.queue is not None:
            selected = [(row.job_id, row.key.bytes) for row in readable]
            counts.update(bulk.act_in_shard(group.queue, group.number, selected, by_place[group.place]))
        counts.update(gone=len(group.rows) - len(readable))
        refresh(group)
    return +counts


# -- rows by shard -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of one place of one shard; ``queue`` is None if the deployment no longer has it."""

    place: Place
    queue: Queue | None
    number: int
    rows: Sequence[Row]

    @property
    def index(self) -> Index | None:
        """Index in Redis that the rows mirror; None if the queue no longer exists."""
        return None if self.queue is None else Index(self.queue, self.number, self.place)


def grouped(rows: Iterable[Row]) -> list[Group]:
    """Return rows grouped by place, queue and shard."""
    groups: defaultdict[tuple[type[Row], str, int], list[Row]] = defaultdict(list)
    for row in rows:
        groups[type(row), row.queue, row.shard].append(row)
    broker = connections.broker()
    queues = {name: broker.known_queue(name) for name in sorted({name for _, name, _ in groups})}
    return [
        Group(place_of(model), queues[name], number, group_rows) for (model, name, number), group_rows in groups.items()
    ]


def refresh(group: Group) -> None:
    """Update these rows from Redis. Rows of jobs that no longer exist are deleted."""
    for start in range(0, len(group.rows), CHUNK):
        _refresh(group.place, group.index, group.rows[start : start + CHUNK])


def _refresh(place: Place, index: Index | None, rows: Sequence[Row]) -> None:
    if index is None:
        remove(place, rows)
        return
    scores = index.scores([member_of(row) for row in rows])
    changed = [row for row, score in zip(rows, scores, strict=True) if score not in (None, row.updated_us)]
    same = [row for row, score in zip(rows, scores, strict=True) if score == row.updated_us]
    fresh = index.rows([Entry(member_of(row), row.updated_us) for row in same])
    store(place, fresh, database_of(place))
    if changed:
        # Not stored one by one: the mirror follows the newest row, so none may stand before others that are missing.
        _copy_page(index.queue, index.number, place)
    kept = {place.named(row) for row in (*fresh, *changed)}
    remove(place, [row for row in rows if place.named(row) not in kept])


def _copy_page(queue: Queue, number: int, place: Place) -> None:
    """Copy what is new in an index of a shard: 250 jobs at most; the dispatcher copies the rest."""
    if conf().is_mirrored:
        next(IndexMirror(conf().mirror, queue, number, place).copy(), None)


def remove(place: Place, rows: Sequence[Row]) -> None:
    """Delete rows of jobs that no longer exist."""
    for start in range(0, len(rows), DELETE_CHUNK):
        table(place).filter(pk__in=[row.pk for row in rows[start : start + DELETE_CHUNK]]).delete()


# -- retry with other arguments ----------------------------------------------------------------------------------------


def retry_edited(
    row: Row,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    delay: timedelta | float | None = None,
) -> str:
    """Retry a job of the morgue with other arguments. Its context, options and priority are kept.

    The new content is stored as a new generation of the same id before the morgue record is removed, so that a crash in
    between loses nothing: at worst both exist, and an operator sees it. A failed job has to be buried first.

    Args:
        row: row of a plain job.
        args, kwargs: new arguments for the function of its task.
        delay: delay from now on, ``timedelta`` or seconds; None = due now.

    Returns:
        retried, live or gone.

    Raises:
        TypeError: the task cannot be called with these arguments.
        InvalidJob: they cannot be stored, or the job is none that can be edited.
        QueueFull, QueuePaused, QueueUnavailable: the reply of Redis; the job is not changed.
    """
    (group,) = grouped([row])
    delay_ms = delay_ms_of_action(delay) or 0
    if group.place is not MORGUE:
        raise InvalidJob(f"{row.job_id} is not in the morgue; bury it before it is retried with other arguments")
    try:
        for _, view in group.index.jobs([member_of(row)]) if group.index is not None else ():
            if group.queue is not None and not view.broken and view.job.key == row.key.bytes:
                return _replace(group.queue, view.job, args, kwargs or {}, delay_ms)
        return "gone"
    finally:
        refresh(group)


def _replace(queue: Queue, job: Job, args: Sequence[Any], kwargs: Mapping[str, Any], delay_ms: int) -> str:
    """Store the new job first, then delete the morgue record."""
    if not job.task or queue.kind == "pull":
        raise InvalidJob(f"{job.id}: the format of its arguments is unknown; schedule a new job, and discard this one")
    if job.merged:
        raise InvalidJob(f"{job.id} is a merged job, whose payloads cannot be edited; retry it as it is")
    task = registry.get(job.task)
    if task is None or task.options.merge:
        task = Task(_accept, name=job.task, options=TaskOptions())
    options = {"id": job.id, "priority": job.priority, "on_conflict": "error", "due_policy": "replace", "delay": 0}
    builder = JobBuilder(task, JobRules(max_args_bytes=conf().max_args_bytes))
    new = builder.build(tuple(args), dict(kwargs), options)
    new.task, new.delay_ms, new.options = job.task, delay_ms, _kept_options(job, queue)  # the name may be an alias
    new.key = new_key(durable=is_durable(job.key))
    try:
        _store(queue, new)
    except IdTaken:
        return "live"
    queue.discard(job.id, key=job.key)
    return "retried"


def _accept(*args: Any, **kwargs: Any) -> None:
    """Accept any call: the signature of a task that is unknown here."""


def _kept_options(job: Job, queue: Queue) -> bytes:
    """Return the options of the old generation, without an expiry that has passed, so that the job can run."""
    if not job.has_expired(queue.deployment.now_ms()):
        return job.options_json
    options = {name: value for name, value in job.options.items() if not name.startswith("expires")}
    return json.dumps(options, sort_keys=True, separators=(",", ":")).encode() if options else b""


def _store(queue: Queue, new: NewJob) -> None:
    """Store the new generation, durably if the old one was durable."""
    alias = _alias_of(queue, new.id) if is_durable(new.key) else ""
    if alias:
        with transaction.atomic(using=alias):
            # Redis may refuse this one, so it does not supersede others: the old generation's row is deleted with its
            # mark.
            outbox.insert(alias, queue.name, [new], supersede=False)
    try:
        (outcome,) = queue.schedule_many([new])
        if outcome in ("taken", "exists"):
            raise IdTaken(f"another job with id {new.id!r} is live; wait for its end, or cancel it")
        if outcome == "paused":
            raise QueuePaused(f"queue {queue.name!r} is paused for new jobs; resume it, or try again later")
        if outcome == "full":
            raise QueueFull(f"queue {queue.name!r} is full; try again when workers have done some of its jobs")
    except Exception:
        if alias:
            outbox.table(alias).filter(key=outbox.key_of(new)).delete()
        raise


def _alias_of(queue: Queue, ident: str) -> str:
    """Return the database that has the rows of the old generation, or the default for new rows if none has."""
    for alias in conf().outbox.databases:
        if outbox.table(alias).filter(queue=queue.name, job_id=ident).exists():
            return alias
    return conf().outbox.databases[0]

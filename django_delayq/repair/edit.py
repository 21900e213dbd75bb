"""Retry of a job with other arguments.

The new content is stored as a new generation of the same id before the old one is removed, so that a crash in between
loses nothing: at worst both exist, and an operator sees it.

A failed job is first leased, as a worker would do. Then no worker can start it meanwhile, and the new content is gated
behind it. When the lease is released, the gated content goes live, with fresh counters. If this process dies before
that, the lease expires, with the same effect.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

from django.db import transaction

from ..core import layouts
from ..core.builder import JobBuilder, JobRules
from ..core.errors import IdTaken, InvalidJob, QueueFull, QueuePaused
from ..core.job import Job, NewJob, is_durable, new_key
from ..core.job_view import JobView
from ..core.options import TaskOptions
from ..core.outcomes import ack, release
from ..core.queue import Queue
from ..core.task import Task, registry
from ..mirror.refresh import Group, grouped, refresh
from ..mirror.rows import MORGUE, Row, member_of
from ..outbox import rows as outbox
from ..settings.conf import conf
from .actions import delay_ms_of_action

#: maximum number of payloads; a worker never leases more than this of one job, and neither does an edit
MOST_PAYLOADS: Final = 250
_HOLD_MS: Final = 15_000
_TRIES: Final = 3

Call = tuple[Sequence[Any], Mapping[str, Any]]
Scored = Sequence[tuple[Any, Any]]


@dataclass(frozen=True, slots=True)
class _Edit:
    """Requested edit of one job."""

    queue: Queue
    view: JobView
    new_jobs: list[NewJob]


def retry_edited(
    row: Row,
    *,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    payloads: Scored | None = None,
    delay: timedelta | float | None = None,
) -> str:
    """Retry a job with other arguments. Its context, options and priority are kept, its failures are reset.

    Args:
        row: row of either mirror.
        args, kwargs: new arguments for the function of a plain task.
        payloads: (value, score) of each payload of a merged job; score None = now.
        delay: delay from now on, ``timedelta`` or seconds; None = due now.

    Returns:
        retried, live, running or gone.

    Raises:
        TypeError: the task cannot be called with these arguments.
        InvalidJob: they cannot be stored, or the signature of the job's task is unknown.
        QueueFull, QueuePaused, QueueUnavailable: the reply of Redis; the job is not changed.
    """
    (group,) = grouped([row])
    delay_ms = delay_ms_of_action(delay) or 0
    try:
        for _ in range(_TRIES):
            view = _find_generation(group, row)
            if view is None or group.queue is None:
                return "gone"
            if view.state == "reserved":
                return "running"
            edit = _Edit(group.queue, view, _new_jobs(group.queue, view, args, kwargs, payloads, delay_ms))
            done = _replace_buried(edit) if group.place is MORGUE else _replace_failed(edit)
            if done:
                return done
        return "running"
    finally:
        refresh(group)


def _find_generation(group: Group, row: Row) -> JobView | None:
    """Return the generation that the row mirrors, as it is in Redis now; None if it is gone."""
    for _, view in group.index.jobs([member_of(row)]) if group.index is not None else ():
        if not view.broken and view.job.key == row.key.bytes and (view.state == "morgue" or view.job.failures):
            return view
    return None


# -- new content -----------------------------------------------------------------------------------------------------


def _new_jobs(
    queue: Queue,
    view: JobView,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
    payloads: Scored | None,
    delay_ms: int,
) -> list[NewJob]:
    job = view.job
    if not job.task or queue.kind == "pull":
        raise InvalidJob(f"{job.id}: the format of its arguments is unknown; schedule a new job, and discard this one")
    if job.merged != (payloads is not None) or (job.merged and (args is not None or kwargs is not None)):
        expected = "merged job: give payloads" if job.merged else "plain job: give args, kwargs"
        raise TypeError(f"{job.id} is a {expected}")
    if payloads is None:
        calls = [(tuple(args or ()), dict(kwargs or {}), {"due_policy": "replace"})]
    elif not payloads:
        raise InvalidJob(f"{job.id}: a merged job needs at least one payload; to drop the job, discard it")
    elif view.payload_count > MOST_PAYLOADS or len(payloads) > MOST_PAYLOADS:
        raise InvalidJob(f"{job.id}: at most {MOST_PAYLOADS} payloads can be edited; retry it as it is")
    else:
        calls = [((), {}, {"due_policy": "earliest", "payload": value, "score": score}) for value, score in payloads]
    builder = _builder_of(job)
    return [_new_job(builder, view, *call, _kept_options(job, queue), delay_ms) for call in calls]


def _builder_of(job: Job) -> JobBuilder:
    """Return the builder for a job's task, or for one that takes any arguments if the task is unknown here."""
    task = registry.get(job.task)
    if task is None or task.options.merge != job.merged:
        task = Task(_accept, name=job.task, options=TaskOptions(merge=job.merged))
    return JobBuilder(task, JobRules(max_args_bytes=conf().max_args_bytes))


def _accept(*args: Any, **kwargs: Any) -> None:
    """Accept any call: the signature of a task that is unknown here."""


def _new_job(
    builder: JobBuilder,
    view: JobView,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    options: dict[str, Any],
    kept: bytes,
    delay_ms: int,
) -> NewJob:
    job = view.job
    conflict = "merge" if job.merged else "replace"
    new = builder.build(
        args, kwargs, {"id": job.id, "priority": job.priority, "on_conflict": conflict, "delay": 0, **options}
    )
    new.task, new.delay_ms, new.options = job.task, delay_ms, kept  # the task's name may be an alias
    if new.payload is None:
        new.key = new_key(durable=is_durable(job.key))
    else:
        durable = any(is_durable(payload.key) for payload in view.payloads)
        new.payload = replace(new.payload, key=new_key(durable=durable))
    return new


def _kept_options(job: Job, queue: Queue) -> bytes:
    """Return the options of the old generation, without an expiry that has passed, so that the job can run."""
    if not job.has_expired(queue.deployment.now_ms()):
        return job.options_json
    options = {name: value for name, value in job.options.items() if not name.startswith("expires")}
    return json.dumps(options, sort_keys=True, separators=(",", ":")).encode() if options else b""


# -- storing it ------------------------------------------------------------------------------------------------------


def _replace_buried(edit: _Edit) -> str:
    """Store the new job first, then delete the morgue record."""
    queue, job = edit.queue, edit.view.job
    for new in edit.new_jobs:
        new.on_conflict = "error" if new.payload is None else "merge"
    try:
        _store(edit)
    except IdTaken:
        return "live"
    queue.discard(job.id, key=job.key)
    return "retried"


def _replace_failed(edit: _Edit) -> str:
    """Store the new job behind the old one, which is leased here, or in its place if no worker can reserve it.

    Return "" if the job has to be looked up again.
    """
    queue, job = edit.queue, edit.view.job
    is_paused = "out" in layouts.pauses_of(queue.layout)
    if is_paused and job.merged:
        raise InvalidJob(f"queue {queue.name!r} is paused, so the old payloads cannot be replaced; resume it first")
    if is_paused or job.has_expired(queue.deployment.now_ms()):
        _store(edit)
        return "retried"
    worker = f"edit:{os.getpid()}"
    leases = queue.reserve_id(job.id, worker=worker, ttr_ms=_HOLD_MS, early=True).jobs
    if not leases:
        return ""
    (leased,) = leases
    if leased.key != job.key:
        queue.settle([release(leased)])
        return ""
    try:
        _store(edit)
    except BaseException:
        queue.settle([release(leased)])
        raise
    queue.settle([ack(leased, 0, 0, event=False) if job.merged else release(leased)])
    return "retried"


def _store(edit: _Edit) -> None:
    """Store the new generation, durably if the old one was durable."""
    queue, new_jobs = edit.queue, edit.new_jobs
    alias = (
        _alias_of(edit)
        if any(is_durable(new.key if new.payload is None else new.payload.key) for new in new_jobs)
        else ""
    )
    if alias:
        with transaction.atomic(using=alias):
            # Redis may refuse this one, so it does not supersede others: the old generation's row is deleted with its
            # mark.
            outbox.insert(alias, queue.name, new_jobs, supersede=False)
    try:
        for new, outcome in zip(new_jobs, queue.schedule_many(new_jobs), strict=True):
            _check(new, outcome, queue)
    except Exception:
        if alias:
            outbox.table(alias).filter(key__in=[outbox.key_of(new) for new in new_jobs]).delete()
        raise


def _check(new: NewJob, outcome: str, queue: Queue) -> None:
    if outcome in ("taken", "exists"):
        raise IdTaken(f"another job with id {new.id!r} is live; wait for its end, or cancel it")
    if outcome == "paused":
        raise QueuePaused(f"queue {queue.name!r} is paused for new jobs; resume it, or try again later")
    if outcome == "full":
        raise QueueFull(
            f"queue {queue.name!r}, or id {new.id!r}, is full; try again when workers have done some of its jobs"
        )


def _alias_of(edit: _Edit) -> str:
    """Return the database that has the rows of the old generation, or the default for new rows if none has."""
    job = edit.view.job
    for alias in conf().outbox.databases:
        if outbox.table(alias).filter(queue=edit.queue.name, job_id=job.id).exists():
            return alias
    return conf().outbox.databases[0]

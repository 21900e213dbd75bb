"""Actions on rows of the mirrors: retry, discard, bury, and retry with other arguments."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import cache
from typing import Any, Final

from .. import connections
from ..core import actions, bulk
from ..core.builder import JobBuilder, JobRules
from ..core.errors import IdTaken, InvalidJob
from ..core.job import Job, is_durable, new_key
from ..core.options import TaskOptions
from ..core.queue import Queue
from ..core.task import Task, registry
from ..core.times import delay_ms_of
from ..mirror.duty import IndexMirror, delete_rows
from ..mirror.rows import FAILED, MORGUE, Model, Place, Row, place_of
from ..scheduling.sending import Prepared, send
from ..scheduling.verbs import JobHandle
from ..settings.conf import conf

#: verb → for each place where it applies, its action with a delay in ms
VERBS: Final[Mapping[str, Mapping[Place, Callable[[int | None], actions.Action]]]] = {
    # A failed job skips the rest of its back-off; the failures of a job from the morgue are reset.
    "retry": {FAILED: actions.retry_failed, MORGUE: lambda delay_ms: actions.Kick(delay_ms or 0)},
    "discard": {FAILED: lambda delay_ms: actions.delete_failed(), MORGUE: lambda delay_ms: actions.Discard()},
    "bury": {FAILED: lambda delay_ms: actions.kill_failed()},
}


def act(verb: str, rows: Sequence[Row], delay: timedelta | float | None = None) -> Counter[str]:
    """Apply a verb to jobs, and bring their rows up to date. Return counts by outcome, as the package lists them.

    Args:
        verb: retry, discard or (failed jobs) bury.
        rows: rows of either mirror.
        delay: delay of a retry from now on, ``timedelta`` or seconds; None = due now.

    Raises:
        InvalidJob: an implausible delay, or jobs to which the verb does not apply.
        QueueUnavailable: Redis cannot be reached; some jobs may be changed already.
    """
    delay_ms = check_delay(delay)
    for row in rows:
        check_verb(verb, type(row))
    groups = _by_index(rows)
    counts = Counter(gone=len(rows) - sum(len(mine) for _, mine in groups))
    for index, mine in groups:
        selected = [(row.job_id, row.key.bytes) for row in mine]
        action = VERBS[verb][index.place](delay_ms)
        counts.update(bulk.act_in_shard(index.queue, index.number, selected, action))
        if verb == "bury" and conf().is_mirrored:
            # 250 jobs at most; the dispatcher copies the rest
            next(IndexMirror(index.queue, index.number, MORGUE).copy(), None)
        index.refresh(mine)
    return bulk.retried(counts)


def check_verb(verb: str, model: Model) -> None:
    """Check that a verb applies to the jobs of a table.

    Raises:
        InvalidJob: it does not.
    """
    if place_of(model) not in VERBS.get(verb, ()):
        raise InvalidJob(f"{verb!r} is no action on {model.__name__}; use retry, discard, or bury for failed jobs")


def check_delay(delay: timedelta | float | None) -> int | None:
    """Return a delay in ms; None stays None.

    Raises:
        InvalidJob: an implausible delay.
    """
    return None if delay is None else delay_ms_of(delay, allow_far=conf().allow_far)


def _by_index(rows: Iterable[Row]) -> list[tuple[IndexMirror, list[Row]]]:
    """Return rows grouped by the index that they mirror. Rows of queues that no longer exist are deleted instead."""
    groups: defaultdict[tuple[Place, str, int], list[Row]] = defaultdict(list)
    for row in rows:
        groups[place_of(type(row)), row.queue, row.shard].append(row)
    known_queue, found = cache(connections.broker().known_queue), []
    for (place, name, number), mine in groups.items():
        queue = known_queue(name)
        if queue is None:
            delete_rows(place.table.filter(pk__in=[row.pk for row in mine]))
        else:
            found.append((IndexMirror(queue, number, place), mine))
    return found


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
    between loses nothing: at worst both exist, and an operator sees it. If the job is durable, so is the new one; it
    then waits in the outbox while Redis refuses it. A failed job has to be buried first.

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
    delay_ms = check_delay(delay) or 0
    if place_of(type(row)) is not MORGUE:
        raise InvalidJob(f"{row.job_id} is not in the morgue; bury it before it is retried with other arguments")
    for index, mine in _by_index([row]):
        try:
            for view in connections.broker().inspector.graves(row.queue, row.job_id):
                if not view.broken and view.job.key == row.key.bytes:
                    return _replace(index.queue, view.job, args, kwargs or {}, delay_ms)
        finally:
            index.refresh(mine)
    return "gone"


def _replace(queue: Queue, job: Job, args: Sequence[Any], kwargs: Mapping[str, Any], delay_ms: int) -> str:
    """Store the new job first, then delete the morgue record."""
    if not job.task or queue.kind == "pull":
        raise InvalidJob(f"{job.id}: the format of its arguments is unknown; schedule a new job, and discard this one")
    if job.merged:
        raise InvalidJob(f"{job.id} is a merged job, whose payloads cannot be edited; retry it as it is")
    task = registry.get(job.task) or Task(_accept, name=job.task, options=TaskOptions())
    options = {"id": job.id, "priority": job.priority, "on_conflict": "error", "due_policy": "replace"}
    builder = JobBuilder(task, JobRules(max_args_bytes=conf().max_args_bytes))
    new = builder.build(tuple(args), dict(kwargs), {**options, "delay": delay_ms / 1000})
    new.task, new.options, new.key = job.task, _kept_options(job, queue), new_key(durable=is_durable(job.key))
    handle = JobHandle(new.id, queue.name, "", new.due_ms_here, task, durable=is_durable(job.key))
    if handle.durable:
        handle.using_db = conf().outbox.databases[0]
    try:
        send(Prepared(new, handle), connections.broker())
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

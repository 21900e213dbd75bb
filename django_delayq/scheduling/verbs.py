"""Verbs that Django code calls: schedule, schedule_many, cancel, reschedule, run_now, get_job.

All checks that do not need Redis are made at the call. Inside ``transaction.atomic()`` a verb is sent after the commit
(see :mod:`django_delayq.transactions`).
"""

from __future__ import annotations

from asyncio import _get_running_loop  # get_running_loop() raises without a loop, which costs ten times as much
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from .. import connections
from ..core.errors import InvalidJob
from ..core.inputs import short
from ..core.many import check_together
from ..core.options import CALL_OPTIONS
from ..core.outcomes import ScheduleOutcome
from ..core.task import Task, check_option_names
from ..outbox import durability, row_verbs
from ..outbox.row_verbs import Change, R
from ..settings.conf import check_installed
from ..transactions import ON_COMMIT, OnCommit, open_elsewhere
from . import changes
from .caller_warnings import warn_of_loop, warn_of_other_transaction
from .entries import EntryReader, explicit
from .handle import Delay, JobHandle, Left
from .middleware import Scheduling, chain
from .plans import READY, Plan, plan_of
from .sending import Prepared, send, send_many, send_many_durable
from .targets import find_job, find_task

if TYPE_CHECKING:
    from ..core.job_view import JobView


def schedule(
    task: Task | str,
    /,
    *arguments: Any,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    **named: Any,
) -> JobHandle:
    """Schedule a job of ``task``: ``schedule(cancel_order, order.pk, delay=timedelta(minutes=30))``.

    Positional and keyword arguments are passed to the function, except the options below. A merged task takes no
    arguments but a payload: ``schedule(sync_customers, id=customer.pk, payload={…}, score=version)``.

    Args:
        delay: time to wait: ``timedelta`` or seconds, counted from this call on Redis's clock. A negative one, like
            ``order.expires_at - now()`` of an order that has expired, is due now.
        at: due time: aware ``datetime`` or Unix seconds. At most one of ``delay`` and ``at``; neither = now.
        id: str, int or UUID that names the job within its queue, so that it can be found again; default: that of
            ``@task(id=…)``, else a random one. A merged task needs one: payloads of one id are merged until it runs.
        payload: (merged tasks) any value that the codec can store; default None.
        score: (merged tasks) the number by which the payloads of an id are ordered, as int, float, Decimal or text: a
            version, a time; default: the time at which Redis receives it (Unix seconds).
        queue: queue to use instead of the task's own.
        priority: 0 (first) … 7.
        on_conflict: action if a job with this id is already waiting: "merge" (default of merged tasks, and only for
            them), "replace" (default of others), "ignore" or "error".
        due_policy: due time of a job that is already waiting: "replace" (default with "replace"), "keep" (default with
            "merge"), "earliest", "latest" or, for merged tasks, "inherit" (keep even a back-off).
        reset_retries: with "replace", forget earlier failures (default True).
        expires: (plain tasks) do not start the job after this ``datetime``, or after this time past its due time
            (``timedelta`` or seconds); overrides the task's value.
        max_attempts: counted attempts of this job; overrides the task's value.
        retry_in: back-off of this job; overrides the task's value: seconds, ``timedelta``, a list of them or a preset's
            name.
        timeout: limit of one attempt of this job in a worker (``timedelta`` or seconds); overrides the task's value.
        ttr: length of the lease (``timedelta`` or seconds) for a consumer that pulls the job and names none
            (``Queue.reserve()``, HTTP); default 60 s. Workers renew their leases, so it does not concern them.
        context: dict of JSON values stored with the job (``current_job().context``). A merged job uses the context,
            ``max_attempts``, ``retry_in``, ``timeout`` and ``ttr`` of the call that created it.
        wait_for_room: seconds (or a ``timedelta``) to wait, with growing pauses, while the queue or the id has no room,
            before QueueFull is raised. After a commit, and for a durable job, there is no wait.
        wait_for_confirmation: return only when replicas or disks confirm the job, as ``WAIT_REPLICAS`` and ``WAIT_AOF``
            of the setting ``REDIS`` demand; False = do not wait. Default: the task's setting, else ``WAIT_DEFAULT``.
            Durable jobs always wait, or are left to the relay.
        durable: also keep the job in the database until it is done: a row written in the caller's transaction protects
            the job against loss in Redis. Default: the task's setting, else the queue's.
        using_db: alias of the database whose transaction the call waits for, and which stores the row; default: the
            default database.
        args, kwargs: arguments of the function whose names clash with an option.

    Raises:
        TypeError: the function cannot be called with these arguments.
        InvalidJob: a value cannot be stored; nothing was stored.
        Misconfigured: the job is durable and there is no outbox, or the app is not in ``INSTALLED_APPS``.
        NotConfirmed: Redis has the job, and no confirmation came in time; the same call with the same id is safe. Of a
            merged job only if payload, score and data are the same: otherwise it adds a second payload.
        IdTaken, QueueFull, QueuePaused, QueueUnavailable: the reply of Redis. For a durable job only IdTaken is raised;
            the relay handles the others. After a commit the error is logged and signalled instead.
    """
    return schedule_call(*split_call(task, arguments, named, args, kwargs))


def schedule_call(
    task: Task, arguments: tuple[Any, ...], named: dict[str, Any], options: Mapping[str, Any]
) -> JobHandle:
    """Schedule a job, given the function's arguments and the options separately. See :func:`schedule`."""
    if _get_running_loop() is not None:  # checked here, because most calls are made without a loop
        warn_of_loop("schedule")
    plan = None if "queue" in options or "durable" in options else READY.get(task)
    if plan is None:
        check_installed()
        around = chain()
        if around is not None:
            handle: JobHandle = around(Scheduling(task, arguments, named, dict(options), many=False, end=_end))
            return handle
        plan = plan_of(task, options)
    return _schedule(plan, arguments, named, options)


def _end(scheduling: Scheduling) -> JobHandle:
    options = scheduling.options
    check_option_names(options)
    return _schedule(plan_of(find_task(scheduling.task), options), scheduling.args, scheduling.kwargs, options)


def _schedule(plan: Plan, arguments: tuple[Any, ...], named: dict[str, Any], options: Mapping[str, Any]) -> JobHandle:
    job = prepare(plan, arguments, named, options)
    # Checked here, because most calls find none. A durable job is refused there.
    if not plan.durable and open_elsewhere(None) is not None:
        warn_of_other_transaction("schedule", options.get("using_db"))
    send(job)
    return job.handle


def prepare(plan: Plan, arguments: tuple[Any, ...], named: dict[str, Any], options: Mapping[str, Any]) -> Prepared:
    """Return the job of a call, checked and built."""
    new, using = plan.builder.build(arguments, named, options), options.get("using_db")
    if plan.durable:
        durability.check(using)
    task, due_ms = plan.builder.task, new.due_ms_here
    handle = JobHandle(new.id, plan.queue, ON_COMMIT, due_ms, task, durable=plan.durable, using_db=using)
    return Prepared(new, handle)


def schedule_many(
    task: Task | str, jobs: Iterable[Mapping[str, Any]], /, *, all_or_none: bool = False, **options: Any
) -> dict[str, int]:
    """Schedule many jobs of one task: ``schedule_many(cancel_order, [{"args": [pk], "id": f"order-{pk}"}, …])``.

    Args:
        jobs: any iterable of dicts with ``args``, ``kwargs`` and the options of one job (delay, at, id, priority,
            on_conflict, due_policy, reset_retries, max_attempts, retry_in, timeout, ttr, expires, context,
            wait_for_room: the longest wait without progress; wait_for_confirmation). For a merged task: ``{"id": 1,
            "payload": {…}, "score": 3}`` and the options. Read in chunks; it may be endless.
        all_or_none: if a job is refused, store none of the jobs of its shard. For up to 250 jobs, none of them durable.
            In a queue with one shard that is all of them; in others each shard decides for its own jobs.
        options: options for all jobs; also ``queue``, ``durable`` and ``using_db``.

    Returns:
        Counts by outcome: created, merged, replaced, ignored, gated. For jobs that were not stored: taken (the id
        belongs to another task), exists (``on_conflict="error"`` found a live job), full (the queue has reached its
        ``max_length``, or the id its ``max_payloads``), paused (the queue accepts no new jobs now), withheld (by
        ``all_or_none``: another job of the shard was refused), skipped (a schedule middleware did not pass it on). In a
        transaction: on_commit; jobs that are not stored after the commit are logged. For durable jobs: outbox, if they
        are not in Redis yet.

    Raises:
        TypeError, InvalidJob: an entry is wrong; the message has its index. Earlier chunks are already stored.
        QueueFull, QueueUnavailable: Redis accepted no more (it is out of memory or unavailable); earlier chunks are
            already stored.
        NotConfirmed: all jobs were sent (``error.counts``), and some are not confirmed. Only jobs with ids of your own
            can be scheduled again without becoming two jobs.
    """
    check_installed()
    warn_of_loop("schedule_many")
    task = find_task(task)
    check_option_names(options, task)
    if isinstance(jobs, (Mapping, str)) or not isinstance(jobs, Iterable):
        raise TypeError(f"schedule_many takes a list of dicts, one for each job, not {short(jobs)}")
    if "id" in options:
        raise InvalidJob("schedule_many: an id belongs to one job; put it into its entry")
    plan = plan_of(task, options, many=True)
    reader = EntryReader(plan, options)
    using = options.get("using_db")
    if plan.durable:
        if all_or_none:
            check_together((), durable=True)
        counts = send_many_durable(task, plan.queue, reader.read(jobs), using)
    else:
        warn_of_other_transaction("schedule_many", using)
        counts = send_many(task, plan.queue, reader.read(jobs), using, all_or_none=all_or_none)
    return counts | {ScheduleOutcome.SKIPPED: reader.skipped} if reader.skipped else counts


def cancel(
    target: JobHandle | Task | str | None = None,
    /,
    id: str | int | None = None,
    *,
    task: Task | str | None = None,
    queue: str | None = None,
    using_db: str | None = None,
) -> Literal["cancelled", "stopping", False] | OnCommit | Left:
    """Cancel a job.

    The job is identified by its handle, by task and id (``cancel(cancel_order, id="order-5")``), or by id and queue
    (``cancel("order-5", queue="orders")``). A handle identifies its own job only (:class:`JobHandle`). Cancelling by id
    stops the running attempt and drops the content gated behind it.

    Returns:
        "cancelled": the job was waiting, or gated, and is removed. "stopping": the job is running; its ``should_stop``
        turns true at the next heartbeat and a failure will not be retried. False: there is no such live job.
        "on_commit" in a transaction. "outbox": Redis is unavailable, and the relay will cancel the durable job.

    Raises:
        IdTaken: the live job of this id belongs to another task than the given one.
        QueueUnavailable: Redis cannot be reached.
    """
    warn_of_loop("cancel")
    return _apply(row_verbs.cancellation(find_job(target, id, task, queue, using_db)))


def reschedule(
    target: JobHandle | Task | str | None = None,
    /,
    id: str | int | None = None,
    *,
    delay: Delay | None = None,
    at: datetime | float | None = None,
    task: Task | str | None = None,
    queue: str | None = None,
    using_db: str | None = None,
) -> bool | OnCommit | Left:
    """Set a new due time for a waiting job. The job is identified as for :func:`cancel`.

    Returns:
        True if there was such a waiting job; "on_commit" in a transaction; "outbox" if Redis is unavailable, or has
        lost the durable job, and the relay will move it.
    """
    warn_of_loop("reschedule")
    return _apply(changes.rescheduling(find_job(target, id, task, queue, using_db), delay, at))


def run_now(
    target: JobHandle | Task | str | None = None,
    /,
    id: str | int | None = None,
    *,
    task: Task | str | None = None,
    queue: str | None = None,
    using_db: str | None = None,
) -> bool | OnCommit | Left:
    """Make a waiting job due now. The job is identified as for :func:`cancel`.

    Returns:
        True if there was such a waiting job; "on_commit" in a transaction; "outbox" if Redis is unavailable, or has
        lost the durable job, and the relay will move it.
    """
    warn_of_loop("run_now")
    return _apply(changes.running_now(find_job(target, id, task, queue, using_db)))


def _apply(change: Change[R]) -> R | OnCommit | Left:
    warn_of_other_transaction(change.verb, change.target.using)
    return row_verbs.apply(change)


def get_job(
    target: JobHandle | Task | str | None = None,
    /,
    id: str | int | None = None,
    *,
    task: Task | str | None = None,
    queue: str | None = None,
) -> JobView | None:
    """Return the current state of a job in Redis: the live job of this id, else the one buried last, else None.

    The job is identified as for :func:`cancel`. A handle identifies its own job only, live or buried, and the state is
    "gated" while the job waits behind the running attempt of another one. The call changes nothing and does not wait
    for a transaction.
    """
    warn_of_loop("get_job")
    return changes.look_up(connections.broker(), find_job(target, id, task, queue))


def split_call(
    task: Task | str,
    arguments: tuple[Any, ...],
    named: dict[str, Any],
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
) -> tuple[Task, tuple[Any, ...], dict[str, Any], dict[str, Any]]:
    """Return the task of a call, the function's positional and keyword arguments, and the options."""
    options: dict[str, Any] = {name: named.pop(name) for name in CALL_OPTIONS if name in named} if named else {}
    if args is not None or kwargs is not None:
        if arguments or named:
            raise TypeError("give the function's arguments either directly or as args=/kwargs=, not both")
        arguments, named = explicit(args, kwargs)
    return task if isinstance(task, Task) else find_task(task), arguments, named, options

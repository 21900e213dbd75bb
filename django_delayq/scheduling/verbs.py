"""Verbs that Django code calls, and the handle that a schedule call returns.

All checks that do not need Redis are made at the call. Inside ``transaction.atomic()`` a verb is sent after the commit
(see :mod:`django_delayq.transactions`).

For coroutines each verb has a twin: ``await aschedule(…)`` does not block the event loop. It runs the verb in the
thread that Django's own a-methods use (``sync_to_async`` with ``thread_sensitive``), which is also the thread of the
coroutine's transactions. If a coroutine is cancelled while it waits, the call may still have been sent: check with
:func:`aget_job`.
"""

from __future__ import annotations

import functools
from asyncio import _get_running_loop  # get_running_loop() raises without a loop, which costs ten times as much
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeAlias, TypeVar

from asgiref.sync import sync_to_async
from django.db import DEFAULT_DB_ALIAS

from .. import connections
from ..core.errors import InvalidJob
from ..core.inputs import check_id, check_queue_name, short
from ..core.job import Generation
from ..core.options import CALL_OPTIONS
from ..core.outcomes import ScheduleOutcome
from ..core.task import Task, check_option_names
from ..core.times import datetime_of
from ..outbox import durability, row_verbs
from ..outbox.rows import NOW, DueTime
from ..settings.conf import check_installed, conf
from ..transactions import ON_COMMIT, CallDescription, OnCommit, warn_caller, warn_of_other_transaction
from .build import READY, EntryReader, Plan, Scheduling, chain, explicit, find_task, job_rules, plan_of
from .sending import Prepared, send, send_many

if TYPE_CHECKING:
    from ..core.job_view import JobView

P = ParamSpec("P")
R = TypeVar("R")
#: outcome when Redis is unavailable: the database has stored the change, and the relay will send it to Redis
Left = Literal["outbox"]
Delay = float | timedelta
Cancelled = Literal["cancelled", "stopping", False]
Moved = bool | OnCommit | Left
#: how a job is identified: by its handle, or its id, and a task or a queue
Target: TypeAlias = "JobHandle | Task | str | None"
Id = str | int | None
TaskName = Task | str | None
Name = str | None


def awaitable(verb: Callable[P, R]) -> Callable[P, Coroutine[Any, Any, R]]:
    """Return the verb for coroutines, which runs in the thread of Django's own a-methods."""
    in_thread = sync_to_async(verb)

    @functools.wraps(verb)
    async def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return await in_thread(*args, **kwargs)

    call.__name__ = f"a{verb.__name__}"
    call.__doc__ = f"Call ``{verb.__name__}`` from a coroutine."
    return call


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
    options: dict[str, Any] = {name: named.pop(name) for name in CALL_OPTIONS if name in named} if named else {}
    if args is not None or kwargs is not None:
        if arguments or named:
            raise TypeError("give the function's arguments either directly or as args=/kwargs=, not both")
        arguments, named = explicit(args, kwargs)
    return schedule_call(task if isinstance(task, Task) else find_task(task), arguments, named, options)


def schedule_call(
    task: Task, arguments: tuple[Any, ...], named: dict[str, Any], options: Mapping[str, Any]
) -> JobHandle:
    """Schedule a job, given the function's arguments and the options separately. See :func:`schedule`."""
    warn_of_loop("schedule")
    plan = None if "queue" in options or "durable" in options else READY.get(task)
    if plan is None:
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
    new, using = plan.builder.build(arguments, named, options), options.get("using_db")
    if plan.durable:
        durability.check(using)
    else:
        warn_of_other_transaction("schedule", using)
    task, due_ms = plan.builder.task, new.due_ms_here
    handle = JobHandle(new.id, plan.queue, ON_COMMIT, due_ms, task, durable=plan.durable, using_db=using)
    send(Prepared(new, handle))
    return handle


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
    warn_of_loop("schedule_many")
    task = find_task(task)
    check_option_names(options, task)
    if isinstance(jobs, (Mapping, str)) or not isinstance(jobs, Iterable):
        raise TypeError(f"schedule_many takes a list of dicts, one for each job, not {short(jobs)}")
    if "id" in options:
        raise InvalidJob("schedule_many: an id belongs to one job; put it into its entry")
    plan = plan_of(task, options, many=True)
    reader = EntryReader(plan, options)
    if not plan.durable:
        warn_of_other_transaction("schedule_many", options.get("using_db"))
    counts = send_many(plan, reader.read(jobs), options.get("using_db"), all_or_none=all_or_none)
    return counts | {ScheduleOutcome.SKIPPED: reader.skipped} if reader.skipped else counts


def cancel(
    target: Target = None, /, id: Id = None, *, task: TaskName = None, queue: Name = None, using_db: Name = None
) -> Cancelled | OnCommit | Left:
    """Cancel a job.

    The job is identified by its handle, by task and id (``cancel(cancel_order, id="order-5")``), or by id and queue
    (``cancel("order-5", queue="orders")``). A handle identifies its own job only (:class:`JobHandle`). Cancelling by id
    stops the running attempt and drops the content gated behind it.

    Returns:
        "cancelled": the job was waiting, or gated, and is removed. "stopping": the job is running; its ``should_stop``
        turns true at the next heartbeat and a failure will not be retried. False: there is no such live job.
        "on_commit" in a transaction. "outbox": the database has the change of the durable job, and Redis not yet: it
        is unavailable, or another process is sending the job's row. A relay cancels the job.

    Raises:
        IdTaken: the live job of this id belongs to another task than the given one.
        QueueUnavailable: Redis cannot be reached.
    """
    outcome: Cancelled | OnCommit | Left = _change("cancel", find_job(target, id, task, queue), None, using_db)
    return outcome


def reschedule(
    target: Target = None,
    /,
    id: Id = None,
    *,
    delay: Delay | None = None,
    at: datetime | float | None = None,
    task: TaskName = None,
    queue: Name = None,
    using_db: Name = None,
) -> Moved:
    """Set a new due time for a waiting job. The job is identified as for :func:`cancel`.

    Returns:
        True if there was such a waiting job; "on_commit" in a transaction; "outbox" if a relay will move the durable
        job: Redis is unavailable or has lost it, or another process is sending its row.
    """
    job = find_job(target, id, task, queue)
    if delay is None and at is None:
        raise InvalidJob("reschedule needs delay= or at=")
    due_ms, delay_ms = job_rules().due(delay, at)
    moved: Moved = _change("reschedule", job, DueTime(due_ms=due_ms, delay_ms=delay_ms), using_db)
    return moved


def run_now(
    target: Target = None, /, id: Id = None, *, task: TaskName = None, queue: Name = None, using_db: Name = None
) -> Moved:
    """Make a waiting job due now. The job is identified as for :func:`cancel`.

    Returns:
        True if there was such a waiting job; "on_commit" in a transaction; "outbox" if a relay will move the durable
        job: Redis is unavailable or has lost it, or another process is sending its row.
    """
    moved: Moved = _change("run_now", find_job(target, id, task, queue), NOW, using_db)
    return moved


def get_job(target: Target = None, /, id: Id = None, *, task: TaskName = None, queue: Name = None) -> JobView | None:
    """Return the current state of a job in Redis: the live job of this id, else the one buried last, else None.

    The job is identified as for :func:`cancel`. A handle identifies its own job only, live or buried, and the state is
    "gated" while the job waits behind the running attempt of another one. The call changes nothing and does not wait
    for a transaction.
    """
    warn_of_loop("get_job")
    job, broker = find_job(target, id, task, queue), connections.broker()
    if broker.existing(job.queue) is None:
        return None
    if job.generation is None:
        return broker.inspector.get(job.queue, job.id)
    return broker.inspector.get_generation(job.queue, job.id, job.generation)


aschedule = awaitable(schedule)
aschedule_many = awaitable(schedule_many)
acancel = awaitable(cancel)
areschedule = awaitable(reschedule)
arun_now = awaitable(run_now)
aget_job = awaitable(get_job)


# -- the job that a caller means ---------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False, repr=False)
class JobHandle:
    """Handle of one scheduled job: the job of its call, not a later job with the same id.

    When the job is done, cancelled or replaced, :meth:`cancel`, :meth:`reschedule` and :meth:`run_now` return False and
    :meth:`state` returns None, even if another job has the id by then. To address that job, pass the id to the
    functions of :mod:`django_delayq`. Which job the handle refers to depends on the outcome:

    * created: the new job
    * replaced: the new content; handles of the earlier content are stale
    * gated: the content behind the running attempt, not the attempt; a handle of the running job does not affect the
      gated content
    * merged: the job that the payload was merged into, and the payload wherever it moves after that
    * ignored: the existing job
    * on_commit, outbox: the job of this call; if it is merged or ignored after the commit, from then on as above

    Attributes:
        id: id of the job, unique within its queue.
        queue: name of the queue.
        outcome: "created", "merged", "replaced", "ignored" or "gated" (the job is running, the new content runs after
            that); "on_commit" until an open transaction commits (forever, if it rolls back); "outbox" for a durable job
            that is stored in the database but not yet in Redis, because the transaction is open, or because Redis did
            not answer and the relay will send it; "not_sent" if Redis did not accept it after the commit.
            What Redis has stored and not confirmed after the commit keeps its outcome, with an ``error``.
        due: due time (aware datetime; for a ``delay`` computed with this machine's clock, while Redis's clock decides).
        error: error if the job was not sent, or not confirmed (:class:`django_delayq.NotConfirmed`), else None.
        task: the task; None for raw bytes of a ``pull`` queue.
        durable: True if the job has a row in the database until it is done.
        using_db: database named at the call; the handle's verbs wait for the transaction of the same database.
        generation: distinguishes the job from others with the same id; None if the handle means the current live job.
    """

    id: str
    queue: str
    outcome: str
    _due_ms: int
    task: Task | None = None
    _: KW_ONLY
    durable: bool = False
    using_db: str | None = None
    error: Exception | None = None
    generation: Generation | None = None

    def __repr__(self) -> str:
        return f"<JobHandle {self.id} queue={self.queue} {self.outcome}>"

    @property
    def alias(self) -> str:
        """Alias of the database whose transaction the verbs wait for."""
        return self.using_db or DEFAULT_DB_ALIAS

    @property
    def due(self) -> datetime:
        """Due time of the job."""
        return datetime_of(self._due_ms)

    @property
    def key(self) -> str | None:
        """Key of the job's generation as 32 hex digits, equal to ``current_job().key`` while the job runs."""
        return None if self.generation is None else self.generation.keys[0].hex()

    def state(self) -> str | None:
        """Return delayed, ready, reserved, gated or morgue; None when Redis does not have the job (any more)."""
        view = get_job(self)
        return None if view is None else view.state

    def cancel(self) -> Cancelled | OnCommit | Left:
        """Cancel the job. See :func:`django_delayq.cancel`."""
        return cancel(self)

    def reschedule(self, *, delay: Delay | None = None, at: datetime | float | None = None) -> Moved:
        """Reschedule the job. See :func:`django_delayq.reschedule`."""
        return reschedule(self, delay=delay, at=at)

    def run_now(self) -> Moved:
        """Make the job due now. See :func:`django_delayq.run_now`."""
        return run_now(self)

    astate = awaitable(state)
    acancel = awaitable(cancel)
    areschedule = awaitable(reschedule)
    arun_now = awaitable(run_now)


def find_job(target: Target, id: Id, task: TaskName, queue: Name) -> JobHandle:
    """Return the job that the arguments of :func:`django_delayq.cancel` identify.

    A given handle is returned. Another reference becomes a handle without a generation: the live job of the id.

    Raises:
        TypeError: the job is identified twice.
        InvalidJob: it is not identified, or the value is not a valid name.
        Misconfigured: the app is not in ``INSTALLED_APPS``.
    """
    check_installed()
    if isinstance(target, JobHandle):
        if id is not None or task is not None or queue is not None:
            raise TypeError("a handle identifies its job completely; give the handle alone")
        return target
    if target is not None and id is not None:
        if task is not None:
            raise TypeError("give the task once")
        task = target
    elif isinstance(target, Task):
        raise InvalidJob(f"which job of {target.name}? Give its id= too")
    elif target is not None:
        id = target
    if id is None:
        raise InvalidJob("which job? Give a handle, or an id= with a task or queue=")
    registered = find_task(task) if task is not None else None
    if queue is not None:
        place = check_queue_name(queue)
    elif registered is not None:
        place = registered.options.queue
    else:
        place = conf().task_defaults.get("queue", "default")
    return JobHandle(check_id(id), place, "", 0, registered)


def _change(verb: str, job: JobHandle, when: DueTime | None, using_db: str | None) -> Any:
    """Cancel a job (``when`` is None), or set its due time."""
    warn_of_loop(verb)
    using = using_db or job.using_db
    warn_of_other_transaction(verb, using)
    return row_verbs.apply(CallDescription(verb, job.queue, job.id, job.task), when, job, using)


def warn_of_loop(verb: str) -> None:
    """Warn if a verb is called on a running event loop, which it blocks until Redis has answered."""
    if _get_running_loop() is not None:
        warn_caller(
            f"{verb}() was called on a running event loop, which is blocked until Redis has answered. In a coroutine "
            f"use `await a{verb}(…)`, of a Django Task `await task.aenqueue(…)`",
            RuntimeWarning,
        )

"""The verbs that Django code calls: schedule, schedule_many, cancel, reschedule, run_now, get_job.

Everything that can be checked without Redis is checked at the call. Inside ``transaction.atomic()`` a verb is sent
after the commit (see :mod:`django_delayq.transactions`).
"""

from __future__ import annotations

import sys
import time
import warnings
from asyncio import _get_running_loop  # get_running_loop() raises where there is none, which costs ten times as much
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal

from .. import connections
from ..core.errors import InvalidJob
from ..core.inputs import short
from ..core.job import NewJob, new_key
from ..core.task import Task
from ..outbox import door, verbs
from ..outbox.due import NOW, DueTime
from ..settings.conf import check_installed
from ..transactions import ON_COMMIT, OnCommit
from .handle import Delay, JobHandle, Left
from .merged import MergedJobs
from .middleware import Scheduling, chain
from .options import OPTIONS, check_option_names, due, due_ms_here
from .records import NewJobs, explicit
from .sending import send, send_many, send_many_durable
from .targets import find_job, find_task

if TYPE_CHECKING:
    from ..connections import DjangoBroker
    from ..core.operations.inspector import JobView

__all__ = [
    "JobHandle",
    "cancel",
    "check_option_names",
    "find_task",
    "get_job",
    "reschedule",
    "run_now",
    "schedule",
    "schedule_call",
    "schedule_many",
]

#: outcome of a handle that a schedule middleware sees of an entry of schedule_many
COLLECTED: Final = "collected"
_PACKAGE: Final = __name__.partition(".")[0]
_warned_of_event_loop = False


def schedule(
    task: Task | str,
    /,
    *arguments: Any,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    **named: Any,
) -> JobHandle:
    """Store a run of ``task`` for later: ``schedule(cancel_order, order.pk, delay=timedelta(minutes=30))``.

    Positional and keyword arguments go to the function, except these options. A merged task takes no arguments but a
    payload: ``schedule(sync_customers, id=customer.pk, payload={…}, score=version)``.

    Arguments:
        delay: wait so long: ``timedelta`` or seconds, counted from this call on Redis's clock.
        at: due then: aware ``datetime`` or Unix seconds. At most one of ``delay`` and ``at``; neither = now.
        id: str or int that names the job within its queue, so that it can be found again; default: a random one. A
            merged task needs one: what is scheduled under it is united until it runs.
        payload: (merged tasks) any value that the codec can store; default None.
        score: (merged tasks) the number by which the payloads of an id are ordered, as int, float, Decimal or text:
            a version, a time; default: the moment at which Redis gets it (Unix seconds).
        queue: another queue than the task's own.
        priority: 0 (first) … 7.
        on_conflict: the id is waiting already: "merge" (default of merged tasks, and only theirs), "replace" (default
            of others), "ignore" or "error".
        due_policy: the due time of a job that is waiting already: "replace" (default with "replace"), "keep" (default
            with "merge"), "earliest", "latest" or, for merged tasks, "inherit" (keep even a back-off).
        reset_retries: with "replace", forget earlier failures (default True).
        expires: (plain tasks) do not start it any more after this ``datetime``, or so long after its due time
            (``timedelta`` or seconds); instead of the task's.
        max_attempts: counted attempts of this job, instead of the task's.
        retry_in: its back-off, instead of the task's: seconds, ``timedelta``, a list of them or a preset's name.
        context: dict of JSON values that travels along (``current_job().context``). Of a merged job the context,
            ``max_attempts`` and ``retry_in`` of the call that began it count.
        durable: keep the job in the database, too, until it is done: a row that is written in the caller's transaction
            makes up for whatever happens to Redis. Default: as the task says, else as the queue does.
        using_db: alias of the database whose transaction is waited for, and which gets the row; default: the default
            one.
        args, kwargs: arguments of the function whose names clash with an option.

    Raises:
        TypeError: the function cannot be called with these arguments.
        InvalidJob: something cannot be stored; nothing was. Misconfigured: it is durable, and there is no outbox; or
            the app is not in ``INSTALLED_APPS``.
        IdTaken, QueueFull, QueuePaused, QueueUnavailable: Redis's answer; for a durable job only the first, all else is
            seen to by the relay. After a commit it is logged and signalled instead.
    """
    options: dict[str, Any] = {}
    if named:
        named, options = _split(named)
    if args is not None or kwargs is not None:
        if arguments or named:
            raise TypeError("give the function's arguments either directly or as args=/kwargs=, not both")
        arguments, named = explicit(args, kwargs)
    return schedule_call(find_task(task), arguments, named, options)


def schedule_call(
    task: Task, arguments: tuple[Any, ...], named: dict[str, Any], options: Mapping[str, Any]
) -> JobHandle:
    """:func:`schedule` with the function's arguments and the options apart."""
    check_installed()
    if _get_running_loop() is not None:  # here, because most calls are made where there is none
        _mind_event_loop("schedule")
    around = chain()
    if around is None:
        return _schedule(task, arguments, named, options)
    handle: JobHandle = around(Scheduling(task, arguments, named, dict(options), many=False, end=_end))
    return handle


def _end(scheduling: Scheduling) -> JobHandle:
    check_option_names(scheduling.options)
    return _schedule(find_task(scheduling.task), scheduling.args, scheduling.kwargs, scheduling.options)


def _maker(task: Task, options: Mapping[str, Any]) -> NewJobs:
    return MergedJobs(task, options) if task.options.merge else NewJobs(task, options)


def _schedule(task: Task, arguments: tuple[Any, ...], named: dict[str, Any], options: Mapping[str, Any]) -> JobHandle:
    maker = _maker(task, options)
    job = maker.make(arguments, named, options)
    job.key = job.key or new_key()
    using, durable = options.get("using_db"), door.is_durable(task, options, maker.queue)
    handle = JobHandle(job.id, maker.queue, ON_COMMIT, due_ms_here(job), maker.task, durable=durable, using_db=using)
    if durable:
        door.check(using)
    send(task, job, handle)
    return handle


def schedule_many(task: Task | str, jobs: Iterable[Mapping[str, Any]], /, **options: Any) -> dict[str, int]:
    """Store many runs of one task: ``schedule_many(cancel_order, [{"args": [pk], "id": f"order-{pk}"}, …])``.

    Arguments:
        jobs: any iterable of dicts with ``args``, ``kwargs`` and the options of one job (delay, at, id, priority,
            on_conflict, due_policy, reset_retries, max_attempts, retry_in, expires, context). Those of a merged task:
            ``{"id": 1, "payload": {…}, "score": 3}`` and the options. Read in chunks, so it may be endless.
        options: options for all jobs; also ``queue``, ``durable`` and ``using_db``.

    Returns:
        Counts by outcome: created, merged, replaced, ignored, gated; and of those that were not stored: taken (the id
        belongs to another task), exists (``on_conflict="error"`` met a live job), full (the queue has reached its
        ``max_length``, or the id its ``max_payloads``), paused (it takes nothing new now), skipped (a schedule
        middleware did not pass it on). In a transaction: on_commit; what is not stored after the commit is logged. Of
        durable jobs: outbox, if Redis has not heard of them yet.

    Raises:
        TypeError, InvalidJob: an entry is wrong; the message has its index. Chunks before it are stored already.
        QueueFull, QueueUnavailable: Redis took no more (it has no memory left, or is gone); chunks before are stored
            already.
    """
    check_installed()
    _mind_event_loop("schedule_many")
    found = find_task(task)
    check_option_names(options, found)
    if isinstance(jobs, (Mapping, str)) or not isinstance(jobs, Iterable):
        raise TypeError(f"schedule_many takes a list of dicts, one for each job, not {short(jobs)}")
    if "id" in options:
        raise InvalidJob("schedule_many: an id belongs to one job; put it into its entry")
    maker = _maker(found, options)
    made = maker.make_many(jobs, _collected)
    way = send_many_durable if door.is_durable(found, options, maker.queue) else send_many
    counts = way(found, maker.queue, made, options.get("using_db"))
    return counts | {"skipped": maker.skipped} if maker.skipped else counts


def _collected(job: NewJob, queue: str) -> JobHandle:
    return JobHandle(job.id, queue, COLLECTED, due_ms_here(job))


def cancel(
    target: JobHandle | Task | str | None = None,
    /,
    id: str | int | None = None,
    *,
    task: Task | str | None = None,
    queue: str | None = None,
    using_db: str | None = None,
) -> Literal["cancelled", "stopping", False] | OnCommit | Left:
    """Take a job back.

    The job is named by its handle, by task and id (``cancel(cancel_order, id="order-5")``), or by id and queue
    (``cancel("order-5", queue="orders")``). A handle names its own job only (:class:`JobHandle`); by id a run is
    stopped and what is gated behind it is dropped.

    Returns:
        "cancelled": it was waiting, or gated, and is gone. "stopping": it is running; its ``should_stop`` turns true at
        the next heartbeat and its failure will not be retried. False: there is no such live job. "on_commit" in a
        transaction. "outbox": Redis is away, and the relay will cancel the durable job.

    Raises:
        IdTaken: the live job of this id belongs to another task than the one given.
        QueueUnavailable: Redis cannot be reached.
    """
    _mind_event_loop("cancel")
    return verbs.cancel(find_job(target, id, task, queue, using_db))


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
    """Give a waiting job a new due time. The job is named as for :func:`cancel`.

    Returns:
        Whether there was such a waiting job; "on_commit" in a transaction; "outbox" if Redis is away and the relay will
        move the durable job.
    """
    _mind_event_loop("reschedule")
    if delay is None and at is None:
        raise InvalidJob("reschedule needs delay= or at=")
    job = find_job(target, id, task, queue, using_db)
    due_ms, delay_ms = due(delay, at)
    asked_at = time.monotonic()

    def tell(broker: DjangoBroker) -> bool:
        live = broker.existing(job.queue)
        if live is None:
            return False
        # The due time is fixed at the call, so the wait for the commit is a part of the delay.
        left = None if delay_ms is None else max(0, delay_ms - int((time.monotonic() - asked_at) * 1000))
        return live.reschedule(job.id, due_ms=due_ms, delay_ms=left, task=job.task_name, generation=job.generation)

    return verbs.move(job, "reschedule", DueTime(due_ms=due_ms, delay_ms=delay_ms), tell)


def run_now(
    target: JobHandle | Task | str | None = None,
    /,
    id: str | int | None = None,
    *,
    task: Task | str | None = None,
    queue: str | None = None,
    using_db: str | None = None,
) -> bool | OnCommit | Left:
    """Make a waiting job due at once. The job is named as for :func:`cancel`.

    Returns:
        Whether there was such a waiting job; "on_commit" in a transaction; "outbox" if Redis is away and the relay will
        move the durable job.
    """
    _mind_event_loop("run_now")
    job = find_job(target, id, task, queue, using_db)

    def tell(broker: DjangoBroker) -> bool:
        live = broker.existing(job.queue)
        return live is not None and live.run_now(job.id, task=job.task_name, generation=job.generation)

    return verbs.move(job, "run_now", NOW, tell)


def get_job(
    target: JobHandle | Task | str | None = None,
    /,
    id: str | int | None = None,
    *,
    task: Task | str | None = None,
    queue: str | None = None,
) -> JobView | None:
    """Return what Redis knows of a job now: the live one of this id, else the one buried last, else None.

    The job is named as for :func:`cancel`; a handle names its own job only, live or buried, and the state is "gated"
    while that waits behind the run of another one. Nothing is changed, and a transaction is not waited for.
    """
    _mind_event_loop("get_job")
    job = find_job(target, id, task, queue)
    live = connections.existing_queue(job.queue)
    if live is None:
        return None
    inspector = connections.broker().inspector
    if job.generation is None:
        return inspector.get(job.queue, job.id)
    return inspector.get_generation(job.queue, job.id, job.generation)


def _split(named: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """``(the function's keyword arguments, options)``."""
    options: dict[str, Any] = {name: named.pop(name) for name in OPTIONS if name in named}
    return named, options


def _mind_event_loop(verb: str) -> None:
    """Warn, once in a process, if a verb is called on a running event loop, which it stops until Redis has answered."""
    global _warned_of_event_loop
    if _get_running_loop() is None or _warned_of_event_loop:
        return
    _warned_of_event_loop = True
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == _PACKAGE:
        frame, level = frame.f_back, level + 1
    warnings.warn(
        f"{verb}() was called on a running event loop, which stands still until Redis has answered. In a coroutine use "
        f"`await a{verb}(…)`, of a Django Task `await task.aenqueue(…)`. Further calls are not warned of",
        RuntimeWarning,
        stacklevel=level,
    )

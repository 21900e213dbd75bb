"""The verbs that Django code calls: schedule, schedule_many, cancel, reschedule, run_now, get_job.

Everything that can be checked without Redis is checked at the call. Inside ``transaction.atomic()`` a verb is sent
after the commit (see :mod:`django_delayq.transactions`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Literal

from . import connections
from .core.errors import InvalidJob
from .core.inputs import check_id, check_queue_name, short, suggest
from .core.job import NewJob
from .core.task import Task, registry
from .handle import Delay, JobHandle
from .intercept import Scheduling, chain
from .joboptions import OPTIONS, check_option_names, due, due_ms_here, no_later_options
from .merged import MergedJobs
from .newjob import NewJobs, explicit
from .signals import emit, job_cancelled, job_scheduled
from .transactions import ON_COMMIT, OnCommit, What, in_transaction, log_refused, now_or_on_commit

if TYPE_CHECKING:
    from .core.inspector import JobView

__all__ = [
    "JobHandle",
    "cancel",
    "check_option_names",
    "get_job",
    "reschedule",
    "run_now",
    "schedule",
    "schedule_call",
    "schedule_many",
]

#: jobs of schedule_many that are checked, then sent, together
CHUNK: Final = 5_000
#: outcome of a handle that a schedule middleware sees of an entry of schedule_many
COLLECTED: Final = "collected"


def schedule(
    task: Task | str, /, *arguments: Any, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None,
    **named: Any,
) -> JobHandle:  # fmt: skip
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
        using_db: alias of the database whose transaction is waited for; default: the default one.
        args, kwargs: arguments of the function whose names clash with an option.

    Raises:
        TypeError: the function cannot be called with these arguments.
        InvalidJob: something cannot be stored; nothing was.
        IdTaken, QueueFull, QueuePaused, QueueUnavailable: Redis's answer. After a commit it is logged and signalled
            instead.
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
    using = options.get("using_db")
    handle = JobHandle(job.id, maker.queue, ON_COMMIT, due_ms_here(job), maker.task)
    if not in_transaction(using):
        handle.outcome = connections.queue(handle.queue).schedule(job)
        _tell_scheduled(task, handle)
        return handle
    asked_at = time.monotonic()

    def send() -> None:
        _less_waited(job, asked_at)
        handle.outcome = connections.queue(handle.queue).schedule(job)
        _tell_scheduled(task, handle)

    def failed(error: Exception) -> None:
        handle.outcome = "not_sent"
        handle.error = error

    now_or_on_commit(send, What("schedule", handle.queue, job.id, task), using=using, failed=failed)
    return handle


def schedule_many(task: Task | str, jobs: Iterable[Mapping[str, Any]], /, **options: Any) -> dict[str, int]:
    """Store many runs of one task: ``schedule_many(cancel_order, [{"args": [pk], "id": f"order-{pk}"}, …])``.

    Arguments:
        jobs: any iterable of dicts with ``args``, ``kwargs`` and the options of one job (delay, at, id, priority,
            on_conflict, due_policy, reset_retries, max_attempts, retry_in, expires, context). Those of a merged task:
            ``{"id": 1, "payload": {…}, "score": 3}`` and the options. Read in chunks, so it may be endless.
        options: options for all jobs; also ``queue`` and ``using_db``.

    Returns:
        Counts by outcome: created, merged, replaced, ignored, gated; and of those that were not stored: taken (the id
        belongs to another task), exists (``on_conflict="error"`` met a live job), full (the queue has reached its
        ``max_length``, or the id its ``max_payloads``), paused (it takes nothing new now), skipped (a schedule
        middleware did not pass it on). In a transaction: on_commit; what is not stored after the commit is logged.

    Raises:
        TypeError, InvalidJob: an entry is wrong; the message has its index. Chunks before it are stored already.
        QueueFull, QueueUnavailable: Redis took no more (it has no memory left, or is gone); chunks before are stored
            already.
    """
    found = find_task(task)
    check_option_names(options, found)
    if "id" in options:
        raise InvalidJob("schedule_many: an id belongs to one job; put it into its entry")
    maker = _maker(found, options)
    using = options.get("using_db")
    made = maker.make_many(jobs, _collected)
    if not in_transaction(using):
        counts = connections.queue(maker.queue).count_many(made)
    else:
        counts = _many_on_commit(found, maker.queue, made, using)
    return counts | {"skipped": maker.skipped} if maker.skipped else counts


def _collected(job: NewJob, queue: str) -> JobHandle:
    return JobHandle(job.id, queue, COLLECTED, due_ms_here(job))


def _many_on_commit(task: Task, queue: str, made: Iterator[NewJob], using: str | None) -> dict[str, int]:
    """Check all now, send each chunk after the commit; what Redis does not take then is logged."""
    what = What("schedule", queue, "", task)
    counts: Counter[str] = Counter()
    while chunk := list(islice(made, CHUNK)):
        asked_at = time.monotonic()

        def send(chunk: list[NewJob] = chunk, asked_at: float = asked_at) -> None:
            for job in chunk:
                _less_waited(job, asked_at)
            log_refused(what, connections.queue(queue).count_many(chunk))

        now_or_on_commit(send, what, using=using)
        counts[ON_COMMIT] += len(chunk)
    return dict(counts)


def cancel(
    target: JobHandle | Task | str | None = None, /, id: str | int | None = None, *, task: Task | str | None = None,
    queue: str | None = None, using_db: str | None = None,
) -> Literal["cancelled", "stopping", False] | OnCommit:  # fmt: skip
    """Take a job back.

    The job is named by its handle, by task and id (``cancel(cancel_order, id="order-5")``), or by id and queue
    (``cancel("order-5", queue="orders")``).

    Returns:
        "cancelled": it was waiting and is gone. "stopping": it is running; its ``should_stop`` turns true at the next
        heartbeat and its failure will not be retried. False: there is no such live job. "on_commit" in a transaction.

    Raises:
        IdTaken: the live job of this id belongs to another task than the one given.
        QueueUnavailable: Redis cannot be reached.
    """
    place, job_id, found = _resolve(target, id, task, queue)

    def send() -> Literal["cancelled", "stopping", False]:
        live = connections.existing_queue(place)
        outcome = live.cancel(job_id, task=_name(found)) if live is not None else ""
        if outcome:
            emit(job_cancelled, found, id=job_id, queue=place, outcome=outcome)
        return "cancelled" if outcome == "cancelled" else "stopping" if outcome == "stopping" else False

    return now_or_on_commit(send, What("cancel", place, job_id, found), using=using_db)


def reschedule(
    target: JobHandle | Task | str | None = None, /, id: str | int | None = None, *, delay: Delay | None = None,
    at: datetime | float | None = None, task: Task | str | None = None, queue: str | None = None,
    using_db: str | None = None,
) -> bool | OnCommit:  # fmt: skip
    """Give a waiting job a new due time. The job is named as for :func:`cancel`.

    Returns:
        Whether there was such a waiting job; "on_commit" in a transaction.
    """
    if delay is None and at is None:
        raise InvalidJob("reschedule needs delay= or at=")
    place, job_id, found = _resolve(target, id, task, queue)
    due_ms, delay_ms = due(delay, at)
    asked_at = time.monotonic()

    def send() -> bool:
        left = None if delay_ms is None else _left(delay_ms, asked_at)
        live = connections.existing_queue(place)
        return live is not None and live.reschedule(job_id, due_ms=due_ms, delay_ms=left, task=_name(found))

    return now_or_on_commit(send, What("reschedule", place, job_id, found), using=using_db)


def run_now(
    target: JobHandle | Task | str | None = None, /, id: str | int | None = None, *, task: Task | str | None = None,
    queue: str | None = None, using_db: str | None = None,
) -> bool | OnCommit:  # fmt: skip
    """Make a waiting job due at once. The job is named as for :func:`cancel`.

    Returns:
        Whether there was such a waiting job; "on_commit" in a transaction.
    """
    place, job_id, found = _resolve(target, id, task, queue)

    def send() -> bool:
        live = connections.existing_queue(place)
        return live is not None and live.run_now(job_id, task=_name(found))

    return now_or_on_commit(send, What("run_now", place, job_id, found), using=using_db)


def get_job(
    target: JobHandle | Task | str | None = None, /, id: str | int | None = None, *, task: Task | str | None = None,
    queue: str | None = None,
) -> JobView | None:  # fmt: skip
    """What Redis knows of a job now: the live one of this id, else the one buried last, else None.

    The job is named as for :func:`cancel`. Nothing is changed, and a transaction is not waited for.
    """
    place, job_id, _ = _resolve(target, id, task, queue)
    live = connections.existing_queue(place)
    return None if live is None else connections.broker().inspector.get(place, job_id)


def find_task(task: Task | str) -> Task:
    """The registered task itself or of that name.

    Raises:
        InvalidJob: it is not a task; the message says what to do.
    """
    if isinstance(task, Task):
        return task
    if isinstance(task, str):
        found = registry.get(task)
        if found is None:
            raise InvalidJob(f"no task is named {short(task)}.{suggest(task, registry.tasks)}")
        return found
    if callable(task):
        name = getattr(task, "__qualname__", None) or short(task)
        raise InvalidJob(f"{name} is not a task; put @task (from django_delayq import task) above it")
    raise InvalidJob(f"expected a task or the name of one, got {short(task)}")


def _split(named: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """``(the function's keyword arguments, options)``."""
    no_later_options(named)
    options: dict[str, Any] = {name: named.pop(name) for name in OPTIONS if name in named}
    return named, options


def _resolve(
    target: JobHandle | Task | str | None, id: str | int | None, task: Task | str | None, queue: str | None
) -> tuple[str, str, Task | None]:
    """``(queue, id, task)`` of the job that is meant."""
    if isinstance(target, JobHandle):
        if id is not None or task is not None or queue is not None:
            raise TypeError("a handle says everything already: give it alone")
        return target.queue, target.id, target.task
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
    found = find_task(task) if task is not None else None
    if queue is not None:
        place = check_queue_name(queue)
    elif found is not None:
        place = found.options.queue
    else:
        from .conf import conf

        place = conf().task_defaults.get("queue", "default")
    return place, check_id(id), found


def _name(task: Task | None) -> str:
    """The name that a live job must have; "" = any, because a renamed task's jobs lie under the old name too."""
    return "" if task is None or task.options.aliases else task.name


def _less_waited(job: NewJob, asked_at: float) -> None:
    if job.delay_ms:
        job.delay_ms = _left(job.delay_ms, asked_at)


def _left(delay_ms: int, asked_at: float) -> int:
    """The due time is fixed at the call, so the wait for the commit is a part of the delay."""
    return max(0, delay_ms - int((time.monotonic() - asked_at) * 1000))


def _tell_scheduled(task: Task, handle: JobHandle) -> None:
    if job_scheduled.receivers:
        emit(job_scheduled, task, id=handle.id, queue=handle.queue, outcome=handle.outcome, due=handle.due)

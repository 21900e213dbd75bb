"""Decorator ``@exactly_once``: the database effects of a job happen once, even if the job has several attempts.

An attempt may end in the database and not in Redis: the worker dies after its commit, the ack is lost, or the lease
expires under a slow handler while its successor is already running. Therefore the handler's transaction also inserts a
row with the key of the job's generation (for a merged job: one row for each payload's key). A later attempt finds the
row and skips the handler. A concurrent attempt waits at the row's unique key until the first has committed, or takes
over if that was rolled back. The outbox rows of durable jobs are deleted in the same transaction, so that even a loss
of Redis does not bring back a finished job.

Effects outside of this database (mails, payments, other databases) are repeated by a second attempt. Pass
``current_job().key`` to the other system as its idempotency key.
"""

from __future__ import annotations

import functools
import inspect
import logging
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, ParamSpec, TypeAlias, TypeVar, overload

from django.db import DEFAULT_DB_ALIAS, IntegrityError, connections, transaction
from django.db.utils import OperationalError

from ..core import task as core
from ..core.errors import Misconfigured
from ..core.inputs import short
from ..core.job import Job, NewJob, is_durable, made_durable, new_key, request_for
from ..core.verdicts import PartialFailure, Release
from ..worker.attempt import running
from . import rows

logger: Final = logging.getLogger("django_delayq.inbox")

P = ParamSpec("P")
R = TypeVar("R")

#: attribute of a decorated function: alias of its database
_DATABASE: Final = "exactly_once_in"


@overload
def exactly_once(func: Callable[P, R], /) -> Callable[P, R | None]: ...
@overload
def exactly_once(*, using: str | None = None) -> Callable[[Callable[P, R]], Callable[P, R | None]]: ...
def exactly_once(func: Callable[..., Any] | None = None, /, *, using: str | None = None) -> Any:
    """Run the function of a task in a transaction, and only once for each job. Place it below ``@task``.

    Example::

        @task(queue="orders")
        @exactly_once
        def charge(order_id): ...

    A merged task's function receives the payloads that were not handled yet. If it raises :class:`PartialFailure`, its
    work is committed for the ids that did not fail, so it has to undo the work for the failed ids itself (``with
    transaction.atomic():`` around each id). A call outside of a worker runs the function in a transaction and stores no
    entry.

    Args:
        using: alias of the database; default: "default". Effects on other databases are not covered.

    Raises:
        Misconfigured: it is placed above ``@task``, or the function is an ``async def``, which cannot hold a
            transaction.
    """

    def decorate(func: Callable[..., Any]) -> Callable[..., Any]:
        _check(func)
        alias = using or DEFAULT_DB_ALIAS

        @functools.wraps(func)
        def once(*args: Any, **kwargs: Any) -> Any:
            run = running.get()
            if run is None:
                with transaction.atomic(using=alias):
                    return func(*args, **kwargs)
            _reach(alias)
            if run.job.merged:
                return _merged(func, args[0], {part.job.id: part.job for part in run.live}, alias)
            return _plain(functools.partial(func, *args, **kwargs), run.job, alias)

        setattr(once, _DATABASE, alias)
        return once

    return decorate if func is None else decorate(func)


def remembering() -> dict[str, str]:
    """Return the databases in which tasks store entries, each with the name of one such task."""
    return {getattr(task.func, _DATABASE): task.name for task in core.registry if hasattr(task.func, _DATABASE)}


def _check(func: Callable[..., Any]) -> None:
    if isinstance(func, core.Task):
        raise Misconfigured(f"@exactly_once stands below @task, directly above the function; move it there in {func!r}")
    if not callable(func):
        raise Misconfigured(f"@exactly_once takes its option by keyword: @exactly_once(using=…), got {short(func)}")
    core.check_is_no_generator(func)
    if inspect.iscoroutinefunction(func):
        raise Misconfigured(
            f"@exactly_once on {func.__qualname__}: a coroutine cannot hold a database transaction; make it a plain "
            f"function, which workers run in a thread"
        )


def _reach(alias: str) -> None:
    """Connect to the database.

    Raises:
        Release: the database is unavailable. This is not a failure of the job, because nothing has begun yet.
    """
    try:
        connections[alias].close_if_health_check_failed()
        connections[alias].ensure_connection()
    except OperationalError as error:
        raise Release(f"the database {alias!r} cannot be reached: {error}", delay=5) from error


#: entry to insert: a key that is entered once; and queue, id and task of the job, for people to read
Entry: TypeAlias = tuple[bytes, str, str, str]


class Entered(IntegrityError):
    """Error for keys that are in the database already."""


def enter(entries: Iterable[Entry], alias: str) -> None:
    """Insert entries. This waits while another transaction is inserting the same key.

    Raises:
        Entered: one of them is in the database already.
    """
    from ..models import InboxEntry

    # Always in the same order, so that two attempts with some of the same payloads do not deadlock.
    new = [
        InboxEntry(key=uuid.UUID(bytes=key), queue=queue, job_id=ident, task=task)
        for key, queue, ident, task in sorted(entries)
    ]
    try:
        InboxEntry.objects.using(alias).bulk_create(new, batch_size=rows.CHUNK)
    except IntegrityError as error:
        raise Entered(*error.args) from error


def done(keys: Iterable[bytes], alias: str) -> dict[bytes, str]:
    """Return those keys that are in the database, each with its task."""
    from ..models import InboxEntry

    found: dict[bytes, str] = {}
    for chunk in rows.chunks(uuid.UUID(bytes=key) for key in keys):
        entries = InboxEntry.objects.using(alias).filter(pk__in=chunk)
        found |= {key.bytes: task for key, task in entries.values_list("pk", "task")}
    return found


def insert_once(alias: str, queue: str, news: Sequence[NewJob]) -> bool:
    """Make jobs durable and insert their rows; return False if the same request has inserted them before."""
    for new in news:
        keyed = new if new.payload is None else new.payload
        keyed.key = made_durable(keyed.key) if new.repeatable else new_key(durable=True)
    if not news[0].repeatable:
        rows.insert(alias, queue, news)
        return True
    with suppress(Entered), transaction.atomic(using=alias):
        enter([(request_for(news), queue, news[0].id, news[0].task)], alias)
        rows.insert(alias, queue, news)
        return True
    return False


def _plain(call: Callable[[], Any], job: Job, alias: str) -> Any:
    try:
        with transaction.atomic(using=alias):
            enter([(job.key, job.queue, job.id, job.task)], alias)
            result = call()
            _forget_durable([job.key], alias)
            return result
    except Entered:
        logger.info("%s: its effects are in the database already; not run again", job.id)
        return None


def _merged(
    func: Callable[..., Any], payloads_by_id: Mapping[str, list[Any]], jobs: Mapping[str, Job], alias: str
) -> Any:
    from ..models import InboxEntry

    known = done([payload.key for job in jobs.values() for payload in job.payloads], alias)
    fresh: dict[str, list[tuple[bytes, Any]]] = {}  # keys and payloads whose effects are not in the database, by id
    for ident, payloads in payloads_by_id.items():
        entries = [(entry.key, payload) for entry, payload in zip(jobs[ident].payloads, payloads, strict=True)]
        if left := [entry for entry in entries if entry[0] not in known]:
            fresh[ident] = left
    if not fresh:
        logger.info("%s: all their effects are in the database already; not run again", ", ".join(jobs))
        return None
    result = failure = None
    keys = {ident: [key for key, _ in payloads] for ident, payloads in fresh.items()}
    try:
        with transaction.atomic(using=alias):
            enter([(key, jobs[id].queue, id, jobs[id].task) for id, mine in keys.items() for key in mine], alias)
            try:
                result = func({ident: [payload for _, payload in payloads] for ident, payloads in fresh.items()})
            except PartialFailure as error:
                failed = {str(ident) for ident in error.errors}
                if not failed <= keys.keys():
                    raise  # the failed ids are unknown, so all count as failed
                failure = error
                undone = [uuid.UUID(bytes=key) for ident in failed for key in keys.pop(ident)]
                InboxEntry.objects.using(alias).filter(pk__in=undone).delete()
            _forget_durable([key for mine in keys.values() for key in mine], alias)
    except Entered as error:  # the next attempt finds what that one has committed
        raise Release("another attempt of some of the same payloads was faster, and has committed now") from error
    if failure is not None:
        raise failure
    return result


def _forget_durable(keys: Iterable[bytes], alias: str) -> None:
    for chunk in rows.chunks(uuid.UUID(bytes=key) for key in keys if is_durable(key)):
        rows.table(alias).filter(key__in=chunk).delete()

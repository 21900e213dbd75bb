"""Database connection handling for workers: no leaks, no reconnect per job, no transaction shared between jobs.

Django does this around a request, and a worker has no requests. Only databases that the thread has opened are
inspected. Django announces each connection with ``connection_created``, so jobs of a thread without any cost nothing.

Activated languages and time zones need no handling here: they are context variables, and each job runs in its own
context. ``async def`` jobs use the database in asgiref's single thread for thread-sensitive code, which is handled too.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import Final

from asgiref.sync import SyncToAsync
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from .core.errors import LeakedTransaction
from .core.job import Job
from .core.task import registry

logger: Final = logging.getLogger("django_delayq.hygiene")

#: seconds to wait for the thread of thread-sensitive code, which another job may keep busy
_CHECK_SECONDS: Final = 30.0
#: seconds for which a connection that has answered is trusted without a check
_TRUSTED_SECONDS: Final = 1.0


class _Thread(threading.local):
    """Databases of the current thread."""

    def __init__(self) -> None:
        #: aliases that it opened, each with the time at which its connection last answered (``time.monotonic()``)
        self.answered: dict[str, float] = {}


_thread: Final = _Thread()
#: set if a connection was opened in the thread of ``sync_to_async``
_opened_by_async: Final = threading.Event()


def install(*, conn_max_age: float | None = 60.0) -> None:
    """Prepare this process to run jobs. Call it in a fresh worker process, before any thread is started.

    Args:
        conn_max_age: seconds that connections are kept, instead of Django's CONN_MAX_AGE (whose default of 0 would mean
            a reconnect per job), and each is checked before its first use by a job; None keeps the project's values.
    """
    connection_created.connect(_remember, dispatch_uid="django_delayq.hygiene")
    if conn_max_age is not None:
        for alias in connections:
            database = connections.settings[alias]
            if not _pooled(database):
                database["CONN_MAX_AGE"] = conn_max_age
                database["CONN_HEALTH_CHECKS"] = True
    thread_end()  # connections that were opened during start-up used the project's values
    _opened_by_async.clear()


def uninstall() -> None:
    """Close the connections of this thread and of ``async def`` jobs, unless their thread is busy for a second."""
    connection_created.disconnect(dispatch_uid="django_delayq.hygiene")
    thread_end()
    if _opened_by_async.is_set():
        _opened_by_async.clear()
        with contextlib.suppress(TimeoutError):
            SyncToAsync.single_thread_executor.submit(thread_end).result(1.0)


def before_job() -> None:
    """Reset this thread's connections for the next job, as Django does for a new request.

    Raises:
        OperationalError: a database that jobs of this thread have used cannot be reached. The handler has not started,
            so the job is released without a counted attempt.
    """
    if not _thread.answered:
        return
    for connection in _opened():
        if connection.in_atomic_block or connection.run_on_commit or _begun_by_sql(connection):
            _drop(connection)
        elif connection.connection is not None or connection.errors_occurred:  # else the handler has closed it
            connection.queries_log.clear()
            _renew(connection)


def _opened() -> list[BaseDatabaseWrapper]:
    """Return this thread's connections to databases that it has opened; some may be closed now."""
    return [connections[alias] for alias in _thread.answered]


def _renew(connection: BaseDatabaseWrapper) -> None:
    now = time.monotonic()
    silence = now - _thread.answered[connection.alias]
    connection.close_if_unusable_or_obsolete()
    if silence > _TRUSTED_SECONDS:
        connection.close_if_health_check_failed()
    connection.ensure_connection()  # if it fails, Django notes the error, so the next job tries again
    _thread.answered[connection.alias] = now


def after_job(job: Job) -> None:
    """Check for transactions that the handler left open. Call it *before* the job is acknowledged.

    Raises:
        LeakedTransaction: work of the handler was never committed and is now rolled back. The job must not be
            acknowledged, or the work would be lost without a trace.
    """
    if _thread.answered:
        _check_for_leaks()
    if _opened_by_async.is_set() and (task := registry.get(job.task)) is not None and task.is_async:
        check = SyncToAsync.single_thread_executor.submit(_check_async_thread)
        try:
            check.result(_CHECK_SECONDS)
        except TimeoutError:
            logger.warning("the thread behind sync_to_async has been busy for %g s", _CHECK_SECONDS)


def _check_async_thread() -> None:
    _check_for_leaks()
    before_job()


def _check_for_leaks() -> None:
    leaked = None
    for connection in _opened():
        if connection.in_atomic_block:
            leaked = f"an atomic() block on the database {connection.alias!r} was entered and not left"
        elif connection.connection is not None and connection.autocommit != connection.settings_dict["AUTOCOMMIT"]:
            leaked = f"autocommit of the database {connection.alias!r} was changed and not set back"
        elif connection.closed_in_transaction:
            leaked = f"the connection to the database {connection.alias!r} was closed inside a transaction"
        elif _begun_by_sql(connection):
            leaked = f"a transaction that SQL began on the database {connection.alias!r} was not ended"
        else:
            if connection.connection is not None and _pooled(connection.settings_dict):
                connection.close()  # back to the pool
            continue
        _drop(connection)
    if leaked is not None:
        raise LeakedTransaction(f"{leaked}, so the work was rolled back. Use `with transaction.atomic():`")


def _begun_by_sql(connection: BaseDatabaseWrapper) -> bool:
    """Return True if a transaction is open that Django did not begin. Drivers of MySQL do not tell."""
    raw = connection.connection
    if raw is None or not connection.autocommit:
        return False
    if connection.vendor == "postgresql":
        return raw.info.transaction_status in (2, 3)  # open; open and broken (libpq)
    return connection.vendor == "sqlite" and raw.in_transaction


def thread_end() -> None:
    """Close the connections of a thread that ends."""
    connections.close_all()
    _thread.answered.clear()


def _drop(connection: BaseDatabaseWrapper) -> None:
    """Close a connection in any state, so that the server rolls back. The next query of this thread opens a new one."""
    logger.warning("dropping the connection to the database %r: a transaction was left open on it", connection.alias)
    with contextlib.suppress(Exception):  # it is discarded all the same
        if connection.connection is not None:
            # close() would keep it inside an atomic block
            connection._close()  # type: ignore[attr-defined]
    del _thread.answered[connection.alias]
    del connections[connection.alias]


def _remember(*, connection: BaseDatabaseWrapper, **_: object) -> None:
    _thread.answered[connection.alias] = time.monotonic()
    if threading.current_thread() in SyncToAsync.single_thread_executor._threads:
        _opened_by_async.set()


def _pooled(database: dict[str, object]) -> bool:
    options = database.get("OPTIONS")
    return isinstance(options, dict) and bool(options.get("pool"))

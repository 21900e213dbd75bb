"""Database connection handling for workers: no leaks, no reconnect per job, no transaction shared between jobs.

Django does this around a request, and a worker has no requests. Only connections that were really opened in the thread
are inspected: Django announces each one with ``connection_created``, so a job costs two short loops over (mostly) one
element.

Activated languages and time zones need no handling here: they are context variables, and each job runs in its own
context. ``async def`` jobs use the database in asgiref's single thread for thread-sensitive code, which is handled too.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from typing import Any, Final

from asgiref.sync import SyncToAsync
from django.db import OperationalError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from .core.errors import LeakedTransaction
from .core.job import Job
from .core.task import registry

logger: Final = logging.getLogger("django_delayq.hygiene")

#: seconds to wait for the thread of thread-sensitive code, which another job may keep busy
_CHECK_SECONDS: Final = 30.0
#: seconds for which a connection that has answered is trusted without a check. Longer for housekeeping, which survives
#: an error; a job would fail.
_TRUSTED_SECONDS: Final = 1.0
_TRUSTED_SECONDS_HOUSEKEEPING: Final = 30.0
#: error codes of PostgreSQL, MySQL and SQLite for two conflicting transactions
_COLLISIONS: Final = frozenset(("40001", "40P01", "55P03", 1205, 1213))
#: statuses of libpq while a transaction is open, and while it is open and broken
_IN_TRANSACTION: Final = frozenset((2, 3))
_LOCKED: Final = "database is locked"
#: longest pause after a conflict (seconds)
_LONGEST_PAUSE_SECONDS: Final = 5.0


class _Opened(threading.local):
    """Connections that this thread has opened."""

    def __init__(self) -> None:
        self.connections: list[BaseDatabaseWrapper] = []
        #: broken connections that could not be opened again
        self.lost: set[BaseDatabaseWrapper] = set()
        #: alias -> when the connection last answered (``time.monotonic()``)
        self.answered: dict[str, float] = {}
        self.runs_jobs = False
        self.is_housekeeping = False


_opened: Final = _Opened()
#: set if a connection was opened in a thread that runs no jobs itself: that of ``sync_to_async``
_opened_by_async: Final = threading.Event()
#: set after the warning that threads started by handlers open connections
_warned: Final = threading.Event()
#: the project's own values of the settings that :func:`install` overrides
_replaced: Final[dict[str, dict[str, Any]]] = {}


def install(*, conn_max_age: float | None = 60.0, conn_health_checks: bool = True) -> None:
    """Prepare this process to run jobs. Call it in a fresh worker process, before any thread is started.

    Args:
        conn_max_age: seconds that connections are kept, instead of Django's CONN_MAX_AGE (whose default of 0 would mean
            a reconnect per job); None keeps the project's values.
        conn_health_checks: check a kept connection before its first use by a job.
    """
    connection_created.connect(_remember, dispatch_uid="django_delayq.hygiene")
    if conn_max_age is not None:
        for alias in connections:
            database = connections.settings[alias]
            if not _pooled(database):
                _replaced.setdefault(alias, {name: database[name] for name in ("CONN_MAX_AGE", "CONN_HEALTH_CHECKS")})
                database["CONN_MAX_AGE"] = conn_max_age
                database["CONN_HEALTH_CHECKS"] = conn_health_checks
    connections.close_all()  # those opened during start-up used the project's values
    _opened.connections.clear()
    _opened_by_async.clear()
    _warned.clear()


def uninstall() -> None:
    """Close the connections of this thread and of ``async def`` jobs, and restore the project's settings."""
    connection_created.disconnect(dispatch_uid="django_delayq.hygiene")
    close_elsewhere(1.0)
    thread_end()
    for alias, values in _replaced.items():
        if alias in connections.settings:
            connections.settings[alias].update(values)
    _replaced.clear()


def close_elsewhere(timeout: float) -> None:
    """Close the connections of ``async def`` jobs. Wait up to ``timeout`` seconds for their thread."""
    if _opened_by_async.is_set():
        _opened_by_async.clear()
        with contextlib.suppress(TimeoutError):
            SyncToAsync.single_thread_executor.submit(thread_end).result(timeout)


def thread_start() -> None:
    """Mark the current thread as one that runs jobs."""
    _opened.runs_jobs = True


def housekeeping_thread() -> None:
    """Mark the current thread as housekeeping of the library, which closes its connections itself."""
    _opened.is_housekeeping = True


def before_job(job: object = None) -> None:
    """Reset this thread's connections for the next job, as Django does for a new request.

    Raises:
        OperationalError: a database that jobs of this thread have used cannot be reached. The handler has not started,
            so the job is released without a counted attempt.
    """
    for connection in tuple(_opened.connections):
        if connection.in_atomic_block or connection.run_on_commit or _begun_by_sql(connection):
            drop(connection)
            continue
        is_closed = connection.connection is None and not connection.errors_occurred  # not by a transaction that broke
        if is_closed and connection not in _opened.lost:
            _forget(connection)  # it is registered again when it is opened again
            continue
        if connection.queries_log:
            connection.queries_log.clear()
        _renew(connection)


def _renew(connection: BaseDatabaseWrapper) -> None:
    now = time.monotonic()
    silence = now - _opened.answered.get(connection.alias, 0.0)
    if _opened.is_housekeeping and silence < _TRUSTED_SECONDS_HOUSEKEEPING and connection.connection is not None:
        return
    connection.close_if_unusable_or_obsolete()
    if silence > _TRUSTED_SECONDS:
        connection.close_if_health_check_failed()
    if connection.connection is None:
        _opened.lost.add(connection)
        connection.ensure_connection()
        _opened.lost.discard(connection)
    _opened.answered[connection.alias] = now


def retry_delay(error: BaseException, failures: int) -> float | None:
    """Return the seconds until the next attempt after a transaction conflict; None for any other error.

    Conflicting transactions (deadlock, serialization failure, lock timeout) usually succeed when they do not overlap
    the next time. A short random pause that grows with ``failures`` is enough.
    """
    if not isinstance(error, OperationalError):
        return None
    cause = error.__cause__
    code = getattr(cause, "sqlstate", None) or next(iter(getattr(cause, "args", ())), None)
    if (isinstance(code, str | int) and code in _COLLISIONS) or _LOCKED in str(error):
        return random.uniform(0.05, min(_LONGEST_PAUSE_SECONDS, 0.25 * 2.0 ** min(failures, 10)))
    return None


def after_job(job: Job | None = None) -> None:
    """Check for transactions that the handler left open. Call it *before* the job is acknowledged.

    Raises:
        LeakedTransaction: work of the handler was never committed and is now rolled back. The job must not be
            acknowledged, or the work would be lost without a trace.
    """
    _check_for_leaks()
    if _opened_by_async.is_set() and job is not None:
        task = registry.get(job.task)
        if task is not None and task.is_async:
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
    for connection in tuple(_opened.connections):
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
        drop(connection)
    if leaked is not None:
        raise LeakedTransaction(f"{leaked}, so the work was rolled back. Use `with transaction.atomic():`")


def _begun_by_sql(connection: BaseDatabaseWrapper) -> bool:
    """Return True if a transaction is open that Django did not begin. Drivers of MySQL do not tell."""
    raw = connection.connection
    if raw is None or not connection.autocommit:
        return False
    if connection.vendor == "postgresql":
        return raw.info.transaction_status in _IN_TRANSACTION
    return connection.vendor == "sqlite" and raw.in_transaction


def thread_end() -> None:
    """Close the connections of a thread that ends."""
    connections.close_all()
    _opened.connections.clear()
    _opened.lost.clear()
    _opened.answered.clear()


def drop(connection: BaseDatabaseWrapper) -> None:
    """Roll back and close ``connection`` in any state. The next query of this thread opens a new one."""
    logger.warning("dropping the connection to the database %r: a transaction was left open on it", connection.alias)
    connection.run_on_commit = []
    connection.savepoint_ids = []
    connection.atomic_blocks = []
    connection.in_atomic_block = False
    connection.needs_rollback = False
    connection.closed_in_transaction = False
    try:
        connection.rollback()
    except Exception:  # the connection is discarded; the server rolls back when it closes
        logger.debug("rollback failed", exc_info=True)
    try:
        connection.close()
    except Exception:
        logger.debug("close failed", exc_info=True)
    connection.connection = None
    _forget(connection)
    if getattr(connections._connections, connection.alias, None) is connection:  # type: ignore[attr-defined]
        del connections[connection.alias]


def _remember(*, connection: BaseDatabaseWrapper, **_: object) -> None:
    if connection not in _opened.connections:
        _opened.connections.append(connection)
    if _opened.runs_jobs or _opened.is_housekeeping or threading.current_thread() is threading.main_thread():
        return
    if threading.current_thread() in SyncToAsync.single_thread_executor._threads:
        _opened_by_async.set()
    elif not _warned.is_set():
        _warned.set()
        logger.warning(
            "thread %r, which a job or a library of the project started, opened a connection to the database %r, which "
            "stays open when the thread ends: call django.db.connections.close_all() at its end",
            threading.current_thread().name,
            connection.alias,
        )


def _forget(connection: BaseDatabaseWrapper) -> None:
    if connection in _opened.connections:
        _opened.connections.remove(connection)


def _pooled(database: dict[str, object]) -> bool:
    options = database.get("OPTIONS")
    return isinstance(options, dict) and bool(options.get("pool"))

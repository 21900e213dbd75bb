"""System checks of the databases: of the outbox, of their connections, and of SQLite."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning
from django.db import DEFAULT_DB_ALIAS
from django.db import connections as databases

from ..core.inputs import suggest
from ..outbox.durability import declared
from ..outbox.inbox import remembering
from ..repair.orders import QUEUE as SYSTEM_QUEUE
from ..settings.conf import SETTING, Conf


def check_databases(config: Conf) -> Iterator[CheckMessage]:
    """Check the databases that the outbox and jobs use."""
    yield from _check_pools(config)
    yield from _check_sqlite(config)
    yield from _check_outbox(config)


def _check_outbox(config: Conf) -> Iterator[CheckMessage]:
    durable = declared(config)
    if durable and not config.outbox.enabled:
        yield Error(
            f"Durable jobs are switched off, but {durable[0]} has such.",
            hint=f"Set {SETTING}['OUTBOX']['enabled'] to True, or take durable=True off there.",
            id="delayq.E013",
        )
    for alias in config.outbox.databases:
        if alias not in settings.DATABASES:
            yield Error(
                f"{SETTING}['OUTBOX']['databases'] names {alias!r}, which is no alias in DATABASES."
                f"{suggest(alias, settings.DATABASES)}",
                hint="Correct the name.",
                id="delayq.E014",
            )
    for alias, name in remembering().items():
        if alias not in settings.DATABASES:
            yield Error(
                f"@exactly_once of the task {name} names {alias!r}, which is no alias in DATABASES."
                f"{suggest(alias, settings.DATABASES)}",
                hint="Correct the name.",
                id="delayq.E015",
            )
    if config.worker.queues is not None and SYSTEM_QUEUE not in config.worker.queues and _has_admin():
        yield Warning(
            f"{SETTING}['WORKER']['queues'] leaves out {SYSTEM_QUEUE!r}, where the admin's orders for many jobs wait.",
            hint=f"Add it, or run a worker of its own for it: delayq_worker --queues {SYSTEM_QUEUE}",
            id="delayq.W005",
        )


def _has_admin() -> bool:
    return apps.is_installed("django.contrib.admin")


def _check_pools(config: Conf) -> Iterator[CheckMessage]:
    for alias in databases:
        options = settings.DATABASES.get(alias, {}).get("OPTIONS") or {}
        pool = options.get("pool")
        if not pool:
            continue
        size = pool.get("max_size", pool.get("min_size", 4)) if isinstance(pool, dict) else 4
        if isinstance(size, int) and size < config.worker.threads:
            yield Warning(
                f"The connection pool of the database {alias!r} has {size} connections for the {config.worker.threads} "
                f"threads of a worker process, so jobs would wait for each other.",
                hint=f"Raise OPTIONS['pool']['max_size'] to {config.worker.threads} or more, or lower "
                f"{SETTING}['WORKER']['threads'].",
                id="delayq.W003",
            )


def _check_sqlite(config: Conf) -> Iterator[CheckMessage]:
    """Check for SQLite file databases whose transactions fail when two of them write concurrently."""
    threads = config.worker.threads * config.worker.processes
    for alias in dict.fromkeys((DEFAULT_DB_ALIAS, *config.outbox.databases)):
        database = settings.DATABASES.get(alias, {})
        options = database.get("OPTIONS") or {}
        name = str(database.get("NAME") or ":memory:")
        mode = str(options.get("transaction_mode") or "").upper()
        in_memory = ":memory:" in name or "mode=memory" in name  # no other process can access it
        if threads > 1 and is_sqlite(database) and not in_memory and mode not in ("IMMEDIATE", "EXCLUSIVE"):
            yield Warning(
                f"The database {alias!r} is SQLite, whose transactions begin without the right to write: with "
                f"{threads} worker threads jobs and requests fail with 'database is locked'.",
                hint=f"Set DATABASES[{alias!r}]['OPTIONS'] = {{'transaction_mode': 'IMMEDIATE', 'timeout': 20}}, so "
                f"that a writer waits up to 20 seconds for the others; or use PostgreSQL, MySQL or MariaDB.",
                id="delayq.W006",
            )


def is_sqlite(database: Mapping[str, Any]) -> bool:
    """Return True if an entry of ``DATABASES`` is SQLite."""
    return str(database.get("ENGINE", "")).endswith(("sqlite3", "spatialite"))

"""Checks of ``delayq_check`` on the databases: their tables, and the outbox."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from django.db import DEFAULT_DB_ALIAS, connections
from django.db.migrations.executor import MigrationExecutor
from django.db.utils import Error as DatabaseError

from ..core.errors import Misconfigured
from ..outbox.durability import advice_without_table, declared, has_table, stock
from ..settings.conf import Conf, conf
from ..status.formatting import printable
from .findings import Finding, Level

#: seconds that a durable job may wait to be sent before a warning is printed
WAITING: Final = 300.0


def databases(max_outbox_age: float | None) -> Iterator[Finding]:
    """Check the default database and those of the outbox."""
    try:
        project = conf()
    except Misconfigured:  # reported by the system checks
        yield from _migrations(DEFAULT_DB_ALIAS)
        return
    for alias in dict.fromkeys((DEFAULT_DB_ALIAS, *project.outbox.databases)):
        if alias in connections:
            yield from _migrations(alias)
    yield from _tables(project)
    yield from _waiting(project, WAITING if max_outbox_age is None else max_outbox_age, max_outbox_age is not None)


def _migrations(alias: str) -> Iterator[Finding]:
    where, option = ("", "") if alias == DEFAULT_DB_ALIAS else (f" in {alias!r}", f" --database {alias}")
    try:
        executor = MigrationExecutor(connections[alias])
        missing = executor.migration_plan(executor.loader.graph.leaf_nodes())
        is_read_only = _is_read_only(alias)
    except DatabaseError as error:
        yield Finding("ERROR", "database", f"{alias!r} cannot be read: {printable(str(error), 200)}")
        return
    if is_read_only:
        yield Finding("ERROR", "database", f"{alias!r} is read-only: is it a replica? Workers need the primary")
    if missing:
        yield Finding(
            "WARN", "database", f"{len(missing)} migrations are not applied{where}: run `manage.py migrate{option}`"
        )
    else:
        yield Finding("OK", "database", f"all migrations are applied{where}")


def _is_read_only(alias: str) -> bool:
    """Return True if PostgreSQL refuses writes of this user's transactions."""
    if connections[alias].vendor != "postgresql":
        return False
    with connections[alias].cursor() as cursor:
        cursor.execute("SHOW transaction_read_only")
        return bool(cursor.fetchone() == ("on",))


def _tables(project: Conf) -> Iterator[Finding]:
    """Check that durable jobs can be stored."""
    if not project.outbox.enabled or not declared(project):
        return
    for alias in project.outbox.databases:
        try:
            lacks_table = alias in connections and not has_table(alias)
        except DatabaseError:
            continue  # reported by `_migrations`
        if lacks_table:
            advice = advice_without_table(alias)
            yield Finding("ERROR", "outbox", f"durable jobs in {alias!r} are refused, for it has no table: {advice}")


def _waiting(project: Conf, longest: float, is_alarm: bool) -> Iterator[Finding]:
    """Check that durable jobs are sent to Redis."""
    kept = stock(project.outbox.databases)
    if kept is None:
        return
    age = kept["oldest_waiting_seconds"] or 0.0
    if age > longest:
        level: Level = "ERROR" if is_alarm else "WARN"
        yield Finding(level, "outbox", f"a durable job has waited {age:.0f} s to be sent: is a dispatcher running?")
    if kept["refused"]:
        yield Finding("WARN", "outbox", f"{kept['refused']} durable jobs were refused: see the outbox in the admin")
    if age <= longest and not kept["refused"]:
        yield Finding("OK", "outbox", f"{kept['waiting']} durable jobs wait to be sent, {kept['sent']} are with Redis")

"""Durability: which calls are durable, their preconditions, and whether the outbox is in use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from django.conf import settings as django_settings
from django.db import DEFAULT_DB_ALIAS, connections, router

from ..core.errors import InvalidJob, Misconfigured
from ..core.inputs import short
from ..core.job import NewJob, made_durable, new_key
from ..core.task import Task, registry
from ..settings.conf import SETTING, Conf, conf
from ..transactions import in_transaction, open_elsewhere
from . import rows

#: databases in which the table was found: (alias, name)
_tables_seen: Final[set[tuple[str, str]]] = set()
#: queue → the settings under which this process last created a durable job in it
_queues_seen: dict[str, Conf] = {}


def is_durable(task: Task, options: Mapping[str, Any], queue: str) -> bool:
    """Return True if a call is durable: as set for the call, else for its task, else for the queue."""
    durable = options.get("durable")
    if durable is None:
        durable = task.options.durable
    elif not isinstance(durable, bool):
        raise InvalidJob(f"durable must be True or False, got {short(durable)}")
    if durable is None:
        entry = conf().queues.get(queue)
        return entry is not None and entry.durable
    return durable


def check(using: str | None) -> str:
    """Return the alias of the database whose outbox stores the durable jobs of a call.

    Raises:
        Misconfigured: there is no outbox.
        InvalidJob: the job would not belong to the caller's transaction.
    """
    alias, inside, settings = using or DEFAULT_DB_ALIAS, in_transaction(using), conf().outbox
    if not settings.enabled:
        raise Misconfigured(
            f"durable jobs are switched off: set {SETTING}['OUTBOX']['enabled'] to True, or schedule without durable"
        )
    if alias not in settings.databases:
        raise InvalidJob(
            f"durable: the outbox of the database {alias!r} has no relay; add {alias!r} to "
            f"{SETTING}['OUTBOX']['databases'], or name another database: using_db={settings.databases[0]!r}"
        )
    if not has_table(alias):
        raise Misconfigured(
            f"durable jobs need the table {rows.table(alias).model._meta.db_table} in the database {alias!r}: "
            f"{advice_without_table(alias)}"
        )
    if not inside:
        elsewhere = open_elsewhere(using)
        if elsewhere is not None:
            raise InvalidJob(
                f"durable: a transaction is open on the database {elsewhere!r}, but the job would be stored in "
                f"{alias!r}, outside of it: give using_db={elsewhere!r}, or schedule it outside of the transaction"
            )
        if not connections[alias].get_autocommit():
            raise InvalidJob(
                "durable: autocommit is off and no atomic block is open, so the commit would not be noticed; use "
                "transaction.atomic()"
            )
    return alias


def has_table(alias: str) -> bool:
    """Return True if the database has the outbox's table. The check is repeated until the table is found."""
    if alias not in connections:
        return False
    connection = connections[alias]
    name = (alias, str(connection.settings_dict["NAME"]))
    if name not in _tables_seen:
        model = rows.table(alias).model
        if connection.vendor == "unknown" or not router.allow_migrate_model(alias, model):
            return False
        if model._meta.db_table not in connection.introspection.table_names():
            return False
        _tables_seen.add(name)
    return True


def outboxes(kind: str) -> list[str]:
    """Return the databases with rows of a queue of this kind, whichever process wrote them. Jobs to pull have none."""
    return [] if kind == "pull" else [alias for alias in conf().outbox.databases if has_table(alias)]


def advice_without_table(alias: str) -> str:
    """Return what to do if the database does not have the outbox's table."""
    model, advice = rows.table(alias).model, f"run manage.py migrate --database {alias}"
    if router.allow_migrate_model(alias, model):
        return advice
    return f"let allow_migrate() of DATABASE_ROUTERS allow the app {model._meta.app_label!r} there, then {advice}"


def is_announced() -> bool:
    """Return True if the settings name the outbox, as they should if only calls say that their jobs are durable."""
    return conf().outbox.enabled and "OUTBOX" in getattr(django_settings, SETTING, ())


def declared(settings: Conf) -> list[str]:
    """Return descriptions of the tasks and queues that have durable jobs."""
    tasks = [f"the task {task.name}" for task in registry if task.options.durable]
    return tasks + [f"the queue {name!r}" for name, entry in settings.queues.items() if entry.durable]


def make_durable(new: NewJob, queue: str) -> None:
    """Set the key that makes a job of ``queue`` durable."""
    _queues_seen[queue] = conf()
    if new.payload is None:
        new.key = _durable_key(new, new.key)
    else:
        new.payload.key = _durable_key(new, new.payload.key)


def _durable_key(new: NewJob, key: bytes) -> bytes:
    return made_durable(key) if new.repeatable else new_key(durable=True)


def set_queues_seen(seen: dict[str, Conf]) -> dict[str, Conf]:
    """Replace the record of queues with durable jobs. For tests.

    Returns:
        The previous record.
    """
    global _queues_seen
    before, _queues_seen = _queues_seen, seen
    return before


def in_use(alias: str, queue: str, task: Task | None) -> bool:
    """Return True if a job of this queue and task may have rows, as far as this process can determine."""
    return is_expected(alias, queue, task) and has_table(alias)


def is_expected(alias: str, queue: str, task: Task | None) -> bool:
    """Return True if a job of this queue and task may be durable. The database is not queried.

    If durable jobs are not expected, no verb queries the database, because a process that cancels jobs may have none.
    """
    settings = conf()
    if not settings.outbox.enabled or alias not in settings.outbox.databases:
        return False
    return (
        is_announced() or settings.queue(queue).durable or _queues_seen.get(queue) is settings or _declared(queue, task)
    )


def _declared(queue: str, task: Task | None) -> bool:
    if task is not None:
        return bool(task.options.durable)
    return any(one.options.durable and one.options.queue == queue for one in registry)

"""Durability: which calls are durable, their preconditions, whether the outbox is in use, and how many rows it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from django.conf import settings as django_settings
from django.db import DEFAULT_DB_ALIAS, connections, router
from django.db.models import Count, Min, Q
from django.db.models.functions import Now
from django.db.utils import Error as DatabaseError

from ..core.errors import InvalidJob, Misconfigured
from ..core.inputs import short
from ..core.task import Task, registry
from ..settings.conf import SETTING, Conf, conf
from ..transactions import in_transaction, open_elsewhere
from . import rows

#: databases in which the table was found: (alias, name)
_tables_seen: Final[set[tuple[str, str]]] = set()


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
    if not settings.databases:
        raise Misconfigured(
            f"durable jobs are switched off: name a database in {SETTING}['OUTBOX']['databases'], or schedule without "
            f"durable"
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
    if name in _tables_seen:
        return True
    model = rows.table(alias).model
    is_allowed = connection.vendor != "unknown" and router.allow_migrate_model(alias, model)
    found = is_allowed and model._meta.db_table in connection.introspection.table_names()
    _tables_seen.update({name} if found else ())
    return found


def outboxes(kind: str) -> list[str]:
    """Return the databases with rows of a queue of this kind, whichever process wrote them. Jobs to pull have none."""
    return [] if kind == "pull" else [alias for alias in conf().outbox.databases if has_table(alias)]


def advice_without_table(alias: str) -> str:
    """Return what to do if the database does not have the outbox's table."""
    return (
        f"run manage.py migrate --database {alias} (allow_migrate() of DATABASE_ROUTERS must not refuse the app there)"
    )


def is_announced() -> bool:
    """Return True if the settings name the outbox, as they should if only calls say that their jobs are durable."""
    return "OUTBOX" in getattr(django_settings, SETTING, ())


def declared(settings: Conf) -> list[str]:
    """Return descriptions of the tasks and queues that have durable jobs."""
    tasks = [f"the task {task.name}" for task in registry if task.options.durable]
    return tasks + [f"the queue {name!r}" for name, entry in settings.queues.items() if entry.durable]


def in_use(alias: str, queue: str, task: Task | None) -> bool:
    """Return True if a job of this queue and task may have rows, as far as the settings and the tasks determine it.

    If durable jobs are not expected, no verb queries the database, because a process that cancels jobs may have none.
    """
    settings = conf()
    if alias not in settings.outbox.databases:
        return False
    tasks = [one for one in registry if one.options.queue == queue] if task is None else [task]
    expected = is_announced() or settings.queue(queue).durable or any(one.options.durable for one in tasks)
    return expected and has_table(alias)


# -- numbers of rows ---------------------------------------------------------------------------------------------------


#: numbers of rows (``waiting`` to be sent, ``sent``, ``buried``, ``refused``), and ``oldest_waiting_seconds``, the age
#: of the oldest one that waits to be sent (None: no such row)
Stock = dict[str, Any]
_COUNTED: Final = ("sent", "buried", "refused")


def stock(aliases: Sequence[str]) -> Stock | None:
    """Return the numbers for the outboxes of some databases; None if there is no such table or database."""
    counts = [count for count in map(_counts_of, aliases) if count is not None]
    if not counts:
        return None
    ages = [count["age"] for count in counts if count["age"] is not None]
    oldest = round(max(0.0, max(ages).total_seconds()), 3) if ages else None
    numbers = {state: sum(count[state] for count in counts) for state in ("waiting", *_COUNTED)}
    return numbers | {"oldest_waiting_seconds": oldest}


def _counts_of(alias: str) -> dict[str, Any] | None:
    mine = rows.table(alias)
    try:
        if not has_table(alias):
            return None
        numbers = {state: Count("pk", Q(state=state)) for state in _COUNTED}
        # For rows that were sent before and have a change to send, the start of the wait is unknown.
        oldest = Min("created_at", filter=Q(state="unsent", sent_at=None))
        return mine.aggregate(waiting=Count("pk", Q(state__in=mine.model.WAITING)), age=Now() - oldest, **numbers)
    except DatabaseError:
        return None

"""Queues and tasks that occur in the history, found by one index look-up each."""

from __future__ import annotations

from typing import Final

from django.db import connections, router

from ..models.history import HourlyStat

#: maximum number of (queue, task) pairs that are looked up
MOST: Final = 500
#: databases that can skip from one pair to the next
_JUMPS: Final = ("sqlite", "postgresql", "mysql")


def known_tasks(most: int = MOST) -> list[tuple[str, str]]:
    """Return the first ``most`` pairs of queue and task in the history, sorted."""
    alias = router.db_for_read(HourlyStat)
    connection = connections[alias]
    if connection.vendor not in _JUMPS:
        pairs = HourlyStat._default_manager.using(alias).order_by("queue", "task").values_list("queue", "task")
        return list(pairs.distinct()[:most])
    quote = connection.ops.quote_name
    table, queue, task = (quote(name) for name in (HourlyStat._meta.db_table, "queue", "task"))
    # Only names of tables and columns are interpolated, never values. Each subquery is one look-up in the index that
    # begins with both columns. The equivalent comparison of pairs is not supported by every database.
    next_task = f"(SELECT MIN({task}) FROM {table} WHERE {queue} = jump.q AND {task} > jump.t)"  # noqa: S608
    next_queue = f"(SELECT MIN({queue}) FROM {table} WHERE {queue} > jump.q)"  # noqa: S608
    first_task = f"(SELECT MIN({task}) FROM {table} WHERE {queue} = {next_queue})"  # noqa: S608
    head = f"(SELECT MIN({queue}) FROM {table})"  # noqa: S608
    sql = (
        f"WITH RECURSIVE jump(q, t, n) AS (SELECT {head}, (SELECT MIN({task}) FROM {table} WHERE {queue} = {head}), 1 "  # noqa: S608
        "UNION ALL "
        f"SELECT CASE WHEN {next_task} IS NULL THEN {next_queue} ELSE jump.q END, "
        f"COALESCE({next_task}, {first_task}), n + 1 FROM jump "
        f"WHERE jump.q IS NOT NULL AND n <= %s) SELECT q, t FROM jump WHERE q IS NOT NULL"
    )
    with connection.cursor() as cursor:
        cursor.execute(sql, [most])
        return [(row[0], row[1]) for row in cursor.fetchall()][:most]


def known_queues() -> list[str]:
    """Return all queues in the history, sorted."""
    rows = HourlyStat._default_manager.using(router.db_for_read(HourlyStat))
    return list(rows.order_by("queue").values_list("queue", flat=True).distinct())

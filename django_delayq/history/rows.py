"""Storage of hourly rows, replacing all earlier rows of some hours or days.

The same hours may be written repeatedly, even by several processes: rows are updated in place, so that readers see
either the old hour or the new one, and two writers do not conflict.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import date, datetime, timedelta
from itertools import chain, groupby, islice
from typing import TYPE_CHECKING, Any, Final

from django.db import connections, router, transaction
from django.db.models import Q

from ..models.history import HourlyStat
from ..models.keyset import Keyset
from ..outbox.rows import chunks
from .moments import begin_of, to_row

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

#: number of rows above which PostgreSQL is filled by COPY, three to four times as fast as INSERT
COPY_BEYOND: Final = 20_000
#: rows per INSERT or DELETE
CHUNK: Final = 1_000
_HOUR: Final = timedelta(hours=1)
KEY: Final = ("hour", "queue", "task")
HISTOGRAMS: Final = ("lateness_histogram", "duration_histogram")
#: columns of a row, in the order of the model
FIELDS: Final = tuple(field.name for field in HourlyStat._meta.concrete_fields if not field.primary_key)
#: pages of rows, newest first
HOURS: Final = Keyset("hour")
#: values of missing columns: counts are 0, percentiles unknown
_USUAL: Final[dict[str, Any]] = {
    field.name: field.get_default() for field in HourlyStat._meta.concrete_fields if not field.primary_key
}

_Key = tuple[datetime, str, str]


def replace_days(rows: Iterable[Mapping[str, Any]] | Any, days: Iterable[date]) -> int:
    """Replace all rows of some days of UTC, in one transaction; see :func:`replace_hours`."""
    return replace_hours(rows, (begin_of(day) + hour * _HOUR for day in days for hour in range(24)))


def replace_hours(rows: Iterable[Mapping[str, Any]] | Any, hours: Iterable[datetime]) -> int:
    """Replace all rows of some hours, in one transaction.

    Args:
        rows: a mapping for each row, with the columns of :class:`HourlyStat`; or a table of pyarrow. A column that is
            missing or None gets its default; ``hour`` is aware.
        hours: the starts of the hours, aware. Their rows that are not among ``rows`` are deleted; no row may lie in
            another hour.

    Returns:
        The number of rows these hours have now.

    Raises:
        ValueError: a row has an unknown column, no aware hour, lies in none of the hours, or comes twice.
        django.db.Error: the database raised an error; nothing was changed.
    """
    alias = router.db_for_write(HourlyStat)
    chosen = frozenset(hours)
    checked = (_checked(row, chosen) for row in _each(rows))
    first = list(islice(checked, COPY_BEYOND + 1))
    connection = connections[alias]
    with transaction.atomic(using=alias):
        if len(first) > COPY_BEYOND and _copies(connection):
            return _by_copy(connection, chain(first, checked), chosen)
        return _by_orm(alias, chain(first, checked), chosen)


def _each(rows: Any) -> Iterator[Mapping[str, Any]]:
    """Return an iterator over the rows; a pyarrow table is converted batch by batch to limit memory."""
    if not hasattr(rows, "to_batches"):
        return iter(rows)
    return (row for batch in rows.to_batches(max_chunksize=CHUNK) for row in batch.to_pylist())


def _checked(row: Mapping[str, Any], hours: Collection[datetime]) -> dict[str, Any]:
    unknown = sorted(row.keys() - _USUAL.keys())
    if unknown:
        raise ValueError(f"an hour of the history has no column {unknown[0]!r}; choose from: {', '.join(FIELDS)}")
    hour = row.get("hour")
    if not isinstance(hour, datetime) or hour.utcoffset() is None:
        raise ValueError(f"the hour of a row is an aware datetime, got {hour!r}; add its time zone (UTC)")
    if hour not in hours:
        raise ValueError(f"the row of {hour.isoformat()} belongs to none of the hours that are replaced; add its hour")
    given = {name: value for name, value in row.items() if value is not None}
    made = {**_USUAL, **{name: [] for name in HISTOGRAMS}, "queue": "", "task": "", **given, "hour": to_row(hour)}
    for name in HISTOGRAMS:
        made[name] = list(made[name])
    return made


def _of_hours(hours: Collection[datetime]) -> Q:
    """Return the condition for the rows of these hours, as ranges of time that the index serves."""
    condition = Q(pk__in=())
    for first, end in _stretches(hours):
        condition |= Q(hour__gte=to_row(first), hour__lt=to_row(end))
    return condition


def _stretches(hours: Collection[datetime]) -> Iterator[tuple[datetime, datetime]]:
    """Yield start and end of each run of consecutive hours: a backfill of a year is one."""
    # Along a run, an hour and its place in the order grow alike.
    for _start, run in groupby(enumerate(sorted(hours)), key=lambda placed: placed[1] - placed[0] * _HOUR):
        consecutive = [hour for _place, hour in run]
        yield consecutive[0], consecutive[-1] + _HOUR


# -- any database ----------------------------------------------------------------------------------------------------


def _by_orm(alias: str, rows: Iterable[dict[str, Any]], hours: Collection[datetime]) -> int:
    manager = HourlyStat._default_manager.using(alias)
    keys: set[_Key] = set()
    options: dict[str, Any] = {"update_conflicts": True, "update_fields": [one for one in FIELDS if one not in KEY]}
    if connections[alias].features.supports_update_conflicts_with_target:
        options["unique_fields"] = list(KEY)
    for some in chunks(rows, CHUNK):
        for row in some:
            _add_key(keys, row)
        manager.bulk_create([HourlyStat(**row) for row in some], **options)
    there = manager.filter(_of_hours(hours)).values_list("pk", *KEY)
    gone = [pk for pk, *key in there.iterator(CHUNK) if tuple(key) not in keys]
    for pks in chunks(gone, CHUNK):
        manager.filter(pk__in=pks).delete()
    return len(keys)


def _add_key(keys: set[_Key], row: Mapping[str, Any]) -> None:
    key = row["hour"], row["queue"], row["task"]
    if key in keys:
        raise _twice(*key)
    keys.add(key)


def _twice(hour: datetime, queue: str, task: str) -> ValueError:
    return ValueError(f"the hour {hour.isoformat()} of task {task!r} in queue {queue!r} occurs twice; add them up")


# -- PostgreSQL ------------------------------------------------------------------------------------------------------


def _copies(connection: Any) -> bool:
    """Return True for PostgreSQL with psycopg 3."""
    return bool(connection.vendor == "postgresql" and connection.Database.__name__ == "psycopg")


def _by_copy(connection: BaseDatabaseWrapper, rows: Iterable[dict[str, Any]], hours: Collection[datetime]) -> int:
    """Write the rows by COPY into a temporary table, then upsert from it."""
    names = _Names(connection)
    with connection.cursor() as cursor:
        cursor.execute(names.make)
        written = 0
        with cursor.copy(names.fill) as copy:
            for row in rows:
                copy.write_row([json.dumps(value) if type(value) is list else value for value in map(row.get, FIELDS)])
                written += 1
        cursor.execute(names.count)  # without it the planner has no statistics of the new table
        cursor.execute(names.twice)
        twice = cursor.fetchone()
        if twice is not None:
            raise _twice(*twice)
        cursor.execute(names.upsert)
        for first, end in _stretches(hours):
            cursor.execute(names.forget, [to_row(first), to_row(end)])
        cursor.execute(names.drop)  # a later call in this transaction would create it again
    return written


class _Names:
    """SQL statements. Only names of tables and columns are interpolated, never values."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        quote = connection.ops.quote_name
        meta = HourlyStat._meta
        column = {field.name: quote(str(field.column)) for field in meta.concrete_fields if field.name in FIELDS}
        table, brought = quote(meta.db_table), quote("delayq_brought")
        columns, key = ", ".join(column.values()), ", ".join(column[name] for name in KEY)
        changes = ", ".join(f"{column[one]} = EXCLUDED.{column[one]}" for one in FIELDS if one not in KEY)
        same = " AND ".join(f"{brought}.{column[name]} = {table}.{column[name]}" for name in KEY)
        self.make = f"CREATE TEMPORARY TABLE {brought} ON COMMIT DROP AS SELECT {columns} FROM {table} WITH NO DATA"  # noqa: S608
        self.fill = f"COPY {brought} ({columns}) FROM STDIN"
        self.drop = f"DROP TABLE {brought}"
        self.count = f"ANALYZE {brought}"
        self.twice = f"SELECT {key} FROM {brought} GROUP BY {key} HAVING COUNT(*) > 1 LIMIT 1"  # noqa: S608
        self.upsert = (
            f"INSERT INTO {table} ({columns}) SELECT {columns} FROM {brought} ON CONFLICT ({key}) "  # noqa: S608
            f"DO UPDATE SET {changes}"
        )
        self.forget = (
            f"DELETE FROM {table} WHERE {column['hour']} >= %s AND {column['hour']} < %s "  # noqa: S608
            f"AND NOT EXISTS (SELECT 1 FROM {brought} WHERE {same})"
        )

"""Storage of hourly rows, replacing all earlier rows of some hours or days, and deletion of old ones.

The same hours may be written repeatedly, even by several processes: rows are updated in place, so that readers see
either the old hour or the new one, and two writers do not conflict.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Final

from django.db import connections, router, transaction
from django.db.models import Model, Q, QuerySet
from django.utils import timezone

from ..models.history import HourlyStat, PipelineRun
from ..outbox.rows import chunks, purge
from .records import SILENT
from .series import HISTOGRAMS, KEY, to_row

#: rows per INSERT or DELETE
CHUNK: Final = 1_000
#: hours per query for their rows: for a longer list PostgreSQL reads the whole table
HOURS_AT_ONCE: Final = 100
#: no row is older
_CENTURY_DAYS: Final = 36_500
#: columns of a row, in the order of the model
FIELDS: Final = tuple(field.name for field in HourlyStat._meta.concrete_fields if not field.primary_key)


def replace_days(rows: Iterable[Mapping[str, Any]] | Any, days: Iterable[date]) -> int:
    """Replace all rows of some days of UTC, in one transaction; see :func:`replace_hours`."""
    return replace_hours(rows, [datetime.combine(day, time(hour), UTC) for day in days for hour in range(24)])


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
    with transaction.atomic(using=alias):
        return _replace(alias, (_checked(row, chosen) for row in _each(rows)), chosen)


def _each(rows: Any) -> Iterator[Mapping[str, Any]]:
    """Return an iterator over the rows; a pyarrow table is converted batch by batch to limit memory."""
    if not hasattr(rows, "to_batches"):
        return iter(rows)
    return (row for batch in rows.to_batches(max_chunksize=CHUNK) for row in batch.to_pylist())


def _checked(row: Mapping[str, Any], hours: Collection[datetime]) -> HourlyStat:
    unknown = sorted(row.keys() - {*FIELDS})
    if unknown:
        raise ValueError(f"an hour of the history has no column {unknown[0]!r}; choose from: {', '.join(FIELDS)}")
    hour = row.get("hour")
    if not isinstance(hour, datetime) or hour.utcoffset() is None:
        raise ValueError(f"the hour of a row is an aware datetime, got {hour!r}; add its time zone (UTC)")
    if hour not in hours:
        raise ValueError(f"the row of {hour.isoformat()} belongs to none of the hours that are replaced; add its hour")
    given = {name: value for name, value in row.items() if value is not None} | {"hour": to_row(hour)}
    return HourlyStat(**given | {name: list(given[name]) for name in HISTOGRAMS if name in given})


def _replace(alias: str, rows: Iterable[HourlyStat], hours: Collection[datetime]) -> int:
    manager = HourlyStat._default_manager.using(alias)
    keys: set[tuple[datetime, str, str]] = set()
    options: dict[str, Any] = {"update_conflicts": True, "update_fields": [one for one in FIELDS if one not in KEY]}
    if connections[alias].features.supports_update_conflicts_with_target:
        options["unique_fields"] = list(KEY)
    for some in chunks(rows, CHUNK):
        for row in some:
            key = hour, queue, task = row.hour, row.queue, row.task
            if key in keys:
                text = f"the hour {hour.isoformat()} of task {task!r} in queue {queue!r} occurs twice; add them up"
                raise ValueError(text)
            keys.add(key)
        manager.bulk_create(some, **options)
    for some_hours in chunks(map(to_row, hours), HOURS_AT_ONCE):
        there = manager.order_by().filter(hour__in=some_hours).values_list("pk", *KEY)
        for pks in chunks((pk for pk, *key in there if tuple(key) not in keys), CHUNK):
            manager.filter(pk__in=pks).delete()
    return len(keys)


# -- old rows --------------------------------------------------------------------------------------------------------


def forget_hours(days: float) -> dict[str, int]:
    """Delete hours older than ``days`` days, and the records of pipeline runs that began before that.

    Runs in progress are kept, however old they are.

    Args:
        days: the value of ``DELAYQ["PIPELINE"]["keep_hours_days"]``.

    Returns:
        The numbers of deleted rows: hours, runs.

    Raises:
        ValueError: it is not a number of days above 0.
    """
    if not 0 < days < 1_000_000:
        raise ValueError(f"days must be above 0, got {days!r}; to forget nothing, do not call this")
    now, age = timezone.now(), timedelta(days=min(days, _CENTURY_DAYS))
    hours = _table(HourlyStat).filter(hour__lt=to_row(datetime.now(UTC) - age))
    ended = ~Q(state=PipelineRun.State.RUNNING) | Q(seen_at__lt=now - SILENT)
    runs = _table(PipelineRun).filter(ended, started_at__lt=now - age)
    return {"hours": purge(hours), "runs": purge(runs)}


def _table(model: type[Model]) -> QuerySet[Any]:
    return model._default_manager.using(router.db_for_write(model))

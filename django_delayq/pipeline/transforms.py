"""Transforms from events to attempts and hourly metrics. Pure functions from DataFrame to DataFrame, without I/O.

Days and hours are those of UTC, whatever time zone a session has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from ..core.outcomes import COUNTED, IN_MORGUE, AttemptOutcome
from .schemas import EVENTS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: outcome of an event that stands for a chunk of a bulk load and not for an attempt
BULK: Final = AttemptOutcome.BULK
#: number of buckets of a histogram: 0 ms; from 2^(i-1) to below 2^i ms for i = 1 … 30; all longer times
BUCKETS: Final = 32
_PERCENTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
_MEASURES: Final = ("lateness", "duration")
_HOUR_S: Final = 3600
_DAY_S: Final = 24 * _HOUR_S


def day_of(moment: Column) -> Column:
    """Return the day of a timestamp, in UTC."""
    return F.date_from_unix_date(F.floor(F.unix_seconds(moment) / _DAY_S).cast("int"))


def hour_of(moment: Column) -> Column:
    """Return the start of the hour of a timestamp, in UTC."""
    return F.timestamp_seconds(F.floor(F.unix_seconds(moment) / _HOUR_S) * _HOUR_S)


def attempts(events: DataFrame, sla: Mapping[str, float]) -> DataFrame:
    """Return the attempts among the events.

    Args:
        events: columns of :data:`.schemas.EVENTS`.
        sla: task or queue → seconds by which an attempt may be late, the task's name before the queue's; "*" = all
            others. Without a limit an attempt is never too late.

    Returns:
        The events' columns without ``jobs`` and ``created``, and ``sla_missed`` (never null: an attempt that never
        started is not late).
    """
    runs = events.where(F.coalesce("outcome", F.lit("")) != BULK)  # one without an outcome counts as an attempt
    limit = _limit_ms(sla)
    missed = F.lit(False) if limit is None else F.coalesce(F.col("lateness_ms") > limit, F.lit(False))
    # Columns are named explicitly: drop() and withColumn() of Spark Connect request the schema at once, and a
    # declarative pipeline defines this before the input exists.
    kept = [name for name in EVENTS.names if name not in ("jobs", "created")]
    return runs.select(*kept, missed.alias("sla_missed"))


def _limit_ms(sla: Mapping[str, float]) -> Column | None:
    if not sla:
        return None
    limits = F.create_map(*[F.lit(part) for name, seconds in sla.items() for part in (name, float(seconds) * 1000)])
    return F.coalesce(*(F.try_element_at(limits, name) for name in (F.col("task"), F.col("queue"), F.lit("*"))))


def hours(rows: DataFrame) -> DataFrame:
    """Return metrics of the attempts that ended within an hour, for each queue and task.

    Percentiles are exact and use the nearest rank: the smallest value that at least the given share of attempts does
    not exceed, so each is a value of an attempt. Percentiles, sums and histograms cover the attempts that have both a
    lateness and a duration (``timed``); a negative duration counts as 0.

    Args:
        rows: the result of :func:`attempts`.

    Returns:
        The columns of the model ``HourlyStat``. An attempt without a task counts under "".
    """
    keys = {
        "hour": hour_of(F.col("ts")),
        "queue": F.coalesce("queue", F.lit("")),
        "task": F.coalesce("task", F.lit("")),
    }
    times = {measure: _timed(f"{measure}_ms") for measure in _MEASURES}
    buckets = {f"{measure}_bucket": bucket_of(ms) for measure, ms in times.items()}
    prepared = rows.select("outcome", "attempt", "sla_missed", *_named({**keys, **times, **buckets}))
    figures: dict[str, Column] = {
        "runs": F.count(F.lit(1)),
        **{name: F.count_if(F.col("outcome") == name) for name in COUNTED},
        "buried": F.count_if(F.col("outcome").isin(*IN_MORGUE)),
        "retries": F.count_if(F.col("attempt") > 1),
        "sla_missed": F.count_if("sla_missed"),
        "timed": F.count("lateness"),
        **{f"{measure}_sum_ms": F.coalesce(F.sum(measure), F.lit(0)) for measure in _MEASURES},
        **{f"{measure}_max_ms": F.max(measure) for measure in _MEASURES},
    }
    # Grouped by bucket first, which makes the 64 counts of two histograms cheap.
    by_bucket = prepared.groupBy(*keys, *buckets).agg(*_named(figures))
    totals = {name: F.max(name) if name.endswith("_max_ms") else F.sum(name) for name in figures}
    totals["parts"] = F.collect_list(F.struct(*buckets, "timed"))
    shares = ", ".join(f"{share}D" for share in _PERCENTILES.values())
    ranks = {name: F.expr(f"percentile_disc(array({shares})) WITHIN GROUP (ORDER BY {name})") for name in times}
    joined = by_bucket.groupBy(*keys).agg(*_named(totals)).join(prepared.groupBy(*keys).agg(*_named(ranks)), [*keys])
    percentiles = {
        f"{measure}_{name}_ms": F.col(measure)[at].cast("long")
        for measure in _MEASURES
        for at, name in enumerate(_PERCENTILES)
    }
    histograms = {f"{measure}_histogram": _histogram(measure) for measure in _MEASURES}
    return joined.select(*keys, *figures, *_named({**percentiles, **histograms}))


def _named(columns: Mapping[str, Column]) -> list[Column]:
    return [column.alias(name) for name, column in columns.items()]


def _histogram(measure: str) -> Column:
    in_bucket = f"filter(parts, part -> part.{measure}_bucket = bucket)"
    count = f"aggregate({in_bucket}, 0L, (total, part) -> total + part.timed)"
    return F.expr(f"transform(sequence(0, {BUCKETS - 1}), bucket -> {count})")


def _timed(measure: str) -> Column:
    """Return the measure of an attempt that has both, else null."""
    has_both = F.col("lateness_ms").isNotNull() & F.col("duration_ms").isNotNull()
    return F.when(has_both, F.greatest(F.col(measure), F.lit(0)))


def bucket_of(milliseconds: Column) -> Column:
    """Return the bucket of a time in a histogram: the number of its binary digits, at most 31; null stays null."""
    digits = F.when(milliseconds > 0, F.length(F.bin(milliseconds))).when(milliseconds.isNotNull(), F.lit(0))
    return F.when(digits.isNotNull(), F.least(digits, F.lit(BUCKETS - 1)))

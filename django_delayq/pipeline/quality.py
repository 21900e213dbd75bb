"""Expectations for every attempt, as data, and the handling of attempts that break them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from ..core.inputs import short
from ..core.outcomes import COUNTED, IN_MORGUE
from .errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Mode = Literal["warn", "drop", "fail"]
#: column of the quarantine that lists the expectations that a row broke
REASON: Final = "reason"


@dataclass(frozen=True, slots=True)
class Expectation:
    """Condition that every attempt must satisfy."""

    #: name under which violations are counted
    name: str
    #: SQL over the columns of an attempt; a row breaks it only if it is false, not if it is null
    expr: str
    #: warn: count it; drop: also move the row to the quarantine; fail: abort the run
    mode: Mode = "warn"

    def __post_init__(self) -> None:
        if not (self.name and self.expr):
            raise PipelineError("An expectation needs a name and an SQL expression")
        if self.mode not in get_args(Mode):
            raise PipelineError(f"{self.name}: the mode must be warn, drop or fail, got {short(self.mode)}")


_OUTCOMES: Final = ", ".join(f"'{outcome}'" for outcome in (*COUNTED, *IN_MORGUE))
#: Only attempts that cannot be counted anywhere are quarantined; an unusual attempt is still an attempt.
EXPECTATIONS: Final = (
    Expectation("id is known", "id IS NOT NULL AND id <> ''", "drop"),
    Expectation("queue is known", "queue IS NOT NULL AND queue <> ''", "drop"),
    Expectation("time is known", "ts IS NOT NULL", "drop"),
    Expectation("task is known", "task IS NOT NULL AND task <> '' OR outcome = 'undecodable'"),
    Expectation("outcome is known", f"outcome IN ({_OUTCOMES})"),
    # The start is taken from the worker's clock, the due time from Redis's.
    Expectation("does not begin before it is due", "started >= due - INTERVAL 1 SECOND"),
    Expectation("does not end before it begins", "duration_ms >= 0"),
    Expectation("is not of the future", "ts <= current_timestamp() + INTERVAL 1 HOUR"),
    Expectation("attempt is counted from 1", "attempt >= 1"),
)


def check(sample: DataFrame, expectations: Sequence[Expectation]) -> None:
    """Reject expectations that cannot be computed over the columns of ``sample``. No row of it is read.

    Raises:
        PipelineError: two expectations have the same name, or an expression is invalid.
    """
    names = [each.name for each in expectations]
    for name in names:
        if names.count(name) > 1:
            raise PipelineError(f"Two expectations are named {short(name)}: give each a name of its own")
    for each in expectations:
        try:
            kind = sample.select(F.expr(each.expr)).schema.fields[0].dataType.typeName()
        except PySparkException as error:
            why = str(error).splitlines()[0]
            raise PipelineError(f"The expectation {short(each.name)} is no SQL over an attempt: {why}") from error
        if kind != "boolean":
            raise PipelineError(f"The expectation {short(each.name)} must be true or false, but it is of type {kind}")


def breaks(expectation: Expectation) -> Column:
    """Return a column that is true for rows that break the expectation; never null."""
    return ~F.coalesce(F.expr(expectation.expr), F.lit(True))


def counters(expectations: Sequence[Expectation], among: Column | None = None) -> list[Column]:
    """Return the aggregates ``broken_0`` …, the rows that break each expectation, and ``bad``, the rows to be dropped.

    Args:
        among: count only rows for which this is true; None = all.
    """
    included = F.lit(True) if among is None else among
    counts = [F.count_if(included & breaks(each)).alias(f"broken_{at}") for at, each in enumerate(expectations)]
    dropped = reason_of(expectations).isNotNull()
    return [*counts, F.count_if(included & dropped).alias("bad")]


def by_name(expectations: Sequence[Expectation], counted: Mapping[str, Any]) -> dict[str, int]:
    """Return the values of :func:`counters` by name of the expectation, without zeros."""
    numbers = {each.name: int(counted[f"broken_{at}"] or 0) for at, each in enumerate(expectations)}
    return {name: count for name, count in numbers.items() if count}


def reason_of(expectations: Sequence[Expectation]) -> Column:
    """Return the names of the broken expectations that drop a row, in one text; null for a row that stays."""
    names = [F.when(breaks(each), F.lit(each.name)) for each in expectations if each.mode == "drop"]
    if not names:
        return F.lit(None).cast("string")
    return F.nullif(F.concat_ws(", ", *names), F.lit(""))


def refuse_broken(rows: DataFrame, expectations: Sequence[Expectation]) -> None:
    """Abort the run if a row breaks an expectation of mode "fail".

    Raises:
        PipelineError: with the expectation's name and the number of rows.
    """
    strict = [each for each in expectations if each.mode == "fail"]
    if not strict:
        return
    counted = rows.agg(*counters(strict)).first()
    broken = by_name(strict, counted.asDict() if counted is not None else {})
    if broken:
        listed = "; ".join(f"{short(name)}: {count} rows" for name, count in broken.items())
        raise PipelineError(
            f"Attempts break expectations of mode fail: {listed}. The events are kept; examine them, then correct "
            "their source or the expectation, and run again."
        )

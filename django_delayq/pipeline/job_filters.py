"""Filters of Spark's that the core can answer itself: which jobs are still wanted behind them. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from .job_options import Wanted, us_of

T = TypeVar("T")
_ALWAYS_THERE = frozenset({"queue", "shard", "state", "id"})


def narrowed(wanted: Wanted, condition: Filter) -> Wanted | None:
    """What is wanted where a filter holds as well; None when Spark has to look at it itself.

    Due times are whole ms, so that a bound within a ms is one of whole ms, too.
    """
    match condition:
        case IsNotNull(attribute=(name,)) if name in _ALWAYS_THERE:
            return wanted
        case EqualTo(attribute=(name,), value=value) | EqualNullSafe(attribute=(name,), value=value):
            return _between(wanted, value, value, True) if name == "due" else _among(wanted, name, (value,))
        case In(attribute=(name,), value=values):
            return _among(wanted, name, values)
        case GreaterThan(attribute=("due",), value=value):
            return _between(wanted, value, None, False)
        case GreaterThanOrEqual(attribute=("due",), value=value):
            return _between(wanted, value, None, True)
        case LessThan(attribute=("due",), value=value):
            return _between(wanted, None, value, False)
        case LessThanOrEqual(attribute=("due",), value=value):
            return _between(wanted, None, value, True)
    return None


def _among(wanted: Wanted, name: str, values: Iterable[Any]) -> Wanted | None:
    """Only these values of a column. A null among them equals nothing."""
    found = tuple(value for value in values if value is not None)
    kind = int if name == "shard" else str
    if not all(type(value) is kind for value in found):
        return None
    match name:
        case "queue":
            return replace(wanted, queues=_both(wanted.queues, found))
        case "id":
            return replace(wanted, idents=_both(wanted.idents, found))
        case "state":
            return replace(wanted, states=tuple(state for state in wanted.states if state in found))
        case "shard":
            return replace(wanted, shards=frozenset(found if wanted.shards is None else wanted.shards & {*found}))
    return None


def _both(known: tuple[T, ...] | None, others: tuple[T, ...]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(others)) if known is None else tuple(value for value in known if value in others)


def _is_moment(value: Any) -> bool:
    return isinstance(value, datetime) and value.utcoffset() is not None


def _between(wanted: Wanted, low: Any, high: Any, inclusive: bool) -> Wanted | None:
    """Due from one moment on and up to another one, these with it or not."""
    if not all(value is None or _is_moment(value) for value in (low, high)):
        return None
    if low is not None:
        first = us_of(low) if inclusive else us_of(low) + 1
        ms = -(-first // 1000)
        wanted = replace(wanted, low=ms if wanted.low is None else max(wanted.low, ms))
    if high is not None:
        last = us_of(high) if inclusive else us_of(high) - 1
        ms = last // 1000 + 1
        wanted = replace(wanted, high=ms if wanted.high is None else min(wanted.high, ms))
    return wanted

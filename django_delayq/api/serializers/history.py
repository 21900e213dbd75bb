"""History: hours, sums of a period, and their queries."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar, Final

from rest_framework import serializers

from ...history import series
from ...history.periods import from_row
from ...history.rows import FIELDS, HISTOGRAMS
from ...history.series import COUNTS, SeriesSum, Summary
from .base import ADDED, Resource
from .fields import LimitField, QueryMomentField, RoundedField, TextQueryField, TimeField

#: maximum number of tasks in a summary
_MOST_TASKS: Final = 200
_PERCENTILES: Final = tuple(name for name in FIELDS if "_p" in name or "_max" in name)
_HOUR: Final = "2026-11-21T11:00:00.000Z"
_TASK: Final = {"queue": "orders", "task": "shop.cancel_order"}
_COUNTS: Final[dict[str, Any]] = {
    **dict.fromkeys(COUNTS, 0),
    "runs": 2,
    "succeeded": 2,
    "timed": 2,
    "lateness_sum_ms": 30,
    "duration_sum_ms": 100,
}
_LATE: Final = [0, 0, 0, 0, 1, 1, *[0] * (series.BUCKETS - 6)]


def _histogram(what: str, **options: Any) -> Any:
    return serializers.ListField(
        **options,
        child=serializers.IntegerField(),
        help_text=f"{what}: 32 counts, of 0 ms, then from 2^(i-1) to below 2^i ms, then longer; empty if unknown",
    )


class _HourField(TimeField):
    def to_representation(self, value: Any) -> str | None:  # type: ignore[override]
        return super().to_representation(from_row(value))


class HourSerializer(Resource):
    """Outcomes of the attempts of one task in one queue that ended within one hour.

    `lateness` is the time between the due time and the start of an attempt. `lateness` and `duration` cover the `timed`
    attempts, those that started; both are in milliseconds. `sla_missed` counts attempts that started later than
    `DELAYQ["PIPELINE"]["sla"]` allows.
    """

    hour = _HourField(help_text="when it begins")
    queue = serializers.CharField()
    task = serializers.CharField()
    vars().update({name: serializers.IntegerField() for name in COUNTS})
    vars().update({name: serializers.IntegerField(allow_null=True) for name in _PERCENTILES})
    lateness_histogram = _histogram("lateness")
    duration_histogram = _histogram("duration")
    example: ClassVar = {
        "hour": _HOUR,
        **_TASK,
        **_COUNTS,
        **dict.fromkeys(_PERCENTILES, 20),
        **dict.fromkeys(HISTOGRAMS, _LATE),
    }


class HoursPageSerializer(Resource):
    """One page of hours, newest first."""

    hours = HourSerializer(many=True)
    cursor = serializers.CharField(allow_null=True, help_text="for the next page; null at the end")
    example: ClassVar = {"cursor": None}


class _CountField(serializers.IntegerField):
    def get_attribute(self, instance: SeriesSum) -> int:
        return instance[self.field_name or ""]


class _PercentileField(RoundedField):
    """Percentile of the lateness or the duration."""

    def __init__(self, kind: str, percent: int) -> None:
        super().__init__(allow_null=True)
        self._kind, self._percent = kind, percent

    def get_attribute(self, instance: SeriesSum) -> float | None:
        milliseconds: float | None = getattr(instance, f"{self._kind}_ms")(self._percent)
        return milliseconds


class TallySerializer(Resource):
    """Sum over several hours or tasks."""

    vars().update({name: _CountField() for name in COUNTS})
    failures = serializers.IntegerField(help_text="failed, timeout, crashed, lost and buried")
    failure_rate = serializers.FloatField(allow_null=True, help_text="failures divided by runs, 0 to 1")
    vars().update(
        {
            f"{kind}_p{percent}_ms": _PercentileField(kind, percent)
            for kind in ("lateness", "duration")
            for percent in (50, 95, 99)
        }
    )
    lateness_max_ms = RoundedField(source="lateness_max", allow_null=True)
    duration_max_ms = RoundedField(source="duration_max", allow_null=True)
    example: ClassVar = {
        **_COUNTS,
        "failures": 0,
        "failure_rate": 0.0,
        **{f"{kind}_{name}_ms": 20.0 for kind in ("lateness", "duration") for name in ("p50", "p95", "p99", "max")},
    }


class SlotSerializer(TallySerializer):
    """One slot of the period."""

    start = serializers.DateTimeField(**ADDED)
    lateness_histogram = _histogram("lateness", source="lateness")
    always = ("start",)
    example: ClassVar = {"start": _HOUR, "lateness_histogram": _LATE}

    def to_representation(self, slot: tuple[datetime, SeriesSum]) -> Any:
        """Return the start of the slot, and its sum."""
        start, tally = slot
        return {"start": TimeField().to_representation(start), **super().to_representation(tally)}


class TaskTallySerializer(TallySerializer):
    """Sum for one task in one queue."""

    queue = serializers.CharField(**ADDED)
    task = serializers.CharField(**ADDED)
    always = ("queue", "task")
    example: ClassVar = _TASK

    def to_representation(self, entry: tuple[tuple[str, str], SeriesSum]) -> Any:
        """Return the names, and the sum."""
        (queue, task), tally = entry
        return {"queue": queue, "task": task, **super().to_representation(tally)}


class SummarySerializer(Resource):
    """Period of the history as shown in its charts.

    A percentile of one task in one hour is exact. Percentiles over several are estimated from their summed histograms.
    """

    vars()["from"] = TimeField(source="period.start")
    to = TimeField(source="period.end")
    step_hours = serializers.IntegerField(source="period.step", help_text="of each slot")
    total = TallySerializer()
    slots = SlotSerializer(many=True)
    tasks = TaskTallySerializer(many=True, help_text="by number of runs, the largest first; at most 200")
    tasks_left_out = serializers.IntegerField()
    bounds_ms = serializers.ListField(
        child=serializers.IntegerField(), help_text="upper bound of each bucket of a histogram except the last"
    )
    example: ClassVar = {
        "from": _HOUR,
        "to": "2026-11-21T12:00:00.000Z",
        "step_hours": 1,
        "tasks_left_out": 0,
        "bounds_ms": [1, 2, 4],
    }

    def to_representation(self, found: Summary) -> Any:
        """Return the sums, of the tasks with the most attempts only."""
        tasks = sorted(found.tasks.items(), key=lambda one: (-one[1]["runs"], one[0]))
        return super().to_representation(
            {
                "period": found.period,
                "total": found.total,
                "slots": list(zip(found.period.slots, found.slots, strict=True)),
                "tasks": tasks[:_MOST_TASKS],
                "tasks_left_out": max(0, len(tasks) - _MOST_TASKS),
                "bounds_ms": [high for place in range(series.BUCKETS) if (high := series.bounds_of(place)[1])],
            }
        )


# -- queries ---------------------------------------------------------------------------------------------------------


class QueueQuery(Resource):
    """Query filter by queue."""

    queue = TextQueryField(help_text="of this queue only")


class PeriodQuery(QueueQuery):
    """Query filter by queue, task and period."""

    task = TextQueryField(help_text="of this task only")
    vars()["from"] = QueryMomentField(
        default=None, help_text="hours that begin at this moment or later: ISO 8601 with offset, or Unix seconds"
    )
    to = QueryMomentField(default=None, help_text="hours that begin before this moment")


class PageQuery(Resource):
    """Query of a page of a list."""

    cursor = TextQueryField(
        max_length=200,
        help_text="that of the page before; the other parameters stay as they were",
    )
    limit = LimitField(1000)


class HoursQuery(PeriodQuery, PageQuery):
    """Query of the paginated list of hours."""

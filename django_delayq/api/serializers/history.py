"""History: hours, sums of a period, pipeline runs, the forecast."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar, Final

from django.utils import timezone
from rest_framework import serializers

from ...access.permissions import allows
from ...history import histograms
from ...history.moments import from_row
from ...history.records import DIED, state_of
from ...history.rows import FIELDS, HISTOGRAMS
from ...history.series import COUNTS, SeriesSum, Summary
from ...models.history import PipelineRun
from .base import Resource
from .fields import (
    MaskedObjectField,
    MaskedTextField,
    RoundedField,
    TimeField,
)

STATES: Final = (*PipelineRun.State.values, DIED)
KINDS: Final = tuple(PipelineRun.Kind.values)
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
_LATE: Final = [0, 0, 0, 0, 1, 1, *[0] * (histograms.BUCKETS - 6)]


def _histogram(what: str, **options: Any) -> Any:
    return serializers.ListField(
        **options,
        child=serializers.IntegerField(),
        help_text=f"{what}: 32 counts, of 0 ms, then from 2^(i-1) to below 2^i ms, then longer; "
        "empty where nothing is known",
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
        found: float | None = getattr(instance, f"{self._kind}_ms")(self._percent)
        return found


class TallySerializer(Resource):
    """Sum over several hours or tasks."""

    vars().update({name: _CountField() for name in COUNTS})
    failures = serializers.IntegerField(help_text="failed, timeout, crashed, lost and buried")
    failure_rate = serializers.FloatField(allow_null=True, help_text="the part of the runs, 0 to 1")
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

    start = serializers.DateTimeField(required=False)
    lateness_histogram = _histogram("lateness", source="lateness")
    always = ("start",)
    example: ClassVar = {"start": _HOUR, "lateness_histogram": _LATE}

    def to_representation(self, slot: tuple[datetime, SeriesSum]) -> Any:
        """Return the start of the slot, and its sum."""
        start, tally = slot
        return {"start": TimeField().to_representation(start), **super().to_representation(tally)}


class TaskTallySerializer(TallySerializer):
    """Sum for one task in one queue."""

    queue = serializers.CharField(required=False)
    task = serializers.CharField(required=False)
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
    tasks = TaskTallySerializer(many=True, help_text="those with the most runs first, at most 200")
    tasks_left_out = serializers.IntegerField()
    bounds_ms = serializers.ListField(
        child=serializers.IntegerField(), help_text="below which each place of a histogram ends, but for the last"
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
                "bounds_ms": [high for place in range(histograms.BUCKETS) if (high := histograms.bounds_of(place)[1])],
            }
        )


class RunSerializer(Resource):
    """Pipeline run."""

    number = serializers.IntegerField(source="pk", help_text="unique")
    run_id = serializers.CharField(help_text="several runs share it if they were resumed")
    kind = serializers.CharField(help_text=", ".join(KINDS))
    state = serializers.SerializerMethodField(help_text=f"{', '.join(STATES)}; died: not heard of for five minutes")
    queue = serializers.CharField()
    task = serializers.CharField()
    started = TimeField(source="started_at", allow_null=True)
    seen = TimeField(source="seen_at", allow_null=True, help_text="when it was last heard of")
    ended = TimeField(source="ended_at", allow_null=True)
    seconds = serializers.SerializerMethodField(help_text="that it took, or has taken so far")
    total = serializers.IntegerField(allow_null=True, help_text="rows of the input; null where it is not known")
    rows = serializers.IntegerField()
    created = serializers.IntegerField()
    known = serializers.IntegerField(help_text="that were there already")
    bad = serializers.IntegerField(help_text="that were refused")
    detail = MaskedObjectField()
    error = MaskedTextField()
    example: ClassVar = {
        "number": 7,
        "run_id": "sms-2026-11-21",
        "kind": "bulk",
        "state": "finished",
        "queue": "sms",
        "task": "shop.send_sms",
        "started": _HOUR,
        "seen": _HOUR,
        "ended": _HOUR,
        "seconds": 7.5,
        "total": 1_000_000,
        "rows": 1_000_000,
        "created": 999_000,
        "known": 1_000,
        "bad": 0,
        "detail": {},
        "error": "",
    }

    def get_state(self, row: PipelineRun) -> str:
        """Return the state."""
        return state_of(row)

    def get_seconds(self, row: PipelineRun) -> float:
        """Return the length of the run so far."""
        running = state_of(row) == PipelineRun.State.RUNNING
        end = row.ended_at or (timezone.now() if running else row.seen_at)
        return round(max(0.0, (end - row.started_at).total_seconds()), 3)

    def to_representation(self, row: PipelineRun) -> Any:
        """Return the run. Details of a run without a queue may be about queues that the project's rule hides."""
        shown = super().to_representation(row)
        if not isinstance(row.detail, dict):
            shown["detail"] = {}
        return shown if row.queue or allows() is None else {**shown, "detail": {}, "error": ""}


class RunsPageSerializer(Resource):
    """One page of pipeline runs, newest first."""

    runs = RunSerializer(many=True)
    cursor = serializers.CharField(allow_null=True, help_text="for the next page; null at the end")
    example: ClassVar = {"cursor": None}


class _MeanField(serializers.FloatField):
    def to_representation(self, value: float) -> float:  # type: ignore[override]
        return round(value / 1000, 6)


class ForecastOfQueueSerializer(Resource):
    """Forecast for one queue, or for all queues together."""

    due = serializers.IntegerField(help_text="jobs that are due and wait")
    hours = serializers.ListField(
        child=serializers.IntegerField(), help_text="that fall due in each of the next 24 hours"
    )
    later = serializers.IntegerField(help_text="that fall due after that")
    runs_per_hour = serializers.IntegerField(
        source="pace.per_hour",
        allow_null=True,
        help_text="in the busiest hour of the last week; null where nothing ran",
    )
    mean_duration = _MeanField(source="pace.mean_ms", allow_null=True, help_text="of a run, seconds")
    work = RoundedField(
        source="work_s", allow_null=True, help_text="of what is due and falls due, seconds of one thread"
    )
    behind = serializers.ListField(
        child=RoundedField(), help_text="jobs that will be due and not done at the end of each hour"
    )
    drained_in = RoundedField(
        source="drained_s",
        allow_null=True,
        help_text="seconds until nothing that is due waits; null where it is not known, or not in a day",
    )
    example: ClassVar = {
        "due": 30,
        "hours": [80, *[0] * 23],
        "later": 0,
        "runs_per_hour": 200,
        "mean_duration": 0.05,
        "work": 5.5,
        "behind": [0.0] * 24,
        "drained_in": 900.0,
    }


class ForecastNamedSerializer(ForecastOfQueueSerializer):
    """Forecast for one named queue."""

    queue = serializers.CharField()
    example: ClassVar = {"queue": "orders"}


class ForecastSerializer(Resource):
    """Forecast at the pace of each queue's busiest hour of the last week."""

    now = TimeField(help_text="Redis's clock")
    total = ForecastOfQueueSerializer()
    queues = ForecastNamedSerializer(many=True)
    example: ClassVar = {"now": _HOUR}

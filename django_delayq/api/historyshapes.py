"""What answers about the history look like, for the OpenAPI document, with an example of each."""

from __future__ import annotations

from typing import Any, Final

from rest_framework import serializers

from ..history import histograms
from ..history.records import DIED
from ..history.rows import FIELDS, HISTOGRAMS
from ..history.series import COUNTS
from ..models.history import PipelineRun
from .shapes import ObjectField, Shape

__all__ = [
    "EXAMPLES",
    "KINDS",
    "STATES",
    "ForecastSerializer",
    "HoursPageSerializer",
    "RunsPageSerializer",
    "SummarySerializer",
]

STATES: Final = (*PipelineRun.State.values, DIED)
KINDS: Final = tuple(PipelineRun.Kind.values)
_PERCENTILES: Final = tuple(name for name in FIELDS if "_p" in name or "_max" in name)


def _histogram(what: str) -> Any:
    return serializers.ListField(
        child=serializers.IntegerField(),
        help_text=f"{what}: 32 counts, of 0 ms, then from 2^(i-1) to below 2^i ms, then longer; "
        "empty where nothing is known",
    )


class HourSerializer(Shape):
    """What became of the runs of one task in one queue that ended within one hour.

    `lateness` is how long behind its due time a run began. Both it and `duration` are of the `timed` runs, those that
    began; milliseconds. `sla_missed` began later than `DELAYQ["PIPELINE"]["sla"]` allows.
    """

    hour = serializers.DateTimeField(help_text="when it begins")
    queue = serializers.CharField()
    task = serializers.CharField()
    vars().update({name: serializers.IntegerField() for name in COUNTS})
    vars().update({name: serializers.IntegerField(allow_null=True) for name in _PERCENTILES})
    lateness_histogram = _histogram("lateness")
    duration_histogram = _histogram("duration")


class HoursPageSerializer(Shape):
    """One page of hours, the latest first."""

    hours = HourSerializer(many=True)
    cursor = serializers.CharField(allow_null=True, help_text="for the next page; null at the end")


class TallySerializer(Shape):
    """Several hours, or tasks, added up."""

    vars().update({name: serializers.IntegerField() for name in COUNTS})
    failures = serializers.IntegerField(help_text="failed, timeout, crashed, lost and buried")
    failure_rate = serializers.FloatField(allow_null=True, help_text="the part of the runs, 0 to 1")
    vars().update(
        {
            f"{kind}_{name}_ms": serializers.FloatField(allow_null=True)
            for kind in ("lateness", "duration")
            for name in ("p50", "p95", "p99", "max")
        }
    )


class SlotSerializer(TallySerializer):
    """A piece of the period."""

    start = serializers.DateTimeField()
    lateness_histogram = _histogram("lateness")


class TaskTallySerializer(TallySerializer):
    """A task in a queue."""

    queue = serializers.CharField()
    task = serializers.CharField()


class SummarySerializer(Shape):
    """A period as its charts show it. A percentile of one task in one hour is exact; of several it is read off their
    added histograms."""

    vars()["from"] = serializers.DateTimeField()
    to = serializers.DateTimeField()
    step_hours = serializers.IntegerField(help_text="of each slot")
    total = TallySerializer()
    slots = SlotSerializer(many=True)
    tasks = TaskTallySerializer(many=True, help_text="those with the most runs first, at most 200")
    tasks_left_out = serializers.IntegerField()
    bounds_ms = serializers.ListField(
        child=serializers.IntegerField(), help_text="below which each place of a histogram ends, but for the last"
    )


class RunSerializer(Shape):
    """A run of the pipeline."""

    number = serializers.IntegerField(help_text="unique")
    run_id = serializers.CharField(help_text="several runs share it if they were resumed")
    kind = serializers.CharField(help_text=", ".join(KINDS))
    state = serializers.CharField(help_text=f"{', '.join(STATES)}; died: not heard of for five minutes")
    queue = serializers.CharField()
    task = serializers.CharField()
    started = serializers.DateTimeField(allow_null=True)
    seen = serializers.DateTimeField(allow_null=True, help_text="when it was last heard of")
    ended = serializers.DateTimeField(allow_null=True)
    seconds = serializers.FloatField(help_text="that it took, or has taken so far")
    total = serializers.IntegerField(allow_null=True, help_text="rows of the input; null where it is not known")
    rows = serializers.IntegerField()
    created = serializers.IntegerField()
    known = serializers.IntegerField(help_text="that were there already")
    bad = serializers.IntegerField(help_text="that were refused")
    detail = ObjectField()
    error = serializers.CharField()


class RunsPageSerializer(Shape):
    """One page of runs, the latest first."""

    runs = RunSerializer(many=True)
    cursor = serializers.CharField(allow_null=True, help_text="for the next page; null at the end")


class ForecastOfQueueSerializer(Shape):
    """A queue, or all of them together."""

    due = serializers.IntegerField(help_text="jobs that are due and wait")
    hours = serializers.ListField(
        child=serializers.IntegerField(), help_text="that fall due in each of the next 24 hours"
    )
    later = serializers.IntegerField(help_text="that fall due after that")
    runs_per_hour = serializers.IntegerField(
        allow_null=True, help_text="in the busiest hour of the last week; null where nothing ran"
    )
    mean_duration = serializers.FloatField(allow_null=True, help_text="of a run, seconds")
    work = serializers.FloatField(allow_null=True, help_text="of what is due and falls due, seconds of one thread")
    behind = serializers.ListField(
        child=serializers.FloatField(), help_text="jobs that will be due and not done at the end of each hour"
    )
    drained_in = serializers.FloatField(
        allow_null=True,
        help_text="seconds until nothing that is due waits; null where it is not known, or not in a day",
    )


class ForecastNamedSerializer(ForecastOfQueueSerializer):
    """A queue."""

    queue = serializers.CharField()


class ForecastSerializer(Shape):
    """What comes, at the pace of each queue's busiest hour of the last week."""

    now = serializers.DateTimeField(help_text="Redis's clock")
    total = ForecastOfQueueSerializer()
    queues = ForecastNamedSerializer(many=True)


# -- examples --------------------------------------------------------------------------------------------------------

_HOUR: Final = "2026-11-21T11:00:00.000Z"
_COUNTS: Final[dict[str, Any]] = {
    **dict.fromkeys(COUNTS, 0),
    "runs": 2,
    "succeeded": 2,
    "timed": 2,
    "lateness_sum_ms": 30,
    "duration_sum_ms": 100,
}
_LATE: Final = [0, 0, 0, 0, 1, 1, *[0] * (histograms.BUCKETS - 6)]
_TALLY: Final = {
    **_COUNTS,
    "failures": 0,
    "failure_rate": 0.0,
    **{f"{kind}_{name}_ms": 20.0 for kind in ("lateness", "duration") for name in ("p50", "p95", "p99", "max")},
}
_AHEAD: Final = {
    "due": 30,
    "hours": [80, *[0] * 23],
    "later": 0,
    "runs_per_hour": 200,
    "mean_duration": 0.05,
    "work": 5.5,
    "behind": [0.0] * 24,
    "drained_in": 900.0,
}
#: operation → an answer
EXAMPLES: Final[dict[str, Any]] = {
    "list_hours": {
        "cursor": None,
        "hours": [
            {
                "hour": _HOUR,
                "queue": "orders",
                "task": "shop.cancel_order",
                **_COUNTS,
                **dict.fromkeys(_PERCENTILES, 20),
                **dict.fromkeys(HISTOGRAMS, _LATE),
            }
        ],
    },
    "get_history": {
        "from": _HOUR,
        "to": "2026-11-21T12:00:00.000Z",
        "step_hours": 1,
        "total": _TALLY,
        "tasks_left_out": 0,
        "slots": [{"start": _HOUR, **_TALLY, "lateness_histogram": _LATE}],
        "tasks": [{"queue": "orders", "task": "shop.cancel_order", **_TALLY}],
        "bounds_ms": [1, 2, 4],
    },
    "list_runs": {
        "cursor": None,
        "runs": [
            {
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
        ],
    },
    "get_forecast": {"now": _HOUR, "total": _AHEAD, "queues": [{"queue": "orders", **_AHEAD}]},
}

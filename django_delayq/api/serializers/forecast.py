"""Forecast of the next day."""

from __future__ import annotations

from typing import ClassVar

from rest_framework import serializers

from .base import Resource
from .fields import RoundedField, TimeField


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
        help_text="in the busiest hour of the last week; null if nothing ran",
    )
    mean_duration = _MeanField(source="pace.mean_ms", allow_null=True, help_text="of an attempt, seconds")
    work = RoundedField(
        source="work_s", allow_null=True, help_text="of the due jobs and those that fall due, seconds of one thread"
    )
    behind = serializers.ListField(
        child=RoundedField(), help_text="jobs that will be due and not done at the end of each hour"
    )
    drained_in = RoundedField(
        source="drained_s",
        allow_null=True,
        help_text="seconds until no due job waits; null if unknown, or longer than a day",
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
    example: ClassVar = {"now": "2026-11-21T11:00:00.000Z"}

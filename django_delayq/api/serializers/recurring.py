"""Recurring tasks with their ticks."""

from __future__ import annotations

from typing import ClassVar

from rest_framework import serializers

from .base import Resource
from .fields import TimeField


class RecurringSerializer(Resource):
    """Recurring task of the project, as the responding process knows it, or a pause of one that it does not have."""

    task = serializers.CharField(help_text="its name")
    queue = serializers.CharField(allow_null=True, help_text="null = the process has no such task, only its pause")
    schedule = serializers.CharField(allow_null=True, help_text="as in the task's options")
    timezone = serializers.CharField(allow_null=True, help_text="of a cron expression; null = UTC, or it has none")
    missed = serializers.CharField(
        allow_null=True, help_text="once: the latest missed tick fires late; skip: it does not fire"
    )
    last_tick = TimeField(allow_null=True, help_text="the last one that fired")
    next_tick = TimeField(allow_null=True, help_text="null while the task is paused")
    paused = TimeField(allow_null=True, help_text="since when its ticks do not fire; null = they do")
    example: ClassVar = {
        "task": "shop.tasks.nightly",
        "queue": "default",
        "schedule": "0 3 * * mon-fri",
        "timezone": "Europe/Berlin",
        "missed": "skip",
        "last_tick": "2026-11-20T02:00:00.000Z",
        "next_tick": "2026-11-23T02:00:00.000Z",
        "paused": None,
    }


class RecurringTasksSerializer(Resource):
    """Recurring tasks, by name."""

    recurring = RecurringSerializer(many=True)


class RunOutcomeSerializer(Resource):
    """Outcome of a request for a run."""

    outcome = serializers.CharField(
        help_text="created; replaced: the waiting run is due now; gated: it begins when the present one ends"
    )
    example: ClassVar = {"outcome": "created"}

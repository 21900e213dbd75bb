"""Pipeline runs, and the query of their list."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from django.utils import timezone
from rest_framework import serializers

from ...access.permissions import allows
from ...history.records import DIED, state_of
from ...models.history import PipelineRun
from .base import Resource
from .fields import MaskedObjectField, MaskedTextField, TextQueryField, TimeField
from .history import PageQuery

STATES: Final = (*PipelineRun.State.values, DIED)
KINDS: Final = tuple(PipelineRun.Kind.values)
_HOUR: Final = "2026-11-21T11:00:00.000Z"


class RunSerializer(Resource):
    """Pipeline run."""

    number = serializers.IntegerField(source="pk", help_text="unique")
    run_id = serializers.CharField(help_text="a resumed run keeps it")
    kind = serializers.CharField(help_text=", ".join(KINDS))
    state = serializers.SerializerMethodField(help_text=f"{', '.join(STATES)}; died: no progress for an hour")
    queue = serializers.CharField()
    task = serializers.CharField()
    started = TimeField(source="started_at", allow_null=True)
    seen = TimeField(source="seen_at", allow_null=True, help_text="its last sign of life")
    ended = TimeField(source="ended_at", allow_null=True)
    seconds = serializers.SerializerMethodField(help_text="duration so far, or in total")
    total = serializers.IntegerField(allow_null=True, help_text="rows of the input; null if unknown")
    rows = serializers.IntegerField()
    created = serializers.IntegerField()
    known = serializers.IntegerField(help_text="rows that were stored before")
    bad = serializers.IntegerField(help_text="rows that were refused")
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
        rendered = super().to_representation(row)
        if not isinstance(row.detail, dict):
            rendered["detail"] = {}
        return rendered if row.queue or allows() is None else {**rendered, "detail": {}, "error": ""}


class RunsPageSerializer(Resource):
    """One page of pipeline runs, newest first."""

    runs = RunSerializer(many=True)
    cursor = serializers.CharField(allow_null=True, help_text="for the next page; null at the end")
    example: ClassVar = {"cursor": None}


class RunsQuery(PageQuery):
    """Query of the list of pipeline runs."""

    kind = serializers.ChoiceField(choices=KINDS, default=None, help_text="of this kind only")
    state = serializers.ChoiceField(choices=STATES, default=None, help_text="in this state only")
    run_id = TextQueryField(help_text="runs with this run_id only")

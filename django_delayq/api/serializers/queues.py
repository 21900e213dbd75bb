"""Queues: their limits, counts and shards."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from ...core.figures import MINUTES
from ...core.layouts import DIRECTIONS, LIMITS, PRIORITY_MODES
from ...core.records.keys import MAX_SHARDS
from .base import Resource
from .fields import IntField, NumberField, QueueNameField, RoundedField, TimeField

_MOST: Final = 1 << 40


def _limits(**options: Any) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
    """Return the fields of the limits, which may be missing in requests."""
    options |= {"required": False}
    numbers = {**options, "allow_null": True, "min_value": 1, "max_value": _MOST}
    spans = {**options, "allow_null": True, "min_value": 1, "max_value": 1e9}
    return {
        "max_length": IntField(
            **numbers, help_text="maximum live jobs of all shards together; more are refused (429 queue_full)"
        ),
        "morgue_max": IntField(**numbers, help_text="maximum records in its morgue; the oldest are deleted first"),
        "morgue_ttl": NumberField(**spans, help_text="seconds after which its morgue deletes a record"),
        "priorities": serializers.ChoiceField(
            PRIORITY_MODES,
            **options,
            help_text="strict: a more urgent class always goes first; weighted: it goes first more often",
        ),
        "starve_after": NumberField(
            **spans,
            help_text="seconds after which a due job goes before more urgent ones, which keep three quarters",
        ),
    }


class LimitsSerializer(Resource):
    """Limits of a queue; null = no limit. In a request a missing member leaves the limit unchanged."""

    vars().update(_limits())
    always = LIMITS
    requests: ClassVar = {
        "at most a million jobs, morgue records for a week": {"max_length": 1_000_000, "morgue_ttl": 604_800}
    }
    example: ClassVar = {
        "max_length": 100_000,
        "morgue_max": None,
        "morgue_ttl": 604_800.0,
        "priorities": "strict",
        "starve_after": 600.0,
    }


@extend_schema_field({"type": "string", "pattern": "^(in|out|both)?$"})
class _PausedField(serializers.CharField):
    """Direction or empty text; as a choice field it would duplicate the enum of :class:`DirectionSerializer`."""


class QueueSerializer(Resource):
    """Queue as registered. A request that creates one has its limits beside its name."""

    name = QueueNameField(help_text="1 to 64 letters, digits, '_', '.' or '-', beginning with a letter")
    kind = serializers.ChoiceField(
        ("python", "pull"),
        required=False,
        help_text="python: run by workers; pull: raw bytes for programs that reserve them",
    )
    shards = IntField(
        required=False,
        min_value=1,
        max_value=MAX_SHARDS,
        help_text="parts of the queue in the present epoch, each on one node of a cluster",
    )
    vars().update(_limits(write_only=True))
    epoch = serializers.IntegerField(read_only=True, help_text="number of changes of the number of shards")
    draining = serializers.BooleanField(read_only=True, help_text="former shards are still being worked off")
    paused = _PausedField(read_only=True, help_text="in, out or both; empty = not paused")
    paused_until = serializers.DictField(
        child=TimeField(), read_only=True, help_text="direction (in, out) → when its pause ends by itself"
    )
    configured = serializers.BooleanField(
        read_only=True, help_text="the project's settings name it, so its limits are set there"
    )
    limits = LimitsSerializer(read_only=True)
    always = ("kind", "shards")
    requests: ClassVar = {"for other languages": {"name": "images", "kind": "pull", "shards": 4, "max_length": 100_000}}
    example: ClassVar = {
        "name": "mail",
        "kind": "pull",
        "shards": 2,
        "epoch": 0,
        "draining": False,
        "paused": "",
        "paused_until": {},
        "configured": False,
    }

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Drop members that are null: a new queue has no limit to remove."""
        return {name: value for name, value in attrs.items() if value is not None}


class CountsSerializer(Resource):
    """Number of jobs by state. Failed jobs are also counted as delayed or ready."""

    delayed = serializers.IntegerField()
    ready = serializers.IntegerField(help_text="due by now")
    reserved = serializers.IntegerField(help_text="leased to a worker or a client")
    gated = serializers.IntegerField(help_text="new content that waits for the end of an attempt")
    failed = serializers.IntegerField(help_text="waiting for another attempt")
    morgue = serializers.IntegerField()
    example: ClassVar = {"delayed": 1200, "ready": 3, "reserved": 2, "gated": 0, "failed": 4, "morgue": 1}


class QueueCountsSerializer(QueueSerializer):
    """Queue with its counts and counters."""

    counts = CountsSerializer()
    lag_seconds = RoundedField(
        source="counts.lag_seconds", help_text="how long the longest waiting ready job is overdue"
    )
    lag_by_priority = serializers.DictField(
        source="counts.lag_by_priority",
        child=RoundedField(),
        help_text="the same for each priority that was ever used; one that grows alone starves behind more urgent jobs",
    )
    counters = serializers.DictField(
        source="counts.counters",
        child=serializers.IntegerField(),
        help_text="counted since the queue was created: created, changed, refused, acked, failed, …",
    )
    unreachable_shards = serializers.IntegerField(
        source="counts.unreachable_shards", help_text="of a cluster: shards without an answer, not counted here"
    )
    example: ClassVar = {
        "unreachable_shards": 0,
        "lag_seconds": 0.25,
        "lag_by_priority": {"0": 0.0, "4": 0.25},
        "counters": {"created": 5210, "acked": 4004},
    }


class ShardSerializer(Resource):
    """One shard of a queue."""

    number = serializers.IntegerField(help_text="within its epoch, from 0")
    epoch = serializers.IntegerField()
    counts = CountsSerializer()
    lag_seconds = RoundedField(source="counts.lag_seconds")
    example: ClassVar = {"number": 0, "epoch": 0, "lag_seconds": 0.0}


class QueueDetailSerializer(QueueCountsSerializer):
    """Queue with its counts, in total and by shard."""

    by_shard = ShardSerializer(many=True)
    shards_left_out = serializers.IntegerField(help_text="shards that are not shown one by one")
    example: ClassVar = {"shards_left_out": 0}


class QueuesSerializer(Resource):
    """All queues, by name."""

    queues = QueueCountsSerializer(many=True)


class QueueNamesSerializer(Resource):
    """Names of all queues."""

    names = serializers.ListField(child=serializers.CharField())
    example: ClassVar = {"names": ["mail", "orders"]}


class QueuesQuery(Resource):
    """Query of the list of queues."""

    names_only = serializers.BooleanField(default=False, help_text="only their names, which is cheap")


class DeleteQuery(Resource):
    """Query of a deletion."""

    force = serializers.BooleanField(default=False, help_text="also if it has jobs, which are lost")


class DepthQuery(Resource):
    """Query of the depth of a queue."""

    minutes = serializers.IntegerField(
        default=60, min_value=1, max_value=MINUTES, help_text=f"how far back, 1 to {MINUTES}"
    )


class DepthPointSerializer(Resource):
    """Counts at a whole minute, and what happened since the point before it."""

    at = TimeField(source="at_ms", help_text="Redis's clock")
    delayed = serializers.IntegerField()
    ready = serializers.IntegerField()
    reserved = serializers.IntegerField()
    failed = serializers.IntegerField(help_text="also counted as delayed or ready")
    morgue = serializers.IntegerField()
    lag_seconds = RoundedField()
    scheduled = RoundedField(allow_null=True, help_text="per second; null = the point before is missing")
    done = RoundedField(allow_null=True, help_text="per second")
    failing = RoundedField(allow_null=True, help_text="per second")
    p50_ms = RoundedField(allow_null=True, help_text="lateness of the attempts; null = unknown, or none began")
    p99_ms = RoundedField(allow_null=True)
    example: ClassVar = {
        "at": "2026-11-21T11:23:00.000Z",
        "delayed": 1200,
        "ready": 3,
        "reserved": 2,
        "failed": 4,
        "morgue": 1,
        "lag_seconds": 0.25,
        "scheduled": 3.5,
        "done": 3.2,
        "failing": 0.1,
        "p50_ms": 4.5,
        "p99_ms": 41.0,
    }


class DepthSerializer(Resource):
    """Depth of a queue over time."""

    points = DepthPointSerializer(many=True)


class DirectionSerializer(Resource):
    """Direction in which a queue is paused or resumed."""

    direction = serializers.ChoiceField(tuple(DIRECTIONS), help_text="in: new jobs; out: workers; both")
    requests: ClassVar = {"for workers": {"direction": "out"}, "altogether": {"direction": "both"}}


class PauseSerializer(DirectionSerializer):
    """Direction and length of a pause."""

    seconds = NumberField(
        required=False,
        min_value=0.001,
        max_value=1e8,
        help_text="after which it ends by itself; missing = never",
    )
    requests: ClassVar = {"for workers": {"direction": "out"}, "for ten minutes": {"direction": "both", "seconds": 600}}


class ProducersSerializer(Resource):
    """State of the switch for all producers."""

    paused = serializers.BooleanField(help_text="no queue takes new jobs (503 queue_paused)")
    since = TimeField(allow_null=True)
    example: ClassVar = {"paused": True, "since": "2026-11-21T11:23:43.123Z"}


class ReshardSerializer(Resource):
    """New number of shards."""

    shards = IntField(min_value=1, max_value=MAX_SHARDS)
    requests: ClassVar = {"eight": {"shards": 8}}

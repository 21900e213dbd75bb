"""What requests about queues may say, and what queues look like in answers."""

from __future__ import annotations

from typing import Any, Final

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from ..core.errors import InvalidJob
from ..core.inputs import check_queue_name
from ..core.records.keys import MAX_SHARDS
from ..core.rules import DIRECTIONS
from .base import Body
from .shapes import Shape

#: shards of one queue that are shown one by one
MOST_SHARDS_SHOWN: Final = 64
KINDS: Final = ("python", "pull")
PRIORITIES: Final = ("strict", "weighted")
_MOST: Final = 1 << 40


class ListQuery(Body):
    """The query of a list of queues."""

    names_only = serializers.BooleanField(default=False, help_text="only their names, which is cheap")


class DeleteQuery(Body):
    """The query of a deletion."""

    force = serializers.BooleanField(default=False, help_text="also with jobs in it, which are lost")


class LimitsForm(Body):
    """The limits of a queue. What is not given stays as it is; null = no limit."""

    max_length = serializers.IntegerField(
        required=False,
        allow_null=True,
        min_value=1,
        max_value=_MOST,
        help_text="most live jobs, each shard taking its part of them; one more is refused (429 queue_full)",
    )
    morgue_max = serializers.IntegerField(
        required=False,
        allow_null=True,
        min_value=1,
        max_value=_MOST,
        help_text="most jobs that its morgue keeps; the oldest go first",
    )
    morgue_ttl = serializers.FloatField(
        required=False, allow_null=True, min_value=1, max_value=1e9, help_text="seconds that its morgue keeps a job"
    )
    priorities = serializers.ChoiceField(
        PRIORITIES,
        required=False,
        help_text="strict: a more urgent class always goes first; weighted: it goes first more often",
    )


class NewQueueForm(LimitsForm):
    """A queue that is to be made."""

    name = serializers.CharField(
        max_length=64,
        trim_whitespace=False,
        help_text="1 to 64 letters, digits, '_', '.' or '-', beginning with a letter",
    )
    kind = serializers.ChoiceField(
        KINDS, required=False, help_text="python: run by workers; pull: raw bytes for who reserves them"
    )
    shards = serializers.IntegerField(
        required=False, min_value=1, max_value=MAX_SHARDS, help_text="parts of the queue, each on one node of a cluster"
    )

    def validate_name(self, name: str) -> str:
        """One that a queue can have."""
        try:
            return check_queue_name(name)
        except InvalidJob as error:
            raise serializers.ValidationError(str(error)) from None

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Members that are null say nothing: there is no limit to be taken away yet."""
        return {name: value for name, value in attrs.items() if value is not None}


class DirectionForm(Body):
    """Which way a queue is paused, or goes on."""

    direction = serializers.ChoiceField(tuple(DIRECTIONS), help_text="in: new jobs; out: workers; both")


class ReshardForm(Body):
    """A number of shards."""

    shards = serializers.IntegerField(min_value=1, max_value=MAX_SHARDS)


class LimitsSerializer(Shape):
    """The limits in force; null = no limit."""

    max_length = serializers.IntegerField(allow_null=True)
    morgue_max = serializers.IntegerField(allow_null=True)
    morgue_ttl = serializers.FloatField(allow_null=True, help_text="seconds")
    priorities = serializers.ChoiceField(PRIORITIES)


class CountsSerializer(Shape):
    """How many jobs lie where. Failed ones are also counted as delayed or ready."""

    delayed = serializers.IntegerField()
    ready = serializers.IntegerField(help_text="due by now")
    reserved = serializers.IntegerField(help_text="in somebody's hands")
    gated = serializers.IntegerField(help_text="new content that waits for the end of a run")
    failed = serializers.IntegerField(help_text="waiting for another attempt")
    morgue = serializers.IntegerField()


@extend_schema_field({"type": "string", "pattern": "^(in|out|both)?$"})
class PausedField(serializers.CharField):
    """A direction or nothing; as a choice it would be the same set as that of :class:`DirectionForm`."""


class QueueSerializer(Shape):
    """A queue as the registry has it."""

    name = serializers.CharField()
    kind = serializers.ChoiceField(KINDS)
    shards = serializers.IntegerField(help_text="of the present epoch")
    epoch = serializers.IntegerField(help_text="how often the number of shards was changed")
    draining = serializers.BooleanField(help_text="former shards are still being worked off")
    paused = PausedField(help_text="in, out or both; empty = it is not")
    configured = serializers.BooleanField(help_text="the project's settings name it, so its limits are set there")
    limits = LimitsSerializer()


class QueueCountsSerializer(QueueSerializer):
    """A queue and what lies in it."""

    counts = CountsSerializer()
    lag_seconds = serializers.FloatField(help_text="how long the longest waiting ready job is overdue")
    counters = serializers.DictField(
        child=serializers.IntegerField(),
        help_text="what happened since the queue was made: created, changed, refused, acked, failed, …",
    )


class ShardSerializer(Shape):
    """One shard."""

    number = serializers.IntegerField(help_text="within its epoch, from 0")
    epoch = serializers.IntegerField()
    counts = CountsSerializer()
    lag_seconds = serializers.FloatField()


class QueueDetailSerializer(QueueCountsSerializer):
    """A queue, also shard by shard."""

    by_shard = ShardSerializer(many=True)
    shards_left_out = serializers.IntegerField(help_text="shards that are not shown one by one")


class QueuesSerializer(Shape):
    """All queues, by name."""

    queues = QueueCountsSerializer(many=True)


class QueueNamesSerializer(Shape):
    """The names of all queues."""

    names = serializers.ListField(child=serializers.CharField())

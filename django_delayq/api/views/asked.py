"""Requests about jobs: forms that parse them, and serializers that describe them in the OpenAPI document."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import PolymorphicProxySerializer, extend_schema_field
from rest_framework import serializers

from ..base import Body
from ..fields import FlagField, GravesField, IdsField, MomentField, PaceField, SecondsField
from ..shapes import AnyField, ListField, ObjectField, RequestSchema, ResultSerializer, Shape

# -- forms -----------------------------------------------------------------------------------------------------------


class When(Body):
    """New due time."""

    delay = SecondsField(required=False, help_text="seconds from now, 0 or more")
    at = MomentField(required=False, help_text="ISO 8601 with offset, or Unix seconds")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Check that exactly one of the two is given."""
        return _exactly_one(attrs, "delay", "at")


class IdsWhen(When):
    """New due time for many jobs."""

    ids = IdsField()


class IdsOrAll(Body):
    """Some jobs by their ids, or all jobs of the queue."""

    ids = IdsField(required=False)
    all = FlagField(required=False)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Check that exactly one of the two is given."""
        return _exactly_one(attrs, "ids", "all")


class EmptyBody(Body):
    """Empty body."""


class _Graves(Body):
    ids = IdsField(required=False, help_text="each time the record that was buried last")
    jobs = GravesField(required=False)
    all = FlagField(required=False)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Check that exactly one of the three is given."""
        return _exactly_one(attrs, "ids", "jobs", "all")


class Kick(_Graves):
    """Jobs to bring back from the morgue, with options."""

    delay = SecondsField(required=False, help_text="how long from now they wait, seconds; default: not at all")
    per_second = PaceField(required=False, help_text="with `all`: how many fall due in a second; default: all at once")
    replace = FlagField(required=False, help_text="take the places of live plain jobs of the same ids")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Check that the members are consistent."""
        found = super().validate(attrs)
        if "per_second" in found and not found.get("all"):
            raise serializers.ValidationError({"per_second": "this goes with all: true"})
        return found


class Discard(_Graves):
    """Jobs to delete from the morgue."""

    older_than = SecondsField(required=False, help_text="with `all`: only what was buried so many seconds ago")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Check that the members are consistent."""
        found = super().validate(attrs)
        if "older_than" in found and not found.get("all"):
            raise serializers.ValidationError({"older_than": "this goes with all: true"})
        return found


def _exactly_one(attrs: dict[str, Any], *names: str) -> dict[str, Any]:
    given = [name for name in names if name in attrs]
    if len(given) != 1:
        raise serializers.ValidationError(f"give exactly one of {', '.join(names)}")
    if attrs.get("all") is False:
        raise serializers.ValidationError({"all": "this is true, or left out"})
    return attrs


# -- for the document ------------------------------------------------------------------------------------------------

_CONFLICTS = ("merge", "replace", "ignore", "error")
_DUE_POLICIES = ("keep", "replace", "earliest", "latest", "inherit")


@extend_schema_field(
    {
        "oneOf": [
            {"type": "number", "minimum": 0},
            {"type": "string"},
            {"type": "array", "items": {"type": "number", "minimum": 0}},
        ]
    }
)
class _RetryField(serializers.Field[Any, Any, Any, Any]):
    pass


@extend_schema_field({"oneOf": [{"type": "number", "minimum": 0.001}, {"type": "string", "format": "date-time"}]})
class _ExpiresField(serializers.Field[Any, Any, Any, Any]):
    pass


@extend_schema_field({"oneOf": [{"type": "number"}, {"type": "string", "maxLength": 255}]})
class _ScoreField(serializers.Field[Any, Any, Any, Any]):
    pass


class _JobSerializer(RequestSchema):
    id = serializers.CharField(required=False, max_length=255, help_text="default: a random one")
    delay = SecondsField(required=False, help_text="seconds from now; at most one of delay and at, neither = now")
    at = MomentField(required=False)
    priority = serializers.IntegerField(required=False, min_value=0, max_value=7, help_text="0 (first) … 7 (last)")
    on_conflict = serializers.ChoiceField(required=False, choices=_CONFLICTS, help_text="the id is waiting already")
    due_policy = serializers.ChoiceField(required=False, choices=_DUE_POLICIES, help_text="whose due time counts then")
    reset_retries = serializers.BooleanField(required=False, help_text="with replace: forget earlier failures")
    max_attempts = serializers.IntegerField(required=False, min_value=1, max_value=1_000_000)
    retry_in = _RetryField(required=False, help_text="back-off: seconds, a list of them, or the name of a preset")
    expires = _ExpiresField(required=False, help_text="do not start it later: a moment, or seconds behind its due time")
    context = ObjectField(required=False, help_text="travels along")  # type: ignore[assignment]


class CallSerializer(_JobSerializer):
    """Call of a task, for queues of kind python. A merged task has `id`, `payload` and `score` instead of arguments.

    Arguments are plain JSON and reach the task unchanged.
    """

    task = serializers.CharField(help_text="a task with @task(api=True)")
    args = ListField(required=False)
    kwargs = ObjectField(required=False)
    payload = AnyField(required=False, help_text="of a merged task")
    score = _ScoreField(required=False, help_text="of a merged task: orders the payloads of an id")
    durable = serializers.BooleanField(required=False, help_text="keep it in the database, too, until it is done")


class BytesSerializer(_JobSerializer):
    """Bytes, for queues of kind pull: `body` (a text) or `body_base64`."""

    body = serializers.CharField(required=False, allow_blank=True, help_text="stored as UTF-8")
    body_base64 = serializers.CharField(required=False, allow_blank=True)


@extend_schema_field(
    PolymorphicProxySerializer(
        component_name="Entry",
        serializers=[CallSerializer, BytesSerializer],
        resource_type_field_name=None,
        many=True,
    )
)
class _EntriesField(serializers.Field[Any, Any, Any, Any]):
    pass


class ManySerializer(RequestSchema):
    """Up to 1,000 jobs, of any tasks of the API; in a queue of kind pull bytes."""

    jobs = _EntriesField()


class WhenSerializer(RequestSchema):
    """New due time; exactly one of the two."""

    delay = SecondsField(required=False, help_text="seconds from now")
    at = MomentField(required=False)


class OutcomeSerializer(Shape):
    """Outcome for the job."""

    outcome = serializers.ChoiceField(choices=("cancelled", "stopping", "outbox"))


class MovedSerializer(Shape):
    """Outcome for the job, and its due time."""

    outcome = serializers.ChoiceField(choices=("moved", "outbox"))
    due = serializers.DateTimeField(allow_null=True, help_text="null if Redis has not heard of it yet")


class ResultsSerializer(Shape):
    """Outcome for each job, in the order of the request."""

    results = ResultSerializer(many=True)
    counts = serializers.DictField(child=serializers.IntegerField(), help_text="outcome → how many")

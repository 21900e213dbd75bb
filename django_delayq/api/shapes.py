"""Response schemas for the OpenAPI document. Responses themselves are built as plain dicts.

A member that some responses lack has ``required=False``; one that may be null has ``allow_null=True``.
"""

from __future__ import annotations

from typing import Any, Final

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

STATES: Final = ("delayed", "ready", "reserved", "morgue")


class Shape(serializers.Serializer[Any]):
    """Base of all response schemas."""


class RequestSchema(Shape):
    """Request schema for bodies that another reader parses; other members are rejected."""


@extend_schema_field(OpenApiTypes.ANY)
class AnyField(serializers.JSONField):
    """Any JSON value."""


@extend_schema_field({"type": "object", "additionalProperties": {}})
class ObjectField(serializers.JSONField):
    """Object with any members."""


@extend_schema_field({"type": "array", "items": {}})
class ListField(serializers.JSONField):
    """List of any JSON values."""


class ErrorSerializer(Shape):
    """Error at one place of the request."""

    pointer = serializers.CharField(help_text="JSON pointer into the body, or into the query as if it were an object")
    detail = serializers.CharField()


class ProblemSerializer(Shape):
    """Error (RFC 9457). Programs decide by `code`, which is stable; `detail` is for people."""

    type = serializers.CharField(help_text="`urn:django-delayq:problem:` and the code")
    title = serializers.CharField(help_text="the phrase of the HTTP status")
    status = serializers.IntegerField(min_value=400, max_value=599)
    detail = serializers.CharField(help_text="what is wrong, and what to do next")
    code = serializers.CharField(help_text="stable; see the list in the description of the document")
    errors = ErrorSerializer(  # type: ignore[assignment]  # a field; the name is free in an answer
        many=True, required=False, help_text="what is wrong where, at most 50"
    )
    retry_after = serializers.FloatField(required=False, help_text="seconds after which it is worth asking again")


class JobErrorSerializer(Shape):
    """Last error of a job, as far as it was stored."""

    vars()["class"] = serializers.CharField(help_text="of the exception; empty if a text was given")
    message = serializers.CharField()
    traceback = serializers.CharField()


class JobSerializer(Shape):
    """Job as it was at one moment. Arguments are masked as in the admin.

    Content: `args` and `kwargs` of a plain task, `payloads` of a merged one, `body` or `body_base64` in a queue of kind
    pull; no content if `cut` is true.
    """

    queue = serializers.CharField()
    id = serializers.CharField(help_text="unique within its queue")
    key = serializers.CharField(help_text="of this generation of the id: tomorrow's job of this id has another one")
    task = serializers.CharField(help_text='"raw" in a queue of kind pull')
    state = serializers.ChoiceField(choices=STATES)
    due = serializers.DateTimeField(allow_null=True)
    priority = serializers.IntegerField(help_text="0 (first) … 7 (last)")
    merged = serializers.BooleanField()
    failures = serializers.IntegerField(help_text="counted attempts that failed")
    reserves = serializers.IntegerField(help_text="how often it was handed out")
    crashes = serializers.IntegerField(help_text="failures whose process died, or whose lease ran out")
    releases = serializers.IntegerField(help_text="how often it was given back without counting")
    quarantined = serializers.BooleanField(
        help_text="its process died under it, so it waits to run, or runs, alone in a process; the error says more"
    )
    context = ObjectField()  # type: ignore[assignment]
    size = serializers.IntegerField(help_text="bytes of the arguments as they are stored")
    cut = serializers.BooleanField(help_text="the arguments are too large for a list; GET the job")
    args = ListField(required=False)
    kwargs = ObjectField(required=False)
    payloads = ListField(required=False, help_text="the first 50")
    payload_count = serializers.IntegerField(required=False)
    body = serializers.CharField(required=False, help_text="if the bytes are UTF-8 text")
    body_base64 = serializers.CharField(required=False, help_text="if they are not")
    gated_due = serializers.DateTimeField(allow_null=True, help_text="new content waits for the end of the run")
    worker = serializers.CharField(allow_null=True)
    lease_ends = serializers.DateTimeField(allow_null=True)
    buried = serializers.DateTimeField(allow_null=True)
    reason = serializers.CharField(help_text="why it is in the morgue")
    outcome = serializers.CharField(help_text="of its last attempt")
    error = JobErrorSerializer(allow_null=True)


class HeldJobSerializer(Shape):
    """Job that the caller holds until `lease_ends`. Its content is not masked."""

    queue = serializers.CharField()
    id = serializers.CharField()
    lease = serializers.CharField(help_text="opaque; every verb that ends or touches the job wants it back")
    key = serializers.CharField()
    task = serializers.CharField(help_text='"raw" in a queue of kind pull')
    body = serializers.CharField(required=False, help_text="if the bytes are UTF-8 text")
    body_base64 = serializers.CharField(required=False, help_text="if they are not")
    args = ListField(required=False)
    kwargs = ObjectField(required=False)
    payloads = ListField(required=False)
    due = serializers.DateTimeField(allow_null=True)
    attempt = serializers.IntegerField(help_text="number of this counted attempt; the first is 1")
    failures = serializers.IntegerField()
    noe = serializers.IntegerField(help_text="how often it was handed out before, counted or not")
    lives = serializers.IntegerField(help_text="attempts that are left, this one included")
    context = ObjectField()  # type: ignore[assignment]
    lease_ends = serializers.DateTimeField(allow_null=True)


class HeldJobsSerializer(Shape):
    """Reserved jobs; an empty list if none was due in time."""

    jobs = HeldJobSerializer(many=True)


class JobsPageSerializer(Shape):
    """One page of a list of jobs."""

    jobs = JobSerializer(many=True)
    cursor = serializers.CharField(allow_null=True, help_text="for the next page; null at the end")


class ProducedSerializer(Shape):
    """Result for one stored job."""

    id = serializers.CharField(allow_null=True, help_text="null if it was skipped")
    queue = serializers.CharField()
    outcome = serializers.CharField(
        help_text="created, merged, replaced, ignored, gated; skipped by the project's own rules; outbox: kept in the "
        "database until Redis answers"
    )
    due = serializers.DateTimeField(allow_null=True)


class ResultSerializer(Shape):
    """Result for one of many jobs."""

    id = serializers.CharField(allow_null=True, help_text="null if it was skipped")
    outcome = serializers.CharField()


class ProducedManySerializer(Shape):
    """Results for many jobs, in the order of the request."""

    results = ResultSerializer(many=True)
    counts = serializers.DictField(child=serializers.IntegerField(), help_text="outcome → how many")


class CountedSerializer(Shape):
    """Result of ending one job."""

    id = serializers.CharField()
    counted = serializers.BooleanField(help_text="false: the lease was lost, and nothing was changed")


class SettledSerializer(Shape):
    """Results of ending jobs, in the order of the request."""

    results = CountedSerializer(many=True)


class TouchSerializer(Shape):
    """Result of touching one job."""

    id = serializers.CharField()
    held = serializers.BooleanField(help_text="false: the lease was lost")
    stopping = serializers.BooleanField(help_text="somebody cancelled the job; end it soon")
    lease_ends = serializers.DateTimeField(allow_null=True)


class TouchedSerializer(Shape):
    """Results of touching jobs, in the order of the request."""

    results = TouchSerializer(many=True)


class BulkSerializer(Shape):
    """Counts of a verb applied to all matching jobs. It stops after about ten seconds: repeat the call then."""

    counts = serializers.DictField(child=serializers.IntegerField())
    complete = serializers.BooleanField(help_text="false: there is more to do, call again")
    seen = serializers.IntegerField()
    total = serializers.IntegerField()

"""What answers look like, for the OpenAPI document. No answer goes through these: they are built as plain dicts.

A member that is not in every answer has ``required=False``; one that may be null says so.
"""

from __future__ import annotations

from typing import Any, Final

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

STATES: Final = ("delayed", "ready", "reserved", "morgue")


class Shape(serializers.Serializer[Any]):
    """Base of all of them."""


class Said(Shape):
    """What a request may say, where another one reads it: nothing else is taken."""


@extend_schema_field(OpenApiTypes.ANY)
class AnyField(serializers.JSONField):
    """Any JSON at all."""


@extend_schema_field({"type": "object", "additionalProperties": {}})
class ObjectField(serializers.JSONField):
    """An object with any members."""


@extend_schema_field({"type": "array", "items": {}})
class ListField(serializers.JSONField):
    """A list of anything."""


class ErrorSerializer(Shape):
    """What is wrong at one place of the request."""

    pointer = serializers.CharField(help_text="JSON pointer into the body, or into the query as if it were an object")
    detail = serializers.CharField()


class ProblemSerializer(Shape):
    """An error (RFC 9457). Programs decide by `code`, which stays the same; `detail` is for people."""

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
    """The last error of a job, as far as it was kept."""

    vars()["class"] = serializers.CharField(help_text="of the exception; empty if a text was given")
    message = serializers.CharField()
    traceback = serializers.CharField()


class JobSerializer(Shape):
    """A job as it was seen at one moment. Arguments are masked as in the admin.

    What it carries: `args` and `kwargs` of a plain task, `payloads` of a merged one, `body` or `body_base64` of a queue
    of kind pull; nothing of them if `cut` is true.
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
    """A job that the caller holds until `lease_ends`. Nothing of it is masked."""

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
    """What a reserve took; nothing if nothing was due in time."""

    jobs = HeldJobSerializer(many=True)


class JobsPageSerializer(Shape):
    """One page of a list."""

    jobs = JobSerializer(many=True)
    cursor = serializers.CharField(allow_null=True, help_text="for the next page; null at the end")


class ProducedSerializer(Shape):
    """One job that was taken in."""

    id = serializers.CharField(allow_null=True, help_text="null if it was skipped")
    queue = serializers.CharField()
    outcome = serializers.CharField(
        help_text="created, merged, replaced, ignored, gated; skipped by the project's own rules; outbox: kept in the "
        "database until Redis answers"
    )
    due = serializers.DateTimeField(allow_null=True)


class ResultSerializer(Shape):
    """What became of one of many."""

    id = serializers.CharField(allow_null=True, help_text="null if it was skipped")
    outcome = serializers.CharField()


class ProducedManySerializer(Shape):
    """What became of each job, in the order asked."""

    results = ResultSerializer(many=True)
    counts = serializers.DictField(child=serializers.IntegerField(), help_text="outcome → how many")


class CountedSerializer(Shape):
    """Whether the end of one job counted."""

    id = serializers.CharField()
    counted = serializers.BooleanField(help_text="false: the lease was lost, and nothing was changed")


class SettledSerializer(Shape):
    """Whether each end counted, in the order asked."""

    results = CountedSerializer(many=True)


class TouchSerializer(Shape):
    """Whether one job is still held."""

    id = serializers.CharField()
    held = serializers.BooleanField(help_text="false: the lease was lost")
    stopping = serializers.BooleanField(help_text="somebody cancelled the job; end it soon")
    lease_ends = serializers.DateTimeField(allow_null=True)


class TouchedSerializer(Shape):
    """Whether each job is still held, in the order asked."""

    results = TouchSerializer(many=True)


class BulkSerializer(Shape):
    """What a verb did to all jobs that it was asked for. It stops after about ten seconds: call it again then."""

    counts = serializers.DictField(child=serializers.IntegerField())
    complete = serializers.BooleanField(help_text="false: there is more to do, call again")
    seen = serializers.IntegerField()
    total = serializers.IntegerField()

"""Errors (RFC 9457). They are rendered by :mod:`django_delayq.access.problems`."""

from __future__ import annotations

from rest_framework import serializers

from .base import Resource


class ErrorSerializer(Resource):
    """Error at one place of the request."""

    pointer = serializers.CharField(help_text="JSON pointer into the body, or into the query as if it were an object")
    detail = serializers.CharField()


class ProblemSerializer(Resource):
    """Error (RFC 9457). Programs decide by `code`, which is stable; `detail` is for people."""

    type = serializers.CharField(help_text="`urn:django-delayq:problem:` and the code")
    title = serializers.CharField(help_text="the phrase of the HTTP status")
    status = serializers.IntegerField(min_value=400, max_value=599)
    detail = serializers.CharField(help_text="what is wrong, and what to do next")
    code = serializers.CharField(help_text="stable; see the list in the description of the document")
    errors = ErrorSerializer(  # type: ignore[assignment]  # a field; the name is free in a response
        many=True, required=False, help_text="what is wrong where, at most 50"
    )
    retry_after = serializers.FloatField(required=False, help_text="seconds after which it is worth asking again")

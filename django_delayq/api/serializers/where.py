"""Conditions by which requests choose jobs: of bulk operations, and as parameters of a list."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar, Final

from rest_framework import serializers

from ...core.errors import InvalidJob
from ...core.inputs import short
from ...core.job import MAX_ID_BYTES
from ...core.job_filter import MOST_TEXT_BYTES, JobFilter
from ...core.times import ms_of
from ..values import count_of
from .base import Resource
from .fields import FlagField, IntField, MomentField, QueryMomentField, TextField, TextQueryField, checked

MOST_FAILURES: Final = 2**31 - 1


def filter_of(attrs: dict[str, Any]) -> JobFilter:
    """Return the filter of validated members, which may be missing or None.

    Raises:
        ValidationError: a value that no job can have.
    """
    try:
        return JobFilter(
            text=attrs.get("text") or "",
            task=attrs.get("task") or "",
            prefix=attrs.get("prefix") or "",
            id_from=attrs.get("id_from") or "",
            id_to=attrs.get("id_to") or "",
            due_from_ms=_ms_of(attrs.get("due_from")),
            due_before_ms=_ms_of(attrs.get("due_before")),
            failures=attrs.get("failures") or 0,
            failures_to=attrs.get("failures_to"),
            never_started=attrs.get("never_started") or False,
            buried_from_ms=_ms_of(attrs.get("buried_from")),
            buried_before_ms=_ms_of(attrs.get("buried_before")),
        )
    except InvalidJob as error:
        raise serializers.ValidationError(str(error)) from None


def _ms_of(moment: datetime | float | None) -> float | None:
    if moment is None:
        return None
    return ms_of(moment) if isinstance(moment, datetime) else round(moment * 1000, 3)


class WhereSerializer(Resource):
    """Conditions of a bulk operation, at least one; each job meets all of them."""

    text = TextField(
        MOST_TEXT_BYTES,
        required=False,
        help_text="in the id, the task's name, the arguments or payloads as they are shown, the context or the last "
        "error, in upper or lower case; masked values are not searched",
    )
    task = TextField(MOST_TEXT_BYTES, required=False, help_text="name of the task")
    prefix = TextField(MAX_ID_BYTES, required=False, help_text="beginning of the id")
    id_from = TextField(MAX_ID_BYTES, required=False, help_text="ids from this one on, in the order of their bytes")
    id_to = TextField(MAX_ID_BYTES, required=False, help_text="ids up to this one")
    due_from = MomentField(required=False, help_text="due at this moment or later")
    due_before = MomentField(required=False, help_text="due before this moment")
    failures = IntField(required=False, min_value=0, max_value=MOST_FAILURES, help_text="failed at least so often")
    failures_to = IntField(required=False, min_value=0, max_value=MOST_FAILURES, help_text="failed at most so often")
    never_started = FlagField(required=False, help_text="true: only jobs that were never reserved")
    buried_from = MomentField(required=False, help_text="buried at this moment or later")
    buried_before = MomentField(required=False, help_text="buried before this moment")
    requests: ClassVar = {}

    def validate(self, attrs: dict[str, Any]) -> Any:
        """Return the filter."""
        where = filter_of(attrs)
        if where.is_empty:
            raise serializers.ValidationError("give at least one condition, or all: true in place of where")
        return where


def _failures_of_query(text: str) -> int | None:
    failures = count_of(text)
    if failures is None and text:
        raise InvalidJob(f"failures is a number of failed attempts, not {short(text)}")
    return failures


_FailuresQueryField: Final = checked(_failures_of_query, type="integer", minimum=0, maximum=MOST_FAILURES)


class WhereQuery(Resource):
    """Conditions as parameters of a list."""

    text = TextQueryField(
        max_length=MOST_TEXT_BYTES,
        help_text="jobs with this text in the id, the task's name, the arguments or payloads as they are shown, the "
        "context or the last error, in upper or lower case; masked values are not searched",
    )
    task = TextQueryField(help_text="jobs of this task")
    prefix = TextQueryField(help_text="jobs whose id begins with this")
    id_from = TextQueryField(help_text="jobs with ids from this one on, in the order of their bytes")
    id_to = TextQueryField(help_text="jobs with ids up to this one")
    due_from = QueryMomentField(default=None, help_text="jobs due at this moment or later (as min)")
    due_before = QueryMomentField(default=None, help_text="jobs due before this moment")
    failures = _FailuresQueryField(default=0, help_text="jobs that failed at least so often")
    failures_to = _FailuresQueryField(default=None, help_text="jobs that failed at most so often")
    never_started = serializers.BooleanField(default=False, help_text="true: only jobs that were never reserved")
    buried_from = QueryMomentField(default=None, help_text="morgue records buried at this moment or later")
    buried_before = QueryMomentField(default=None, help_text="morgue records buried before this moment")

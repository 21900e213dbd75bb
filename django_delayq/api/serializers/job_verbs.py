"""Verbs for one job or many: requests for live jobs and for the morgue, and their results."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from rest_framework import serializers

from ...core.errors import InvalidJob
from ...outbox.rows import DueTime
from ...scheduling.build import job_rules
from .base import ADDED, EntriesField, Entry, Resource, exactly_one, one_of
from .fields import (
    CursorField,
    DelayField,
    FlagField,
    IdField,
    IdsField,
    KeyField,
    MomentField,
    NumberField,
    SecondsField,
    TimeField,
    checked,
    page_cursor,
)
from .where import WhereSerializer

#: written by ``KickView.kick_at_pace``
_PACE_CURSOR: Final = re.compile(r"[0-9]{1,14}\.[0-9]{3}")
_COUNTS: Final = serializers.DictField(child=serializers.IntegerField(), help_text="outcome → how many")

# -- requests --------------------------------------------------------------------------------------------------------


class DueSerializer(Resource):
    """New due time; exactly one of the two."""

    delay = DelayField(required=False, help_text="seconds from now, negative = now")
    at = MomentField(required=False, help_text="ISO 8601 with offset, or Unix seconds")
    requests: ClassVar = {"in a minute": {"delay": 60}}

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Replace the two by ``due``, a :class:`DueTime`."""
        exactly_one(attrs, "delay", "at")
        if "delay" in attrs:
            return {**attrs, "due": DueTime(due_ms=None, delay_ms=attrs["delay"])}
        try:
            due_ms, delay_ms = job_rules().due(None, attrs["at"])
            return {**attrs, "due": DueTime(due_ms=due_ms, delay_ms=delay_ms)}
        except InvalidJob as error:
            raise serializers.ValidationError({"at": [str(error)]}) from None


class RescheduleSerializer(DueSerializer):
    """New due time for many jobs."""

    ids = IdsField()
    requests: ClassVar = {"in an hour": {"ids": ["order-17"], "delay": 3600}}


class MatchingSerializer(Resource):
    """Jobs that meet conditions; without them all jobs to which the verb applies."""

    where = WhereSerializer(required=False, help_text="only jobs in Redis that meet these conditions")
    cursor = CursorField(required=False, help_text="with `where`: of the response before, which was not complete")
    #: member with which a cursor goes
    cursor_with: ClassVar[str] = "where"
    requests: ClassVar = {"those that match": {"where": {"task": "shop.cancel_order", "prefix": "north-"}}}

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Check that a cursor comes with what it continues."""
        if "cursor" in attrs and not {"where", self.cursor_with} & attrs.keys():
            raise serializers.ValidationError({"cursor": "this goes with where"})
        return attrs


class IdsOrAllSerializer(MatchingSerializer):
    """Some jobs by their ids, all jobs of the queue, or those that meet conditions."""

    ids = IdsField(required=False)
    all = FlagField(required=False)
    requests: ClassVar = {
        "some": {"ids": ["order-17", "order-18"]},
        "all of the queue": {"all": True},
        **MatchingSerializer.requests,
    }

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Check that exactly one of the three is given."""
        exactly_one(attrs, "ids", "all", "where")
        return super().validate(attrs)


class GraveSerializer(Entry):
    """Morgue record by its id, and by its key where an id has several."""

    id = IdField()
    key = KeyField(required=False)

    @classmethod
    def build(cls, values: dict[str, Any]) -> tuple[str, bytes | None]:
        """Return ``(id, key)``."""
        return values["id"], values.get("key")


class _GravesSerializer(MatchingSerializer):
    ids = IdsField(required=False, help_text="of each id the newest record")
    jobs = EntriesField(GraveSerializer, required=False)
    all = FlagField(required=False)
    #: members that go with ``all`` only
    with_all: ClassVar[tuple[str, ...]] = ()

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Replace ``ids`` by ``jobs``: without a key the record that was buried last is meant."""
        exactly_one(attrs, "ids", "jobs", "all", "where")
        attrs = super().validate(attrs)
        for name in self.with_all:
            if name in attrs and "all" not in attrs:
                raise serializers.ValidationError({name: "this goes with all: true"})
        return {**attrs, "jobs": [(ident, None) for ident in attrs["ids"]]} if "ids" in attrs else attrs


def _kick_cursor(text: str) -> str | float:
    """Return the cursor of a search; of a kick at a pace the next due time, Unix ms."""
    return float(text) if _PACE_CURSOR.fullmatch(text) else page_cursor(text)


class KickSerializer(_GravesSerializer):
    """Jobs to bring back from the morgue, with options."""

    delay = DelayField(required=False, help_text="seconds from now; default 0")
    per_second = NumberField(
        required=False,
        min_value=1e-6,
        max_value=1e6,
        help_text="with `all`: how many fall due in a second; default: all at once",
    )
    replace = FlagField(required=False, help_text="replace live plain jobs of the same ids")
    cursor = checked(_kick_cursor, type="string", maxLength=2000)(
        required=False, help_text="with `where` or `per_second`: of the response before, which was not complete"
    )
    with_all = ("per_second",)
    cursor_with = "per_second"
    requests: ClassVar = {
        "some": {"ids": ["order-17"], "delay": 60},
        "a certain record": {"jobs": [{"id": "order-17", "key": "7f" * 16}]},
        "all, ten in a second": {"all": True, "per_second": 10},
    }

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Check that the cursor is one of what it continues."""
        attrs = super().validate(attrs)
        if "cursor" in attrs and isinstance(attrs["cursor"], float) != ("per_second" in attrs):
            raise serializers.ValidationError({"cursor": "this is not the cursor of such a response"})
        return attrs


class DiscardSerializer(_GravesSerializer):
    """Jobs to delete from the morgue."""

    older_than = SecondsField(required=False, help_text="with `all`: only records that are older than these seconds")
    with_all = ("older_than",)
    requests: ClassVar = {
        "some": {"ids": ["order-17"]},
        "what is older than a week": {"all": True, "older_than": 604800},
    }


# -- results ---------------------------------------------------------------------------------------------------------


class OutcomeSerializer(Resource):
    """ScheduleOutcome for the job."""

    outcome = serializers.ChoiceField(choices=("cancelled", "stopping", "outbox"))
    example: ClassVar = {"outcome": "cancelled"}


class MovedSerializer(Resource):
    """ScheduleOutcome for the job, and its due time."""

    outcome = serializers.ChoiceField(choices=("moved", "outbox"))
    due = TimeField(allow_null=True, help_text="null if Redis does not have the change yet")
    example: ClassVar = {"outcome": "moved", "due": "2026-11-21T11:23:43.123Z"}


class ResultSerializer(Resource):
    """Result for one of many jobs."""

    id = serializers.CharField(allow_null=True, help_text="null if it was skipped")
    outcome = serializers.CharField()


class ResultsSerializer(Resource):
    """ScheduleOutcome for each job, in the order of the request."""

    results = ResultSerializer(many=True)
    counts = _COUNTS

    @staticmethod
    def example_of(*outcomes: str) -> dict[str, Any]:
        """Return an example with a job for each outcome."""
        results = [{"id": f"order-{number}", "outcome": outcome} for number, outcome in enumerate(outcomes, 17)]
        return {"results": results, "counts": dict(Counter(outcomes))}


class BulkSerializer(Resource):
    """Counts of a verb applied to all matching jobs. It stops after about ten seconds: repeat the call then."""

    counts = serializers.DictField(child=serializers.IntegerField())
    complete = serializers.BooleanField(help_text="false: there is more to do, call again")
    seen = serializers.IntegerField()
    total = serializers.IntegerField()
    cursor = serializers.CharField(
        **ADDED, help_text="with `where` or `per_second`, if it is not complete: send it with the next request"
    )

    def to_representation(self, changed: Mapping[str, Any]) -> Any:
        """Return the counts with the cursor, if there is one."""
        cursor = changed.get("cursor")
        return super().to_representation(changed) | ({"cursor": cursor} if cursor else {})

    @staticmethod
    def example_of(outcome: str) -> dict[str, Any]:
        """Return an example in which all jobs have this outcome."""
        return {"counts": {outcome: 1203}, "complete": True, "seen": 1203, "total": 1203}


def results_or_bulk(name: str, *outcomes: str) -> Any:
    """Return the schema of the response of a verb that takes ids or all, with an example of some outcomes."""
    examples = {"some": ResultsSerializer.example_of(*outcomes), "all": BulkSerializer.example_of(outcomes[0])}
    return one_of(name, ResultsSerializer, BulkSerializer, examples=examples)

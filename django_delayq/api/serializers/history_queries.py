"""Queries of the history."""

from __future__ import annotations

from rest_framework import serializers

from .base import Resource
from .fields import LimitField, QueryMomentField, TextQueryField
from .pipeline_runs import KINDS, STATES


class QueueQuery(Resource):
    """Query filter by queue."""

    queue = TextQueryField(help_text="of this queue only")


class PeriodQuery(QueueQuery):
    """Query filter by queue, task and period."""

    task = TextQueryField(help_text="of this task only")
    vars()["from"] = QueryMomentField(
        default=None, help_text="hours that begin at this moment or later: ISO 8601 with offset, or Unix seconds"
    )
    to = QueryMomentField(default=None, help_text="hours that begin before this moment")


class _Page(Resource):
    cursor = TextQueryField(
        max_length=200,
        help_text="that of the page before; the other parameters stay as they were",
    )
    limit = LimitField(1000)


class HoursQuery(PeriodQuery, _Page):
    """Query of the paginated list of hours."""


class RunsQuery(_Page):
    """Query of the list of pipeline runs."""

    kind = serializers.ChoiceField(choices=KINDS, default=None, help_text="of this kind only")
    state = serializers.ChoiceField(choices=STATES, default=None, help_text="in this state only")
    run_id = TextQueryField(help_text="runs with this run_id only")

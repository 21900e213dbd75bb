"""Limit endpoints: limits over all workers with the due jobs that wait behind them; set and delete them at run time."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from .. import connections, limits
from ..core.limits import Limiter
from ..core.times import iso_of
from ..status.json_form import limit_as_json
from .base import ApiView, operation
from .fields import IntField, Query, RateField, Resource, Shown, TextField, TimeField
from .queues import live


class LimitsQuery(Query):
    """Query of the limits of a queue."""

    cursor = TextField(255, default="", help_text="of the page before")


class GroupQuery(Query):
    """Query of a limit of a queue."""

    group = TextField(255, default="", help_text="of this group; empty = of the whole queue")


class NewTaskLimit(Resource):
    """Limit over all workers; at least one of `concurrency` and `rate`."""

    concurrency = IntField(required=False, min_value=1, max_value=1 << 31, help_text="most jobs at a time")
    rate = RateField(required=False, help_text='starts in a time: "10/s", "1000/m", or a number per second')
    burst = IntField(required=False, min_value=1, max_value=1_000_000, help_text="starts that may follow at once")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Refuse a limit without numbers."""
        if not attrs.keys() & {"concurrency", "rate"}:
            raise serializers.ValidationError("give concurrency or rate, or both")
        return attrs


class NewLimit(NewTaskLimit):
    """Limit over all workers of a queue, or of one of its groups."""

    group = TextField(128, default=None, help_text="missing = of the whole queue")


class LimitStatus(Shown):
    """Limit over all workers, and the due jobs that wait behind it."""

    kind = serializers.CharField(help_text="queue, task or group")
    name = serializers.CharField(help_text="of the queue, the task or the group")
    concurrency = serializers.IntegerField(allow_null=True)
    rate = serializers.FloatField(allow_null=True, help_text="starts per second")
    burst = serializers.IntegerField(allow_null=True)
    at_run_time = serializers.BooleanField(help_text="some of the numbers were set at run time")
    leases = serializers.IntegerField(help_text="jobs that run under its concurrency")
    jobs = serializers.IntegerField(help_text="due jobs that wait behind it")
    since = TimeField(allow_null=True, help_text="when the first of these was due")
    next_start = TimeField(allow_null=True, help_text="when the next one may start; null = when a running one ends")


class LimitsPage(Shown):
    """Limits of a queue, those with the most waiting jobs first."""

    limits = LimitStatus(many=True)
    due = serializers.IntegerField(help_text="due jobs of groups, or behind a limit of their task or queue, in all")
    since = TimeField(allow_null=True, help_text="when the first of these was due")
    unreachable = serializers.BooleanField(help_text="of a cluster: some shards did not answer")
    cursor = serializers.CharField(allow_null=True, help_text="of the next page of groups; null = there is none")


class JobLimits(ApiView):
    """Limits over all workers."""

    tag = "queues"

    @operation("view", returns=LimitsPage, query=LimitsQuery)
    def list_limits(self, request: Request, queue: str) -> Response:
        """List the limits over all workers of a queue, and the due jobs behind them.

        Those of the queue itself, its tasks and its groups. A page has some hundred groups in the order of their names,
        and its limits with the most waiting jobs first. A job waits behind the limit that allows the fewest starts; so
        a limit of the queue or of a task may be on several pages, each with the jobs of its groups.
        """
        after = self.read_query(request, LimitsQuery)["cursor"]
        (page,) = limits.pages([live(queue)], after=after, partial=True)
        shown = [limit_as_json(one) for one in page.limits]
        values = {"due": page.due, "since": iso_of(page.since_ms), "unreachable": page.unreachable}
        return Response({"limits": shown, **values, "cursor": page.more or None})

    @operation("operate", reads=NewLimit, returns={204: None})
    def set_limit(self, request: Request, queue: str) -> Response:
        """Set a limit over all workers of a queue or a group, at run time.

        Its numbers stand above those in settings and code until they are deleted.
        """
        numbers = self.read(request, NewLimit)
        return _set_limit(limits.name_of(live(queue).name, group=numbers.pop("group")), numbers)

    @operation("operate", returns={204: None}, query=GroupQuery)
    def delete_limit(self, request: Request, queue: str) -> Response:
        """Delete what was set at run time of the limit of a queue or a group."""
        group = self.read_query(request, GroupQuery)["group"]
        return _set_limit(limits.name_of(live(queue).name, group=group or None), None)

    @operation("operate", reads=NewTaskLimit, returns={204: None})
    def set_task_limit(self, request: Request, task: str) -> Response:
        """Set a limit over all workers of a task, at run time, in all queues."""
        return _set_limit(limits.name_of(task=task), self.read(request, NewTaskLimit))

    @operation("operate", returns={204: None})
    def delete_task_limit(self, request: Request, task: str) -> Response:
        """Delete what was set at run time of the limit of a task."""
        return _set_limit(limits.name_of(task=task), None)


def _set_limit(name: str, numbers: dict[str, Any] | None) -> Response:
    found = None if numbers is None else limits.numbers_of(**numbers)
    Limiter(connections.hurried_broker().registry).set(name, found)
    return Response(status=204)

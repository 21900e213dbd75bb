"""Limit endpoints: limits over all workers with the due jobs that wait behind them; set and delete them at run time."""

from __future__ import annotations

from typing import Any

from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import BooleanField, CharField, FloatField, IntegerField

from .. import connections, limits
from ..core.limits import Limiter
from ..core.options import Check, check_group, check_rate
from ..core.times import iso_of
from ..status.json_form import limit_as_json
from .base import ApiView, operation
from .fields import Member, Resource, Shown, TimeField, text, whole
from .queues import live


class LimitsQuery(Resource):
    """Query of the limits of a queue.

    Attributes:
        cursor: of the page before.
    """

    cursor = text(255, default="")


class GroupQuery(Resource):
    """Query of a limit of a queue.

    Attributes:
        group: of this group; empty = of the whole queue.
    """

    group = text(255, default="")


class NewTaskLimit(Resource):
    """Limit over all workers; at least one of `concurrency` and `rate`.

    Attributes:
        concurrency: most jobs at a time.
        rate: starts in a time: "10/s", "1000/m", or a number per second.
        burst: starts that may follow at once.
    """

    concurrency = whole(1, 1 << 31, required=False)
    rate = Member(
        Check(check_rate, {"oneOf": [{"type": "string", "maxLength": 40}, {"type": "number", "minimum": 0}]}),
        required=False,
    )
    burst = whole(1, 1_000_000, required=False)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Refuse a limit without numbers."""
        if not attrs.keys() & {"concurrency", "rate"}:
            raise ValidationError("give concurrency or rate, or both")
        return attrs


class NewLimit(NewTaskLimit):
    """Limit over all workers of a queue, or of one of its groups.

    Attributes:
        group: missing = of the whole queue.
    """

    group = Member(Check(check_group, {"type": "string", "minLength": 1, "maxLength": 128}), default=None)


class LimitStatus(Shown):
    """Limit over all workers, and the due jobs that wait behind it.

    Attributes:
        kind: queue, task or group.
        name: of the queue, the task or the group.
        rate: starts per second.
        at_run_time: some of the numbers were set at run time.
        leases: jobs that run under its concurrency.
        jobs: due jobs that wait behind it.
        since: when the first of these was due.
        next_start: when the next one may start; null = when a running one ends.
    """

    kind = CharField()
    name = CharField()
    concurrency = IntegerField(allow_null=True)
    rate = FloatField(allow_null=True)
    burst = IntegerField(allow_null=True)
    at_run_time = BooleanField()
    leases = IntegerField()
    jobs = IntegerField()
    since = TimeField(allow_null=True)
    next_start = TimeField(allow_null=True)


class LimitsPage(Shown):
    """Limits of a queue, those with the most waiting jobs first.

    Attributes:
        due: due jobs of groups, or behind a limit of their task or queue, in all.
        since: when the first of these was due.
        unreachable: of a cluster: some shards did not answer.
        cursor: of the next page of groups; null = there is none.
    """

    limits = LimitStatus(many=True)
    due = IntegerField()
    since = TimeField(allow_null=True)
    unreachable = BooleanField()
    cursor = CharField(allow_null=True)


class JobLimits(ApiView):
    """Limits over all workers."""

    tag = "queues"

    @operation("GET v1/queues/{queue}/limits", "view", returns=LimitsPage, query=LimitsQuery)
    def list_limits(self, request: Request, queue: str) -> Response:
        """List the limits over all workers of a queue, and the due jobs behind them.

        Those of the queue itself, its tasks and its groups. A page has some hundred groups in the order of their names,
        and its limits with the most waiting jobs first. A job waits behind the limit that allows the fewest starts; so
        a limit of the queue or of a task may be on several pages, each with the jobs of its groups.
        """
        after = self.read_query(request)["cursor"]
        (page,) = limits.pages([live(queue)], after=after, partial=True)
        shown = [limit_as_json(one) for one in page.limits]
        values = {"due": page.due, "since": iso_of(page.since_ms), "unreachable": page.unreachable}
        return Response({"limits": shown, **values, "cursor": page.more or None})

    @operation("PUT v1/queues/{queue}/limits", "operate", reads=NewLimit, returns={204: None})
    def set_limit(self, request: Request, queue: str) -> Response:
        """Set a limit over all workers of a queue or a group, at run time.

        Its numbers stand above those in settings and code until they are deleted.
        """
        numbers = self.read(request)
        return _set_limit(limits.name_of(live(queue).name, group=numbers.pop("group")), numbers)

    @operation("DELETE v1/queues/{queue}/limits", "operate", returns={204: None}, query=GroupQuery)
    def delete_limit(self, request: Request, queue: str) -> Response:
        """Delete what was set at run time of the limit of a queue or a group."""
        group = self.read_query(request)["group"]
        return _set_limit(limits.name_of(live(queue).name, group=group or None), None)

    @operation("PUT v1/tasks/{task}/limits", "operate", reads=NewTaskLimit, returns={204: None})
    def set_task_limit(self, request: Request, task: str) -> Response:
        """Set a limit over all workers of a task, at run time, in all queues."""
        return _set_limit(limits.name_of(task=task), self.read(request))

    @operation("DELETE v1/tasks/{task}/limits", "operate", returns={204: None})
    def delete_task_limit(self, request: Request, task: str) -> Response:
        """Delete what was set at run time of the limit of a task."""
        return _set_limit(limits.name_of(task=task), None)


def _set_limit(name: str, numbers: dict[str, Any] | None) -> Response:
    found = None if numbers is None else limits.numbers_of(**numbers)
    Limiter(connections.hurried_broker().registry).set(name, found)
    return Response(status=204)

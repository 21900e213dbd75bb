"""Jobs as they are at one moment, and the queries of their lists."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from drf_spectacular.utils import OpenApiExample
from rest_framework import serializers

from ...core.errors import InvalidJob
from ...core.inputs import check_id, short
from ...core.job_view import JobView
from ...core.times import ms_of, parse_moment
from ...settings.conf import mask
from ..job_content import content_of, payloads_of
from ..values import clean_text, count_of, masked_text, number_of
from .base import ADDED, Resource
from .fields import (
    CursorField,
    IdField,
    KeyField,
    LimitField,
    ListField,
    MaskedObjectField,
    MaskedTextField,
    ObjectField,
    TextQueryField,
    TimeField,
)
from .where import WhereQuery, filter_of

STATES: Final = ("delayed", "ready", "reserved", "morgue")
#: state of a list → place in the inspector and its orders, default first
LISTS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "waiting": ("waiting", ("due",)),
    "delayed": ("waiting", ("due",)),
    "ready": ("waiting", ("due",)),
    "reserved": ("reserved", ("deadline",)),
    "gated": ("reserved", ("deadline",)),
    "failed": ("failed", ("updated", "failures")),
}
_MORGUE: Final = ("morgue", ("updated", "id"))
_MOST: Final = 250
_DUE: Final = "2026-11-21T11:23:43.123Z"


class _CountField(serializers.IntegerField):
    def get_attribute(self, view: JobView) -> int:
        return view.history[self.field_name or ""]


class JobErrorSerializer(Resource):
    """Last error of a job, as far as it was stored."""

    vars()["class"] = serializers.CharField(help_text="of the exception; empty if a text was given")
    message = serializers.CharField()
    traceback = serializers.CharField()

    def to_representation(self, view: JobView) -> Any:
        """Return the error with its secrets masked; None if there was none."""
        error = view.error
        name = str(error.get("class") or view.error_class or "")
        if not (error or name):
            return None
        return {
            "class": clean_text(name),
            "message": masked_text(str(error.get("message") or "")),
            "traceback": clean_text(mask().traceback(str(error.get("traceback") or ""))),
        }


#: form of arguments that are shown, not handed out
_FOR_READING: Final = (
    "secrets are masked; values that JSON lacks are texts and numbers: moments in ISO 8601, spans in seconds, decimals "
    "and UUIDs as texts, bytes in base64. A reserved job has them as they are stored"
)


class JobSerializer(Resource):
    """Job as it was at one moment. Arguments are masked as in the admin.

    Content: `args` and `kwargs` of a plain task, `payloads` of a merged one, `body` or `body_base64` in a queue of kind
    pull; no content if `cut` is true.
    """

    queue = serializers.CharField(source="job.queue")
    id = serializers.CharField(help_text="unique within its queue")
    key = KeyField(
        source="job.key", help_text="identifies this generation of the id; a later job of the id has another one"
    )
    task = serializers.CharField(source="job.task", help_text='"raw" in a queue of kind pull')
    state = serializers.ChoiceField(choices=STATES)
    created = TimeField(
        source="created_ms",
        allow_null=True,
        help_text="when it was scheduled, by the caller's clock; null if the request had an Idempotency-Key or the job "
        "is of a bulk load",
    )
    due = TimeField(source="due_ms", allow_null=True)
    priority = serializers.IntegerField(source="job.priority", help_text="0 (first) … 7 (last)")
    merged = serializers.BooleanField(source="job.merged")
    failures = serializers.IntegerField(source="job.failures", help_text="counted attempts that failed")
    reserves = serializers.IntegerField(source="job.reserves", help_text="how often it was reserved")
    crashes = serializers.IntegerField(
        source="job.crashes", help_text="failures whose process died, or whose lease ran out"
    )
    releases = _CountField(help_text="how often it was released, uncounted")
    timeouts = _CountField(help_text="how often its time limit or its lease was over while it was held")
    buries = _CountField(help_text="how often it was moved to the morgue")
    kicks = _CountField(help_text="how often it was moved back; this resets failures, reserves and crashes only")
    quarantined = serializers.BooleanField(help_text="its process died, so it runs alone in one now; see the error")
    parked = serializers.BooleanField(source="job.parked", help_text="due, but it waits for a free permit of its task")
    context = MaskedObjectField(source="job.context")  # type: ignore[assignment]
    size = serializers.IntegerField(help_text="bytes of the arguments as they are stored")
    cut = serializers.BooleanField(help_text="the arguments are too large for a list; GET the job to read them")
    args = ListField(**ADDED, help_text=_FOR_READING)
    kwargs = ObjectField(**ADDED, help_text=_FOR_READING)
    payloads = ListField(**ADDED, help_text=f"the first 50; {_FOR_READING}")
    payload_count = serializers.IntegerField(**ADDED)
    body = serializers.CharField(**ADDED, help_text="if the bytes are UTF-8 text")
    body_base64 = serializers.CharField(**ADDED, help_text="if they are not")
    gated_due = TimeField(
        source="gated_due_ms",
        allow_null=True,
        help_text="due time of new content, which waits for the end of the attempt",
    )
    worker = serializers.CharField(source="job.worker", allow_null=True)
    lease_ends = TimeField(source="deadline_ms", allow_null=True)
    buried = TimeField(source="buried_ms", allow_null=True)
    reason = MaskedTextField(help_text="why it is in the morgue")
    outcome = serializers.CharField(help_text="of its last attempt")
    error = JobErrorSerializer(source="*", allow_null=True)
    example: ClassVar = {
        "queue": "orders",
        "id": "order-5",
        "key": "6f1c0d3a" * 4,
        "task": "shop.cancel_order",
        "state": "delayed",
        "created": "2026-11-21T10:53:43.123Z",
        "due": _DUE,
        "priority": 4,
        "merged": False,
        "failures": 0,
        "reserves": 0,
        "crashes": 0,
        "releases": 0,
        "timeouts": 0,
        "buries": 0,
        "kicks": 0,
        "quarantined": False,
        "parked": False,
        "context": {},
        "size": 3,
        "cut": False,
        "args": [5],
        "kwargs": {},
        "gated_due": None,
        "worker": None,
        "lease_ends": None,
        "buried": None,
        "reason": "",
        "outcome": "",
        "error": None,
    }

    def to_representation(self, view: JobView) -> Any:
        """Return the job with its secrets masked.

        ``payloads_of`` in the context is a function that returns the payloads of a merged job; without it only their
        number is included.
        """
        rendered = super().to_representation(view)
        if view.state != "reserved" or not view.job.worker:
            rendered["worker"] = None
        if view.job.merged:
            payloads = self.context.get("payloads_of")  # type: ignore[attr-defined]  # the property, not the member
            return rendered | payloads_of(view, payloads and payloads(view))
        return rendered if view.cut else rendered | content_of(view.job)


class JobsPageSerializer(Resource):
    """One page of a list of jobs."""

    jobs = JobSerializer(many=True)
    cursor = serializers.CharField(allow_null=True, help_text="for the next page; null at the end")
    examined = serializers.IntegerField(
        help_text="how many jobs were read for this page. With conditions that no index covers, it ends after about 2 "
        "seconds; it may have fewer jobs than `limit`, even none, and still have a cursor"
    )
    unreachable_shards = serializers.IntegerField(
        help_text="of a cluster: shards without an answer, whose jobs are missing here"
    )
    example: ClassVar = {"cursor": None, "examined": 1, "unreachable_shards": 0}


_BURIED: Final = {
    **JobSerializer.example,
    "state": "morgue",
    "failures": 3,
    "reserves": 3,
    "buried": _DUE,
    "reason": "exhausted",
    "outcome": "exhausted",
    "error": {"class": "TimeoutError", "message": "no answer", "traceback": ""},
}
#: example of a page of the morgue
BURIED: Final = OpenApiExample(
    "example", {"jobs": [_BURIED], "cursor": None, "examined": 1, "unreachable_shards": 0}, response_only=True
)


# -- queries ---------------------------------------------------------------------------------------------------------


class GravesQuery(Resource):
    """Query for the morgue records of one id."""

    cursor = CursorField(default="", help_text="of the page before")
    limit = LimitField(_MOST)


class _ListQuery(WhereQuery):
    """Query for one page of a list, in one order. The jobs on it meet all conditions."""

    order = serializers.ChoiceField(choices=("asc", "desc"), default="asc", help_text="asc (default) or desc")
    cursor = CursorField(default="", help_text="of the page before; send the other parameters unchanged")
    limit = LimitField(_MOST)
    id = IdField(default=None, help_text="this id only; not together with min, max or cursor")
    min = TextQueryField(
        max_length=1000,
        help_text="from this moment (ISO 8601 with offset, or Unix seconds), number of failures or id on",
    )
    max = TextQueryField(max_length=1000, help_text="up to this one, inclusive")

    def list_of(self, attrs: dict[str, Any]) -> tuple[str, tuple[str, ...]]:
        """Return the place in the inspector and its orders."""
        return _MORGUE

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Return the members with ``place``, the order that applies, and the bounds in its unit."""
        place, orders = self.list_of(attrs)
        where = filter_of(attrs)
        by = attrs["by"] or (orders[0] if attrs["min"] or attrs["max"] else where.best_order(place, orders))
        if by not in orders:
            state = attrs.get("state") or "waiting"
            raise _wrong("by", f"jobs that are {state} are ordered by {' or '.join(orders)}, not by {by}")
        for name in ("min", "max", "cursor") if attrs["id"] else ():
            if attrs[name]:
                raise _wrong(name, f"id selects one job, so {name} has no effect; leave it out")
        bounds = {name: _bound(name, attrs[name], by) for name in ("min", "max")}
        return {**attrs, "place": place, "by": by, "where": where, **bounds}


class JobsQuery(_ListQuery):
    """Query for a list of jobs."""

    state = serializers.ChoiceField(
        choices=tuple(LISTS),
        default=None,
        help_text="default waiting: delayed and ready together. gated: reserved jobs with new content for their ids",
    )
    by = serializers.ChoiceField(
        choices=("due", "deadline", "updated", "failures"),
        default=None,
        help_text="the order: due (waiting, delayed, ready), deadline (reserved, gated), updated or failures (failed); "
        "default: the first one, or the one that reads fewest jobs",
    )

    def list_of(self, attrs: dict[str, Any]) -> tuple[str, tuple[str, ...]]:
        """Return the place of the state and its orders."""
        return LISTS[attrs["state"] or "waiting"]


class MorgueQuery(_ListQuery):
    """Query for a list of morgue records."""

    by = serializers.ChoiceField(
        choices=_MORGUE[1], default=None, help_text="the order: updated (default; when they were buried) or id"
    )


def _wrong(name: str, text: str) -> serializers.ValidationError:
    return serializers.ValidationError({name: [text]})


def _bound(name: str, text: str, by: str) -> float | str | None:
    """Return a bound in the unit of the order: Unix ms, a number of failures, or an id."""
    if not text:
        return None
    try:
        if by == "id":
            return check_id(text)
        if by == "failures":
            failures = count_of(text)
            if failures is None:
                raise InvalidJob(f"{name} is a number of failures, not {short(text)}")
            return failures
        seconds = number_of(text)
        ms = ms_of(parse_moment(text)) if seconds is None else round(seconds * 1000, 3)
    except InvalidJob as error:
        raise _wrong(name, str(error)) from None
    if not abs(ms) < 2**53:
        raise _wrong(name, f"{name} is a moment that no job can have; Unix seconds are expected")
    return ms

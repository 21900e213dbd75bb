"""Requests: serializers that check bodies and queries, and describe them in the OpenAPI document.

Jobs to schedule are read and described by :mod:`.entries`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Any, ClassVar, Final

from rest_framework import serializers

from ..core.errors import InvalidJob
from ..core.figures import MINUTES
from ..core.inputs import check_holder, check_id, check_number, short
from ..core.job import MAX_ID_BYTES, PRIORITIES
from ..core.job_filter import CONDITIONS, MOST_TEXT_BYTES, JobFilter
from ..core.layouts import DIRECTIONS, PRIORITY_MODES
from ..core.records.frames import CHUNK
from ..core.records.keys import MAX_SHARDS
from ..core.times import datetime_of, ms_of, parse_moment
from ..history.records import DIED
from ..models.history import PipelineRun
from ..outbox.rows import DueTime
from ..scheduling.build import job_rules
from .fields import (
    CursorField,
    DelayField,
    Entry,
    FlagField,
    IdField,
    IdsField,
    IntField,
    KeyField,
    MomentField,
    NumberField,
    Query,
    QueueNameField,
    Resource,
    SecondsField,
    TextField,
    checked,
    exactly_one,
    number_of,
    page_cursor,
)
from .parsing import LONGEST_WAIT
from .settle import LEASE, LONGEST_TTR, TTR, HeldEntry, read_error, read_lease

STATES: Final = (*PipelineRun.State.values, DIED)
KINDS: Final = tuple(PipelineRun.Kind.values)
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
_MOST_FAILURES: Final = 2**31 - 1
_MOST_QUEUES: Final = 50
_MOST_HELD: Final = 1000
_NAME_CHARS: Final = 200


def _wrong(name: str, text: str) -> serializers.ValidationError:
    return serializers.ValidationError({name: [text]})


# -- conditions ------------------------------------------------------------------------------------------------------


#: kind of a condition → its field
_KINDS: Final[Mapping[str, Any]] = {
    "text": partial(TextField, MOST_TEXT_BYTES),
    "id": partial(TextField, MAX_ID_BYTES),
    "moment": MomentField,
    "failures": partial(IntField, min_value=0, max_value=_MOST_FAILURES),
    "flag": FlagField,
}


def _conditions() -> dict[str, Any]:
    """Return a field for each condition. The names of moments have no unit."""
    return {
        name.removesuffix("_ms"): _KINDS[kind](required=False, help_text=f"jobs {text}")
        for name, (kind, text) in CONDITIONS.items()
    }


def filter_of(attrs: Mapping[str, Any]) -> JobFilter:
    """Return the filter of validated members, which may be missing.

    Raises:
        ValidationError: a value that no job can have.
    """
    given: dict[str, Any] = {}
    for name, (kind, _) in CONDITIONS.items():
        value = attrs.get(name.removesuffix("_ms"))
        if value is not None:
            given[name] = _ms_of(value) if kind == "moment" else value
    try:
        return JobFilter(**given)
    except InvalidJob as error:
        raise serializers.ValidationError(str(error)) from None


def _ms_of(moment: datetime | float) -> float:
    return ms_of(moment) if isinstance(moment, datetime) else round(moment * 1000, 3)


class Where(Resource):
    """Conditions of a bulk operation, at least one; each job meets all of them."""

    def get_fields(self) -> dict[str, Any]:
        """Return a member for each condition."""
        return _conditions()

    def validate(self, attrs: dict[str, Any]) -> Any:
        """Return the filter."""
        where = filter_of(attrs)
        if where.is_empty:
            raise serializers.ValidationError("give at least one condition, or all: true in place of where")
        return where


def _limit(most: int) -> IntField:
    return IntField(default=100, min_value=1, max_value=most, help_text=f"1 to {most}, default 100")


# -- lists of jobs ---------------------------------------------------------------------------------------------------


class GravesQuery(Query):
    """Query for the morgue records of one id."""

    cursor = CursorField(default="", help_text="of the page before")
    limit = _limit(_MOST)


class _ListQuery(Query):
    """Query for one page of a list, in one order. The jobs on it meet all conditions."""

    order = serializers.ChoiceField(choices=("asc", "desc"), default="asc", help_text="asc (default) or desc")
    cursor = CursorField(default="", help_text="of the page before; send the other parameters unchanged")
    limit = _limit(_MOST)
    id = IdField(default=None, help_text="this id only; not together with min, max or cursor")
    min = TextField(
        1000,
        default="",
        help_text="from this moment (ISO 8601 with offset, or Unix seconds), number of failures or id on",
    )
    max = TextField(1000, default="", help_text="up to this one, inclusive")

    def get_fields(self) -> dict[str, Any]:
        """Return the declared members and a parameter for each condition."""
        return super().get_fields() | _conditions()

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


def _bound(name: str, text: str, by: str) -> float | str | None:
    """Return a bound in the unit of the order: Unix ms, a number of failures, or an id."""
    if not text:
        return None
    try:
        if by == "id":
            return check_id(text)
        if by == "failures":
            if not (text.isascii() and text.isdigit() and len(text) < 10):
                raise InvalidJob(f"{name} is a number of failures, not {short(text)}")
            return int(text)
        seconds = number_of(text)
        ms = ms_of(parse_moment(text)) if seconds is None else round(seconds * 1000, 3)
    except InvalidJob as error:
        raise _wrong(name, str(error)) from None
    if not abs(ms) < 2**53:
        raise _wrong(name, f"{name} is a moment that no job can have; Unix seconds are expected")
    return ms


# -- verbs on jobs ---------------------------------------------------------------------------------------------------


class Due(Resource):
    """New due time; exactly one of the two."""

    delay = DelayField(required=False, help_text="seconds from now, negative = now")
    at = MomentField(required=False, help_text="ISO 8601 with offset, or Unix seconds")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Replace the two by ``due``, a :class:`DueTime`."""
        exactly_one(attrs, "delay", "at")
        if "delay" in attrs:
            return {**attrs, "due": DueTime(due_ms=None, delay_ms=attrs["delay"])}
        try:
            due_ms, delay_ms = job_rules().due(None, attrs["at"])
            return {**attrs, "due": DueTime(due_ms=due_ms, delay_ms=delay_ms)}
        except InvalidJob as error:
            raise _wrong("at", str(error)) from None


class Reschedule(Due):
    """New due time for many jobs."""

    ids = IdsField()


class Matching(Resource):
    """Jobs that meet conditions; without them all jobs to which the verb applies."""

    where = Where(required=False, help_text="only jobs in Redis that meet these conditions")
    cursor = CursorField(required=False, help_text="with `where`: of the response before, which was not complete")
    #: members of which exactly one is given; () = none is needed
    choices: ClassVar[tuple[str, ...]] = ()
    #: members that go with ``all`` only
    with_all: ClassVar[tuple[str, ...]] = ()
    #: member with which a cursor goes
    cursor_with: ClassVar[str] = "where"

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Check that the members fit together. ``ids`` of the morgue become ``jobs``."""
        if self.choices:
            exactly_one(attrs, *self.choices)
        if "cursor" in attrs and not {"where", self.cursor_with} & attrs.keys():
            raise _wrong("cursor", "this goes with where")
        for name in self.with_all:
            if name in attrs and "all" not in attrs:
                raise _wrong(name, "this goes with all: true")
        return attrs


class IdsOrAll(Matching):
    """Some jobs by their ids, all jobs of the queue, or those that meet conditions."""

    ids = IdsField(required=False)
    all = FlagField(required=False)
    choices = ("ids", "all", "where")


class Grave(Entry):
    """Morgue record by its id, and by its key where an id has several."""

    id = IdField()
    key = KeyField(required=False)

    @classmethod
    def build(cls, values: dict[str, Any]) -> tuple[str, bytes | None]:
        """Return ``(id, key)``."""
        return values["id"], values.get("key")


class _Graves(Matching):
    ids = IdsField(required=False, help_text="of each id the newest record")
    jobs = Grave(many=True, required=False)
    all = FlagField(required=False)
    choices = ("ids", "jobs", "all", "where")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Replace ``ids`` by ``jobs``: without a key the record that was buried last is meant."""
        attrs = super().validate(attrs)
        return {**attrs, "jobs": [(ident, None) for ident in attrs["ids"]]} if "ids" in attrs else attrs


#: cursor of a kick at a pace, written by ``Jobs._kick_at_pace``
_PACE_CURSOR: Final = re.compile(r"[0-9]{1,14}\.[0-9]{3}")


def _kick_cursor(data: object) -> str | float:
    """Return the cursor of a search; of a kick at a pace the next due time, Unix ms."""
    return float(data) if isinstance(data, str) and _PACE_CURSOR.fullmatch(data) else page_cursor(data)


class Kick(_Graves):
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

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Check that the cursor is one of what it continues."""
        attrs = super().validate(attrs)
        if "cursor" in attrs and isinstance(attrs["cursor"], float) != ("per_second" in attrs):
            raise _wrong("cursor", "this is not the cursor of such a response")
        return attrs


class Discard(_Graves):
    """Jobs to delete from the morgue."""

    older_than = SecondsField(required=False, help_text="with `all`: only records that are older than these seconds")
    with_all = ("older_than",)


# -- reserves, and ends of held jobs ---------------------------------------------------------------------------------


def _ttr_ms(data: object) -> int:
    return round(check_number("ttr", data, 1, LONGEST_TTR) * 1000)


def _holder(data: object) -> str:
    if isinstance(data, str) and len(data) > _NAME_CHARS:
        raise InvalidJob(f"this is a name of up to {_NAME_CHARS} characters, not {short(data)}")
    return "" if data == "" else check_holder(data)


#: length of a lease in seconds; its value is in milliseconds
_TtrField: Final = checked(_ttr_ms, type="number", minimum=1, maximum=LONGEST_TTR)
#: name of a holder; "" = the user's name
_HolderField: Final = checked(_holder, type="string", maxLength=_NAME_CHARS)
#: end of a lease as the server returned it; its value is in Unix ms
_LeaseEndField: Final = checked(lambda data: ms_of(parse_moment(data)), type="string", format="date-time")
#: lease of a held job, opaque to clients
LeaseField: Final = checked(read_lease, type="string", pattern=f"^{LEASE.pattern}$")


class _ReserveOptions(Resource):
    max = IntField(default=1, min_value=1, max_value=CHUNK, help_text="maximum number of jobs")
    wait = NumberField(
        default=0.0,
        min_value=0,
        max_value=LONGEST_WAIT,
        help_text="seconds to wait for the first job; under WSGI nothing waits",
    )
    ttr = _TtrField(
        required=False,
        help_text=f"length of the lease in seconds; default: the job's own `ttr`, else {TTR}; touch extends it",
    )
    worker = _HolderField(
        default="",
        help_text="name of the holder as people see it, without control characters; default: the user's name",
    )
    holding = serializers.ListField(
        child=_LeaseEndField(allow_null=True),
        max_length=_MOST_HELD,
        required=False,
        help_text="`lease_ends` of the jobs that the caller holds already, as the server returned them",
    )
    deadline_margin = NumberField(
        required=False,
        min_value=0.1,
        max_value=LONGEST_TTR,
        help_text="with `holding`: end the wait so many seconds before the first of these leases ends",
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Check that the members fit together."""
        for name, other in (("holding", "deadline_margin"), ("deadline_margin", "holding")):
            if name in attrs and other not in attrs:
                raise _wrong(name, f"give {other}, too")
        return attrs


class Reserve(_ReserveOptions):
    """Options of a reserve."""

    id = IdField(required=False, help_text="reserve the job of this id, if it waits")
    early = FlagField(default=False, help_text="with `id`: also before it is due")
    buried = FlagField(default=False, help_text="with `id`: the one buried last, if no job of the id is live")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Check that the members fit together."""
        super().validate(attrs)
        if "id" in attrs and (attrs["max"] != 1 or attrs["wait"]):
            raise _wrong("id", "one job is reserved without waiting; leave max and wait out")
        if "id" in attrs and "holding" in attrs:
            raise _wrong("holding", "one job is reserved without waiting; leave it out")
        for name in ("early", "buried"):
            if attrs[name] and "id" not in attrs:
                raise _wrong(name, "this goes with id")
        return attrs


class ReserveFromMany(_ReserveOptions):
    """Options of a reserve from several queues."""

    queues = serializers.ListField(
        child=TextField(64), min_length=1, max_length=_MOST_QUEUES, help_text="they are served in turn"
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Keep each queue once."""
        return {**super().validate(attrs), "queues": tuple(dict.fromkeys(attrs["queues"]))}


_TEXT: Final = {"type": "string"}
_ErrorField: Final = checked(
    read_error,
    oneOf=[
        _TEXT,
        {
            "type": "object",
            "properties": {"class": _TEXT, "message": _TEXT, "traceback": _TEXT},
            "additionalProperties": False,
        },
    ],
)


class AckEntry(Entry):
    """Held job."""

    id = IdField(help_text="as reserve gave it")
    lease = LeaseField(help_text="opaque; as reserve gave it")
    most = CHUNK

    @classmethod
    def build(cls, values: dict[str, Any]) -> HeldEntry:
        """Return the held job that a valid entry of the request names."""
        return HeldEntry(values.pop("id"), values.pop("lease"), values)


class FailEntry(AckEntry):
    """Held job whose attempt failed."""

    error = _ErrorField(required=False, help_text="a text, or an object with class, message and traceback")
    delay = DelayField(required=False, help_text="seconds until the next attempt, in place of the task's back-off")


class ReleaseEntry(AckEntry):
    """Held job to release."""

    delay = DelayField(required=False, help_text="seconds until it is due again; without it, at its old place")
    priority = IntField(
        required=False,
        min_value=0,
        max_value=PRIORITIES - 1,
        help_text="from now on; 0 is the first",
    )


class BuryEntry(AckEntry):
    """Held job that can never succeed."""

    reason = TextField(200, required=False, help_text="shown with the job in the morgue")


class TouchEntry(AckEntry):
    """Held job whose lease is to be extended."""

    ttr = _TtrField(required=False, help_text="seconds from now on")


class Ack(Resource):
    """Jobs to acknowledge."""

    jobs = AckEntry(many=True)


class Fail(Resource):
    """Jobs whose attempts failed."""

    jobs = FailEntry(many=True)


class Release(Resource):
    """Jobs to release."""

    jobs = ReleaseEntry(many=True)


class Bury(Resource):
    """Jobs to bury."""

    jobs = BuryEntry(many=True)


class Touch(Resource):
    """Jobs whose leases are to be extended."""

    jobs = TouchEntry(many=True)


# -- queues ----------------------------------------------------------------------------------------------------------


_COUNT: Final[dict[str, Any]] = {"required": False, "allow_null": True, "min_value": 1, "max_value": 1 << 40}
_SPAN: Final = {**_COUNT, "max_value": 1e9}


class Limits(Resource):
    """Limits of a queue; null = no limit. A missing member leaves the limit unchanged."""

    max_length = IntField(
        **_COUNT, help_text="maximum live jobs of all shards together; more are refused (429 queue_full)"
    )
    morgue_max = IntField(**_COUNT, help_text="maximum records in its morgue; the oldest are deleted first")
    morgue_ttl = NumberField(**_SPAN, help_text="seconds after which its morgue deletes a record")
    priorities = serializers.ChoiceField(
        PRIORITY_MODES,
        required=False,
        help_text="strict: a more urgent class always goes first; weighted: it goes first more often",
    )
    starve_after = NumberField(
        **_SPAN, help_text="seconds after which a due job goes before more urgent ones, which keep three quarters"
    )


class NewQueue(Limits):
    """Queue to create."""

    name = QueueNameField(help_text="1 to 64 letters, digits, '_', '.' or '-', beginning with a letter")
    kind = serializers.ChoiceField(
        ("python", "pull"),
        required=False,
        help_text="python: run by workers; pull: raw bytes for programs that reserve them",
    )
    shards = IntField(
        required=False,
        min_value=1,
        max_value=MAX_SHARDS,
        help_text="parts of the queue in the present epoch, each on one node of a cluster",
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Drop members that are null: a new queue has no limit to remove."""
        return {name: value for name, value in attrs.items() if value is not None}


class QueuesQuery(Query):
    """Query of the list of queues."""

    names_only = FlagField(default=False, help_text="only their names, which is cheap")


class DeleteQuery(Query):
    """Query of a deletion."""

    force = FlagField(default=False, help_text="also if it has jobs, which are lost")


class DepthQuery(Query):
    """Query of the depth of a queue."""

    minutes = IntField(default=60, min_value=1, max_value=MINUTES, help_text=f"how far back, 1 to {MINUTES}")


class Direction(Resource):
    """Direction in which a queue is paused or resumed."""

    direction = serializers.ChoiceField(tuple(DIRECTIONS), help_text="in: new jobs; out: workers; both")


class Pause(Direction):
    """Direction and length of a pause."""

    seconds = NumberField(
        required=False, min_value=0.001, max_value=1e8, help_text="after which it ends by itself; missing = never"
    )


class Reshard(Resource):
    """New number of shards."""

    shards = IntField(min_value=1, max_value=MAX_SHARDS)


class WatchedQueue(Resource):
    """Queue that a worker is to serve, or no longer."""

    queue = QueueNameField()


# -- history ---------------------------------------------------------------------------------------------------------


class HistoryQuery(Query):
    """Query of a page of a list of the history."""

    cursor = TextField(200, default="", help_text="that of the page before; the other parameters stay as they were")
    limit = _limit(1000)


class HoursQuery(HistoryQuery):
    """Query of the list of hours."""

    queue = TextField(255, default="", help_text="of this queue only")
    task = TextField(255, default="", help_text="of this task only")
    vars()["from"] = MomentField(
        default=None, help_text="hours that begin at this moment or later: ISO 8601 with offset, or Unix seconds"
    )
    to = MomentField(default=None, help_text="hours that begin before this moment")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Return the moments in UTC."""
        for name in ("from", "to"):
            try:
                attrs[name] = None if attrs[name] is None else datetime_of(_ms_of(attrs[name]))
            except (OverflowError, ValueError, OSError):
                raise _wrong(name, "this is a moment that no calendar has") from None
        return attrs


class RunsQuery(HistoryQuery):
    """Query of the list of pipeline runs."""

    kind = serializers.ChoiceField(choices=KINDS, default=None, help_text="of this kind only")
    state = serializers.ChoiceField(choices=STATES, default=None, help_text="in this state only")
    run_id = TextField(255, default="", help_text="runs with this run_id only")

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
from ..core.job import PRIORITIES
from ..core.job_filter import CONDITIONS, MOST_TEXT_BYTES, JobFilter
from ..core.layouts import DIRECTIONS, PRIORITY_MODES
from ..core.options import Check
from ..core.records.frames import CHUNK
from ..core.records.keys import MAX_SHARDS
from ..core.times import ms_of, parse_moment
from ..outbox.rows import DueTime
from ..scheduling.build import job_rules
from .fields import (
    CURSOR,
    DELAY,
    FLAG,
    ID,
    KEY,
    MOMENT,
    QUEUE_NAME,
    SPAN,
    Entry,
    Member,
    Resource,
    choice,
    exactly_one,
    items,
    number,
    number_of,
    text,
    whole,
)
from .parsing import LONGEST_WAIT
from .settle import LEASE, LONGEST_TTR, HeldEntry, read_error, read_lease

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


#: kind of a condition → its member
_KINDS: Final[Mapping[str, Any]] = {
    "text": partial(text, MOST_TEXT_BYTES),
    "id": partial(text, ID.schema["maxLength"]),
    "moment": partial(Member, MOMENT),
    "failures": partial(whole, 0, _MOST_FAILURES),
    "flag": partial(Member, FLAG),
}


def _conditions() -> dict[str, Any]:
    """Return a member for each condition. The names of moments have no unit."""
    return {
        name.removesuffix("_ms"): _KINDS[kind](required=False, help_text=f"jobs {what}")
        for name, (kind, what) in CONDITIONS.items()
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
            given[name] = ms_of_moment(value) if kind == "moment" else value
    try:
        return JobFilter(**given)
    except InvalidJob as error:
        raise serializers.ValidationError(str(error)) from None


def ms_of_moment(moment: datetime | float) -> float:
    return ms_of(moment) if isinstance(moment, datetime) else round(moment * 1000, 3)


class Where(Resource):
    """Conditions of a bulk operation, at least one; each job meets all of them."""

    def declared(self) -> dict[str, Any]:
        """Return a member for each condition."""
        return _conditions()

    def validate(self, attrs: dict[str, Any]) -> Any:
        """Return the filter."""
        where = filter_of(attrs)
        if where.is_empty:
            raise serializers.ValidationError("give at least one condition, or all: true in place of where")
        return where


# -- lists of jobs ---------------------------------------------------------------------------------------------------


class GravesQuery(Resource):
    """Query for the morgue records of one id.

    Attributes:
        cursor: of the page before.
    """

    cursor = Member(CURSOR, default="")
    limit = whole(1, _MOST, default=100)


class _ListQuery(GravesQuery):
    """Query for one page of a list, in one order. The jobs on it meet all conditions.

    Attributes:
        order: asc (default) or desc.
        cursor: of the page before; send the other parameters unchanged.
        id: this id only; not together with min, max or cursor.
        min: from this moment (ISO 8601 with offset, or Unix seconds), number of failures or id on.
        max: up to this one, inclusive.
    """

    order = choice("asc", "desc", default="asc")
    id = Member(ID, default=None)
    min = text(1000, default="")
    max = text(1000, default="")

    def declared(self) -> dict[str, Any]:
        """Return the declared members and a parameter for each condition."""
        return super().declared() | _conditions()

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
    """Query for a list of jobs.

    Attributes:
        state: default waiting: delayed and ready together. gated: reserved jobs with new content for their ids.
        by: the order: due (waiting, delayed, ready), deadline (reserved, gated), updated or failures (failed); default:
            the first one, or the one that reads fewest jobs.
    """

    state = choice(*LISTS, default=None)
    by = choice("due", "deadline", "updated", "failures", default=None)

    def list_of(self, attrs: dict[str, Any]) -> tuple[str, tuple[str, ...]]:
        """Return the place of the state and its orders."""
        return LISTS[attrs["state"] or "waiting"]


class MorgueQuery(_ListQuery):
    """Query for a list of morgue records.

    Attributes:
        by: the order: updated (default; when they were buried) or id.
    """

    by = choice(*_MORGUE[1], default=None)


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
    """New due time; exactly one of the two.

    Attributes:
        delay: seconds from now, negative = now.
        at: ISO 8601 with offset, or Unix seconds.
    """

    delay = Member(DELAY, required=False)
    at = Member(MOMENT, required=False)

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

    ids = items(ID, 1)


class Matching(Resource):
    """Jobs that meet conditions; without them all jobs to which the verb applies.

    Attributes:
        where: only jobs in Redis that meet these conditions.
        cursor: with `where`: of the response before, which was not complete.
    """

    where = Where(required=False)
    cursor = Member(CURSOR, required=False)
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

    ids = items(ID, 1, required=False)
    all = Member(FLAG, required=False)
    choices = ("ids", "all", "where")


class Grave(Entry):
    """Morgue record by its id, and by its key where an id has several."""

    id = Member(ID)
    key = Member(KEY, required=False)

    def validate(self, attrs: dict[str, Any]) -> Any:
        """Return ``(id, key)``."""
        return attrs["id"], attrs.get("key")


class _Graves(Matching):
    """Records of the morgue.

    Attributes:
        ids: of each id the newest record.
    """

    ids = items(ID, 1, required=False)
    jobs = Grave(many=True, required=False)
    all = Member(FLAG, required=False)
    choices = ("ids", "jobs", "all", "where")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Replace ``ids`` by ``jobs``: without a key the record that was buried last is meant."""
        attrs = super().validate(attrs)
        return {**attrs, "jobs": [(ident, None) for ident in attrs["ids"]]} if "ids" in attrs else attrs


#: cursor of a kick at a pace, written by ``Jobs._kick_at_pace``
_PACE_CURSOR: Final = re.compile(r"[0-9]{1,14}\.[0-9]{3}")


def _kick_cursor(name: str, data: object) -> str | float:
    """Return the cursor of a search; of a kick at a pace the next due time, Unix ms."""
    return float(data) if isinstance(data, str) and _PACE_CURSOR.fullmatch(data) else CURSOR(name, data)


class Kick(_Graves):
    """Jobs to bring back from the morgue, with options.

    Attributes:
        delay: seconds from now; default 0.
        per_second: with `all`: how many fall due in a second; default: all at once.
        replace: replace live plain jobs of the same ids.
        cursor: with `where` or `per_second`: of the response before, which was not complete.
    """

    delay = Member(DELAY, required=False)
    per_second = number(1e-6, 1e6, required=False)
    replace = Member(FLAG, required=False)
    cursor = Member(Check(_kick_cursor, CURSOR.schema), required=False)
    with_all = ("per_second",)
    cursor_with = "per_second"

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Check that the cursor is one of what it continues."""
        attrs = super().validate(attrs)
        if "cursor" in attrs and isinstance(attrs["cursor"], float) != ("per_second" in attrs):
            raise _wrong("cursor", "this is not the cursor of such a response")
        return attrs


class Discard(_Graves):
    """Jobs to delete from the morgue.

    Attributes:
        older_than: with `all`: only records that are older than these seconds.
    """

    older_than = Member(SPAN, required=False)
    with_all = ("older_than",)


# -- reserves, and ends of held jobs ---------------------------------------------------------------------------------


def _ttr_ms(name: str, data: object) -> int:
    return round(check_number(name, data, 1, LONGEST_TTR) * 1000)


def _holder(name: str, data: object) -> str:
    if isinstance(data, str) and len(data) > _NAME_CHARS:
        raise InvalidJob(f"this is a name of up to {_NAME_CHARS} characters, not {short(data)}")
    return "" if data == "" else check_holder(data)


def _lease_end(name: str, data: object) -> float | None:
    return None if data is None else ms_of(parse_moment(data))


#: length of a lease in seconds; its value is in milliseconds
_TTR: Final = Check(_ttr_ms, {"type": "number", "minimum": 1, "maximum": LONGEST_TTR})
#: name of a holder; "" = the user's name
_HOLDER: Final = Check(_holder, {"type": "string", "maxLength": _NAME_CHARS})
#: end of a lease as the server returned it; its value is in Unix ms
_LEASE_END: Final = Check(_lease_end, {"type": "string", "format": "date-time", "nullable": True})
_TEXT: Final = {"type": "string"}
_ERROR_MEMBERS: Final = {"class": _TEXT, "message": _TEXT, "traceback": _TEXT}
_ERROR: Final = Check(
    lambda name, data: read_error(data),
    {"oneOf": [_TEXT, {"type": "object", "properties": _ERROR_MEMBERS, "additionalProperties": False}]},
)


class _ReserveOptions(Resource):
    """Options of every reserve.

    Attributes:
        max: maximum number of jobs.
        wait: seconds to wait for the first job; under WSGI nothing waits.
        ttr: length of the lease in seconds; default: the job's own `ttr`, else 60; touch extends it.
        worker: name of the holder as people see it, without control characters; default: the user's name.
        holding: `lease_ends` of the jobs that the caller holds already, as the server returned them.
        deadline_margin: with `holding`: end the wait so many seconds before the first of these leases ends.
    """

    max = whole(1, CHUNK, default=1)
    wait = number(0, LONGEST_WAIT, default=0.0)
    ttr = Member(_TTR, required=False)
    worker = Member(_HOLDER, default="")
    holding = items(_LEASE_END, 0, _MOST_HELD, required=False)
    deadline_margin = number(0.1, LONGEST_TTR, required=False)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Check that the members fit together."""
        for name, other in (("holding", "deadline_margin"), ("deadline_margin", "holding")):
            if name in attrs and other not in attrs:
                raise _wrong(name, f"give {other}, too")
        return attrs


class Reserve(_ReserveOptions):
    """Options of a reserve.

    Attributes:
        id: reserve the job of this id, if it waits.
        early: with `id`: also before it is due.
        buried: with `id`: the one buried last, if no job of the id is live.
    """

    id = Member(ID, required=False)
    early = Member(FLAG, default=False)
    buried = Member(FLAG, default=False)

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
    """Options of a reserve from several queues.

    Attributes:
        queues: they are served in turn.
    """

    queues = items(QUEUE_NAME, 1, _MOST_QUEUES)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Keep each queue once."""
        return {**super().validate(attrs), "queues": tuple(dict.fromkeys(attrs["queues"]))}


class AckEntry(Entry):
    """Held job.

    Attributes:
        id: as reserve gave it.
        lease: opaque; as reserve gave it.
    """

    id = Member(ID)
    lease = Member(Check(lambda name, data: read_lease(data), {"type": "string", "pattern": f"^{LEASE.pattern}$"}))
    most = CHUNK

    def validate(self, attrs: dict[str, Any]) -> Any:
        """Return the held job that a valid entry of the request names."""
        return HeldEntry(attrs.pop("id"), attrs.pop("lease"), attrs)


class FailEntry(AckEntry):
    """Held job whose attempt failed.

    Attributes:
        error: a text, or an object with class, message and traceback.
        delay: seconds until the next attempt, in place of the task's back-off.
    """

    error = Member(_ERROR, required=False)
    delay = Member(DELAY, required=False)


class ReleaseEntry(AckEntry):
    """Held job to release.

    Attributes:
        delay: seconds until it is due again; without it, at its old place.
        priority: from now on; 0 is the first.
    """

    delay = Member(DELAY, required=False)
    priority = whole(0, PRIORITIES - 1, required=False)


class BuryEntry(AckEntry):
    """Held job that can never succeed.

    Attributes:
        reason: shown with the job in the morgue.
    """

    reason = text(200, required=False)


class TouchEntry(AckEntry):
    """Held job whose lease is to be extended.

    Attributes:
        ttr: seconds from now on.
    """

    ttr = Member(_TTR, required=False)


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

_LIMIT: Final = {"required": False, "allow_null": True}


class Limits(Resource):
    """Limits of a queue; null = no limit. A missing member leaves the limit unchanged.

    Attributes:
        max_length: maximum live jobs of all shards together; more are refused (429 queue_full).
        morgue_max: maximum records in its morgue; the oldest are deleted first.
        morgue_ttl: seconds after which its morgue deletes a record.
        priorities: strict: a more urgent class always goes first; weighted: it goes first more often.
        starve_after: seconds after which a due job goes before more urgent ones, which keep three quarters.
    """

    max_length = whole(1, 1 << 40, **_LIMIT)
    morgue_max = whole(1, 1 << 40, **_LIMIT)
    morgue_ttl = number(1, 1e9, **_LIMIT)
    priorities = choice(*PRIORITY_MODES, required=False)
    starve_after = number(1, 1e9, **_LIMIT)


class NewQueue(Limits):
    """Queue to create. A member that is null counts as missing: a new queue has no limit to remove.

    Attributes:
        name: 1 to 64 letters, digits, '_', '.' or '-', beginning with a letter.
        kind: python: run by workers; pull: raw bytes for programs that reserve them.
        shards: parts of the queue in the present epoch, each on one node of a cluster.
    """

    name = Member(QUEUE_NAME)
    kind = choice("python", "pull", required=False)
    shards = whole(1, MAX_SHARDS, required=False)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Drop limits that are null."""
        return {name: value for name, value in attrs.items() if value is not None}


class QueuesQuery(Resource):
    """Query of the list of queues.

    Attributes:
        names_only: only their names, which is cheap.
    """

    names_only = Member(FLAG, default=False)


class DeleteQuery(Resource):
    """Query of a deletion.

    Attributes:
        force: also if it has jobs, which are lost.
    """

    force = Member(FLAG, default=False)


class DepthQuery(Resource):
    """Query of the depth of a queue.

    Attributes:
        minutes: how far back.
    """

    minutes = whole(1, MINUTES, default=60)


class Direction(Resource):
    """Direction in which a queue is paused or resumed.

    Attributes:
        direction: in: new jobs; out: workers; both.
    """

    direction = choice(*DIRECTIONS)


class Pause(Direction):
    """Direction and length of a pause.

    Attributes:
        seconds: after which it ends by itself; missing = never.
    """

    seconds = number(0.001, 1e8, required=False)


class Reshard(Resource):
    """New number of shards."""

    shards = whole(1, MAX_SHARDS)


class WatchedQueue(Resource):
    """Queue that a worker is to serve, or no longer."""

    queue = Member(QUEUE_NAME)

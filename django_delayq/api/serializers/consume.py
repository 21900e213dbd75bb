"""Requests for due jobs, and the jobs that are reserved, which :mod:`..held_jobs` renders."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from ...core.errors import InvalidJob
from ...core.inputs import check_holder, check_number, short
from ...core.job import Job
from ...core.records.frames import CHUNK
from ...core.times import ms_of, parse_moment
from ...pull.held import HeldJob
from ..held_jobs import content_of
from ..leases import LEASE, LONGEST_TTR, TTR, Lease, lease_of, read_lease
from .base import ADDED, Resource
from .fields import (
    CheckedField,
    FlagField,
    IdField,
    IntField,
    KeyField,
    ListField,
    NumberField,
    ObjectField,
    TimeField,
    checked,
)

MOST_QUEUES: Final = 50
MOST_HELD: Final = 1000
LEAST_MARGIN: Final = 0.1
LONGEST_WAIT: Final = 20
NAME_CHARS: Final = 200
HELD_UNTIL: Final = "2026-11-21T11:24:45.500Z"


def _ttr_ms(data: object) -> int:
    return round(check_number("ttr", data, 1, LONGEST_TTR) * 1000)


def _holder(data: object) -> str:
    if isinstance(data, str) and len(data) > NAME_CHARS:
        raise InvalidJob(f"this is a name of up to {NAME_CHARS} characters, not {short(data)}")
    return "" if data == "" else check_holder(data)


#: length of a lease in seconds; its value is in milliseconds
TtrField: Final = checked(_ttr_ms, type="number", minimum=1, maximum=LONGEST_TTR)
#: name of a holder; "" = the user's name
_HolderField: Final = checked(_holder, type="string", maxLength=NAME_CHARS)


@extend_schema_field(
    {"type": "array", "items": {"type": "string", "maxLength": 64}, "minItems": 1, "maxItems": MOST_QUEUES}
)
class _QueuesField(CheckedField):
    """List of queues, each of them once."""

    def to_internal_value(self, data: Any) -> tuple[str, ...]:
        """Return the names."""
        if not isinstance(data, list) or not 1 <= len(data) <= MOST_QUEUES:
            raise serializers.ValidationError(f"this is a list of 1 to {MOST_QUEUES} names of queues")
        for place, name in enumerate(data):
            if not isinstance(name, str):
                raise serializers.ValidationError({str(place): [f"this is the name of a queue, not {short(name)}"]})
        return tuple(dict.fromkeys(data))


@extend_schema_field(
    {
        "type": "array",
        "items": {"type": "string", "format": "date-time", "nullable": True},
        "maxItems": MOST_HELD,
    }
)
class _HoldingField(CheckedField):
    """List of ends of leases; its values are Unix ms. A lease that was lost has no end (null)."""

    def to_internal_value(self, data: Any) -> list[int]:
        """Return the ends."""
        if not isinstance(data, list) or len(data) > MOST_HELD:
            raise serializers.ValidationError(f"this is a list of up to {MOST_HELD} lease_ends")
        ends = []
        for place, end in enumerate(data):
            try:
                ends += [] if end is None else [ms_of(parse_moment(end))]
            except InvalidJob as error:
                raise serializers.ValidationError({str(place): [str(error)]}) from None
        return ends


class _ReserveOptions(Resource):
    max = IntField(default=1, min_value=1, max_value=CHUNK, help_text="maximum number of jobs")
    wait = NumberField(
        default=0.0,
        min_value=0,
        max_value=LONGEST_WAIT,
        help_text="seconds to wait for the first job; under WSGI nothing waits",
    )
    ttr = TtrField(
        required=False,
        help_text=f"length of the lease in seconds; default: the job's own `ttr`, else {TTR}; touch extends it",
    )
    worker = _HolderField(
        default="",
        help_text="name of the holder as people see it, without control characters; default: the user's name",
    )
    holding = _HoldingField(
        required=False, help_text="`lease_ends` of the jobs that the caller holds already, as the server returned them"
    )
    deadline_margin = NumberField(
        required=False,
        min_value=LEAST_MARGIN,
        max_value=LONGEST_TTR,
        help_text="with `holding`: end the wait so many seconds before the first of these leases ends",
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Check that the members fit together."""
        for name, other in (("holding", "deadline_margin"), ("deadline_margin", "holding")):
            if name in attrs and other not in attrs:
                raise serializers.ValidationError({name: f"give {other}, too"})
        return attrs


class ReserveSerializer(_ReserveOptions):
    """Options of a reserve."""

    id = IdField(required=False, help_text="reserve the job of this id, if it waits")
    early = FlagField(default=False, help_text="with `id`: also before it is due")
    buried = FlagField(default=False, help_text="with `id`: the one buried last, if no job of the id is live")
    requests: ClassVar = {
        "up to ten, wait for the first": {"max": 10, "wait": 20},
        "wait, but touch what is held in time": {
            "wait": 20,
            "holding": [HELD_UNTIL],
            "deadline_margin": 5,
        },
        "a certain one, also early": {"id": "order-5", "early": True},
    }

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Check that the members fit together."""
        super().validate(attrs)
        if "id" in attrs and (attrs["max"] != 1 or attrs["wait"]):
            raise serializers.ValidationError({"id": "one job is reserved without waiting; leave max and wait out"})
        if "id" in attrs and "holding" in attrs:
            raise serializers.ValidationError({"holding": "one job is reserved without waiting; leave it out"})
        for name in ("early", "buried"):
            if attrs[name] and "id" not in attrs:
                raise serializers.ValidationError({name: "this goes with id"})
        return attrs


class ReserveFromManySerializer(_ReserveOptions):
    """Options of a reserve from several queues."""

    queues = _QueuesField(help_text="they are served in turn")
    requests: ClassVar = {"of two queues": {"queues": ["images", "mail"], "wait": 20}}


@extend_schema_field({"type": "string", "pattern": f"^{LEASE.pattern}$"})
class LeaseField(CheckedField):
    """Lease of a held job, opaque to clients."""

    def check(self, data: Any) -> Lease:
        """Return the lease."""
        return read_lease(data)

    def to_representation(self, job: Job) -> str:
        """Return the lease of the job."""
        return str(lease_of(job))


_AS_STORED: Final = (
    "as stored: a value that JSON lacks is an object with one member, whose name says what it is, for instance "
    '`{"$dt": "2026-11-21T11:23:43+01:00"}` for a moment; $d date, $t time, $td span in microseconds, $dec decimal, '
    "$uuid UUID, $b bytes in base64"
)


class HeldJobSerializer(Resource):
    """Job that the caller holds until `lease_ends`. Its content is not masked."""

    queue = serializers.CharField()
    id = serializers.CharField()
    lease = LeaseField(source="record", help_text="opaque; send it back with every verb on the held job")
    key = KeyField(source="record.key")
    task = serializers.CharField(help_text='"raw" in a queue of kind pull')
    body = serializers.CharField(**ADDED, help_text="if the bytes are UTF-8 text")
    body_base64 = serializers.CharField(**ADDED, help_text="if they are not")
    args = ListField(**ADDED, help_text=_AS_STORED)
    kwargs = ObjectField(**ADDED, help_text=_AS_STORED)
    payloads = ListField(**ADDED, help_text=_AS_STORED)
    due = TimeField(source="record.due_ms", allow_null=True)
    created = TimeField(
        allow_null=True,
        help_text="when it was first scheduled, on the caller's clock; null if the call may repeat",
    )
    attempt = serializers.IntegerField(help_text="number of this counted attempt; the first is 1")
    failures = serializers.IntegerField()
    noe = serializers.IntegerField(help_text="how often it was reserved before, counted or not")
    releases = serializers.IntegerField(help_text="how often it was put back uncounted")
    lives = serializers.IntegerField(help_text="remaining attempts, this one included")
    context = ObjectField()  # type: ignore[assignment]
    lease_ends = TimeField(source="deadline", allow_null=True)
    example: ClassVar = {
        "queue": "images",
        "id": "order-5",
        "lease": "3.1795432101234567",
        "key": "6f1c" * 8,
        "task": "raw",
        "body": '{"url": "https://example.org/5.png"}',
        "due": "2026-11-21T11:23:43.123Z",
        "created": "2026-11-21T10:53:43.123Z",
        "attempt": 1,
        "failures": 0,
        "noe": 0,
        "releases": 0,
        "lives": 26,
        "context": {},
        "lease_ends": HELD_UNTIL,
    }

    def to_representation(self, job: HeldJob) -> Any:
        """Return the job with its content."""
        return super().to_representation(job) | content_of(job)


class HeldJobsSerializer(Resource):
    """Reserved jobs; an empty list if none was due in time."""

    jobs = HeldJobSerializer(many=True)
    deadline_soon = serializers.BooleanField(
        **ADDED, help_text="true: a lease in `holding` ends within `deadline_margin`; touch or end its job now"
    )

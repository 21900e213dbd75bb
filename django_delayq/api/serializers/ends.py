"""Ends of held jobs, and touches: what the holders of leases send and get. :mod:`..settling` renders the results."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from rest_framework import serializers

from ...core.job import PRIORITIES
from ...core.records.frames import CHUNK
from ..leases import HeldEntry, read_error
from .base import EntriesField, Entry, Resource
from .consume import HeldJobSerializer, LeaseField, TtrField
from .fields import DelayField, IdField, IntField, TextField, TimeField, checked

_ID: Final = HeldJobSerializer.example["id"]
_ONE: Final = {"id": _ID, "lease": HeldJobSerializer.example["lease"]}
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


class AckEntrySerializer(Entry):
    """Held job."""

    id = IdField(help_text="as reserve gave it")
    lease = LeaseField(help_text="opaque; as reserve gave it")
    most = CHUNK

    @classmethod
    def build(cls, values: dict[str, Any]) -> HeldEntry:
        """Return the held job that a valid entry of the request names."""
        return HeldEntry(values.pop("id"), values.pop("lease"), values)


class FailEntrySerializer(AckEntrySerializer):
    """Held job whose attempt failed."""

    error = _ErrorField(
        required=False, allow_null=True, help_text="a text, or an object with class, message and traceback"
    )
    delay = DelayField(
        required=False, allow_null=True, help_text="seconds until the next attempt, in place of the task's back-off"
    )


class ReleaseEntrySerializer(AckEntrySerializer):
    """Held job to release."""

    delay = DelayField(
        required=False, allow_null=True, help_text="seconds until it is due again; without it, at its old place"
    )
    priority = IntField(
        required=False,
        allow_null=True,
        min_value=0,
        max_value=PRIORITIES - 1,
        help_text="from now on; 0 is the first",
    )


class BuryEntrySerializer(AckEntrySerializer):
    """Held job that can never succeed."""

    reason = TextField(200, required=False, allow_null=True, help_text="shown with the job in the morgue")


class TouchEntrySerializer(AckEntrySerializer):
    """Held job whose lease is to be extended."""

    ttr = TtrField(required=False, allow_null=True, help_text="seconds from now on")


class AckSerializer(Resource):
    """Jobs to acknowledge."""

    jobs = EntriesField(AckEntrySerializer)
    requests: ClassVar = {"one": {"jobs": [_ONE]}}


class FailSerializer(Resource):
    """Jobs whose attempts failed."""

    jobs = EntriesField(FailEntrySerializer)
    requests: ClassVar = {
        "with a text": {"jobs": [{**_ONE, "error": "503 from the host"}]},
        "with everything": {
            "jobs": [
                {
                    **_ONE,
                    "delay": 30,
                    "error": {"class": "TimeoutError", "message": "no answer", "traceback": "at fetch (w.js:12)"},
                }
            ]
        },
    }


class ReleaseSerializer(Resource):
    """Jobs to release."""

    jobs = EntriesField(ReleaseEntrySerializer)
    requests: ClassVar = {"for later": {"jobs": [{**_ONE, "delay": 60}]}}


class BurySerializer(Resource):
    """Jobs to bury."""

    jobs = EntriesField(BuryEntrySerializer)
    requests: ClassVar = {"with a reason": {"jobs": [{**_ONE, "reason": "no such order"}]}}


class TouchSerializer(Resource):
    """Jobs whose leases are to be extended."""

    jobs = EntriesField(TouchEntrySerializer)
    requests: ClassVar = {"two minutes": {"jobs": [{**_ONE, "ttr": 120}]}}


class CountedSerializer(Resource):
    """Result of ending one job."""

    id = serializers.CharField()
    counted = serializers.BooleanField(help_text="false: the lease was lost, and nothing was changed")
    example: ClassVar = {"id": _ID, "counted": True}


class SettledSerializer(Resource):
    """Results of ending jobs, in the order of the request."""

    results = CountedSerializer(many=True)


class ExtendedSerializer(Resource):
    """Result of touching one job."""

    id = serializers.CharField()
    held = serializers.BooleanField(help_text="false: the lease was lost")
    stopping = serializers.BooleanField(help_text="the job was cancelled; end it soon")
    lease_ends = TimeField(allow_null=True)
    example: ClassVar = {"id": _ID, "held": True, "stopping": False, "lease_ends": "2026-11-21T11:24:45.500Z"}


class TouchedSerializer(Resource):
    """Results of touching jobs, in the order of the request."""

    results = ExtendedSerializer(many=True)

"""What a reserve may ask for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from ..core.errors import InvalidJob
from ..core.inputs import check_holder, check_int, short
from ..core.sending.chunks import CHUNK
from .base import Body
from .leases import LONGEST_TTR, TTR, read_ttr

T = TypeVar("T")
MOST_QUEUES: Final = 50
LONGEST_WAIT: Final = 20
NAME_CHARS: Final = 200
NAME_BYTES: Final = 255


@extend_schema_field(
    {"type": "integer", "minimum": 1, "maximum": CHUNK, "default": 1, "description": "jobs that are taken at most"}
)
class _MaxField(serializers.Field[Any, Any, Any, Any]):
    def to_internal_value(self, data: Any) -> int:
        return _told(check_int, "max", data, 1, CHUNK)


@extend_schema_field(
    {
        "type": "number",
        "minimum": 0,
        "maximum": LONGEST_WAIT,
        "default": 0,
        "description": "seconds to wait for the first job; under WSGI nothing waits",
    }
)
class _WaitField(serializers.Field[Any, Any, Any, Any]):
    def to_internal_value(self, data: Any) -> float:
        if isinstance(data, bool) or not isinstance(data, (int, float)) or not 0 <= data <= LONGEST_WAIT:
            raise serializers.ValidationError(f"this is a number of seconds, 0 to {LONGEST_WAIT}, not {short(data)}")
        return float(data)


@extend_schema_field(
    {
        "type": "number",
        "minimum": 1,
        "maximum": LONGEST_TTR,
        "default": TTR,
        "description": "seconds until the jobs are anybody's again, if not touched",
    }
)
class _TtrField(serializers.Field[Any, Any, Any, Any]):
    def to_internal_value(self, data: Any) -> int:
        return _told(read_ttr, data)


@extend_schema_field(
    {
        "type": "string",
        "maxLength": NAME_CHARS,
        "description": "who takes them, for people who look, without control characters; else the user's name",
    }
)
class _WorkerField(serializers.Field[Any, Any, Any, Any]):
    def to_internal_value(self, data: Any) -> str:
        if isinstance(data, str) and len(data) > NAME_CHARS:
            raise serializers.ValidationError(f"this is a name of up to {NAME_CHARS} characters, not {short(data)}")
        return "" if data == "" else _told(check_holder, data)


@extend_schema_field(
    {
        "type": "array",
        "items": {"type": "string", "maxLength": 64},
        "minItems": 1,
        "maxItems": MOST_QUEUES,
        "description": "they are served in turn",
    }
)
class _QueuesField(serializers.Field[Any, Any, Any, Any]):
    def to_internal_value(self, data: Any) -> tuple[str, ...]:
        if not isinstance(data, list) or not 1 <= len(data) <= MOST_QUEUES:
            raise serializers.ValidationError(f"this is a list of 1 to {MOST_QUEUES} names of queues")
        for place, name in enumerate(data):
            if not isinstance(name, str):
                raise serializers.ValidationError({str(place): [f"this is the name of a queue, not {short(name)}"]})
        return tuple(dict.fromkeys(data))


def _told(check: Callable[..., T], *given: Any) -> T:
    try:
        return check(*given)
    except InvalidJob as error:
        raise serializers.ValidationError(str(error)) from None


def _usual_ttr() -> int:
    """A function, so that the document does not take the milliseconds of a checked request for its own default."""
    return TTR * 1000


class ReserveForm(Body):
    """What is asked for."""

    max = _MaxField(default=1)
    wait = _WaitField(default=0.0)
    ttr = _TtrField(default=_usual_ttr)
    worker = _WorkerField(default="")


class ReserveFromManyForm(ReserveForm):
    """The same, of several queues."""

    queues = _QueuesField()

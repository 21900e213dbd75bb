"""Fields whose values are checked by ``core``. In JSON "1" is no number, nor is true, so they are strict."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from drf_spectacular.drainage import set_override
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from ...core.errors import InvalidJob
from ...core.inputs import check_flag, check_id, check_int, check_number, check_queue_name, short
from ...core.reading import unpack_cursor
from ...core.times import delay_ms_of, iso_of, parse_moment, span_ms_of
from ...settings.conf import conf, mask
from ..parsing import too_many
from ..values import count_of, masked_text, number_of, plain

_KEY_DIGITS: Final = 32


class CheckedField(serializers.Field[Any, Any, Any, Any]):
    """Field that accepts what its ``check`` accepts: the error of the check is that of the field."""

    def check(self, data: Any) -> Any:
        """Return the value; raise InvalidJob if it is not valid."""
        raise NotImplementedError

    def to_internal_value(self, data: Any) -> Any:
        """Return the checked value."""
        try:
            return self.check(data)
        except InvalidJob as error:
            raise serializers.ValidationError(str(error)) from None

    def to_representation(self, value: Any) -> Any:
        """Return the value."""
        return value


def checked(check: Callable[[Any], Any], **schema: Any) -> type[CheckedField]:
    """Return a field class for a check of ``core``.

    Args:
        check: returns the value or raises InvalidJob.
        schema: the OpenAPI schema of the values.
    """
    kind = type("CheckedField", (CheckedField,), {"check": staticmethod(check)})
    return extend_schema_field(schema)(kind)


def _moment(data: object) -> datetime | float:
    if isinstance(data, (int, float)) and not isinstance(data, bool) and math.isfinite(data):
        return data
    return parse_moment(data)


def _moment_of_query(text: str) -> datetime | None:
    """Return the moment of a query parameter, where numbers are texts, in UTC; None for an empty text."""
    if not text:
        return None
    seconds = number_of(text)
    try:
        return parse_moment(text).astimezone(UTC) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        raise InvalidJob(f"{short(text)} is a moment that no calendar has") from None


def page_cursor(text: str) -> str:
    """Return a cursor of a page or a search, checked."""
    unpack_cursor(text)
    return text


def _delay_ms(data: Any) -> int:
    return delay_ms_of(data, allow_far=conf().allow_far)


IdField: Final = checked(check_id, type="string", minLength=1, maxLength=255)
QueueNameField: Final = checked(check_queue_name, type="string", pattern="^[A-Za-z][A-Za-z0-9_.-]{0,63}$")
FlagField: Final = checked(partial(check_flag, "this"), type="boolean")
CursorField: Final = checked(page_cursor, type="string", maxLength=2000)
QueryMomentField: Final = checked(_moment_of_query, type="string")
#: delay in seconds, below 0 = now; its value is in milliseconds
DelayField: Final = checked(_delay_ms, type="number")
#: a moment as ``schedule(at=…)`` accepts it
MomentField: Final = checked(
    _moment, oneOf=[{"type": "string", "format": "date-time"}, {"type": "number", "minimum": 0}]
)


@extend_schema_field({"type": "number", "minimum": 0})
class SecondsField(CheckedField):
    """Span in seconds, 0 or more; its value is in milliseconds."""

    def check(self, data: Any) -> int:
        """Return the span in milliseconds."""
        return span_ms_of(self.field_name or "this", data, allow_far=conf().allow_far)


@extend_schema_field({"type": "string", "pattern": "^[0-9a-f]{32}$"})
class KeyField(CheckedField):
    """Key of a generation, in JSON as 32 hexadecimal digits."""

    def check(self, data: Any) -> bytes:
        """Return the bytes."""
        if isinstance(data, str) and len(data) == _KEY_DIGITS:
            try:
                return bytes.fromhex(data)
            except ValueError:
                pass
        raise InvalidJob(f"key is the 32 hexadecimal digits that GET shows, not {short(data)}")

    def to_representation(self, value: bytes) -> str:
        """Return the digits."""
        return value.hex()


class IntField(CheckedField):
    """Whole number from ``min_value`` to ``max_value``."""

    kind = "integer"

    def __init__(self, *, min_value: float, max_value: float, **options: Any) -> None:
        super().__init__(**options)
        self.low, self.high = min_value, max_value
        set_override(self, "field", {"type": self.kind, "minimum": min_value, "maximum": max_value})

    def check(self, data: Any) -> float:
        """Return the value if it is a number of the field's range; raise InvalidJob if not."""
        return check_int(self.field_name or "this", data, int(self.low), int(self.high))


class NumberField(IntField):
    """Number from ``min_value`` to ``max_value``."""

    kind = "number"

    def check(self, data: Any) -> float:
        """Return the value if it is a number of the field's range; raise InvalidJob if not."""
        return check_number(self.field_name or "this", data, self.low, self.high, unit="")


class LimitField(CheckedField):
    """Size of a page in a query, 1 to ``most``; 100 unless given."""

    def __init__(self, most: int) -> None:
        super().__init__(default=100, help_text=f"1 to {most}, default 100")
        self._most = most
        set_override(self, "field", {"type": "integer", "minimum": 1, "maximum": most})

    def check(self, data: Any) -> int:
        """Return the value if it is a number of the field's range; raise InvalidJob if not."""
        limit = count_of(data)
        if limit is None:
            raise InvalidJob(f"limit must be 1 to {self._most}, got {short(data)}")
        return check_int("limit", limit, 1, self._most)


class TextQueryField(serializers.CharField):
    """Text of a query, "" unless given. Spaces count."""

    def __init__(self, max_length: int = 255, **options: Any) -> None:
        super().__init__(default="", allow_blank=True, trim_whitespace=False, max_length=max_length, **options)


class TextField(CheckedField):
    """Text of at most ``max_length`` characters."""

    def __init__(self, max_length: int, **options: Any) -> None:
        super().__init__(**options)
        self._most = max_length
        set_override(self, "field", {"type": "string", "maxLength": max_length})

    def check(self, data: Any) -> str:
        """Return the text."""
        if isinstance(data, str) and len(data) <= self._most:
            return data
        raise InvalidJob(f"{self.field_name} is a text of up to {self._most} characters, not {short(data)}")


@extend_schema_field({"type": "array", "items": {"type": "string", "maxLength": 255}, "minItems": 1, "maxItems": 1000})
class IdsField(serializers.ListField):
    """List of 1 … ``API["max_jobs"]`` job ids."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, child=IdField())

    def to_internal_value(self, data: Any) -> list[str]:
        """Return the ids."""
        if not isinstance(data, list) or not data:
            raise serializers.ValidationError("this is a list with at least one entry")
        most = conf().api.max_jobs
        if len(data) > most:
            raise too_many(most, "ids")
        ids: list[str] = super().to_internal_value(data)
        return ids


# -- for responses ---------------------------------------------------------------------------------------------------


class TimeField(serializers.DateTimeField):
    """Moment in a response: a datetime or Unix milliseconds, rendered as ``2026-11-21T11:23:43.123Z``."""

    def to_representation(self, value: Any) -> str | None:  # type: ignore[override]
        """Return the text; None for a moment out of range."""
        return iso_of(value.timestamp() * 1000 if isinstance(value, datetime) else value)


class RoundedField(serializers.FloatField):
    """Number with three decimals in a response."""

    def to_representation(self, value: Any) -> float:  # type: ignore[override]
        """Return the rounded number."""
        return round(float(value), 3)


@extend_schema_field(OpenApiTypes.ANY)
class AnyField(serializers.JSONField):
    """Any JSON value."""


@extend_schema_field({"type": "object", "additionalProperties": {}})
class ObjectField(serializers.JSONField):
    """Object with any members."""

    def to_internal_value(self, data: Any) -> Any:
        """Return the object."""
        if not isinstance(data, dict):
            raise serializers.ValidationError(f"this is an object, not {short(data)}")
        return data


@extend_schema_field({"type": "array", "items": {}})
class ListField(serializers.JSONField):
    """List of any JSON values."""

    def to_internal_value(self, data: Any) -> Any:
        """Return the list."""
        if not isinstance(data, list):
            raise serializers.ValidationError(f"this is a list, not {short(data)}")
        return data


class MaskedObjectField(ObjectField):
    """Object with any members, in a response with its secrets masked."""

    def to_representation(self, value: Any) -> Any:
        """Return the object as plain JSON. Most are empty."""
        return mask().value(plain(value)) if value else {}


class MaskedTextField(serializers.CharField):
    """Text, in a response with its secrets masked."""

    def to_representation(self, value: Any) -> str:
        """Return the masked text. Most are empty."""
        return masked_text(str(value)) if value else ""

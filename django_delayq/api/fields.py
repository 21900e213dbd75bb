"""Request fields that Django REST framework lacks or parses too leniently: "1" is not a number in JSON, nor is true.

Lists are read in one pass, so that a thousand ids do not need a thousand serializers.
"""

from __future__ import annotations

import math
from datetime import datetime
from typing import Any, Final

from django.utils.dateparse import parse_datetime
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from ..core.errors import InvalidJob
from ..core.inputs import check_id, short
from ..core.times import delay_ms_of
from ..settings.conf import conf
from .parsing import too_many

#: maximum number of invalid list entries reported
MOST_ERRORS: Final = 50
_MOMENT: Final = "a moment: ISO 8601 with its offset (2026-11-21T11:23:43Z), or Unix seconds"
_KEY_DIGITS: Final = 32


def moment_of(text: str) -> datetime:
    """Parse an aware datetime from ISO 8601.

    Raises:
        InvalidJob: the text is not ISO 8601, or has no offset.
    """
    try:
        found = parse_datetime(text) if len(text) <= 64 and text.isascii() else None
    except ValueError:
        found = None
    if found is None or found.utcoffset() is None:
        raise InvalidJob(f"{short(text)} is not {_MOMENT}")
    return found


@extend_schema_field({"oneOf": [{"type": "string", "format": "date-time"}, {"type": "number", "minimum": 0}]})
class MomentField(serializers.Field[Any, Any, Any, Any]):
    """Moment, as ``schedule(at=…)`` accepts it."""

    def to_internal_value(self, data: Any) -> datetime | float:
        """Return a datetime or Unix seconds."""
        if isinstance(data, str):
            try:
                return moment_of(data)
            except InvalidJob as error:
                raise serializers.ValidationError(str(error)) from None
        if isinstance(data, (int, float)) and not isinstance(data, bool) and math.isfinite(data):
            return data
        raise serializers.ValidationError(f"{short(data)} is not {_MOMENT}")


@extend_schema_field({"type": "number", "minimum": 0})
class SecondsField(serializers.Field[Any, Any, Any, Any]):
    """Span in seconds, 0 or more."""

    def to_internal_value(self, data: Any) -> int:
        """Return the span in milliseconds."""
        try:
            return delay_ms_of(data, allow_far=conf().allow_far, what=self.field_name or "delay")
        except InvalidJob as error:
            raise serializers.ValidationError(str(error)) from None


@extend_schema_field({"type": "number", "minimum": 1e-6, "maximum": 1e6})
class PaceField(serializers.Field[Any, Any, Any, Any]):
    """Rate in jobs per second."""

    def to_internal_value(self, data: Any) -> float:
        """Return the rate."""
        if isinstance(data, (int, float)) and not isinstance(data, bool) and 1e-6 <= data <= 1e6:
            return float(data)
        raise serializers.ValidationError("this is a number of jobs in a second, above 0 and up to 1,000,000")


@extend_schema_field({"type": "boolean"})
class FlagField(serializers.Field[Any, Any, Any, Any]):
    """Boolean; accepts only true and false."""

    def to_internal_value(self, data: Any) -> bool:
        """Return the boolean."""
        if isinstance(data, bool):
            return data
        raise serializers.ValidationError("this is true or false")


class _List(serializers.Field[Any, Any, Any, Any]):
    """List of 1 … ``API["max_jobs"]`` entries, read in one pass."""

    what = "jobs"

    def to_internal_value(self, data: Any) -> list[Any]:
        """Return the entries; errors are reported for all invalid entries, up to ``MOST_ERRORS``."""
        if not isinstance(data, list) or not data:
            raise serializers.ValidationError("this is a list with at least one entry")
        most = conf().api.max_jobs
        if len(data) > most:
            raise too_many(most, self.what)
        read, wrong = [], {}
        for place, entry in enumerate(data):
            try:
                read.append(self.entry(entry))
            except InvalidJob as error:
                wrong[str(place)] = [str(error)]
                if len(wrong) == MOST_ERRORS:
                    break
        if wrong:
            raise serializers.ValidationError(wrong)
        return read

    def entry(self, entry: Any) -> Any:
        """Return one validated entry; raise InvalidJob if it is invalid."""
        raise NotImplementedError


@extend_schema_field({"type": "array", "items": {"type": "string", "maxLength": 255}, "minItems": 1, "maxItems": 1000})
class IdsField(_List):
    """List of job ids."""

    what = "ids"

    def entry(self, entry: Any) -> str:
        """Return a validated id."""
        return check_id(entry)


_GRAVE: Final = {
    "type": "object",
    "properties": {"id": {"type": "string", "maxLength": 255}, "key": {"type": "string", "pattern": "^[0-9a-f]{32}$"}},
    "required": ["id"],
    "additionalProperties": False,
}


@extend_schema_field({"type": "array", "items": _GRAVE, "minItems": 1, "maxItems": 1000})
class GravesField(_List):
    """List of morgue records by id, with the key where an id has several."""

    def entry(self, entry: Any) -> tuple[str, bytes | None]:
        """Return ``(id, key)``."""
        if not isinstance(entry, dict) or not entry.keys() <= {"id", "key"}:
            raise InvalidJob(f'an entry is {{"id": …, "key": …}}, not {short(entry)}')
        return check_id(entry.get("id")), None if entry.get("key") is None else _key(entry["key"])


def _key(text: object) -> bytes:
    if isinstance(text, str) and len(text) == _KEY_DIGITS:
        try:
            return bytes.fromhex(text)
        except ValueError:
            pass
    raise InvalidJob(f"key is the 32 hexadecimal digits that GET shows, not {short(text)}")


def number_of(text: str) -> float | None:
    """Return the number in a query value, where every value is a text; None for anything else."""
    if len(text) > 40 or not text.isascii() or "_" in text or text != text.strip():
        return None
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None

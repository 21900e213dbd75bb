"""Fields and base classes of the serializers.

In JSON "1" is no number, nor is true, so the fields of requests are strict: ``core`` checks them. Unknown members are
refused, because most often they are misspelled. Responses are rendered from the attributes of objects. One instance of
each class serves all requests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache, cached_property, partial
from operator import attrgetter
from typing import Any, ClassVar, Final, Self

from drf_spectacular.drainage import set_override
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from ..core.errors import InvalidJob
from ..core.inputs import check_flag, check_id, check_int, check_number, check_queue_name, short, suggest
from ..core.options import check_rate
from ..core.reading import unpack_cursor
from ..core.times import delay_ms_of, iso_of, parse_moment, span_ms_of
from ..settings.conf import conf, mask
from ..status.job_content import masked_text, plain
from .parsing import too_many

#: maximum number of errors reported for one request
MOST_ERRORS: Final = 50
#: options of members that a serializer adds itself, and of those that may be missing; their fields only document them
ADDED: Final[dict[str, Any]] = {"source": "*"}
OPTIONAL: Final[dict[str, Any]] = {**ADDED, "required": False}
_KEY_DIGITS: Final = 32


class Resource(serializers.Serializer[Any]):
    """Base of the serializers of requests."""

    @classmethod
    @cache
    def shared(cls) -> Self:
        """Return the instance that serves all requests: creating one copies all its fields."""
        return cls()

    @classmethod
    def read(cls, data: Any) -> dict[str, Any]:
        """Return the validated members of a request.

        Raises:
            ValidationError: the request is invalid.
        """
        return dict(cls.shared().run_validation(data))

    def to_internal_value(self, data: Any) -> Any:
        """Return the validated values."""
        unknown = [name for name in data if name not in self.fields] if isinstance(data, Mapping) else ()
        if unknown:
            text = f"unknown member; known are: {', '.join(self.fields) or 'none'}"
            raise serializers.ValidationError({str(name)[:60]: [text] for name in unknown[:10]})
        return super().to_internal_value(data)


class Query(Resource):
    """Base of the queries, in which every value is a text."""

    def to_internal_value(self, data: Any) -> Any:
        """Return the validated values, after those of :class:`CheckedField` were read as a body has them."""
        values: dict[str, Any] = {}
        for name, text in data.items():
            if "\0" in text:
                raise serializers.ValidationError({name[:60]: ["this has a zero character; leave it out"]})
            field = self.fields.get(name)
            value = field.from_text(text) if isinstance(field, CheckedField) else text
            values |= {} if value is None else {name: value}
        return super().to_internal_value(values)


class Shown(serializers.Serializer[Any]):
    """Base of the serializers of responses."""

    @classmethod
    @cache
    def shared(cls) -> Self:
        """Return the instance that renders all responses."""
        return cls()

    @classmethod
    def render(cls, instance: Any) -> dict[str, Any]:
        """Return an object as JSON."""
        rendered: dict[str, Any] = cls.shared().to_representation(instance)
        return rendered

    @cached_property
    def _members(self) -> list[tuple[str, Callable[[Any], Any], Callable[[Any], Any]]]:
        shown = [field for field in self._readable_fields if field.source != ADDED["source"]]
        return [(str(field.field_name), attrgetter(str(field.source)), field.to_representation) for field in shown]

    def to_representation(self, instance: Any) -> Any:
        """Return the members as the base class does, in a quarter of its time: lists have thousands of values."""
        found = [(name, attribute(instance), render) for name, attribute, render in self._members]
        return {name: None if value is None else render(value) for name, value, render in found}


def exactly_one(attrs: Mapping[str, Any], *names: str) -> None:
    """Check that exactly one of these members is given, and that ``all`` is not false.

    Raises:
        ValidationError: none of them, or several.
    """
    if sum(name in attrs for name in names) != 1:
        raise serializers.ValidationError(f"give exactly one of {', '.join(names)}")
    if attrs.get("all") is False:
        raise serializers.ValidationError({"all": "send true, or leave it out"})


class Entries(serializers.ListSerializer[Any]):
    """List of 1 … ``Entry.most`` entries, read in one pass: hundreds of entries do not need hundreds of serializers."""

    def to_internal_value(self, data: Any) -> list[Any]:
        """Return the entries; errors are reported for all invalid entries, up to :data:`MOST_ERRORS`."""
        if not isinstance(data, list) or not data:
            raise serializers.ValidationError("this is a list with at least one entry")
        kind: type[Entry] = type(self.child)  # type: ignore[assignment]
        most = kind.most or conf().api.max_jobs
        if len(data) > most:
            raise too_many(most, "jobs")
        checks, needed = kind.checks()
        entries, wrong = [], {}
        for place, entry in enumerate(data):
            errors: dict[str, Any] = {}
            values = _read_entry(entry, checks, needed, errors)
            if errors:
                wrong[str(place)] = errors.get("", errors)
                if len(wrong) == MOST_ERRORS:
                    break
            else:
                entries.append(kind.build(values))
        if wrong:
            raise serializers.ValidationError(wrong)
        return entries


class Entry(Resource):
    """Base of the entries of a list. A member that is null counts as missing."""

    #: maximum number of entries; None = ``API["max_jobs"]``
    most: ClassVar[int | None] = None

    class Meta:
        list_serializer_class = Entries

    @classmethod
    def build(cls, values: dict[str, Any]) -> Any:
        """Return the entry with these validated values."""
        return values

    @classmethod
    @cache
    def checks(cls) -> tuple[dict[str, Callable[[Any], Any]], tuple[str, ...]]:
        """Return the check of each member, and the members that every entry has; created once for all requests."""
        fields: Mapping[str, Any] = cls.shared().fields
        return {name: field.check for name, field in fields.items()}, tuple(
            name for name, field in fields.items() if field.required
        )


def _read_entry(
    entry: Any, checks: Mapping[str, Callable[[Any], Any]], needed: tuple[str, ...], errors: dict[str, Any]
) -> dict[str, Any]:
    """Return the validated values of an entry; put what is wrong into ``errors``, by member, "" = the whole entry."""
    values: dict[str, Any] = {}
    if not isinstance(entry, dict):
        errors[""] = [f"this is an object with {', '.join(checks)}, not {short(entry)}"]
        return values
    for name, value in entry.items():
        try:
            if name not in checks:
                raise InvalidJob(f"unknown member.{suggest(name, checks)} Known are: {', '.join(checks)}")
            if value is not None or name in needed:
                values[name] = checks[name](value)
        except InvalidJob as error:
            errors[name[:60]] = [str(error)]
    for name in needed:
        if name not in entry:
            errors[name] = ["this is required"]
    return values


# -- members of requests ---------------------------------------------------------------------------------------------


class CheckedField(serializers.Field[Any, Any, Any, Any]):
    """Field that accepts what its ``check`` accepts: the error of the check is that of the field."""

    def check(self, data: Any) -> Any:
        """Return the value; raise InvalidJob if it is not valid."""
        raise NotImplementedError

    def from_text(self, text: str) -> Any:
        """Return the value of a query parameter as a body has it; None if it counts as missing."""
        return text

    def to_internal_value(self, data: Any) -> Any:
        """Return the checked value."""
        try:
            return self.check(data)
        except InvalidJob as error:
            raise serializers.ValidationError(str(error)) from None

    def to_representation(self, value: Any) -> Any:
        """Return the value."""
        return value


def checked(check: Callable[[Any], Any], from_text: Callable[[str], Any] = str, **schema: Any) -> type[CheckedField]:
    """Return a field class for a check of ``core``.

    Args:
        check: returns the value or raises InvalidJob.
        from_text: see :meth:`CheckedField.from_text`.
        schema: the OpenAPI schema of the values.
    """
    methods = {"check": staticmethod(check), "from_text": staticmethod(from_text)}
    kind = type("CheckedField", (CheckedField,), methods)
    return extend_schema_field(schema)(kind)


class IntField(CheckedField):
    """Whole number from ``min_value`` to ``max_value``."""

    kind = "integer"

    def __init__(self, *, min_value: float, max_value: float, **options: Any) -> None:
        super().__init__(**options)
        self.low, self.high = min_value, max_value
        set_override(self, "field", {"type": self.kind, "minimum": min_value, "maximum": max_value})

    def from_text(self, text: str) -> Any:
        """Return the whole number, or another text, which is not valid."""
        return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else text or None

    def check(self, data: Any) -> float:
        """Return the value if it is a number of the field's range; raise InvalidJob if not."""
        return check_int(self.field_name or "this", data, int(self.low), int(self.high))


class NumberField(IntField):
    """Number from ``min_value`` to ``max_value``."""

    kind = "number"

    def check(self, data: Any) -> float:
        """Return the value if it is a number of the field's range; raise InvalidJob if not."""
        return check_number(self.field_name or "this", data, self.low, self.high, unit="")


class TextField(CheckedField):
    """Text of at most ``max_length`` characters."""

    def __init__(self, max_length: int, **options: Any) -> None:
        super().__init__(**options)
        self._most = max_length
        set_override(self, "field", {"type": "string", "maxLength": max_length})

    def from_text(self, text: str) -> str | None:
        """Return the text. Spaces count."""
        return text or None

    def check(self, data: Any) -> str:
        """Return the text."""
        if isinstance(data, str) and len(data) <= self._most:
            return data
        raise InvalidJob(f"{self.field_name} is a text of up to {self._most} characters, not {short(data)}")


@extend_schema_field({"type": "number", "minimum": 0})
class SecondsField(CheckedField):
    """Span in seconds, 0 or more; its value is in milliseconds."""

    def check(self, data: Any) -> int:
        """Return the span in milliseconds."""
        return span_ms_of(self.field_name or "this", data, allow_far=conf().allow_far)


@extend_schema_field({"type": "array", "items": {"type": "string", "maxLength": 255}, "minItems": 1, "maxItems": 1000})
class IdsField(serializers.ListField):
    """List of 1 … ``API["max_jobs"]`` job ids."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, child=IdField(), allow_empty=False)

    def to_internal_value(self, data: Any) -> list[str]:
        """Return the ids."""
        most = conf().api.max_jobs
        if isinstance(data, list) and len(data) > most:
            raise too_many(most, "ids")
        ids: list[str] = super().to_internal_value(data)
        return ids


def _moment(data: object) -> datetime | float:
    if isinstance(data, (int, float)) and not isinstance(data, bool) and math.isfinite(data):
        return data
    return parse_moment(data)


def number_of(text: str) -> float | None:
    """Return the number in a query value, where every value is a text; None for anything else."""
    if len(text) > 40 or not text.isascii() or "_" in text or text != text.strip():
        return None
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _moment_of(text: str) -> Any:
    """Return the moment in a query value as a body has it: a number of seconds, or a text."""
    seconds = number_of(text)
    return text or None if seconds is None else seconds


def _flag_of(text: str) -> Any:
    return {"true": True, "1": True, "false": False, "0": False}.get(text, text)


def page_cursor(data: object) -> str:
    """Return a cursor of a page or a search, checked."""
    if not isinstance(data, str):
        raise InvalidJob(f"a cursor is a text, not {short(data)}")
    unpack_cursor(data)
    return data


def _key(data: object) -> bytes:
    if isinstance(data, str) and len(data) == _KEY_DIGITS:
        try:
            return bytes.fromhex(data)
        except ValueError:
            pass
    raise InvalidJob(f"key is the 32 hexadecimal digits that GET shows, not {short(data)}")


IdField: Final = checked(check_id, type="string", minLength=1, maxLength=255)
QueueNameField: Final = checked(check_queue_name, type="string", pattern="^[A-Za-z][A-Za-z0-9_.-]{0,63}$")
FlagField: Final = checked(partial(check_flag, "this"), _flag_of, type="boolean")
CursorField: Final = checked(page_cursor, type="string", maxLength=2000)
#: key of a generation; its value is in bytes
KeyField: Final = checked(_key, type="string", pattern="^[0-9a-f]{32}$")
#: rate of starts, as ``@task(rate=…)`` accepts it
RateField: Final = checked(
    partial(check_rate, "rate"), oneOf=[{"type": "string", "maxLength": 40}, {"type": "number", "minimum": 0}]
)
#: delay in seconds, below 0 = now; its value is in milliseconds
DelayField: Final = checked(lambda data: delay_ms_of(data, allow_far=conf().allow_far), type="number")
#: a moment as ``schedule(at=…)`` accepts it
MomentField: Final = checked(
    _moment, _moment_of, oneOf=[{"type": "string", "format": "date-time"}, {"type": "number", "minimum": 0}]
)


# -- members of responses --------------------------------------------------------------------------------------------


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


@extend_schema_field({"type": "string", "pattern": "^[0-9a-f]{32}$"})
class HexField(serializers.CharField):
    """Key of a generation in a response."""

    def to_representation(self, value: bytes) -> str:  # type: ignore[override]
        """Return the digits."""
        return value.hex()


@extend_schema_field({"type": "object", "additionalProperties": {}})
class ObjectField(serializers.JSONField):
    """Object with any members."""


@extend_schema_field({"type": "array", "items": {}})
class ListField(serializers.JSONField):
    """List of any JSON values."""


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

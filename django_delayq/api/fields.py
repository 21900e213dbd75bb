"""Fields and base classes of the serializers.

In JSON "1" is no number, nor is true, so the fields of requests are strict: ``core`` checks them. Unknown members are
refused, because most often they are misspelled. Responses are rendered from the attributes of objects. One instance of
each class serves all requests. The docstring of a class describes its members, under ``Attributes:``.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache, cached_property, partial
from operator import attrgetter
from typing import Any, ClassVar, Final, Self

from drf_spectacular.drainage import set_override
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.fields import empty

from ..core.errors import InvalidJob
from ..core.inputs import check_choice, check_flag, check_id, check_int, check_number, check_queue_name, short, suggest
from ..core.job import MAX_ID_BYTES
from ..core.options import Check
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
_MEMBER: Final = re.compile(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", re.MULTILINE)


@cache
def texts_of(kind: type) -> tuple[str, dict[str, str]]:
    """Return the description in a class's docstring, and those of its members."""
    text, _, members = (inspect.getdoc(kind) or "").partition("\n\nAttributes:\n")
    return text, {name: " ".join(found.split()).removesuffix(".") for name, found in _MEMBER.findall(members)}


class Described(serializers.Serializer[Any]):
    """Base of the serializers."""

    @classmethod
    @cache
    def shared(cls) -> Self:
        """Return the instance that serves all requests: creating one copies all its fields."""
        return cls()

    def declared(self) -> dict[str, Any]:
        """Return the fields without their descriptions; those of a table are added here."""
        fields: dict[str, Any] = super().get_fields()
        return fields

    def get_fields(self) -> dict[str, Any]:
        """Return the fields with their descriptions."""
        fields = self.declared()
        for kind in reversed(type(self).__mro__):
            for name, text in texts_of(kind)[1].items() if issubclass(kind, Described) else ():
                fields[name].help_text = text
        return fields


class Shown(Described):
    """Base of the serializers of responses."""

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


class Resource(Described):
    """Base of the serializers of requests. Their members are read in one pass, by the checks of their fields."""

    #: a member that is null counts as missing
    null_is_missing: ClassVar[bool] = False

    @classmethod
    def read(cls, data: Any) -> Any:
        """Return the validated members of a request, or what :meth:`validate` makes of them.

        Raises:
            ValidationError: the request is invalid.
        """
        checks, needed, defaults = cls._plan()
        if not isinstance(data, dict):
            raise serializers.ValidationError(f"this is an object with {', '.join(checks)}, not {short(data)}")
        values, errors = dict(defaults), dict[str, Any]()
        for name, value in data.items():
            if value is None and cls.null_is_missing and name in checks and name not in needed:
                continue
            try:
                if name not in checks:
                    raise InvalidJob(f"unknown member.{suggest(name, checks)} Known are: {', '.join(checks) or 'none'}")
                values[name] = checks[name](value)
            except InvalidJob as error:
                errors[name[:60]] = str(error)
            except serializers.ValidationError as error:
                errors[name] = error.detail
        errors |= {name: "this is required" for name in needed if name not in data}
        if errors:
            raise serializers.ValidationError(errors)
        return cls.shared().validate(values)

    @classmethod
    def read_texts(cls, texts: Mapping[str, str]) -> Any:
        """Return the validated members of a query, in which every value is a text; raises like :meth:`read`."""
        values: dict[str, Any] = {}
        for name, text in texts.items():
            if "\0" in text:
                raise serializers.ValidationError({name[:60]: "this has a zero character; leave it out"})
            field: Any = cls.shared().fields.get(name)
            value = text if field is None else _value_of(field.schema, text)
            values |= {} if value is None else {name: value}
        return cls.read(values)

    @classmethod
    @cache
    def _plan(cls) -> tuple[dict[str, Callable[[Any], Any]], tuple[str, ...], dict[str, Any]]:
        """Return the checks of the members, the members that must be there, and the values of those that are not."""
        fields: dict[str, Any] = dict(cls.shared().fields)
        defaults = {name: field.default for name, field in fields.items() if field.default is not empty}
        needed = tuple(name for name, field in fields.items() if field.required)
        return {name: field.check for name, field in fields.items()}, needed, defaults

    def check(self, data: Any) -> Any:
        """Return the validated object as a member of another one."""
        return self.read(data)


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
    """List of 1 … ``Entry.most`` entries."""

    def check(self, data: Any) -> list[Any]:
        """Return the entries."""
        entry: Any = self.child
        return _read_all(data, entry.read, 1, entry.most or conf().api.max_jobs, "jobs")


class Entry(Resource):
    """Base of the entries of a list."""

    null_is_missing = True
    #: maximum number of entries; None = ``API["max_jobs"]``
    most: ClassVar[int | None] = None

    class Meta:
        list_serializer_class = Entries


def _read_all(data: Any, read: Callable[[Any], Any], least: int, most: int, what: str) -> list[Any]:
    """Return the values of a list; errors are reported for all invalid ones, up to :data:`MOST_ERRORS`."""
    if not isinstance(data, list) or len(data) < least:
        raise InvalidJob("this is a list with at least one entry" if least else f"this is a list, not {short(data)}")
    if len(data) > most:
        raise too_many(most, what)
    values, errors = [], dict[str, Any]()
    for place, value in enumerate(data):
        try:
            values.append(read(value))
        except (InvalidJob, serializers.ValidationError) as error:
            errors[str(place)] = getattr(error, "detail", str(error))
            if len(errors) == MOST_ERRORS:
                break
    if errors:
        raise serializers.ValidationError(errors)
    return values


# -- members of requests ---------------------------------------------------------------------------------------------


class Member(serializers.Field[Any, Any, Any, Any]):
    """Member of a request, with a rule of ``core``: an error of its check is that of the member."""

    def __init__(self, rule: Check, **options: Any) -> None:
        super().__init__(**options)
        self._rule = rule
        self.schema = dict(rule.schema)
        set_override(self, "field", self.schema)

    def check(self, data: Any) -> Any:
        """Return the value; raise InvalidJob if it is not valid."""
        return None if data is None and self.allow_null else self._rule(self.field_name or "this", data)


def whole(low: int, high: int, **options: Any) -> Member:
    """Return a member that is a whole number of this range."""
    rule = Check(partial(check_int, low=low, high=high), {"type": "integer", "minimum": low, "maximum": high})
    return Member(rule, **options)


def number(low: float, high: float, **options: Any) -> Member:
    """Return a member that is a number of this range."""
    rule = partial(check_number, low=low, high=high, unit="")
    return Member(Check(rule, {"type": "number", "minimum": low, "maximum": high}), **options)


def text(most: int, **options: Any) -> Member:
    """Return a member that is a text of at most so many characters."""

    def run(name: str, data: Any) -> str:
        if isinstance(data, str) and len(data) <= most:
            return data
        raise InvalidJob(f"{name} is a text of up to {most} characters, not {short(data)}")

    return Member(Check(run, {"type": "string", "maxLength": most}), **options)


def choice(*choices: str, **options: Any) -> Member:
    """Return a member that is one of these texts."""
    return Member(Check(partial(check_choice, choices=choices), {"type": "string", "enum": [*choices]}), **options)


def items(rule: Check, least: int, most: int | None = None, **options: Any) -> Member:
    """Return a member that is a list of ``least`` to ``most`` values; None = ``API["max_jobs"]`` ids."""

    def run(name: str, data: Any) -> list[Any]:
        if most is not None and isinstance(data, list) and len(data) > most:
            raise InvalidJob(f"this is a list of no more than {most} values")
        return _read_all(data, partial(rule, name), least, conf().api.max_jobs if most is None else most, "ids")

    schema = {"type": "array", "items": dict(rule.schema), "minItems": least, "maxItems": most or 1000}
    return Member(Check(run, schema), **options)


def _moment(name: str, data: object) -> datetime | float:
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


def _value_of(schema: Mapping[str, Any], text: str) -> Any:
    """Return a query value as a body has it, or the text, which may not be valid; None if it counts as missing."""
    kind = schema.get("type")
    if kind == "boolean":
        return {"true": True, "1": True, "false": False, "0": False}.get(text, text)
    if kind == "integer" and text.isascii() and text.isdigit() and len(text) < 10:
        return int(text)
    if "oneOf" in schema and (number := number_of(text)) is not None:
        return number
    return text if text or schema.keys() & {"enum", "minLength"} else None


def _page_cursor(name: str, data: object) -> str:
    if not isinstance(data, str):
        raise InvalidJob(f"a cursor is a text, not {short(data)}")
    unpack_cursor(data)
    return data


def _key(name: str, data: object) -> bytes:
    if isinstance(data, str) and len(data) == _KEY_DIGITS:
        try:
            return bytes.fromhex(data)
        except ValueError:
            pass
    raise InvalidJob(f"key is the 32 hexadecimal digits that GET shows, not {short(data)}")


ID: Final = Check(lambda name, data: check_id(data), {"type": "string", "minLength": 1, "maxLength": MAX_ID_BYTES})
QUEUE_NAME: Final = Check(
    lambda name, data: check_queue_name(data), {"type": "string", "pattern": "^[A-Za-z][A-Za-z0-9_.-]{0,63}$"}
)
FLAG: Final = Check(check_flag, {"type": "boolean"})
#: cursor of a page or a search
CURSOR: Final = Check(_page_cursor, {"type": "string", "maxLength": 2000})
#: key of a generation; its value is in bytes
KEY: Final = Check(_key, {"type": "string", "pattern": "^[0-9a-f]{32}$"})
#: span in seconds, 0 or more; its value is in milliseconds
SPAN: Final = Check(
    lambda name, data: span_ms_of(name, data, allow_far=conf().allow_far), {"type": "number", "minimum": 0}
)
#: delay in seconds, below 0 = now; its value is in milliseconds
DELAY: Final = Check(lambda name, data: delay_ms_of(data, allow_far=conf().allow_far), {"type": "number"})
#: a moment as ``schedule(at=…)`` accepts it
MOMENT: Final = Check(_moment, {"oneOf": [{"type": "string", "format": "date-time"}, {"type": "number", "minimum": 0}]})


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

"""Columns of a Django table in Spark and Arrow: types of fields, and conversion of values. Imports no Django."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ..core.inputs import short
from .errors import PipelineError

#: Django's internal type of a field -> kind of column
KINDS: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        (
            "AutoField",
            "BigAutoField",
            "SmallAutoField",
            "IntegerField",
            "BigIntegerField",
            "SmallIntegerField",
            "PositiveIntegerField",
            "PositiveBigIntegerField",
            "PositiveSmallIntegerField",
        ),
        "integer",
    ),
    **dict.fromkeys(
        (
            "CharField",
            "TextField",
            "SlugField",
            "FileField",
            "FilePathField",
            "GenericIPAddressField",
        ),
        "text",
    ),
    "BooleanField": "boolean",
    "DateTimeField": "moment",
    "DateField": "date",
    "DecimalField": "decimal",
    "FloatField": "double",
    "BinaryField": "binary",
    "UUIDField": "uuid",  # a text in Spark
    "JSONField": "json",  # a text
    "TimeField": "time",  # a text, ISO 8601
    "DurationField": "duration",  # microseconds
}
#: kinds whose CSV form in PostgreSQL is usable as it is, whatever the locale
COPIED: Final = frozenset({"integer", "text", "boolean", "moment", "date", "decimal", "double", "uuid"})
_TYPES: Final[Mapping[str, DataType]] = {
    "integer": LongType(),
    "text": StringType(),
    "boolean": BooleanType(),
    "moment": TimestampType(),
    "date": DateType(),
    "double": DoubleType(),
    "binary": BinaryType(),
    "uuid": StringType(),
    "json": StringType(),
    "time": StringType(),
    "duration": LongType(),
}
_MOST_DIGITS: Final = 38
_MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Column:
    """Column: its name in Spark and in Django's ``values_list()``, and its kind."""

    name: str
    kind: str
    #: of a decimal: total number of digits, and digits after the decimal point
    digits: tuple[int, int] = (0, 0)
    #: True if PostgreSQL's own text of the value can be used, because no code of the field converts it
    copied: bool = False
    #: encoder of a JSON field
    encoder: type[json.JSONEncoder] | None = None

    @property
    def type(self) -> DataType:
        """Type of the column in Spark."""
        return DecimalType(*self.digits) if self.kind == "decimal" else _TYPES[self.kind]


def column_of(name: str, field: Any, own: Sequence[object]) -> Column | None:
    """Return the column of a field; None for an unknown kind of field.

    Args:
        field: a field of Django that does not lead to another table.
        own: the converters that Django, or the field, applies to each value read.
    """
    kind = KINDS.get(field.get_internal_type())
    if kind is None:
        return None
    field = getattr(field, "output_field", None) or field  # of a GeneratedField
    digits = (0, 0)
    if kind == "decimal":
        digits = (field.max_digits or 0, field.decimal_places or 0)
        if not 0 < digits[0] <= _MOST_DIGITS:
            kind = "text"
    copied = kind in COPIED and not own and field.get_internal_type() != "GenericIPAddressField"
    return Column(name, kind, digits, copied, getattr(field, "encoder", None) if kind == "json" else None)


def schema_of(columns: Sequence[Column]) -> StructType:
    """Return the schema of the columns. All are nullable, because the database may differ from the model."""
    return StructType([StructField(column.name, column.type) for column in columns])


def array_of(column: Column, values: Sequence[Any], kind: pa.DataType, zone: tzinfo | None) -> pa.Array:
    """Return the values of a column as an Arrow array.

    Args:
        kind: type in Arrow.
        zone: time zone of naive datetimes.

    Raises:
        PipelineError: a value does not fit the column.
    """
    mend = _mender(column, zone)
    try:
        return pa.array(values if mend is None else [None if value is None else mend(value) for value in values], kind)
    except _WRONG:
        pass
    # A custom field may return any class, for example one of its own that others treat as a text.
    return _array_of_odd(column, values, kind, mend)


_WRONG: Final = (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError)
_PLAIN: Final[Mapping[str, Callable[[Any], Any]]] = {
    "text": str,
    "uuid": str,
    "integer": int,
    "boolean": bool,
    "double": float,
    "binary": bytes,
}


def _array_of_odd(
    column: Column, values: Sequence[Any], kind: pa.DataType, mend: Callable[[Any], Any] | None
) -> pa.Array:
    plain = _PLAIN.get(column.kind) or mend or (lambda value: value)
    converted = []
    for value in values:
        try:
            converted.append(None if value is None else pa.scalar(plain(value), kind).as_py())
        except _WRONG as error:
            raise PipelineError(
                f"the column {column.name!r} has {short(value)} ({type(value).__name__}), which cannot be read as "
                f"{column.type.simpleString()} ({error}); leave that row or that column out (options filter, columns)"
            ) from None
    return pa.array(converted, kind)


def _mender(column: Column, zone: tzinfo | None) -> Callable[[Any], Any] | None:
    """Return a function that converts Django's value of a kind for Arrow; None = no conversion needed."""
    match column.kind:
        case "uuid":
            return str
        case "binary":
            return bytes
        case "json":
            return lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":"), cls=column.encoder)
        case "time":
            return lambda value: value.isoformat()
        case "duration":
            return lambda value: value // _MICROSECOND
        case "moment" if zone is not None:
            return lambda value: _placed(value, zone)
    return None


def _placed(moment: datetime, zone: tzinfo) -> datetime:
    return moment.replace(tzinfo=zone) if moment.tzinfo is None else moment

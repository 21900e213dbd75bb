"""Columns of a Django table in Spark and Arrow: which type a field becomes, and its values. Needs no Django itself."""

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

#: what Django calls a field's kind -> ours
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
#: kinds that PostgreSQL writes in CSV just as they are wanted, whatever the locale
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
    """A column: its name in Spark, what Django's ``values_list()`` calls it, and its kind."""

    name: str
    kind: str
    #: of a decimal: digits in all, and behind the point
    digits: tuple[int, int] = (0, 0)
    #: whether PostgreSQL's own text of it can be taken, because no code of the field has a say in it
    copied: bool = False
    #: of a JSON field: its own encoder
    encoder: type[json.JSONEncoder] | None = None

    @property
    def type(self) -> DataType:
        """In Spark."""
        return DecimalType(*self.digits) if self.kind == "decimal" else _TYPES[self.kind]


def column_of(name: str, field: Any, own: Sequence[object]) -> Column | None:
    """The column of a field; None for a kind of field that is not known.

    Args:
        field: Django's, not one that leads to another table.
        own: what Django, or the field, does to each value that it reads.
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
    """Of these columns. Any may be null: what a database really holds is not always what its model says."""
    return StructType([StructField(column.name, column.type) for column in columns])


def array_of(column: Column, values: Sequence[Any], kind: pa.DataType, zone: tzinfo | None) -> pa.Array:
    """The values of a column.

    Args:
        kind: what it is in Arrow.
        zone: of moments that have none of their own.

    Raises:
        PipelineError: a value that cannot be in such a column.
    """
    mend = _mender(column, zone)
    try:
        return pa.array(values if mend is None else [None if value is None else mend(value) for value in values], kind)
    except _WRONG:
        pass
    # A custom field may make anything of its values: one of a class of its own, say, that is a text for everybody else.
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
    found = []
    for value in values:
        try:
            found.append(None if value is None else pa.scalar(plain(value), kind).as_py())
        except _WRONG as error:
            raise PipelineError(
                f"the column {column.name!r} has {short(value)} ({type(value).__name__}), which cannot be read as "
                f"{column.type.simpleString()} ({error}); leave that row or that column out (options filter, columns)"
            ) from None
    return pa.array(found, kind)


def _mender(column: Column, zone: tzinfo | None) -> Callable[[Any], Any] | None:
    """What makes of Django's value of a kind what Arrow takes; None = it takes it as it is."""
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

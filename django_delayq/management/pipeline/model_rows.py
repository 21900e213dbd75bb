"""Rows of a Django model as a file of Parquet, written by this process: Spark's workers need no Django."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from django.conf import settings
from django.core.exceptions import FieldDoesNotExist
from django.utils import timezone

from ...core.errors import Misconfigured
from ...core.inputs import short, suggest
from ...outbox.rows import chunks
from ...pipeline.errors import PipelineError

if TYPE_CHECKING:
    import pyarrow as pa

#: rows of a row group; Spark reads each in a task of its own
GROUP_ROWS: Final = 50_000
_MICROSECOND: Final = timedelta(microseconds=1)
_MOST_DIGITS: Final = 38
#: Django's internal types of fields -> name of Arrow's type
_KINDS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("AutoField", "BigAutoField", "SmallAutoField"), "int64"),
    **dict.fromkeys(("IntegerField", "BigIntegerField", "SmallIntegerField"), "int64"),
    **dict.fromkeys(("PositiveIntegerField", "PositiveBigIntegerField", "PositiveSmallIntegerField"), "int64"),
    **dict.fromkeys(("CharField", "TextField", "SlugField", "FileField", "FilePathField"), "string"),
    **dict.fromkeys(("GenericIPAddressField", "UUIDField", "JSONField", "TimeField"), "string"),
    "BooleanField": "bool",
    "DateTimeField": "timestamp",
    "DateField": "date32",
    "DecimalField": "decimal",
    "FloatField": "float64",
    "BinaryField": "binary",
    "DurationField": "int64",  # microseconds
}
#: conversion of a value that Arrow does not take as it is, by the name of its type
_PLAIN: Final[Mapping[str, Callable[[Any], Any]]] = {
    "int64": int,
    "string": str,
    "bool": bool,
    "float64": float,
    "binary": bytes,
}


def write_rows(rows: Any, names: Sequence[str], path: str, system: Any = None) -> None:
    """Write a file with these fields of the rows, also through foreign keys: ``customer__email``.

    Args:
        rows: a queryset.
        path: of the file, in Arrow's file system ``system``; None = that of this machine.

    Raises:
        Misconfigured: there is no such field, or its values have no form in Spark.
        PipelineError: a value does not fit its field.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    fields = [_field_of(rows.model, name) for name in names]
    kinds = [_kind_of(rows.model, name, field) for name, field in zip(names, fields, strict=True)]
    schema = pa.schema(list(zip(names, kinds, strict=True)))
    values = rows.values_list(*names).iterator(chunk_size=10_000)
    with pq.ParquetWriter(path, schema, filesystem=system) as writer:
        for group in chunks(values, GROUP_ROWS):
            columns = zip(fields, schema, zip(*group, strict=True), strict=True)
            arrays = [_array_of(field, column, some) for field, column, some in columns]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


def _field_of(model: Any, name: str) -> Any:
    """Return the field that has the values of a name."""
    meta, field = model._meta, None
    for part in name.split("__"):
        try:
            if meta is None:
                raise FieldDoesNotExist
            field = meta.pk if part == "pk" else meta.get_field(part)
        except FieldDoesNotExist:
            known = [one.attname for one in (meta or model._meta).concrete_fields]
            hint = f"{suggest(part, known)} Known columns: {', '.join(known)}"
            raise Misconfigured(f"{model._meta.label} has no column {name!r}.{hint}") from None
        if not getattr(field, "concrete", False) or field.many_to_many:
            raise Misconfigured(f"{model._meta.label}: {name!r} leads to many rows or to no stored field")
        meta = field.related_model._meta if field.is_relation else None
    while field.is_relation:  # type: ignore[union-attr]  # a name has at least one part
        field = field.target_field  # type: ignore[union-attr]
    return getattr(field, "output_field", None) or field  # of a GeneratedField


def _kind_of(model: Any, name: str, field: Any) -> pa.DataType:
    import pyarrow as pa

    kind = _KINDS.get(field.get_internal_type())
    if kind is None:
        raise Misconfigured(f"{model._meta.label}: {name!r} is a {type(field).__name__}, which has no form in Spark")
    if kind == "timestamp":
        return pa.timestamp("us", "UTC")
    if kind == "decimal":
        digits = field.max_digits or 0
        return pa.decimal128(digits, field.decimal_places) if 0 < digits <= _MOST_DIGITS else pa.string()
    return getattr(pa, "bool_" if kind == "bool" else kind)()


def _array_of(field: Any, column: pa.Field, values: Sequence[Any]) -> pa.Array:
    import pyarrow as pa

    convert = _converter(field)
    converted = values if convert is None else [None if value is None else convert(value) for value in values]
    try:
        return pa.array(converted, column.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError):
        pass
    # A custom field may return any class, for example one of its own that others treat as a text.
    plain, found = _PLAIN.get(_KINDS[field.get_internal_type()], lambda value: value), []
    for value in values:
        try:
            found.append(None if value is None else pa.scalar(plain(value), column.type).as_py())
        except (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise PipelineError(
                f"the column {column.name!r} has {short(value)} ({type(value).__name__}), which cannot be read as "
                f"{column.type} ({error}); leave that row out"
            ) from None
    return pa.array(found, column.type)


def _converter(field: Any) -> Callable[[Any], Any] | None:
    """Return a function that converts Django's value for Arrow; None = no conversion needed."""
    match field.get_internal_type():
        case "UUIDField":
            return str
        case "DecimalField" if not 0 < (field.max_digits or 0) <= _MOST_DIGITS:
            return str
        case "BinaryField":
            return bytes
        case "JSONField":
            return lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":"), cls=field.encoder)
        case "TimeField":
            return lambda value: value.isoformat()
        case "DurationField":
            return lambda value: value // _MICROSECOND
        case "DateTimeField" if not settings.USE_TZ:
            zone = timezone.get_default_timezone()
            return lambda value: value.replace(tzinfo=zone) if value.tzinfo is None else value
    return None

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
from ...core.inputs import suggest
from ...outbox.rows import chunks
from ...pipeline.errors import PipelineError

if TYPE_CHECKING:
    import pyarrow as pa

#: rows of a row group; Spark reads each in a task of its own
GROUP_ROWS: Final = 50_000
_MICROSECOND: Final = timedelta(microseconds=1)
_MOST_DIGITS: Final = 38
#: Django's internal types of fields -> name of Arrow's type, and the conversion of a value: a custom field may return
#: any class, for example one of its own that others treat as a text
_KINDS: Final[Mapping[str, tuple[str, Callable[[Any], Any]]]] = {
    **dict.fromkeys(("AutoField", "BigAutoField", "SmallAutoField"), ("int64", int)),
    **dict.fromkeys(("IntegerField", "BigIntegerField", "SmallIntegerField"), ("int64", int)),
    **dict.fromkeys(("PositiveIntegerField", "PositiveBigIntegerField", "PositiveSmallIntegerField"), ("int64", int)),
    **dict.fromkeys(("CharField", "TextField", "SlugField", "FileField", "FilePathField"), ("string", str)),
    **dict.fromkeys(("GenericIPAddressField", "UUIDField", "TimeField"), ("string", str)),
    "BooleanField": ("bool_", bool),
    "DateTimeField": ("timestamp", lambda value: value),
    "DateField": ("date32", lambda value: value),
    "DecimalField": ("decimal", lambda value: value),
    "FloatField": ("float64", float),
    "BinaryField": ("binary", bytes),
    "JSONField": ("string", str),
    "DurationField": ("int64", lambda value: value // _MICROSECOND),
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

    if field.get_internal_type() not in _KINDS:
        raise Misconfigured(f"{model._meta.label}: {name!r} is a {type(field).__name__}, which has no form in Spark")
    kind, _ = _KINDS[field.get_internal_type()]
    if kind == "timestamp":
        return pa.timestamp("us", "UTC")
    if kind == "decimal":
        digits = field.max_digits or 0
        return pa.decimal128(digits, field.decimal_places) if 0 < digits <= _MOST_DIGITS else pa.string()
    return getattr(pa, kind)()


def _array_of(field: Any, column: pa.Field, values: Sequence[Any]) -> pa.Array:
    import pyarrow as pa

    convert = _converter(field, column)
    try:
        return pa.array([None if value is None else convert(value) for value in values], column.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise PipelineError(
            f"the column {column.name!r} has a value that cannot be read as {column.type} ({error}); leave its row out"
        ) from None


def _converter(field: Any, column: pa.Field) -> Callable[[Any], Any]:
    """Return the conversion of Django's values for Arrow."""
    kind, convert = _KINDS[field.get_internal_type()]
    if field.get_internal_type() == "JSONField":
        return lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":"), cls=field.encoder)
    if kind == "decimal" and column.type == "string":
        return str
    if kind == "timestamp" and not settings.USE_TZ:
        zone = timezone.get_default_timezone()
        return lambda value: value.replace(tzinfo=zone) if value.tzinfo is None else value
    return convert

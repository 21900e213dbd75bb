"""Resolution of column names and filters of a Django model through foreign keys. Imports no Django."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import tzinfo
from typing import Any, Final

from ..core.errors import InvalidJob, Misconfigured
from ..core.inputs import suggest
from ..core.times import parse_moment
from .table_columns import Column, column_of

_COMPARED: Final = frozenset({"exact", "lt", "lte", "gt", "gte", "in", "range"})


def columns_of(model: Any, connection: Any, names: Sequence[str] | None) -> list[Column]:
    """Return the columns of these names; None = all columns of the model's own table.

    Args:
        connection: Django's connection to the model's database.

    Raises:
        Misconfigured: there is no such column, or Spark has no type for it.
    """
    if names is None:
        names = [field.attname for field in model._meta.concrete_fields]
    return [_column(model, connection, name) for name in names]


def key_kind(model: Any) -> str | None:
    """Return the kind of the primary key; None if it is unknown."""
    column = column_of("pk", _target(model._meta.pk), ())
    return None if column is None else column.kind


def adapted(model: Any, name: str, value: Any, zone: tzinfo | None) -> Any:
    """Return the value of a filter as Django expects it: datetimes are texts in JSON.

    Args:
        zone: the time zone of the project's naive datetimes; None = all are aware.

    Raises:
        Misconfigured: a datetime is malformed, or has no time zone.
    """
    meta, field, rest = model._meta, None, name.split("__")
    while rest and meta is not None:
        match = _find(meta, rest[0])
        if match is None:
            break
        field, rest, meta = match, rest[1:], _behind(match)
    kind = getattr(field, "get_internal_type", lambda: "")()
    if kind != "DateTimeField" or not _COMPARED.issuperset(rest):
        return value
    if isinstance(value, list):
        return [_moment(name, one, zone) for one in value]
    return _moment(name, value, zone)


def _find(meta: Any, part: str) -> Any:
    if part == "pk":
        return meta.pk
    fields = meta.get_fields()
    return next((one for one in fields if part in (one.name, getattr(one, "attname", None))), None)


def _behind(field: Any) -> Any:
    """Return the model options of a relation's target."""
    related = getattr(field, "related_model", None)
    return None if related is None else related._meta


def _column(model: Any, connection: Any, name: str) -> Column:
    label, meta, field = model._meta.label, model._meta, None
    for part in name.split("__"):
        field = None if meta is None else _find(meta, part)
        if field is None:
            attributes = [one.attname for one in (meta or model._meta).concrete_fields]
            hint = f"{suggest(part, attributes)} Known columns: {', '.join(attributes)}"
            raise Misconfigured(f"{label} has no column {name!r}.{hint}")
        if not getattr(field, "concrete", False) or getattr(field, "many_to_many", False):
            raise Misconfigured(f"{label}: {name!r} leads to many rows or to no stored field, so it is no column")
        meta = _behind(field)
    target = _target(field)
    own = [*target.get_db_converters(connection), *connection.ops.get_db_converters(target.get_col("t"))]
    column = column_of(name, target, own)
    if column is None:
        raise Misconfigured(
            f"{label}: {name!r} is a {type(target).__name__}, which has no form in Spark; list the other "
            "columns in the option columns"
        )
    return column


def _target(field: Any) -> Any:
    """Return the field that a foreign key finally points to, which determines the kind of its values."""
    while field.is_relation:
        field = field.target_field
    return field


def _moment(name: str, value: Any, zone: tzinfo | None) -> Any:
    if not isinstance(value, str):
        return value
    try:
        moment = parse_moment(value, what=f"filter {name!r}")
    except InvalidJob as error:
        raise Misconfigured(str(error)) from None
    return moment if zone is None else moment.astimezone(zone).replace(tzinfo=None)

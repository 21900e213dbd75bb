"""Names of a Django model's columns and of its filters, followed through foreign keys. Needs no Django itself."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, tzinfo
from typing import Any, Final

from ..core.errors import Misconfigured
from ..core.inputs import short
from ..core.task import suggest
from .table_columns import Column, column_of

_COMPARED: Final = frozenset({"exact", "lt", "lte", "gt", "gte", "in", "range"})


def columns_of(model: Any, connection: Any, names: Sequence[str] | None) -> list[Column]:
    """The columns of these names; None = all that the model's own table has.

    Args:
        connection: Django's, to the database where it is.

    Raises:
        Misconfigured: there is none of that name, or Spark has nothing for it.
    """
    if names is None:
        names = [field.attname for field in model._meta.concrete_fields]
    return [_column(model, connection, name) for name in names]


def key_kind(model: Any) -> str | None:
    """The kind of the primary key; None if it has none that is known."""
    found = column_of("pk", _target(model._meta.pk), ())
    return None if found is None else found.kind


def adapted(model: Any, name: str, value: Any, zone: tzinfo | None) -> Any:
    """The value of a filter as Django wants it: moments are texts in JSON.

    Args:
        zone: the one in which the project keeps moments without a zone; None = they all have one.

    Raises:
        Misconfigured: a moment that is none, or has no zone.
    """
    meta, field, rest = model._meta, None, name.split("__")
    while rest and meta is not None:
        found = _find(meta, rest[0])
        if found is None:
            break
        field, rest, meta = found, rest[1:], _behind(found)
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
    """What a relation leads to."""
    related = getattr(field, "related_model", None)
    return None if related is None else related._meta


def _column(model: Any, connection: Any, name: str) -> Column:
    label, meta, field = model._meta.label, model._meta, None
    for part in name.split("__"):
        field = None if meta is None else _find(meta, part)
        if field is None:
            known = [one.attname for one in (meta or model._meta).concrete_fields]
            raise Misconfigured(f"{label} has no column {name!r}.{suggest(part, known)} Known are: {', '.join(known)}")
        if not getattr(field, "concrete", False) or getattr(field, "many_to_many", False):
            raise Misconfigured(f"{label}: {name!r} leads to many rows, or to none that is stored, so it is no column")
        meta = _behind(field)
    target = _target(field)
    own = [*target.get_db_converters(connection), *connection.ops.get_db_converters(target.get_col("t"))]
    column = column_of(name, target, own)
    if column is None:
        raise Misconfigured(
            f"{label}: {name!r} is a {type(target).__name__}, which has no form in Spark; name the columns that are "
            "wanted without it (option columns)"
        )
    return column


def _target(field: Any) -> Any:
    """What a foreign key holds is of the kind of what it points to."""
    while field.is_relation:
        field = field.target_field
    return field


def _moment(name: str, value: Any, zone: tzinfo | None) -> Any:
    if not isinstance(value, str):
        return value
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        wanted = "write a moment like 2030-01-31T12:00:00Z"
        raise Misconfigured(f"the filter {name!r} has {short(value)}; {wanted}") from None
    if found.tzinfo is None:
        raise Misconfigured(f"the filter {name!r} has {short(value)} without a time zone; end it with one: Z or +01:00")
    return found if zone is None else found.astimezone(zone).replace(tzinfo=None)

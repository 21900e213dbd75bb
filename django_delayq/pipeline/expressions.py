"""Translation of a bulk load's templates, such as ``sms:{pk}:{day}`` and ``+2h``, to Spark columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from ..core.errors import Misconfigured
from ..core.inputs import short, suggest
from ..rows import Kind, check_names_in, due_ms_of, id_parts, unsure, wrong_due
from .column_names import column_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from .bulk_options import BulkOptions

#: types with exactly one text form per value
_SURE: Final[Mapping[str, Kind | None]] = {
    "string": None,
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), "integer"),
    "boolean": "boolean",
    "date": "date",
}


def column(frame: DataFrame, name: str, what: str) -> Column:
    """Return the column with exactly this name.

    Raises:
        Misconfigured: there is none; the message lists the existing columns.
    """
    if column_of(frame, name) is None:
        names = ", ".join(frame.columns[:30])
        raise Misconfigured(
            f"{what}: the input has no column {short(name)}.{suggest(name, frame.columns)} Known columns: {names}"
        )
    return F.col(quoted(name))


def quoted(name: str) -> str:
    """Return a name quoted for Spark's expressions."""
    return f"`{name.replace('`', '``')}`"


def id_column(frame: DataFrame, template: str) -> Column:
    """Return ``sms:{pk}:{day}`` as a column. A row in which a part is null gets no id, and so is not a valid job.

    Raises:
        Misconfigured: it names no column, or a column of a type whose text form may vary, or is not a template at all.
    """
    check_names_in(template)
    parts: list[Column] = []
    kinds = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
    for text, name in id_parts(template):
        if text:
            parts.append(F.lit(text))
        if name is None:
            continue
        one = column(frame, name, f"the id {short(template)}")
        kind = kinds[column_of(frame, name) or name]
        if kind not in _SURE and not kind.startswith("decimal"):
            raise unsure(template, name, kind)
        parts.append(one.cast("string"))
    return F.concat(*parts)


def kinds_of(frame: DataFrame, names: Iterable[str]) -> dict[str, Kind]:
    """Return the kinds of those columns whose values have one form."""
    types = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
    kinds = {name: _SURE.get(types[column_of(frame, name) or name]) for name in names}
    return {name: kind for name, kind in kinds.items() if kind is not None}


def due_column(frame: DataFrame, due: str | None, opened_ms: int) -> Column | None:
    """Return the column of due times, named as the format expects it; None = due at once.

    Args:
        due: the name of a column (a timestamp, Unix ms as a whole number, or ISO 8601 texts, in UTC unless they say
            otherwise), a moment like 2026-11-21T08:00:00+01:00, or a delay after the start of the bulk load, like +2h.
        opened_ms: start of the bulk load, Unix ms.

    Raises:
        Misconfigured: it is none of these.
    """
    if due is None:
        return None
    name = column_of(frame, due)
    if name is None:
        return F.lit(due_ms_of(due, opened_ms, frame.columns)).cast("long").alias("due_ms")
    kind = frame.schema[name].dataType.simpleString()
    if kind == "timestamp":
        return F.col(quoted(due)).alias("due")
    if kind in ("bigint", "int"):
        return F.col(quoted(due)).cast("long").alias("due_ms")
    if kind == "string":
        # A cast would read a text without a zone in that of the session, which may be the user's.
        text = F.to_json(F.struct(F.col(quoted(due)).alias("due")))
        return F.from_json(text, "due timestamp", {"timeZone": "UTC"})["due"].alias("due")
    raise wrong_due(due, kind)


def jobs(frame: DataFrame, options: BulkOptions, opened_ms: int) -> DataFrame:
    """Map the rows of an input to jobs: the columns that the format ``delayq`` accepts.

    Args:
        opened_ms: start of the bulk load, Unix ms.

    Raises:
        Misconfigured: see :func:`id_column` and :func:`due_column`; or a column does not exist.
    """
    mapped = [id_column(frame, options.id).alias("id")]
    due = due_column(frame, options.due, opened_ms)
    if due is not None:
        mapped.append(due)
    for word, names in (("args", options.args), ("kwargs", options.kwargs), ("context", options.context)):
        if names:
            columns = [
                column(frame, name, word).alias(f"_{n}" if word == "args" else name) for n, name in enumerate(names)
            ]
            mapped.append(F.struct(*columns).alias(word))
    for word, name in (("payload", options.payload), ("score", options.score), ("priority", options.priority)):
        if name is not None:
            mapped.append(column(frame, name, word).alias(word))
    return frame.select(*mapped)

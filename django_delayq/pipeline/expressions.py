"""Translation of a bulk load's templates, such as ``sms:{pk}:{day}`` and ``+2h``, to Spark columns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta
from string import Formatter
from typing import TYPE_CHECKING, Final

from ..core.errors import InvalidJob, Misconfigured
from ..core.inputs import short, suggest
from ..core.moments import ms_of, parse_moment
from ..core.times import span_ms_of
from .column_names import column_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_PART: Final = re.compile(r"(\d+(?:\.\d+)?)([dhms])")
_SECONDS: Final = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
#: types with exactly one text form per value
_SURE: Final = ("string", "tinyint", "smallint", "int", "bigint", "boolean", "date")


def column(frame: DataFrame, name: str, what: str) -> Column:
    """Return the column with exactly this name.

    Raises:
        Misconfigured: there is none; the message lists the existing columns.
    """
    from pyspark.sql import functions as F

    if column_of(frame, name) is None:
        known = ", ".join(frame.columns[:30])
        raise Misconfigured(
            f"{what}: the input has no column {short(name)}.{suggest(name, frame.columns)} Known columns: {known}"
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
    from pyspark.sql import functions as F

    pieces = _pieces(template)
    found: list[Column] = []
    kinds = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
    names = 0
    for text, name, form, conversion in pieces:
        if text:
            found.append(F.lit(text))
        if name is None:
            continue
        if form or conversion:
            raise Misconfigured(
                f"the id {short(template)}: only names of columns go between braces, like {{pk}}; derive "
                "a column with the required form"
            )
        one = column(frame, name, f"the id {short(template)}")
        kind = kinds[column_of(frame, name) or name]
        if kind not in _SURE and not kind.startswith("decimal"):
            raise Misconfigured(
                f"the id {short(template)}: {name} is {kind}, whose text form may vary; use a text, a whole "
                "number or a date"
            )
        found.append(one.cast("string"))
        names += 1
    if not names:
        raise Misconfigured(
            f"the id {short(template)} names no column, so all rows would be one job; write it like sms:{{pk}}"
        )
    return F.concat(*found)


def _pieces(template: str) -> list[tuple[str, str | None, str | None, str | None]]:
    try:
        return list(Formatter().parse(template))
    except ValueError as error:
        raise Misconfigured(
            f"the id {short(template)} is no template ({error}); write it like sms:{{pk}}:{{day}}"
        ) from None


def names_in(template: str) -> list[str]:
    """Return the columns used in an id template.

    Raises:
        Misconfigured: it is not a template.
    """
    return list(dict.fromkeys(name for _, name, _, _ in _pieces(template) if name))


def pattern_of(template: str) -> str:
    """Return a regular expression of Java's for the ids that the template makes."""
    found = "".join(re.escape(text) + ("" if name is None else "(?:.+)") for text, name, _, _ in _pieces(template))
    return rf"(?s)\A{found}\z"


def due_column(frame: DataFrame, due: str | None, opened_ms: int) -> Column | None:
    """Return the column of due times, named as the format expects it; None = due at once.

    Args:
        due: the name of a column (a timestamp, Unix ms as a whole number, or ISO 8601 texts, in UTC unless they say
            otherwise), a moment like 2026-11-21T08:00:00+01:00, or a delay after the start of the bulk load, like +2h.
        opened_ms: start of the bulk load, Unix ms.

    Raises:
        Misconfigured: it is none of these.
    """
    from pyspark.sql import functions as F

    if due is None:
        return None
    found = column_of(frame, due)
    if found is None:
        return F.lit(_moment(frame, due, opened_ms)).cast("long").alias("due_ms")
    kind = frame.schema[found].dataType.simpleString()
    if kind == "timestamp":
        return F.col(quoted(due)).alias("due")
    if kind in ("bigint", "int"):
        return F.col(quoted(due)).cast("long").alias("due_ms")
    if kind == "string":
        return F.expr(f"try_cast({quoted(due)} AS timestamp)").alias("due")
    raise Misconfigured(
        f"--due {due} is {kind}; it has to be a timestamp, Unix milliseconds or ISO 8601 texts: a date "
        "has no hour, and a time without a zone is ambiguous"
    )


def _moment(frame: DataFrame, due: str, opened_ms: int) -> int:
    if due.startswith("+"):
        return opened_ms + span_ms_of("due", timedelta(seconds=seconds(due[1:])))
    try:
        return ms_of(parse_moment(due, what="due"))
    except InvalidJob as error:
        raise Misconfigured(
            f"{error}. It is no column either.{suggest(due, frame.columns)} Give the name of a column, a moment, or a "
            "delay like +2h30m"
        ) from None


def seconds(text: str) -> float:
    """Parse ``1d2h30m5s``, or plain seconds, to seconds.

    Raises:
        Misconfigured: it is not a duration.
    """
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise Misconfigured(f"{short(text)} is no duration; write it like 90s, 2h30m or 1d")
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def jobs(
    frame: DataFrame,
    *,
    ident: str,
    due: str | None,
    opened_ms: int,
    args: Sequence[str] = (),
    kwargs: Sequence[str] = (),
    payload: str | None = None,
    score: str | None = None,
    context: Sequence[str] = (),
    priority: str | None = None,
) -> DataFrame:
    """Map the rows of an input to jobs: the columns that the format ``delayq`` accepts.

    Raises:
        Misconfigured: see :func:`id_column` and :func:`due_column`; or a column does not exist.
    """
    from pyspark.sql import functions as F

    found = [id_column(frame, ident).alias("id")]
    at = due_column(frame, due, opened_ms)
    if at is not None:
        found.append(at)
    for word, names in (("args", args), ("kwargs", kwargs), ("context", context)):
        if names:
            columns = [
                column(frame, name, word).alias(f"_{n}" if word == "args" else name) for n, name in enumerate(names)
            ]
            found.append(F.struct(*columns).alias(word))
    for word, name in (("payload", payload), ("score", score), ("priority", priority)):
        if name is not None:
            found.append(column(frame, name, word).alias(word))
    return frame.select(*found)

"""Jobs of rows: templates such as ``order-{pk}`` and ``+2h``, and the rules of the comparison of a table with a queue.

The order of the reads makes a comparison safe beside a working application. With Spark all places of the queue are read
first. Only then the table is read, restricted to rows older than a grace period. A job that ends between the reads is
therefore in the first snapshot, and a row created meanwhile is too young. Without Spark the ids of the rows are looked
up instead, also in the outbox, and the rows without a job are read again behind that look. Missing jobs are scheduled
without replacing live ones, so a job that exists after all is not changed. The handler must still tolerate a second
execution, as with every job that may run twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import date, datetime
from decimal import Decimal
from string import Formatter
from typing import Any, Final
from uuid import UUID

from ..core.errors import InvalidJob, Misconfigured
from ..core.inputs import short, suggest
from ..core.times import ms_of, parse_moment, span_ms_of

#: age below which rows are not compared
GRACE_MS: Final = 600_000
#: states of rows of the outbox whose jobs will not run again without intervention. Sent rows are known jobs: Redis may
#: not have received them yet, or may have lost them, and the outbox's own reconciler handles that
DEAD: Final = ("buried", "refused")
#: number of missing and of invalid rows that are named
FIRST: Final = 10
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)([dhms])")
_SECONDS: Final = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}


def id_parts(template: str) -> list[tuple[str, str | None]]:
    """Return the parts of an id template: a text and the name behind it, or None.

    Raises:
        Misconfigured: it is not a template, or it names no column, so that the ids of two rows could not differ.
    """
    try:
        pieces = list(Formatter().parse(template))
    except ValueError as error:
        raise Misconfigured(
            f"the id {short(template)} is no template ({error}); write it like sms:{{pk}}:{{day}}"
        ) from None
    if any(form or conversion or name == "" for _, name, form, conversion in pieces):
        raise Misconfigured(
            f"the id {short(template)}: only names of columns go between braces, like {{pk}}; derive a column with the "
            "required form"
        )
    if not any(name for _, name, _, _ in pieces):
        raise Misconfigured(
            f"the id {short(template)} names no column, so all rows would be one job; write it like sms:{{pk}}"
        )
    return [(text, name) for text, name, _, _ in pieces]


def names_in(template: str) -> list[str]:
    """Return the columns used in an id template; see :func:`id_parts`."""
    return list(dict.fromkeys(name for _, name in id_parts(template) if name))


def id_of(template: str, row: Mapping[str, Any]) -> str | None:
    """Return the id of a row; None if a part of it is null.

    Raises:
        Misconfigured: a part is of a type whose text form may vary.
    """
    parts = id_parts(template)
    if any(name is not None and row[name] is None for _, name in parts):
        return None
    return "".join(text if name is None else text + _text(template, name, row[name]) for text, name in parts)


def _text(template: str, name: str, value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, int | UUID):
        return str(value)
    if isinstance(value, date) and not isinstance(value, datetime):
        return value.isoformat()
    raise unsure(template, name, type(value).__name__)


def unsure(template: str, name: str, kind: str) -> Misconfigured:
    """Return the error for a part of an id whose text form may vary."""
    return Misconfigured(
        f"the id {short(template)}: {name} is {kind}, whose text form may vary; use a text, a whole number or a date"
    )


def due_ms_of(due: str, opened_ms: int, columns: Iterable[str]) -> int:
    """Return a due time that is the same for all rows: a moment, or a delay like +2h after ``opened_ms``.

    Raises:
        Misconfigured: it is neither; the message suggests one of the columns.
        InvalidJob: the delay is more than ten years.
    """
    if due.startswith("+"):
        return opened_ms + span_ms_of("due", seconds(due[1:]))
    try:
        return ms_of(parse_moment(due, what="due"))
    except InvalidJob as error:
        raise Misconfigured(
            f"{error}. It is no column either.{suggest(due, columns)} Give the name of a column, a moment, or a delay "
            "like +2h30m"
        ) from None


def wrong_due(due: str, kind: str) -> Misconfigured:
    """Return the error for a column that holds no due times."""
    return Misconfigured(
        f"--due {due} is {kind}; it has to be a timestamp, Unix milliseconds or ISO 8601 texts: a date has no hour, "
        "and a time without a zone is ambiguous"
    )


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCounts:
    """Result of a comparison, before anything is scheduled."""

    #: number of rows that need a job and are old enough
    rows: int
    #: number of jobs seen in the queue, in all its places, and in the outbox
    known: int
    #: number of rows (for a plain task: of ids) whose job is to be scheduled again
    missing: int
    #: number of rows whose job is in the morgue or was refused by the outbox; part of ``missing`` if they are included
    buried: int
    #: number of rows that cannot have a valid job, as far as id and due time show
    bad: int
    #: the first missing ids
    first: tuple[str, ...]
    #: the first invalid rows: id, if there is one, and the reason
    first_bad: tuple[tuple[str | None, str], ...] = ()

    def values(self) -> dict[str, Any]:
        """Return all of it for JSON."""
        return {one.name: getattr(self, one.name) for one in fields(RowCounts)}

    def summary(self, *, include_morgue: bool) -> str:
        """Return the counts as lines of text."""
        lines = [f"{self.rows:,} rows need a job, {self.known:,} jobs are known: {self.missing:,} are missing"]
        if self.buried and not include_morgue:
            lines.append(
                f"{self.buried:,} of them have only a job in the morgue, or one refused by the outbox: retry those, "
                "or use --include-morgue"
            )
        if self.first:
            lines.append(f"the first: {', '.join(map(repr, self.first))}")
        return "\n".join(lines)

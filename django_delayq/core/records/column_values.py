"""Conversion of replies with many jobs into columns of values. Broken jobs never raise an error here."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..job import Undecodable
from .body import unpack_body
from .column_reply import FARTHEST, ColumnReply
from .morgue_records import split_name, unpack_record
from .reserve_frames import unpack_state

#: columns of every job besides its queue, shard and place; times are Unix ms
NAMES: Final = (
    "id",
    "task",
    "due",
    "priority",
    "args",
    "context",
    "key",
    "failures",
    "reserves",
    "crashes",
    "lease_until",
    "worker",
    "failed_at",
    "buried_at",
    "reason",
    "error_class",
    "error",
    "payloads",
)

_COUNTED: Final = ("failures", "reserves", "crashes")
_BROKEN: Final = (struct.error, ValueError, OverflowError, IndexError)
_UNREADABLE: Final = "Undecodable"


@dataclass(frozen=True, slots=True)
class Part:
    """Selection of jobs to read from a shard.

    ``low`` and ``high`` (Unix ms) bound the due time: ``low`` is included, ``high`` excluded. ``idents``: only these
    ids. ``args``: True if the arguments are needed; otherwise large ones are left out.
    """

    queue: str
    shard: int
    place: str
    low: int | None = None
    high: int | None = None
    idents: tuple[str, ...] | None = None
    args: bool = True

    def holds(self, due: int | None) -> bool:
        """Return True if a due time is within the bounds; without bounds, None is, too."""
        if due is None:
            return self.low is None and self.high is None
        return (self.low is None or self.low <= due) and (self.high is None or due < self.high)


@dataclass(slots=True)
class Columns:
    """Jobs of a part, column by column. A column may be missing if all its values are :func:`default_of`."""

    part: Part
    n: int
    values: dict[str, list[Any]]

    def column(self, name: str) -> list[Any]:
        """Return a value for each job, of one of :data:`NAMES`."""
        values = self.values.get(name)
        return [default_of(name)] * self.n if values is None else values

    def bounded(self) -> Columns:
        """Return the jobs that are due within the bounds of the part."""
        places = [place for place, due in enumerate(self.column("due")) if self.part.holds(due)]
        if len(places) == self.n:
            return self
        return Columns(
            self.part, len(places), {name: [values[place] for place in places] for name, values in self.values.items()}
        )


def default_of(name: str) -> int | None:
    """Return the value that all jobs have in a column that is missing."""
    return 0 if name in _COUNTED else None


def decoded(texts: Iterable[bytes]) -> list[str]:
    """Return texts decoded from bytes that may be invalid UTF-8."""
    return [text.decode(errors="replace") for text in texts]


def ms_of(scores: Sequence[float], unit: int = 1000) -> list[int | None]:
    """Return scores as Unix ms; None for an impossible time. ``unit``: scores in one ms (1000 if they are µs)."""
    if scores and max(scores) < FARTHEST and min(scores) > -FARTHEST:
        return [int(score // unit) for score in scores]
    return [_ms(score, unit) for score in scores]


def _ms(score: float, unit: int = 1000) -> int | None:
    return int(score // unit) if abs(score) < FARTHEST else None


# -- live jobs ---------------------------------------------------------------------------------------------------------


def live_columns(part: Part, reply: ColumnReply) -> Columns:
    """Return the columns of jobs that wait, are reserved or gated."""
    columns = Columns(part, reply.n, {"id": decoded(reply.members())})
    if part.place == "reserved":
        columns.values["lease_until"] = ms_of(reply.numbers(), 1)
    else:
        columns.values["due"] = ms_of(reply.numbers())
    merged = _put_contents(columns, [_read_content(body, reply.tasks) for body in reply.bodies])
    if part.place != "gated" and any(reply.states):  # the state stored under a gated id belongs to the attempt
        _read_states(columns, reply.states)
    if any(merged):
        counts = [_count_payloads(part, reply, place) if is_merged else None for place, is_merged in enumerate(merged)]
        columns.values["payloads"] = counts
    return columns


def _count_payloads(part: Part, reply: ColumnReply, place: int) -> int:
    """Return the number of payloads of an id; for gated content, without the payloads of the attempt."""
    count = reply.counts[place] if reply.counts else 0
    if part.place != "gated" or not reply.states:
        return count
    try:
        return max(0, count - len(unpack_state(reply.states[place]).taken))
    except _BROKEN:
        return count


def _read_content(body: bytes, tasks: Mapping[int, str]) -> tuple[Any, ...]:
    """Return task, priority, arguments, context, key, True if merged, and the error text of an unreadable body."""
    try:
        priority, merged, key, task, options, args = unpack_body(body, tasks)
    except Undecodable as error:
        # The priority under which the scripts file it.
        return None, body[0] & 7 if body else 4, body, None, body[3:19].hex() or None, False, str(error)
    context = _read_context(options) if options else None
    return task, priority, None if merged else args, context, key.hex(), merged, None


def _put_contents(columns: Columns, contents: Sequence[tuple[Any, ...]]) -> Sequence[bool]:
    """Fill the columns that come from bodies; return True for each merged job."""
    merged: Sequence[bool]
    task, priority, args, context, key, merged, wrong = map(list, zip(*contents, strict=True))
    columns.values.update(task=task, priority=priority, args=args, key=key)
    if any(context):
        columns.values["context"] = context
    if any(wrong):
        columns.values["error"] = wrong
        columns.values["error_class"] = [text and _UNREADABLE for text in wrong]
    return merged


def _read_states(columns: Columns, states: Sequence[bytes]) -> None:
    reserved = columns.part.place == "reserved"
    names = (*_COUNTED, "failed_at", "error_class", "error", *(("due", "worker") if reserved else ()))
    for name in names:
        columns.values[name] = columns.column(name)
    for place, packed in enumerate(states):
        if packed:
            _read_state(columns, place, packed, reserved=reserved)


def _read_state(columns: Columns, place: int, packed: bytes, *, reserved: bool) -> None:
    values = columns.values
    try:
        state = unpack_state(packed)
    except _BROKEN as error:
        _put_error(columns, place, _UNREADABLE, f"the job's state cannot be read: {error}")
        return
    for name, count in zip(_COUNTED, (state.failures, state.reserves, state.crashes), strict=True):
        values[name][place] = count
    values["failed_at"][place] = state.failed_at_ms if 0 < state.failed_at_ms < FARTHEST else None
    if reserved:
        values["due"][place] = _ms(state.due_us)
        values["worker"][place] = _replace_surrogates(state.worker)
    if state.error:
        _put_error(columns, place, *_read_error(state.error))


def _put_error(columns: Columns, place: int, error_class: str | None, error: str | None) -> None:
    """Store an error, unless the more serious one is there: that the body cannot be read."""
    values = columns.values
    if values["error"][place] is None:
        values["error_class"][place], values["error"][place] = error_class, error


# -- the morgue --------------------------------------------------------------------------------------------------------


def buried_columns(part: Part, reply: ColumnReply) -> Columns:
    """Return the columns of jobs in the morgue."""
    idents, keys = zip(*map(split_name, reply.members()), strict=True)
    columns = Columns(part, reply.n, {"id": decoded(idents)})
    records = [_read_morgue_record(record) for record in reply.bodies]
    *values, classes, errors, bodies, payloads, wrong = map(list, zip(*records, strict=True))
    names = ("due", "buried_at", *_COUNTED, "reason")
    merged = _put_contents(columns, [_read_content(body, reply.tasks) for body in bodies])
    columns.values.update(zip(names, values, strict=True))
    columns.values["key"] = [key.hex() for key in keys]
    columns.values["payloads"] = [payloads[place] if is_merged else None for place, is_merged in enumerate(merged)]
    for name in ("error_class", "error"):
        columns.values[name] = columns.column(name)
    for place, problem in enumerate(wrong):
        if problem is not None:
            columns.values["error_class"][place], columns.values["error"][place] = _UNREADABLE, problem
        elif errors[place] or classes[place]:
            named, message = _read_error(errors[place]) if errors[place] else (None, None)
            _put_error(columns, place, classes[place] or named, message)
    return columns


def _read_morgue_record(record: bytes) -> tuple[Any, ...]:
    """Return the fields of a morgue record.

    These are due, buried at, failures, reserves, crashes, reason, error class, error, body, number of payloads, and the
    error text of an unreadable record.
    """
    try:
        stored = unpack_record(record)
    except _BROKEN as problem:
        return None, None, 0, 0, 0, None, None, b"", record, 0, f"the morgue's record cannot be read: {problem}"
    why = (stored.reason or stored.outcome).decode(errors="replace")
    named = stored.error_class.decode(errors="replace") or None
    times, counts = (_ms(stored.due_us), _ms(stored.buried_us)), (stored.failures, stored.reserves, stored.crashes)
    payloads = int.from_bytes(stored.payloads[:4], "little")
    return *times, *counts, why, named, stored.error, stored.body, payloads, None


# -- texts -------------------------------------------------------------------------------------------------------------


def _read_context(options: bytes) -> str | None:
    """Return the context of the schedule call as JSON; None without one, or if it cannot be read."""
    try:
        context = json.loads(options).get("context")
    except (ValueError, AttributeError, RecursionError):
        return None
    return (
        None if context is None else _replace_surrogates(json.dumps(context, ensure_ascii=False, separators=(",", ":")))
    )


def _read_error(stored: bytes) -> tuple[str | None, str | None]:
    """Return class and message of a last error; an unreadable one becomes the message."""
    try:
        error = json.loads(stored)
    except (ValueError, RecursionError):
        error = None
    if not isinstance(error, dict):
        return None, stored.decode(errors="replace")
    texts = (error.get("class"), error.get("message"))
    name, message = (None if text is None else _replace_surrogates(str(text)) for text in texts)
    return name or None, message


def _replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which JSON can express and UTF-8 cannot."""
    return text if text.isascii() else text.encode(errors="replace").decode()

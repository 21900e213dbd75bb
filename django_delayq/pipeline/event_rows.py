"""Conversion of events to Arrow. Pure functions that handle whole columns.

The words of all events lie in one list, at equal distances for each column: a slice is a column, and no row is handled
individually in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ..core.events import COLUMNS, WIDTH, EventEntry, words_of

_INT64: Final = pa.int64()
_TEXT: Final = pa.string()
_TIME: Final = pa.timestamp("us", tz="UTC")
_EXTRA: Final = pa.map_(_TEXT, _TEXT)
#: the last millisecond, at the end of the year 9999, that Spark can read back from a timestamp
_LATEST_MS: Final = 253_402_300_799_999


def to_batch(entries: Sequence[EventEntry], queue: str, number: int, schema: pa.Schema) -> pa.RecordBatch:
    """Return the events of one shard as rows, in their order.

    Invalid UTF-8 is read with replacement characters; a malformed number becomes null.

    Args:
        schema: the requested columns; names and types are those of ``schemas.EVENTS``.
    """
    rows = _Rows(queue, number, entries)
    columns = [_MAKERS[field.name.lower()](rows).cast(field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


class _Rows:
    """Events of one shard by column."""

    def __init__(self, queue: str, number: int, entries: Sequence[EventEntry]) -> None:
        self._queue = queue
        self._number = number
        self._entries = entries
        self._sizes = [entry.size for entry in entries]
        self._words = words_of(entries)

    def constant(self, value: Any, kind: pa.DataType) -> Any:
        return pa.repeat(pa.scalar(value, kind), sum(self._sizes))

    def queue(self) -> Any:
        return self.constant(self._queue, _TEXT)

    def shard(self) -> Any:
        return self.constant(self._number, pa.int32())

    @cached_property
    def _ms(self) -> Any:
        return pa.array(self._by_event([entry.ms for entry in self._entries]), _INT64)

    def stream_id(self) -> Any:
        sizes = zip(self._entries, self._sizes, strict=True)
        numbers = [number for entry, size in sizes for number in range(entry.last - size + 1, entry.last + 1)]
        return pc.binary_join_element_wise(pa.array(numbers, pa.uint64()).cast(_TEXT), self._ms.cast(_TEXT), "-")

    def ts(self) -> Any:
        return _times(pc.fill_null(_within(self._ms, 0, _LATEST_MS), _LATEST_MS))

    def worker(self) -> Any:
        return _optional(self._by_event([entry.worker for entry in self._entries]))

    def _by_event(self, values: Sequence[Any]) -> list[Any]:
        return [value for value, size in zip(values, self._sizes, strict=True) for _ in range(size)]

    def words(self, column: str) -> list[bytes]:
        return self._words[COLUMNS.index(column) :: WIDTH]

    def outcome(self) -> Any:
        return _texts(self.words("outcome"))

    def text(self, column: str) -> Any:
        return _optional(self.words(column))

    def number(self, column: str, most: int = 2**63 - 1) -> Any:
        return _within(_numbers(self.words(column)), 0, most)

    @cached_property
    def _due_ms(self) -> Any:
        return self.number("due", _LATEST_MS)

    @cached_property
    def _started_ms(self) -> Any:
        return _within(self.number("started", _LATEST_MS), 1, _LATEST_MS)

    def due(self) -> Any:
        return _times(self._due_ms)

    def started(self) -> Any:
        return _times(self._started_ms)

    def lateness(self) -> Any:
        return pc.max_element_wise(pc.subtract(self._started_ms, self._due_ms), 0, skip_nulls=False)

    def duration(self) -> Any:
        return pc.if_else(pc.is_valid(self._started_ms), self.number("ms"), pa.scalar(None, _INT64))

    def extra(self) -> Any:
        texts = [word.decode(errors="replace") for word in self.words("extra")]
        if not any(texts):
            return pa.nulls(len(texts), _EXTRA)
        return pa.array([[tuple(text.split(":", 1))] if ":" in text else None for text in texts], _EXTRA)


def _text_of(column: str) -> Callable[[_Rows], Any]:
    return lambda rows: rows.text(column)


_MAKERS: Final[dict[str, Callable[[_Rows], Any]]] = {
    "queue": _Rows.queue,
    "shard": _Rows.shard,
    "stream_id": _Rows.stream_id,
    "ts": _Rows.ts,
    "outcome": _Rows.outcome,
    **{name: _text_of(name) for name in ("id", "task", "key")},
    "worker": _Rows.worker,
    "error_class": _text_of("error"),
    "due": _Rows.due,
    "started": _Rows.started,
    "lateness_ms": _Rows.lateness,
    "duration_ms": _Rows.duration,
    "attempt": lambda rows: rows.number("attempt", 2**31 - 1),
    "jobs": lambda rows: rows.number("jobs"),
    "created": lambda rows: rows.number("created"),
    "extra": _Rows.extra,
}


def _texts(values: Sequence[bytes | None]) -> Any:
    try:
        return pa.array(values, _TEXT)
    except pa.ArrowInvalid:
        return pa.array([value and value.decode(errors="replace") for value in values], _TEXT)


def _optional(values: list[bytes]) -> Any:
    """Return texts with null for those that are empty."""
    if not any(values):
        return pa.nulls(len(values), _TEXT)
    return _texts([value or None for value in values] if b"" in values else values)


def _numbers(values: list[bytes]) -> Any:
    try:
        return _optional(values).cast(_INT64)
    except pa.ArrowInvalid:
        return pa.array([_number(value) for value in values], _INT64)


def _number(value: bytes) -> int | None:
    # Longer ones do not fit, and int() would waste time on them.
    return int(value) if value.isdigit() and len(value) <= 18 else None


def _within(numbers: Any, least: int, most: int) -> Any:
    """Return the numbers with null for those outside of the limits."""
    ends = pc.min_max(numbers)
    if ends["min"].as_py() is None or (ends["min"].as_py() >= least and ends["max"].as_py() <= most):
        return numbers
    fits = pc.and_(pc.greater_equal(numbers, least), pc.less_equal(numbers, most))
    return pc.if_else(fits, numbers, pa.scalar(None, _INT64))


def _times(ms: Any) -> Any:
    return pc.multiply(ms, 1000).cast(_TIME)

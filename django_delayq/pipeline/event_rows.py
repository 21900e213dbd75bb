"""From entries of event streams, as Redis tells them, to Arrow. Pure functions; whole columns at a time.

Entries that the same script wrote have the same fields in the same order, so that their values lie in a list at equal
distances: a slice is a column, and no row is touched by Python on its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ..core.streams import Entry

_INT64: Final = pa.int64()
_TEXT: Final = pa.string()
_TIME: Final = pa.timestamp("us", tz="UTC")
_EXTRA: Final = pa.map_(_TEXT, _TEXT)
#: the last millisecond that a timestamp of Spark can be read back from, that of the year 9999
_LATEST_MS: Final = 253_402_300_799_999
#: columns whose fields have another name in the stream, or are told in another form
_FIELDS: Final = {
    "outcome": b"outcome",
    "id": b"id",
    "task": b"task",
    "key": b"key",
    "due": b"due",
    "started": b"started",
    "duration_ms": b"ms",
    "attempt": b"attempt",
    "worker": b"worker",
    "error_class": b"error",
    "jobs": b"jobs",
    "created": b"created",
}
_KNOWN: Final = frozenset(_FIELDS.values())


def to_batch(entries: Sequence[Entry], queue: str, number: int, schema: pa.Schema) -> pa.RecordBatch:
    """Entries of one shard as rows, in their order.

    What is no UTF-8 is shown with replacement characters; a number that is none becomes null.

    Args:
        schema: the wanted columns; names and types are those of ``schemas.EVENTS``.
    """
    if not entries:
        return pa.RecordBatch.from_pylist([], schema=schema)
    ids, bodies = zip(*entries, strict=True)
    width = len(bodies[0])
    words = list(chain.from_iterable(bodies))
    names = words[:width:2]
    if set(map(len, bodies)) == {width} and words[::2] == names * len(ids):
        return _Rows(queue, number, ids, names, words).batch(schema)
    groups: dict[tuple[bytes, ...], list[int]] = {}
    for place, body in enumerate(bodies):
        groups.setdefault(tuple(body[::2]), []).append(place)
    tables = [
        _Rows(
            queue,
            number,
            [ids[place] for place in places],
            list(fields),
            list(chain.from_iterable(bodies[place] for place in places)),
        ).batch(schema)
        for fields, places in groups.items()
    ]
    order = pc.array_sort_indices(pa.array(chain.from_iterable(groups.values()), _INT64))
    columns = [pa.concat_arrays([table.column(at) for table in tables]) for at in range(len(schema))]
    return pa.RecordBatch.from_arrays([column.take(order) for column in columns], schema=schema)


class _Rows:
    """Entries with the same fields, as the list of all their words: name, value, name, value, ..."""

    def __init__(self, queue: str, number: int, ids: Sequence[bytes], names: list[bytes], words: list[bytes]) -> None:
        self._queue = queue
        self._number = number
        self._size = len(ids)
        self._ids = ids
        step = 2 * len(names)
        self._values = {name: words[2 * at + 1 :: step] for at, name in enumerate(names)}
        self._made: dict[str, Any] = {}

    def batch(self, schema: pa.Schema) -> pa.RecordBatch:
        columns = [self._column(field.name.lower(), field.type) for field in schema]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _column(self, name: str, kind: pa.DataType) -> Any:
        made = self._made.get(name)
        if made is None:
            made = self._made[name] = _MAKERS[name](self)
        return made if made.type == kind else made.cast(kind)

    def constant(self, value: Any, kind: pa.DataType) -> Any:
        return pa.repeat(pa.scalar(value, kind), self._size)

    def queue(self) -> Any:
        return self.constant(self._queue, _TEXT)

    def shard(self) -> Any:
        return self.constant(self._number, pa.int32())

    def stream_id(self) -> Any:
        return _texts(self._ids)

    def ts(self) -> Any:
        ms = pc.list_element(pc.split_pattern(self._column("stream_id", _TEXT), "-", max_splits=1), 0)
        return _times(pc.fill_null(_within(ms.cast(_INT64), 0, _LATEST_MS), _LATEST_MS))

    def outcome(self) -> Any:
        values = self._values.get(b"outcome")
        return self.constant("", _TEXT) if values is None else _texts(values)

    def text(self, name: str) -> Any:
        values = self._values.get(_FIELDS[name])
        if values is None:
            return pa.nulls(self._size, _TEXT)
        texts = _texts(values)
        empty = pc.equal(texts, "")
        return pc.if_else(empty, pa.scalar(None, _TEXT), texts) if pc.any(empty).as_py() else texts

    def number(self, name: str, most: int = 2**63 - 1) -> Any:
        values = self._values.get(_FIELDS[name])
        return pa.nulls(self._size, _INT64) if values is None else _within(_numbers(values), 0, most)

    def due_ms(self) -> Any:
        return self.number("due", _LATEST_MS)

    def started_ms(self) -> Any:
        made = self._made.get("started_ms")
        if made is None:
            made = self._made["started_ms"] = _within(self.number("started", _LATEST_MS), 1, _LATEST_MS)
        return made

    def lateness(self) -> Any:
        return pc.max_element_wise(pc.subtract(self.started_ms(), self.due_ms()), 0, skip_nulls=False)

    def duration(self) -> Any:
        return pc.if_else(pc.is_valid(self.started_ms()), self.number("duration_ms"), pa.scalar(None, _INT64))

    def extra(self) -> Any:
        more = {name.decode(errors="replace"): values for name, values in self._values.items() if name not in _KNOWN}
        if not more:
            return pa.nulls(self._size, _EXTRA)
        columns = [_texts(values).to_pylist() for values in more.values()]
        return pa.array([list(zip(more, row, strict=True)) for row in zip(*columns, strict=True)], _EXTRA)


def _text_of(name: str) -> Callable[[_Rows], Any]:
    return lambda rows: rows.text(name)


_MAKERS: Final[dict[str, Callable[[_Rows], Any]]] = {
    "queue": _Rows.queue,
    "shard": _Rows.shard,
    "stream_id": _Rows.stream_id,
    "ts": _Rows.ts,
    "outcome": _Rows.outcome,
    **{name: _text_of(name) for name in ("id", "task", "key", "worker", "error_class")},
    "due": lambda rows: _times(rows.due_ms()),
    "started": lambda rows: _times(rows.started_ms()),
    "lateness_ms": _Rows.lateness,
    "duration_ms": _Rows.duration,
    "attempt": lambda rows: rows.number("attempt", 2**31 - 1),
    "jobs": lambda rows: rows.number("jobs"),
    "created": lambda rows: rows.number("created"),
    "extra": _Rows.extra,
}


def _texts(values: Sequence[bytes]) -> Any:
    try:
        return pa.array(values, _TEXT)
    except pa.ArrowInvalid:
        return pa.array([value.decode(errors="replace") for value in values], _TEXT)


def _numbers(values: list[bytes]) -> Any:
    try:
        return pa.array(values, _TEXT).cast(_INT64)
    except pa.ArrowInvalid:
        return pa.array([_number(value) for value in values], _INT64)


def _number(value: bytes) -> int | None:
    # Longer ones do not fit, and int() would spend its time on them.
    return int(value) if value.isdigit() and len(value) <= 18 else None


def _within(numbers: Any, least: int, most: int) -> Any:
    """The numbers, null where they are smaller or larger than that."""
    ends = pc.min_max(numbers)
    if ends["min"].as_py() is None or (ends["min"].as_py() >= least and ends["max"].as_py() <= most):
        return numbers
    fits = pc.and_(pc.greater_equal(numbers, least), pc.less_equal(numbers, most))
    return pc.if_else(fits, numbers, pa.scalar(None, _INT64))


def _times(ms: Any) -> Any:
    return pc.multiply(ms, 1000).cast(_TIME)

"""Conversion of the rows of an Arrow batch to bulk entries, byte for byte as ``schedule()`` would store them.

Spark's own ``to_json`` writes other bytes (floats, the order of keys, dates), by which equal payloads would not be
recognised: values are checked and encoded by the core. Only the keys of the jobs differ: they are derived from the bulk
load, so each attempt at it writes the same ones. Faults are recorded by row number.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import compress, repeat
from struct import Struct
from typing import Any, Final, TypeAlias, TypeVar

import pyarrow as pa

from ..core import codec
from ..core.builder import encoded_options
from ..core.codec import codec_at, dump_with
from ..core.errors import InvalidJob
from ..core.inputs import check_id, score_text, short
from ..core.job import RAW, NewJob, Payload
from ..core.loads import BulkLoad, LoadEntry, entry_of
from ..core.options import OPTIONS, stored_members
from ..core.times import MAX_DUE_MS
from .write_options import COLUMNS, NOW, WriteOptions

#: row number -> description of the fault; the first one found stays
Bad: TypeAlias = dict[int, str]
#: values by the name of their column
Columns: TypeAlias = dict[str, Sequence[Any]]
T = TypeVar("T")

_US: Final = pa.timestamp("us", "UTC")
#: columns with options that are stored with a job as the core does it
_OPTIONS: Final = tuple(name for name in COLUMNS if name in OPTIONS and OPTIONS[name].member and name != "expires")
_U16: Final = Struct("<H")
#: limit of encoded values before a codec of the project has stored them
_ANY_SIZE: Final = 1 << 40


# -- values of a column ------------------------------------------------------------------------------------------------


def values_of(array: pa.Array, bad: Bad) -> list[Any]:
    """Return the values as a caller of ``schedule()`` would pass them: aware datetimes in UTC, maps as dicts."""
    array = array.cast(_in_utc(array.type))
    how = {"maps_as_pydicts": "strict"} if "map<" in str(array.type) else {}  # without it ten times as fast
    try:
        return array.to_pylist(**how)  # type: ignore[no-any-return]
    except (KeyError, ValueError, OverflowError, pa.ArrowException):
        return [_value(array, row, bad) for row in range(len(array))]


def _value(array: pa.Array, row: int, bad: Bad) -> Any:
    try:
        return array[row].as_py(maps_as_pydicts="strict")
    except UnicodeDecodeError:
        bad.setdefault(row, "a text in it is not valid UTF-8; clean it, or give it as binary")
    except (KeyError, ValueError, OverflowError, pa.ArrowException) as error:
        bad.setdefault(row, f"a value in it is beyond what Python can hold ({error})")
    return None


def _in_utc(kind: pa.DataType) -> pa.DataType:
    """Return a type with UTC as the zone of its timestamps."""
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_in_utc(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _in_utc(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_in_utc(field.type)) for field in kind])
    return kind


def _values_for(name: str, array: pa.Array, bad: Bad) -> list[Any]:
    """Return the values of the column of this name, times in Unix ms, rounded up, so that no job runs early."""
    if name in ("due", "expires"):
        return [us and -(-us // 1000) for us in values_of(array.cast(_US).cast(pa.int64()), bad)]
    values = values_of(array, bad)
    if name == "args" and pa.types.is_struct(array.type):
        return [value and list(value.values()) for value in values]
    if pa.types.is_decimal(array.type) and name != "payload" and name != "score":
        return [value and float(value) for value in values]
    if name == "context":
        return list(_mapped(lambda text: _parsed(text, dict, "context"), bad, values))
    return values


def _parsed(value: Any, kind: type, what: str) -> Any:
    """Return a value as it is, or what its JSON text holds, which must be a list or a dict."""
    if not isinstance(value, (str, bytes)):
        return value
    try:
        parsed = _PLAIN.decode(value if isinstance(value, str) else value.decode())
    except (ValueError, RecursionError) as error:
        raise InvalidJob(f"{what} is no JSON ({short(value)}: {error})") from None
    if type(parsed) is not kind:
        form = "a list, like [1, 2]" if kind is list else 'an object, like {"a": 1}'
        raise InvalidJob(f"{what} has to be {form}, not {short(value)}")
    return parsed


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number")


_PLAIN: Final = json.JSONDecoder(parse_constant=_no_constant)


def _raw(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else value or b""


def _ident(value: Any) -> str:
    if value is None:
        raise InvalidJob("id is null; give each job an id, or leave the row out")
    return check_id(value)


def _mapped(make: Callable[..., T], bad: Bad, *columns: Sequence[Any]) -> Sequence[T]:
    """Return what ``make`` makes of each row; a row that it refuses gets a placeholder that is never used."""
    if not bad:
        with suppress(InvalidJob):  # find out which rows
            return list(map(make, *columns))
    made: list[Any] = [None] * len(columns[0])
    for row, values in enumerate(zip(*columns, strict=True)):
        try:
            made[row] = make(*values) if row not in bad else None
        except InvalidJob as error:
            bad[row] = str(error)
    return made


def _idents(values: Sequence[Any], bad: Bad) -> Sequence[str]:
    """Return the ids as texts. Plain ones are checked all at once, because each job has one."""
    if set(map(type, values)) == {str}:
        joined = "".join(values)
        if joined.isascii() and joined.isprintable() and 0 < min(map(len, values)) <= max(map(len, values)) < 256:
            return values
    return _mapped(_ident, bad, values)


# -- jobs --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Packed:
    """Jobs of one batch, in its order."""

    entries: list[LoadEntry]
    #: rows of the batch that are not valid jobs, by their position
    bad: Bad


class Packer:
    """Builder of entries from rows.

    Args:
        kind: kind of their queue: ``python`` or ``pull``.

    Raises:
        InvalidJob: no row can be a job, because the options do not fit the queue.
    """

    def __init__(self, options: WriteOptions, run: BulkLoad, kind: str) -> None:
        self._options = options
        self._pull = kind == "pull"
        self._opened_ms = run.opened_ms
        self._last_ms = options.last_ms(run.opened_ms)
        self._common = options.job_options()
        self._common_text = encoded_options(self._common)
        self._task = RAW if self._pull else options.task or ""
        self._codec = None if options.codec is None else codec_at(options.codec)
        if not self._task:
            raise InvalidJob("which task? Give the option task, its registered name")
        self._kind: Callable[[int, bool], bytes] = cache(self._kind_of)

    def pack(self, batch: pa.RecordBatch) -> Packed:
        """Return the entries of a batch whose columns are among :data:`~.write_options.COLUMNS`.

        Raises:
            InvalidJob: no row can be a job, because the options do not fit the columns.
        """
        bad: Bad = {}
        columns: Columns = {name: _values_for(name, batch[name], bad) for name in batch.schema.names}
        ids, merged = _idents(columns["id"], bad), "payload" in columns and not self._pull
        dues = self._dues(columns, len(ids), bad)
        texts = self._option_texts(columns, dues, bad)
        priorities = self._each("priority", self._options.priority, columns, len(ids), bad)
        groups = self._each("group", "", columns, len(ids), bad)
        content = self._payloads(columns, bad) if merged else self._args(columns, len(ids), bad)
        jobs: Sequence[Sequence[Any]] = (ids, dues, texts, priorities, groups, content)
        if bad:
            sound = [row not in bad for row in range(len(ids))]
            jobs = [list(compress(column, sound)) for column in jobs]
        if merged or "group" in columns:
            return Packed(list(map(self._entry, *jobs)), bad)
        return Packed(list(self._plain_entries(jobs)), bad)

    def _dues(self, columns: Columns, n: int, bad: Bad) -> Sequence[int]:
        dues = columns.get("due", columns.get("due_ms"))
        if dues is None:
            return [self._opened_ms] * n
        if None not in dues and 0 <= min(dues, default=0) <= max(dues, default=0) <= self._last_ms:
            return dues
        return _mapped(self._due_ms, bad, dues)

    def _due_ms(self, due_ms: int | None) -> int:
        if due_ms is None:
            if self._options.null_due == NOW:
                return self._opened_ms
            raise InvalidJob(
                "due is null; give each row a time that can be read, or leave the column out: then all jobs are due at "
                "once"
            )
        if due_ms < 0:
            raise InvalidJob("due is before 1970; check its unit")
        if due_ms > self._last_ms:
            far = due_ms <= MAX_DUE_MS
            hint = "the option allowFar=true allows it" if far else "times up to the year 2255 can be stored"
            raise InvalidJob(f"due is more than ten years ahead ({due_ms} ms since 1970); {hint}")
        return due_ms

    def _option_texts(self, columns: Columns, dues: Sequence[int], bad: Bad) -> Sequence[bytes]:
        """Return the options that are stored with each job: those of the row before those of the write."""
        names = [name for name in (*_OPTIONS, "expires") if name in columns]
        if not names:
            return [self._common_text] * len(dues)

        def text_of(due_ms: int, *values: Any) -> bytes:
            own = dict(zip(names, values, strict=True))
            expires_ms = own.pop("expires", None)
            options = {**self._common, **stored_members(own)}
            if expires_ms is not None:
                if expires_ms <= due_ms:
                    raise InvalidJob("expires is not after the due time, so the job would never run; give a later time")
                options.pop("expires_in_ms", None)
                options["expires_ms"] = expires_ms
            return encoded_options(options)

        return _mapped(text_of, bad, dues, *(columns[name] for name in names))

    def _each(self, name: str, usual: Any, columns: Columns, n: int, bad: Bad) -> Sequence[Any]:
        """Return the option of each job: that of its row, or the usual one."""
        if name not in columns:
            return [usual] * n
        check: Any = OPTIONS[name].job
        return _mapped(lambda given: usual if given is None else check(name, given), bad, columns[name])

    def _plain_entries(self, jobs: Sequence[Sequence[Any]]) -> Iterable[LoadEntry]:
        """Return the entries of plain jobs without a group, a column at a time: there are millions."""
        ids, dues, texts, priorities, _, args = jobs
        bodies = [_U16.pack(len(text)) + text + data if text else data for text, data in zip(texts, args, strict=True)]
        kinds = map(self._kind, priorities, map(bool, texts))
        return zip(map(str.encode, ids), dues, bodies, kinds, repeat(()))

    def _kind_of(self, priority: int, has_options: bool) -> bytes:
        """Return what the entries of plain jobs have in common."""
        return self._entry("x", 0, b"{}" if has_options else b"", priority, "", b"")[3]

    def _entry(
        self, ident: str, due_ms: int, text: bytes, priority: int, group: str, content: bytes | tuple[bytes, str]
    ) -> LoadEntry:
        """Return the entry of a job with encoded arguments, or with a payload and its score."""
        options, merged = self._options, isinstance(content, tuple)
        conflict = options.on_conflict or ("merge" if merged else "ignore")
        due_policy = options.due_policy or ("keep" if conflict == "merge" else "replace")
        new = NewJob(ident, self._task, b"", due_ms, None, priority, text, b"", conflict, due_policy)
        new.group = group
        if isinstance(content, tuple):
            new.payload = Payload(*content, b"")
            new.score_policy, new.payloads = options.score_policy, options.payloads
            new.max_payloads = 1 if options.payloads != "all" else options.max_payloads
        else:
            new.args = content
        return entry_of(new)

    def _args(self, columns: Columns, n: int, bad: Bad) -> Sequence[bytes]:
        none = [None] * n
        if self._pull or self._options.encoded:
            raw = columns.get("payload" if self._pull else "args", none)
            return _mapped(lambda data: self._sized(_raw(data), "the arguments take"), bad, raw)

        is_json = self._codec is None and codec.chosen is None
        limit = self._options.max_args_bytes if is_json else _ANY_SIZE
        positional, named = columns.get("args", none), columns.get("kwargs", none)
        if is_json and named is none and (at_once := codec.encode_lists(positional, limit=limit)):
            return at_once

        def args_of(args: Any, kwargs: Any) -> bytes:
            args, kwargs = _parsed(args, list, "args") or (), (kwargs and _parsed(kwargs, dict, "kwargs")) or {}
            encoded = codec.encode_args(args, kwargs, limit=limit)
            return encoded if is_json else self._sized(self._stored(encoded), "the arguments take")

        return _mapped(args_of, bad, positional, named)

    def _payloads(self, columns: Columns, bad: Bad) -> Sequence[tuple[bytes, str]]:
        def payload_of(payload: Any, score: Any) -> tuple[bytes, str]:
            data = _raw(payload) if self._options.encoded else self._stored(codec.encode(payload, limit=_ANY_SIZE))
            return self._sized(data, "payload takes"), "" if score is None else score_text(score)

        payloads = columns["payload"]
        return _mapped(payload_of, bad, payloads, columns.get("score", [None] * len(payloads)))

    def _stored(self, data: bytes) -> bytes:
        """Return encoded values as the codec of the write stores them, whichever this process has."""
        if codec.chosen is not None:
            data = codec.as_json(data)
        return data if self._codec is None or not data else dump_with(self._codec, json.loads(data))

    def _sized(self, data: bytes, what: str) -> bytes:
        limit = self._options.max_args_bytes
        if len(data) > limit:
            raise InvalidJob(
                f"{what} {len(data)} bytes, at most {limit} are stored; store the data elsewhere and pass its key"
            )
        return data

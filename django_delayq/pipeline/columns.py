"""Conversion of the rows of an Arrow batch to bulk entries, byte for byte as ``schedule()`` would store them.

Spark's own ``to_json`` writes other bytes (floats, the order of keys, dates), by which equal payloads would not be
recognised: values are checked and encoded by the core. Only the keys of the jobs differ: they are derived from the bulk
load, so each attempt at it writes the same ones. Faults are recorded by row number.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from struct import Struct
from typing import Any, Final, TypeAlias, TypeVar

import pyarrow as pa

from ..core import codec
from ..core.builder import encoded_options
from ..core.codec import codec_at, dump_with
from ..core.errors import InvalidJob
from ..core.inputs import check_id, check_task_name, score_text, short
from ..core.job import RAW, NewJob, Payload
from ..core.loads import BulkLoad, LoadEntry, entry_of
from ..core.options import OPTIONS, stored_members
from ..core.times import MAX_DUE_MS, TEN_YEARS_MS
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
    kind = _in_utc(array.type)
    array = array if kind == array.type else array.cast(kind)
    how = {"maps_as_pydicts": "strict"} if "map<" in str(kind) else {}  # without it ten times as fast
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


def _check_of(name: str) -> Callable[[Any], Any]:
    check: Any = OPTIONS[name].job
    return partial(check, name)


def _mapped(make: Callable[..., T], bad: Bad, *columns: Sequence[Any]) -> Sequence[T]:
    """Return what ``make`` makes of each row; a row that it refuses gets a placeholder that is never used."""
    if not bad:
        try:
            return list(map(make, *columns))
        except InvalidJob:
            pass  # find out which rows
    return [_made(make, bad, row, values) for row, values in enumerate(zip(*columns, strict=True))]


def _made(make: Callable[..., T], bad: Bad, row: int, values: tuple[Any, ...]) -> Any:
    try:
        return make(*values) if row not in bad else None
    except InvalidJob as error:
        bad[row] = str(error)


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


@dataclass(frozen=True, slots=True)
class Route:
    """Task, conflict policy, priority and group of jobs, and what the entries of plain ones have in common."""

    task: str
    conflict: str
    priority: int
    group: str
    #: what a body begins with, if there is a group
    head: bytes = b""
    #: of jobs without and with options of their own
    kinds: tuple[bytes, ...] = ()


class Packer:
    """Builder of entries from the rows that go to one queue.

    Args:
        kind: kind of the queue: ``python`` or ``pull``.
    """

    def __init__(self, options: WriteOptions, run: BulkLoad, kind: str) -> None:
        self._options = options
        self._pull = kind == "pull"
        self._opened_ms = run.opened_ms
        self._last_ms = MAX_DUE_MS if options.allow_far else min(MAX_DUE_MS, run.opened_ms + TEN_YEARS_MS)
        self._common = options.job_options()
        self._common_text = encoded_options(self._common)
        self._task = RAW if self._pull else options.task or ""
        self._codec = None if options.codec is None else codec_at(options.codec)

    def pack(self, batch: pa.RecordBatch) -> Packed:
        """Return the entries of a batch whose columns are among :data:`~.write_options.COLUMNS`.

        Raises:
            InvalidJob: no row can be a job, because the options do not fit the columns.
        """
        bad: Bad = {}
        columns: Columns = {name: _values_for(name, batch[name], bad) for name in batch.schema.names}
        ids = _idents(columns["id"], bad)
        dues = self._dues(columns, len(ids), bad)
        texts = self._option_texts(columns, dues, bad)
        merged = "payload" in columns and not self._pull
        routes = self._routes(columns, len(ids), bad, merged=merged)
        entry: Callable[..., LoadEntry] = self._merged_entry if merged else self._entry
        content: Sequence[Any] = self._payloads(columns, bad) if merged else self._args(columns, len(ids), bad)
        entries = [
            entry(*job) for row, job in enumerate(zip(ids, dues, texts, routes, content, strict=True)) if row not in bad
        ]
        return Packed(entries, bad)

    def _dues(self, columns: Columns, n: int, bad: Bad) -> Sequence[int]:
        dues = columns.get("due", columns.get("due_ms"))
        return [self._opened_ms] * n if dues is None else _mapped(self._due_ms, bad, dues)

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

    def _routes(self, columns: Columns, n: int, bad: Bad, *, merged: bool) -> Sequence[Route]:
        """Return task, conflict policy, priority and group of each job."""
        options = self._options
        usual = self._task, options.on_conflict or ("merge" if merged else "ignore"), options.priority, ""
        checks = (check_task_name, _check_of("on_conflict"), _check_of("priority"), _check_of("group"))

        @cache
        def route_of(*given: Any) -> Route:
            each: Any = zip(given, usual, checks, strict=True)
            task, conflict, priority, group = (default if one is None else check(one) for one, default, check in each)
            if not task:
                fault = "task is null, and there is no option task" if "task" in columns else "which task?"
                raise InvalidJob(f"{fault}; give the option task, its registered name, or a column task")
            if merged:
                return Route(task, conflict, priority, group)
            if conflict == "merge":
                raise InvalidJob("on_conflict=merge is for jobs with a payload; use ignore, replace or error")
            like = NewJob("x", task, b"", 0, None, priority, b"", b"", conflict, options.due_policy or "replace")
            like.group = group
            _, _, head, kind, _ = entry_of(like)
            return Route(task, conflict, priority, group, head, (kind, entry_of(replace(like, options=b"{}"))[3]))

        names = ("task", "on_conflict", "priority", "group")
        found = [name for name in names if name in columns and not (self._pull and name == "task")]
        if not {"task", "on_conflict"}.intersection(found):  # it is no fault of the rows
            constant = route_of(None, None, None, None)
            if not found:
                return [constant] * n
        return _mapped(route_of, bad, *(columns[name] if name in found else [None] * n for name in names))

    def _entry(self, ident: str, due_ms: int, text: bytes, route: Route, args: bytes) -> LoadEntry:
        body = _U16.pack(len(text)) + text + args if text else args
        return ident.encode(), due_ms, route.head + body, route.kinds[text != b""], ()

    def _merged_entry(
        self, ident: str, due_ms: int, text: bytes, route: Route, payload: tuple[bytes, str]
    ) -> LoadEntry:
        options = self._options
        due_policy = options.due_policy or ("keep" if route.conflict == "merge" else "replace")
        new = NewJob(ident, route.task, b"", due_ms, None, route.priority, text, b"", route.conflict, due_policy)
        new.payload, new.group = Payload(*payload, b""), route.group
        new.score_policy, new.payloads = options.score_policy, options.payloads
        new.max_payloads = 1 if options.payloads != "all" else options.max_payloads
        return entry_of(new)

    def _args(self, columns: Columns, n: int, bad: Bad) -> Sequence[bytes]:
        none = [None] * n
        if self._pull or self._options.encoded:
            raw = columns.get("payload" if self._pull else "args", none)
            return _mapped(lambda data: self._sized(_raw(data), "the arguments take"), bad, raw)

        is_json = self._codec is None and codec.chosen is None
        encode_args, limit = codec.encode_args, self._options.max_args_bytes if is_json else _ANY_SIZE

        def args_of(args: Any, kwargs: Any) -> bytes:
            if type(args) is not list:
                args = _parsed(args, list, "args") or ()
                args = list(args.values() if type(args) is dict else args)
            return encode_args(args, (kwargs and _parsed(kwargs, dict, "kwargs")) or {}, limit=limit)

        def stored_args_of(args: Any, kwargs: Any) -> bytes:
            return self._sized(self._stored(args_of(args, kwargs)), "the arguments take")

        make = args_of if is_json else stored_args_of
        return _mapped(make, bad, columns.get("args", none), columns.get("kwargs", none))

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

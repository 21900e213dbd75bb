"""Conversion of an Arrow batch to bulk entries, a column at a time, byte for byte as ``schedule()`` would store them.

Only the keys of the jobs differ: they are derived from the bulk load, so each attempt at it writes the same ones.
Faults are recorded by row number. A faulty row gets a placeholder that is never used.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from json.encoder import encode_basestring
from struct import Struct
from typing import Any, Final, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from ..core import codec
from ..core.builder import MAX_OPTIONS_BYTES
from ..core.codec import Codec, codec_at, dump_with
from ..core.errors import InvalidJob
from ..core.inputs import check_id, check_task_name, short
from ..core.job import RAW, NewJob, Payload
from ..core.loads import BulkLoad, LoadEntry, entry_of
from ..core.options import OPTIONS
from ..core.times import MAX_DUE_MS, TEN_YEARS_MS
from .write_options import NOW, WriteOptions

#: row number -> description of the fault; the first one found stays
Bad: TypeAlias = dict[int, str]

_TEXT: Final = pa.large_string()
#: characters that JSON must escape inside a string
_ESCAPED: Final = r'["\\\x00-\x1f]'
_SCORE_CHARS: Final = 255


# -- cells: values of a column as JSON ---------------------------------------------------------------------------------


def is_text(kind: pa.DataType) -> bool:
    """Return True if the column holds texts."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_list(kind: pa.DataType) -> bool:
    """Return True if the column holds lists."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


@cache
def _empty_text() -> pa.Scalar:
    """Return an empty text. pyarrow imports pandas to make a scalar, which workers that convert nothing do without."""
    return pa.scalar("", _TEXT)


def values_of(array: pa.Array, bad: Bad) -> list[Any]:
    """Return the values as a caller of ``schedule()`` would pass them: aware datetimes in UTC, maps as dicts."""
    try:
        converted: list[Any] = array.to_pylist()
    except (ValueError, OverflowError, UnicodeDecodeError, pa.ArrowException):
        converted = [_value(array, row, bad) for row in range(len(array))]
    mended = _mender(array.type)
    return converted if mended is None else [mended(value) for value in converted]


def _value(array: pa.Array, row: int, bad: Bad) -> Any:
    try:
        return array[row].as_py()
    except UnicodeDecodeError:
        bad.setdefault(row, "a text in it is not valid UTF-8; clean it, or give it as binary")
    except (ValueError, OverflowError, pa.ArrowException) as error:
        bad.setdefault(row, f"a value in it is beyond what Python can hold ({error})")
    return None


def _mender(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """Return a function that converts Arrow's value of a type to the expected one; None = no conversion needed."""
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return lambda value: value if value is None else datetime.astimezone(value, UTC)
    if is_list(kind):
        one = _mender(kind.value_type)
        return None if one is None else lambda value: value if value is None else list(map(one, value))
    if pa.types.is_map(kind):
        inner = _mender(kind.item_type) or (lambda value: value)
        return lambda value: value if value is None else {name: inner(one) for name, one in value}
    if pa.types.is_struct(kind):
        menders = {field.name: mender for field in kind if (mender := _mender(field.type)) is not None}
        return (lambda value: value if value is None else _mend_struct(value, menders)) if menders else None
    return None


def _mend_struct(value: dict[str, Any], menders: dict[str, Callable[[Any], Any]]) -> dict[str, Any]:
    return {name: menders[name](one) if name in menders else one for name, one in value.items()}


def json_texts(array: pa.Array, what: str, bad: Bad) -> pa.Array:
    """Return the canonical JSON of each value (:func:`~..core.codec.encode`), as a text array without nulls."""
    kind = array.type
    if pa.types.is_null(kind):
        return pa.array(["null"] * len(array), _TEXT)
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return pc.fill_null(pc.cast(array, _TEXT), "null")
    if is_text(kind) and _is_plain(array):
        return pc.fill_null(_join('"', pc.cast(array, _TEXT), '"'), "null")
    if pa.types.is_floating(kind):
        texts = [_float_text(row, value, what, bad) for row, value in enumerate(array.to_pylist())]
    elif is_text(kind):
        texts = ["null" if value is None else encode_basestring(value) for value in values_of(array, bad)]
    else:
        texts = [encoded_json(row, value, what, bad) for row, value in enumerate(values_of(array, bad))]
    return pa.array(texts, _TEXT)


def is_valid(array: pa.Array) -> bool:
    """Return True if all texts are valid UTF-8."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _is_plain(array: pa.Array) -> bool:
    """Return True if the texts need no escaping between quotes."""
    return is_valid(array) and not pc.any(pc.match_substring_regex(array, _ESCAPED)).as_py()


def _float_text(row: int, value: float | None, what: str, bad: Bad) -> str:
    if value is None:
        return "null"
    if not math.isfinite(value):
        bad.setdefault(row, f"{what}: {value!r} has no form in JSON; use null or a text")
    return repr(value)


def encoded_json(row: int, value: Any, what: str, bad: Bad) -> str:
    """Return the canonical JSON of a value, as :func:`~..core.codec.encode` writes it."""
    try:
        return codec.encode(value, limit=1 << 40, what=what).decode()
    except InvalidJob as error:
        bad.setdefault(row, str(error))
        return "null"


def list_texts(array: pa.Array, bad: Bad) -> pa.Array:
    """Return the JSON of each list; an empty text for an empty list and for null."""
    if array.offset:
        array = pa.concat_arrays([array])  # so that the offsets computed below start at its first value
    large = array.cast(pa.large_list(array.type.value_type))
    parents = pc.list_parent_indices(large)
    inner: Bad = {}
    texts = json_texts(large.flatten(), "args", inner)
    for place, reason in inner.items():
        bad.setdefault(parents[place].as_py(), reason)
    counts = pc.fill_null(pc.list_value_length(large), 0)
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(counts).cast(pa.int64())])
    joined = pc.binary_join(pa.LargeListArray.from_arrays(offsets, texts), pa.scalar(",", _TEXT))
    return pc.if_else(pc.equal(counts, 0), _empty_text(), _join("[", joined, "]"))


def struct_texts(array: pa.Array, bad: Bad) -> pa.Array:
    """Return the fields of each struct as a JSON list in order; an empty text for null and where there are none."""
    pieces: list[Any] = []
    for field, column in zip(array.type, array.flatten(), strict=True):
        pieces += (",", json_texts(column, f"args.{field.name}", bad))
    return _joined(array, ["[", *pieces[1:], "]"]) if pieces else empty_texts(array)


def object_texts(array: pa.Array, bad: Bad) -> pa.Array:
    """Return the JSON object of each struct; an empty text for null and for structs without fields."""
    fields = sorted(zip([field.name for field in array.type], array.flatten(), strict=True), key=lambda pair: pair[0])
    pieces: list[Any] = []
    for name, column in fields:
        # escaped as the codec does it, so that the name is not mistaken for one of the codec's tags
        shown = f"${name}" if len(fields) == 1 and name[:1] == "$" else name
        pieces += (f",{encode_basestring(shown)}:", json_texts(column, f"kwargs.{name}", bad))
    if not pieces:
        return empty_texts(array)
    return _joined(array, ["{" + pieces[0][1:], *pieces[1:], "}"])


def _joined(array: pa.Array, pieces: list[Any]) -> pa.Array:
    texts = _join(*pieces)
    return texts if array.null_count == 0 else pc.if_else(array.is_valid(), texts, _empty_text())


def _join(*pieces: Any) -> pa.Array:
    """Concatenate texts and arrays of texts row by row; null where one of them is null."""
    typed = [pa.scalar(piece, _TEXT) if isinstance(piece, str) else piece for piece in pieces]
    return pc.binary_join_element_wise(*typed, _empty_text())


def empty_texts(array: pa.Array) -> pa.Array:
    """Return an empty text for each value."""
    return pa.array([""] * len(array), _TEXT)


def parsed_texts(array: pa.Array, kind: type, what: str, bad: Bad) -> list[Any]:
    """Parse JSON texts, each of which must be a list or a dict; None for null."""
    parsed_texts: list[Any] = []
    for row, text in enumerate(values_of(array, bad)):
        value = None
        if text is not None:
            try:
                value = _plain.decode(text if isinstance(text, str) else text.decode())
            except (ValueError, RecursionError) as error:
                bad.setdefault(row, f"{what} is no JSON ({short(text)}: {error})")
            else:
                if type(value) is not kind:
                    form = "a list, like [1, 2]" if kind is list else 'an object, like {"a": 1}'
                    bad.setdefault(row, f"{what} has to be {form}, not {short(text)}")
                    value = None
        parsed_texts.append(value)
    return parsed_texts


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number")


_plain: Final = json.JSONDecoder(parse_constant=_no_constant)


def score_texts(array: pa.Array, bad: Bad) -> list[str]:
    """Return numbers, or texts of numbers, as texts; empty for null, which means the time of arrival."""
    if pa.types.is_integer(array.type):
        texts: list[str] = pc.fill_null(pc.cast(array, _TEXT), "").to_pylist()
        return texts
    return [_score(row, value, bad) for row, value in enumerate(values_of(array, bad))]


def _score(row: int, value: object, bad: Bad) -> str:
    if value is None:
        return ""
    text = value if isinstance(value, str) else str(value) if isinstance(value, Decimal) else repr(value)
    # float() also accepts underscores, surrounding blanks and the digits of every script.
    plain = len(text) <= _SCORE_CHARS and text.isascii() and "_" not in text and text == text.strip()
    try:
        if plain and math.isfinite(float(text)):
            return text
    except ValueError:
        pass
    bad.setdefault(row, f"score must be a finite number of at most {_SCORE_CHARS} characters, got {short(value)}")
    return "0"


# -- parts of jobs -----------------------------------------------------------------------------------------------------

BYTES: Final = pa.large_binary()
#: control characters of UTF-8, matched against its bytes
_CONTROL: Final = r"[\x00-\x1f\x7f]|\xC2[\x80-\x9f]|\xE2\x80[\xA8-\xAE]|\xE2\x81[\xA6-\xA9]"
T = TypeVar("T")


def id_bytes(array: pa.Array, bad: Bad) -> list[bytes]:
    """Return the ids in UTF-8; numbers are converted to text."""
    if pa.types.is_integer(array.type):
        if array.null_count:
            _note_nulls(array, bad)
        encoded: list[bytes] = pc.fill_null(array.cast(pa.large_string()), "").cast(BYTES).to_pylist()
        return encoded
    plain = array.cast(BYTES)
    sizes = pc.min_max(pc.binary_length(plain)).as_py()
    fine = not plain.null_count and (sizes["min"] is None or (sizes["min"] > 0 and sizes["max"] <= 255))
    if fine and is_valid(array) and not pc.any(pc.match_substring_regex(plain, _CONTROL)).as_py():
        return plain.to_pylist()  # type: ignore[no-any-return]
    _note_nulls(array, bad)
    checked = []
    for row, value in enumerate(values_of(array, bad)):
        try:
            checked.append(check_id("?" if value is None else value).encode())
        except InvalidJob as error:
            bad.setdefault(row, str(error))
            checked.append(b"?")
    return checked


def _note_nulls(array: pa.Array, bad: Bad) -> None:
    for row in pc.indices_nonzero(array.is_null()).to_pylist():
        bad.setdefault(row, "id is null; give each job an id, or leave the row out")


def argument_bytes(args: pa.Array | None, kwargs: pa.Array | None, n: int, bad: Bad) -> list[bytes]:
    """Return the arguments of each row as :func:`~..core.codec.encode_args` encodes them."""
    if kwargs is None or pa.types.is_null(kwargs.type):
        return [b""] * n if args is None else _positional(args, bad).cast(BYTES).to_pylist()
    if pa.types.is_struct(kwargs.type):
        named = object_texts(kwargs, bad).to_pylist()
    else:
        objects_read = objects_of(kwargs, "kwargs", bad)
        named = [encoded_json(row, value, "kwargs", bad) if value else "" for row, value in enumerate(objects_read)]
    if args is None:
        return [f'{{"k":{value}}}'.encode() if value else b"" for value in named]
    places = _positional(args, bad).to_pylist()
    return [
        (f'{{"a":{place},"k":{value}}}' if place else f'{{"k":{value}}}').encode() if value else place.encode()
        for place, value in zip(places, named, strict=True)
    ]


def _positional(array: pa.Array, bad: Bad) -> pa.Array:
    """Return JSON lists as texts; empty where there are no arguments."""
    if is_list(array.type):
        return list_texts(array, bad)
    if pa.types.is_struct(array.type):
        return struct_texts(array, bad)
    if pa.types.is_null(array.type):
        return empty_texts(array)
    texts = []
    for row, items in enumerate(parsed_texts(array, list, "args", bad)):
        try:
            texts.append(codec.encode_args(tuple(items or ()), {}, limit=1 << 40).decode())
        except InvalidJob as error:
            bad.setdefault(row, str(error))
            texts.append("")
    return pa.array(texts, pa.large_string())


def objects_of(array: pa.Array, what: str, bad: Bad) -> list[Any]:
    """Return a dict, or None, for each struct, map or text of a JSON object."""
    if is_text(array.type):
        return parsed_texts(array, dict, what, bad)
    return values_of(array, bad)


def raw_bytes(array: pa.Array, bad: Bad) -> list[bytes]:
    """Return the bytes unchanged; null becomes empty."""
    if is_text(array.type) and not is_valid(array):
        values_of(array, bad)
    if pa.types.is_null(array.type):
        return [b""] * len(array)
    values: list[bytes] = pc.fill_null(array.cast(BYTES), b"").to_pylist()
    return values


def row_values(array: pa.Array, default: T, check: Callable[[Any], T], bad: Bad) -> list[T]:
    """Return the checked value of each row, with one check per distinct value; the default for null."""
    checked: dict[Any, T | InvalidJob] = {}
    results: list[T] = []
    for row, value in enumerate(values_of(array, bad)):
        if value is None:
            if default == "":
                bad.setdefault(row, "task is null, and there is no option task")
            results.append(default)
            continue
        if value not in checked:
            try:
                checked[value] = check(value)
            except InvalidJob as error:
                checked[value] = error
        answer = checked[value]
        if isinstance(answer, InvalidJob):
            bad.setdefault(row, str(answer))
            answer = default
        results.append(answer)
    return results


def check_of(name: str) -> Callable[[Any], Any]:
    """Return the check of an option of jobs for the values of its column; times are seconds, also as decimals."""
    check = OPTIONS[name].job
    if check is None:
        raise KeyError(name)
    is_number = check.schema.get("type") == "number"
    return lambda value: check(name, float(value) if is_number else value)


def canonical(value: dict[str, Any]) -> bytes:
    """Encode the options of a job as ``core/builder.py`` does."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def each(value: T | list[T], rows: Sequence[object]) -> list[T]:
    """Return one value per row, repeating a value that applies to all rows."""
    return value if isinstance(value, list) else [value] * len(rows)


def coded(texts: list[bytes], codec: Codec | None, bad: Bad) -> list[bytes]:
    """Return canonical JSON as the codec stores it; a row that it cannot store becomes invalid."""
    if codec is None:
        return texts
    stored = [b""] * len(texts)
    for row, data in enumerate(texts):
        try:
            stored[row] = b"" if row in bad or not data else dump_with(codec, json.loads(data))
        except InvalidJob as error:
            bad[row] = str(error)
    return stored


_U16: Final = Struct("<H")


# -- jobs --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Packed:
    """Jobs of one batch, in its order."""

    entries: list[LoadEntry]
    #: rows of the batch that are not valid jobs, by their position
    bad: Bad


class Packer:
    """Builder of entries from the rows that go to one queue.

    Args:
        kind: kind of the queue: ``python`` or ``pull``.
    """

    def __init__(self, options: WriteOptions, run: BulkLoad, kind: str) -> None:
        self._options = options
        self._pull = kind == "pull"
        self._opened_ms = run.opened_ms
        self._common = options.job_options()
        self._codec = None if options.codec is None else codec_at(options.codec)
        self._kinds: dict[tuple[str, str, int, bool], bytes] = {}

    def pack(self, batch: pa.RecordBatch) -> Packed:
        """Return the entries of a batch whose columns are among :data:`~.write_options.COLUMNS`."""
        bad: Bad = {}
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        ids = id_bytes(columns["id"], bad)
        dues = self._dues(columns, batch.num_rows, bad)
        texts = self._option_texts(columns, dues, bad)
        merged = "payload" in columns and not self._pull
        names, conflicts, priorities = self._routing_of(columns, merged, bad)
        if merged:
            return self._merged(columns, ids, dues.to_pylist(), texts, (names, conflicts, priorities), bad)
        args = self._args(columns, batch.num_rows, bad)
        routes = zip(each(names, ids), each(conflicts, ids), each(priorities, ids), each(texts, ids), strict=True)
        entries: list[LoadEntry] = [
            (ident, due_ms, body, self._kind(name, conflict, priority, bool(text)), ())
            for row, (ident, due_ms, body, (name, conflict, priority, text)) in enumerate(
                zip(ids, dues.to_pylist(), _bodies(texts, args), routes, strict=True)
            )
            if row not in bad
        ]
        return Packed(entries, bad)

    # -- columns that describe the jobs -------------------------------------------------------------------------------

    def _kind(self, task: str, conflict: str, priority: int, has_options: bool) -> bytes:
        """Return the part of an entry that plain jobs have in common."""
        kind = self._kinds.get((task, conflict, priority, has_options))
        if kind is None:
            due_policy = self._options.due_policy or "replace"
            options = b"{}" if has_options else b""
            like = NewJob("x", task, b"", 0, None, priority, options, b"", conflict, due_policy)
            kind = self._kinds[task, conflict, priority, has_options] = entry_of(like)[3]
        return kind

    def _routing_of(
        self, columns: dict[str, pa.Array], merged: bool, bad: Bad
    ) -> tuple[str | list[str], str | list[str], int | list[int]]:
        """Return task, conflict policy and priority: one value for all jobs, or one per job."""
        options = self._options
        task = RAW if self._pull else options.task or ""
        conflict = options.on_conflict or ("merge" if merged else "ignore")
        names = conflicts = None
        if "task" in columns and not self._pull:
            names = row_values(columns["task"], task, check_task_name, bad)
        elif not task:
            raise InvalidJob("which task? Give the option task, its registered name, or a column task")
        if "on_conflict" in columns:
            conflicts = row_values(columns["on_conflict"], conflict, check_of("on_conflict"), bad)
        for row, value in enumerate(conflicts or [conflict]):
            if value == "merge" and not merged:
                reason = "on_conflict=merge is for jobs with a payload; use ignore, replace or error"
                if conflicts is None:
                    raise InvalidJob(reason)
                bad.setdefault(row, reason)
                conflicts[row] = "ignore"
        priorities = None
        if "priority" in columns:
            priorities = row_values(columns["priority"], options.priority, check_of("priority"), bad)
        return names or task, conflicts or conflict, options.priority if priorities is None else priorities

    def _dues(self, columns: dict[str, pa.Array], n: int, bad: Bad) -> pa.Array:
        """Return the due times in Unix ms."""
        if "due" in columns:
            us = columns["due"].cast(pa.timestamp("us", "UTC")).cast(pa.int64())
            whole = pc.divide(us, 1000)
            broken = pc.not_equal(us, pc.multiply(whole, 1000))
            dues = pc.add(whole, broken.cast(pa.int64()))  # rounded up, so that no job runs early
            past = pc.less(us, 0)
        elif "due_ms" in columns:
            dues = columns["due_ms"].cast(pa.int64())
            past = pc.less(dues, 0)
        else:
            return pa.repeat(pa.scalar(self._opened_ms, pa.int64()), n)
        if self._options.null_due == NOW:
            dues, past = pc.fill_null(dues, self._opened_ms), pc.fill_null(past, False)
        last = MAX_DUE_MS if self._options.allow_far else min(MAX_DUE_MS, self._opened_ms + TEN_YEARS_MS)
        if dues.null_count or pc.any(past).as_py() or pc.any(pc.greater(dues, last)).as_py():
            for row, (ms, early) in enumerate(zip(dues.to_pylist(), past.to_pylist(), strict=True)):
                if ms is None:
                    bad.setdefault(
                        row,
                        "due is null; give each row a time that can be read, or leave the column out: then all jobs "
                        "are due at once",
                    )
                elif early:
                    bad.setdefault(row, "due is before 1970; check its unit")
                elif ms > last:
                    far = ms <= MAX_DUE_MS
                    hint = "the option allowFar=true allows it" if far else "times up to the year 2255 can be stored"
                    bad.setdefault(row, f"due is more than ten years ahead ({ms} ms since 1970); {hint}")
        return pc.fill_null(dues, 0)

    # -- options stored with a job ------------------------------------------------------------------------------------

    def _option_texts(self, columns: dict[str, pa.Array], dues: pa.Array, bad: Bad) -> bytes | list[bytes]:
        """Return canonical JSON as ``core/builder.py`` writes it: one text for all jobs, or one per job."""
        read: dict[str, list[Any]] = {}
        for name, option in OPTIONS.items():
            if option.member and name in columns and name != "context":
                read[option.member] = row_values(columns[name], None, check_of(name), bad)
        if "context" in columns:
            read["context"] = objects_of(columns["context"], "context", bad)
        if "expires" in columns:
            us = columns["expires"].cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist()
            read["expires_ms"] = [None if one is None else -(-one // 1000) for one in us]
        if not read:
            return canonical(self._common) if self._common else b""
        texts = []
        for row, (due_ms, *values) in enumerate(zip(dues.to_pylist(), *read.values(), strict=True)):
            own = {name: value for name, value in zip(read, values, strict=True) if value is not None}
            texts.append(self._option_text(row, {**self._common, **own}, due_ms, bad))
        return texts

    def _option_text(self, row: int, options: dict[str, Any], due_ms: int, bad: Bad) -> bytes:
        if "expires_ms" in options:
            options.pop("expires_in_ms", None)
            if options["expires_ms"] <= due_ms:
                bad.setdefault(row, "expires is not after the due time, so the job would never run; give a later time")
        if not options:
            return b""
        try:
            encoded = canonical(options)
        except (TypeError, ValueError, RecursionError) as error:
            bad.setdefault(row, f"context may hold plain JSON values only: {error}")
            return b""
        if len(encoded) > MAX_OPTIONS_BYTES:
            bad.setdefault(
                row,
                f"context and the other options of the job take {len(encoded)} bytes, at most {MAX_OPTIONS_BYTES} fit",
            )
            return b""
        return encoded

    # -- arguments and bodies ----------------------------------------------------------------------------------------

    def _args(self, columns: dict[str, pa.Array], n: int, bad: Bad) -> list[bytes]:
        if self._pull:
            args = raw_bytes(columns["payload"], bad) if "payload" in columns else [b""] * n
        elif self._options.encoded:
            args = raw_bytes(columns["args"], bad) if "args" in columns else [b""] * n
        else:
            args = argument_bytes(columns.get("args"), columns.get("kwargs"), n, bad)
            args = coded(args, self._codec, bad)
        self._check_sizes(args, "the arguments take", bad)
        return args

    def _check_sizes(self, found: list[bytes], what: str, bad: Bad) -> None:
        limit = self._options.max_args_bytes
        if found and len(max(found, key=len)) > limit:
            for row, data in enumerate(found):
                if len(data) > limit:
                    bad.setdefault(
                        row,
                        f"{what} {len(data)} bytes, at most {limit} are stored; store the data "
                        "elsewhere and pass its key",
                    )

    def _merged(
        self,
        columns: dict[str, pa.Array],
        ids: list[bytes],
        dues: list[int],
        texts: bytes | list[bytes],
        routing: tuple[Any, Any, Any],
        bad: Bad,
    ) -> Packed:
        """Build jobs with a payload one by one; their records have too many parts for a columnar path to pay off."""
        payloads = self._payloads(columns["payload"], bad)
        scores = score_texts(columns["score"], bad) if "score" in columns else [""] * len(ids)
        names, conflicts, priorities = (each(column, ids) for column in routing)
        options = self._options
        entries: list[LoadEntry] = []
        for row, (ident, text) in enumerate(zip(ids, each(texts, ids), strict=True)):
            if row in bad:
                continue
            conflict = conflicts[row]
            new = NewJob(
                ident.decode(),
                names[row],
                b"",
                dues[row],
                None,
                priorities[row],
                text,
                b"",
                conflict,
                options.due_policy or ("keep" if conflict == "merge" else "replace"),
                payload=Payload(payloads[row], scores[row], b""),
                score_policy=options.score_policy,
                payloads=options.payloads,
                max_payloads=1 if options.payloads != "all" else options.max_payloads,
            )
            entries.append(entry_of(new))
        return Packed(entries, bad)

    def _payloads(self, array: pa.Array, bad: Bad) -> list[bytes]:
        if self._options.encoded:
            payloads = raw_bytes(array, bad)
        else:
            payloads = coded(json_texts(array, "payload", bad).cast(BYTES).to_pylist(), self._codec, bad)
        self._check_sizes(payloads, "payload takes", bad)
        return payloads


def _bodies(texts: bytes | list[bytes], args: list[bytes]) -> list[bytes]:
    """Return options and arguments; the chunk prepends the keys."""
    if not texts:
        return args
    return [
        _U16.pack(len(text)) + text + arg if text else arg for text, arg in zip(each(texts, args), args, strict=True)
    ]

"""Conversion of an Arrow column to the bytes stored in jobs, a whole column at a time.

Faults are recorded by row number. A faulty row gets a placeholder that is never used.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from json.encoder import encode_basestring
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ..core import codec
from ..core.errors import InvalidJob
from ..core.inputs import short

#: row number -> description of the fault; the first one found stays
Bad: TypeAlias = dict[int, str]

_TEXT: Final = pa.large_string()
#: characters that JSON must escape inside a string
_ESCAPED: Final = r'["\\\x00-\x1f]'
_SCORE_CHARS: Final = 255


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


def values(array: pa.Array, bad: Bad) -> list[Any]:
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
        texts = ["null" if value is None else encode_basestring(value) for value in values(array, bad)]
    else:
        texts = [encoded(row, value, what, bad) for row, value in enumerate(values(array, bad))]
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


def encoded(row: int, value: Any, what: str, bad: Bad) -> str:
    """Return the canonical JSON of a value, as :func:`~..core.codec.encode` writes it."""
    try:
        return codec.encode(value, limit=1 << 40, what=what).decode()
    except InvalidJob as error:
        bad.setdefault(row, str(error))
        return "null"


def lists(array: pa.Array, bad: Bad) -> pa.Array:
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


def structs(array: pa.Array, bad: Bad) -> pa.Array:
    """Return the fields of each struct as a JSON list in order; an empty text for null and where there are none."""
    pieces: list[Any] = []
    for field, column in zip(array.type, array.flatten(), strict=True):
        pieces += (",", json_texts(column, f"args.{field.name}", bad))
    return _joined(array, ["[", *pieces[1:], "]"]) if pieces else nothing(array)


def named_structs(array: pa.Array, bad: Bad) -> pa.Array:
    """Return the JSON object of each struct; an empty text for null and for structs without fields."""
    fields = sorted(zip([field.name for field in array.type], array.flatten(), strict=True), key=lambda pair: pair[0])
    pieces: list[Any] = []
    for name, column in fields:
        # escaped as the codec does it, so that the name is not mistaken for one of the codec's tags
        shown = f"${name}" if len(fields) == 1 and name[:1] == "$" else name
        pieces += (f",{encode_basestring(shown)}:", json_texts(column, f"kwargs.{name}", bad))
    if not pieces:
        return nothing(array)
    return _joined(array, ["{" + pieces[0][1:], *pieces[1:], "}"])


def _joined(array: pa.Array, pieces: list[Any]) -> pa.Array:
    texts = _join(*pieces)
    return texts if array.null_count == 0 else pc.if_else(array.is_valid(), texts, _empty_text())


def _join(*pieces: Any) -> pa.Array:
    """Concatenate texts and arrays of texts row by row; null where one of them is null."""
    typed = [pa.scalar(piece, _TEXT) if isinstance(piece, str) else piece for piece in pieces]
    return pc.binary_join_element_wise(*typed, _empty_text())


def nothing(array: pa.Array) -> pa.Array:
    """Return an empty text for each value."""
    return pa.array([""] * len(array), _TEXT)


def parsed(array: pa.Array, kind: type, what: str, bad: Bad) -> list[Any]:
    """Parse JSON texts, each of which must be a list or a dict; None for null."""
    parsed_texts: list[Any] = []
    for row, text in enumerate(values(array, bad)):
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
    return [_score(row, value, bad) for row, value in enumerate(values(array, bad))]


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

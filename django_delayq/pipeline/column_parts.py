"""Readers and validators for the columns of a batch, from which :mod:`.columns` builds jobs."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from ..core import codec
from ..core.codec import Codec, dump_with
from ..core.errors import InvalidJob
from ..core.inputs import check_id
from ..core.options import OPTIONS
from . import cells
from .cells import Bad

BYTES: Final = pa.large_binary()
#: control characters of UTF-8, matched against its bytes
_CONTROL: Final = r"[\x00-\x1f\x7f]|\xC2[\x80-\x9f]|\xE2\x80[\xA8-\xAE]|\xE2\x81[\xA6-\xA9]"
T = TypeVar("T")


def ids(array: pa.Array, bad: Bad) -> list[bytes]:
    """Return the ids in UTF-8; numbers are converted to text."""
    if pa.types.is_integer(array.type):
        if array.null_count:
            _note_nulls(array, bad)
        encoded: list[bytes] = pc.fill_null(array.cast(pa.large_string()), "").cast(BYTES).to_pylist()
        return encoded
    plain = array.cast(BYTES)
    sizes = pc.min_max(pc.binary_length(plain)).as_py()
    fine = not plain.null_count and (sizes["min"] is None or (sizes["min"] > 0 and sizes["max"] <= 255))
    if fine and cells.is_valid(array) and not pc.any(pc.match_substring_regex(plain, _CONTROL)).as_py():
        return plain.to_pylist()  # type: ignore[no-any-return]
    _note_nulls(array, bad)
    checked = []
    for row, value in enumerate(cells.values(array, bad)):
        try:
            checked.append(check_id("?" if value is None else value).encode())
        except InvalidJob as error:
            bad.setdefault(row, str(error))
            checked.append(b"?")
    return checked


def _note_nulls(array: pa.Array, bad: Bad) -> None:
    for row in pc.indices_nonzero(array.is_null()).to_pylist():
        bad.setdefault(row, "id is null; give each job an id, or leave the row out")


def arguments(args: pa.Array | None, kwargs: pa.Array | None, n: int, bad: Bad) -> list[bytes]:
    """Return the arguments of each row as :func:`~..core.codec.encode_args` encodes them."""
    if kwargs is None or pa.types.is_null(kwargs.type):
        return [b""] * n if args is None else _positional(args, bad).cast(BYTES).to_pylist()
    if pa.types.is_struct(kwargs.type):
        named = cells.named_structs(kwargs, bad).to_pylist()
    else:
        objects_read = objects(kwargs, "kwargs", bad)
        named = [cells.encoded(row, value, "kwargs", bad) if value else "" for row, value in enumerate(objects_read)]
    if args is None:
        return [f'{{"k":{value}}}'.encode() if value else b"" for value in named]
    places = _positional(args, bad).to_pylist()
    return [
        (f'{{"a":{place},"k":{value}}}' if place else f'{{"k":{value}}}').encode() if value else place.encode()
        for place, value in zip(places, named, strict=True)
    ]


def _positional(array: pa.Array, bad: Bad) -> pa.Array:
    """Return JSON lists as texts; empty where there are no arguments."""
    if cells.is_list(array.type):
        return cells.lists(array, bad)
    if pa.types.is_struct(array.type):
        return cells.structs(array, bad)
    if pa.types.is_null(array.type):
        return cells.nothing(array)
    texts = []
    for row, items in enumerate(cells.parsed(array, list, "args", bad)):
        try:
            texts.append(codec.encode_args(tuple(items or ()), {}, limit=1 << 40).decode())
        except InvalidJob as error:
            bad.setdefault(row, str(error))
            texts.append("")
    return pa.array(texts, pa.large_string())


def objects(array: pa.Array, what: str, bad: Bad) -> list[Any]:
    """Return a dict, or None, for each struct, map or text of a JSON object."""
    if cells.is_text(array.type):
        return cells.parsed(array, dict, what, bad)
    return cells.values(array, bad)


def raw(array: pa.Array, bad: Bad) -> list[bytes]:
    """Return the bytes unchanged; null becomes empty."""
    if cells.is_text(array.type) and not cells.is_valid(array):
        cells.values(array, bad)
    if pa.types.is_null(array.type):
        return [b""] * len(array)
    values: list[bytes] = pc.fill_null(array.cast(BYTES), b"").to_pylist()
    return values


def row_values(array: pa.Array, default: T, check: Callable[[Any], T], bad: Bad) -> list[T]:
    """Return the checked value of each row, with one check per distinct value; the default for null."""
    checked: dict[Any, T | InvalidJob] = {}
    results: list[T] = []
    for row, value in enumerate(cells.values(array, bad)):
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

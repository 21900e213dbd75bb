"""Choice of the codec that arguments and payloads are stored with: JSON, or a project's own one.

JSON has no mark. The bytes of any other codec begin with one byte, 0x80 plus the codec's number, which cannot begin a
text in UTF-8. A process reads JSON and the bytes of its own codec; those of a third one are refused. Like the types of
:mod:`.codec_types` the choice is one of the process.

A codec sees plain values only: None, bool, int, float, str, list, and dict with text keys. Dates, decimals and the
other types lie behind tags in them, the same as in JSON (:mod:`.codec`).
"""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any, Final, Protocol

from .errors import InvalidJob, Misconfigured
from .inputs import short
from .job import Undecodable

#: bits of a mark; the others are the number of the codec
_MARK: Final = 0x80
MOST_NUMBER: Final = 0x3F
JSON: Final = "json"
#: numbers below are those of this package's codecs
FIRST_OWN_NUMBER: Final = 16
_NAMES: Final = {1: "msgpack"}


class Codec(Protocol):
    """Codec of plain values.

    Attributes:
        name: names the codec in messages.
        number: marks its bytes: 16 to 63 for a project's own codec. It must never change its meaning.
    """

    name: str
    number: int

    def dumps(self, value: Any) -> bytes:
        """Return the bytes of a value. Equal values, whose dicts have the same order, must give equal bytes."""

    def loads(self, data: bytes) -> Any:
        """Return the value. It must run no code that the bytes choose: they come from Redis."""


#: codec of this process; None = JSON
chosen: Codec | None = None


def codec_at(path: str) -> Codec:
    """Return the codec at a dotted path like ``shop.codecs.packed``.

    Raises:
        Misconfigured: it cannot be imported, or is not a codec.
    """
    module, _, name = path.rpartition(".")
    try:
        codec = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise Misconfigured(f"{path} cannot be imported: {error}") from error
    try:
        return _checked(codec)
    except Misconfigured as error:
        raise Misconfigured(f"{path}: {error}") from None


def use(codec: Codec | None) -> None:
    """Store with this codec from now on, in this process; None = JSON.

    Raises:
        Misconfigured: the object is not a codec.
    """
    global chosen
    chosen = codec if codec is None else _checked(codec)


def _checked(codec: Any) -> Codec:
    missing = [name for name in ("dumps", "loads") if not callable(getattr(codec, name, None))]
    if isinstance(codec, type) or missing:
        raise Misconfigured(
            f"{short(codec)} is not a codec; give an object with name, number, dumps(value) and loads(data)"
        )
    name, number = getattr(codec, "name", None), getattr(codec, "number", None)
    if not isinstance(name, str) or not name or name == JSON:
        raise Misconfigured(f"the codec's name is {short(name)}; give it a text of its own, which messages show")
    if type(number) is not int or not 1 <= number <= MOST_NUMBER or _NAMES.get(number, name) != name:
        raise Misconfigured(
            f"the number of codec {name!r} is {short(number)}; give it one from {FIRST_OWN_NUMBER} to {MOST_NUMBER}, "
            f"which marks its bytes for ever"
        )
    checked: Codec = codec
    return checked


def dump(codec: Codec, value: Any) -> bytes:
    """Return the marked bytes of a plain value.

    Raises:
        InvalidJob: the codec cannot store it.
    """
    try:
        return bytes((_MARK | codec.number,)) + codec.dumps(_ordered(value))
    except Exception as error:  # a codec of a project may raise anything
        raise InvalidJob(
            f"codec {codec.name!r} cannot store the value: {type(error).__name__}: {error}; pass it as a text"
        ) from error


def is_marked(data: bytes) -> bool:
    """Return True if the bytes are those of a codec other than JSON."""
    return data != b"" and _MARK < data[0] <= _MARK | MOST_NUMBER


def load(data: bytes) -> Any:
    """Return the plain value of marked bytes, tags included.

    Raises:
        Undecodable: they are another codec's than that of this process, or damaged.
    """
    number, codec = data[0] & MOST_NUMBER, chosen
    if codec is None or codec.number != number:
        named = f" ({_NAMES[number]!r})" if number in _NAMES else ""
        here = repr(JSON) if codec is None else f"{codec.name!r} (number {codec.number})"
        raise Undecodable(
            f"stored with codec number {number}{named}, but this process uses {here}; "
            f"give all processes the same CODEC in the settings, then retry the job"
        )
    try:
        return codec.loads(data[1:])
    except Exception as error:  # as in dump
        raise Undecodable(f"codec {codec.name!r} cannot read the bytes: {type(error).__name__}: {error}") from None


def as_json(data: bytes) -> bytes:
    """Return stored bytes as JSON, tags included. Bytes without a mark are returned unchanged.

    Raises:
        Undecodable: see :func:`load`; or the value has no form in JSON.
    """
    if not is_marked(data):
        return data
    try:
        return json.dumps(load(data), ensure_ascii=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise Undecodable(f"the stored value has no form in JSON: {error}") from None


def from_json(codec: Codec, data: bytes) -> bytes:
    """Return canonical JSON, tags included, as the codec stores it.

    Raises:
        InvalidJob: the codec cannot store it.
    """
    return dump(codec, json.loads(data)) if data else data


def readable(data: bytes) -> str:
    """Return stored bytes as a text for searches; unreadable ones as they are."""
    try:
        return as_json(data).decode(errors="replace")
    except Undecodable:
        return data.decode(errors="replace")


def _ordered(value: Any) -> Any:
    """Return the value with the keys of its dicts in order, as JSON stores them."""
    if isinstance(value, dict):
        return {key: _ordered(value[key]) for key in sorted(value)}
    return [_ordered(item) for item in value] if isinstance(value, list) else value

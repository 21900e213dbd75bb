"""Encoding of arguments and payloads as bytes: canonical JSON, with tags for types that JSON lacks.

A project may store the same values, tags included, with another codec (:mod:`.codecs`).

Equal values have equal bytes: keys are sorted, there are no spaces, text is UTF-8. Payloads can therefore be compared,
and recognised as duplicates, without decoding.

Arguments of a call (:func:`encode_args`):

==================  =======================================
``f()``             no bytes
``f(42, "x")``      ``[42,"x"]``
``f(42, x=1)``      ``{"a":[42],"k":{"x":1}}`` (``a`` is left out when empty)
==================  =======================================

An object with one key that begins with ``$`` is a tag: ``{"$dt":"2030-01-01T00:00:00+00:00"}``. The tags are ``$dt``
datetime, ``$d`` date, ``$t`` time, ``$td`` timedelta (microseconds), ``$dec`` Decimal, ``$uuid`` UUID, ``$b`` bytes
(base64), and for a project's own types ``$.name`` (:mod:`.codec_types`). A caller's own dict of that form gets one more
``$``, which decoding removes.

Encoding and decoding change some types: tuples become lists, subclasses become their base (an ``IntegerChoices`` member
its number), bytearray and memoryview become bytes, and the zone of a datetime becomes its offset from UTC.
"""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from . import codecs
from .codec_types import BUILT_IN, MARK, ValueType, forget, register, types_by_kind
from .decoding import decode, decode_args
from .errors import InvalidJob
from .refusals import SCALARS, Unstorable, reason_against, short_key

__all__ = [
    "MAX_BYTES",
    "MAX_DEPTH",
    "ValueType",
    "decode",
    "decode_args",
    "encode",
    "encode_args",
    "forget",
    "register",
]

MAX_BYTES: Final = 1024 * 1024
MAX_DEPTH: Final = 32

_TEXT: Final = frozenset((str,))
_MAX_INT_BITS: Final = 14_000  # Python itself refuses to read numbers of more than 4300 digits
_MICROSECOND: Final = timedelta(microseconds=1)


# --- encoding


def encode_args(args: tuple[Any, ...], kwargs: Mapping[str, Any], *, limit: int = MAX_BYTES) -> bytes:
    """Return the arguments of one call as bytes; see the table of the module.

    Args:
        limit: maximum number of bytes.

    Raises:
        InvalidJob: a value has no stored form, or the result is too large; the message names the location.
    """
    if not args and not kwargs:
        return b""
    encoded = None
    if codecs.chosen is None and SCALARS.issuperset(map(type, args)) and (not kwargs or _is_flat(kwargs)):
        encoded = _quickly(args if not kwargs else {"a": args, "k": kwargs} if args else {"k": kwargs})
    if encoded is None:
        encoded = _written(_stored_args(args, kwargs))
    return encoded if len(encoded) <= limit else _too_large(encoded, limit, "the arguments take")


def encode(value: Any, *, limit: int = MAX_BYTES, what: str = "payload") -> bytes:
    """Return the canonical bytes of one value. Messages call it ``what``.

    Raises:
        InvalidJob: see :func:`encode_args`.
    """
    encoded = _quickly(value) if codecs.chosen is None and _is_flat(value) else None
    if encoded is None:
        try:
            encoded = _written(_stored(value, 1))
        except Unstorable as refused:
            raise refused.at(what) from None
    return encoded if len(encoded) <= limit else _too_large(encoded, limit, f"{what} takes")


def _make_dump() -> Callable[[Any], str]:
    """Return ``json.dumps`` with our settings. Its C part is created once, not per call, which is four times faster."""
    encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:  # an interpreter without the C encoder
        return encoder.encode
    scan = make(None, encoder.default, json.encoder.encode_basestring, None, ":", ",", True, False, False)

    def dump(value: Any) -> str:
        return "".join(scan(value, 0))

    return dump


_dump: Final = _make_dump()


def _is_flat(value: Any) -> bool:
    """Return True for a dict that needs no pass over its values: text keys, plain values, not shaped like a tag."""
    return (
        type(value) is dict
        and SCALARS.issuperset(map(type, value.values()))
        and _TEXT.issuperset(map(type, value))
        and (len(value) != 1 or next(iter(value))[:1] != "$")
    )


def _quickly(value: Any) -> bytes | None:
    """Return the bytes of plain values; None if one cannot be stored, which the slow path then finds and names."""
    try:
        return _dump(value).encode()
    except ValueError:  # NaN, half of a surrogate pair, an int of thousands of digits
        return None


def _written(stored: Any) -> bytes:
    codec = codecs.chosen
    return _dump(stored).encode() if codec is None else codecs.dump(codec, stored)


def _stored_args(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    positional = [_stored_argument(n, value) for n, value in enumerate(args)]
    if not kwargs:
        return positional
    named = _tagged({_name(name): _stored_argument(name, value) for name, value in kwargs.items()})
    return {"a": positional, "k": named} if args else {"k": named}


def _stored_argument(place: int | str, value: Any) -> Any:
    try:
        return _stored(value, 1)
    except Unstorable as refused:
        raise refused.at(f"argument {short_key(place)}") from None


def _name(name: Any) -> str:
    if not isinstance(name, str):
        raise InvalidJob(f"the argument name {short_key(name)} is not a text")
    try:
        return _text(name)
    except Unstorable as refused:
        raise refused.at(f"argument {short_key(name)}") from None


def _too_large(encoded: bytes, limit: int, what: str) -> bytes:
    raise InvalidJob(
        f"{what} {len(encoded)} bytes, at most {limit} are stored; store the data elsewhere and pass its key"
    )


def _stored(value: Any, depth: int) -> Any:
    """Return ``value`` in types that JSON has, checked. The cost is one pass over every value that is not flat."""
    kind = type(value)
    if kind is str:
        return _text(value)
    if types_by_kind and kind not in BUILT_IN:
        for base in kind.__mro__:
            if base in types_by_kind:
                return _own_form(types_by_kind[base], value, depth)
    if isinstance(value, str):
        return _text(value)
    if value is None or value is True or value is False:
        return value
    if kind is int or isinstance(value, int):
        return _number(value)
    if kind is float or isinstance(value, float):
        if not math.isfinite(value):
            raise Unstorable(f"{float.__repr__(value)} has no form in JSON; pass None or a text")
        return float.__float__(value)
    if depth > MAX_DEPTH:
        raise Unstorable(f"nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, dict):
        return _tagged(_stored_dict(value, depth))
    if isinstance(value, (list, tuple)):
        place: Any = 0
        try:
            items = []
            for place, item in enumerate(value):  # noqa: B007 (read by the except clause)
                items.append(_stored(item, depth + 1))
            return items
        except Unstorable as refused:
            refused.path.append(place)
            raise
    return _tag_of(value)


def _own_form(own: ValueType, value: Any, depth: int) -> dict[str, Any]:
    """Return a value of a project's own type behind its tag."""
    if depth > MAX_DEPTH:
        raise Unstorable(f"nested more than {MAX_DEPTH} levels deep")
    try:
        dumped = own.dump(value)
    except Exception as error:
        raise Unstorable(f"the dump function of tag {own.tag!r} failed: {type(error).__name__}: {error}") from error
    if type(dumped) is own.kind:
        raise Unstorable(f"the dump function of tag {own.tag!r} gave a {own.kind.__qualname__} back")
    return {MARK + own.tag: _stored(dumped, depth + 1)}


def _stored_dict(value: dict[Any, Any], depth: int) -> dict[str, Any]:
    stored: dict[str, Any] = {}
    key: Any = None
    try:
        for key, item in value.items():
            if not isinstance(key, str):
                raise Unstorable("its key is not a text, and JSON has no others; use str(key)")
            stored[_text(key)] = _stored(item, depth + 1)
    except Unstorable as refused:
        refused.path.append(key)
        raise
    return stored


def _tagged(stored: dict[str, Any]) -> dict[str, Any]:
    """Escape a caller's dict that has the form of a tag."""
    if len(stored) == 1:
        (key,) = stored
        if key[:1] == "$":
            return {f"${key}": stored[key]}
    return stored


def _text(value: str) -> str:
    value = str.__str__(value)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Unstorable("the text holds half of a surrogate pair, which UTF-8 cannot write") from None
    return value


def _number(value: int) -> int:
    value = int.__int__(value)
    if value.bit_length() > _MAX_INT_BITS:
        raise Unstorable(f"an int of {value.bit_length()} bits; at most {_MAX_INT_BITS} are stored, pass it as a text")
    return value


def _tag_of(value: Any) -> dict[str, Any]:
    if isinstance(value, datetime):
        # The base class's method: a subclass (pandas.Timestamp) prints digits that cannot be read back.
        return {"$dt": datetime.isoformat(value)}
    if isinstance(value, date):
        return {"$d": date.isoformat(value)}
    if isinstance(value, time):
        return {"$t": time.isoformat(value)}
    if isinstance(value, timedelta):
        return {"$td": value // _MICROSECOND}
    if isinstance(value, Decimal):
        if not value.is_finite():
            raise Unstorable(f"Decimal {value} has no stored form; pass None or a text")
        return {"$dec": Decimal.__str__(value)}
    if isinstance(value, UUID):
        return {"$uuid": UUID.__str__(value)}
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"$b": b64encode(bytes(value)).decode("ascii")}
    raise Unstorable(reason_against(value))

"""Arguments and payloads as bytes: JSON in one canonical form, with tags for what JSON has no form for.

Equal values have equal bytes: keys are sorted, there are no spaces, text is UTF-8. So a payload can be compared, and
counted as a duplicate, without being decoded.

Arguments of a call (:func:`encode_args`):

==================  =======================================
``f()``             nothing at all
``f(42, "x")``      ``[42,"x"]``
``f(42, x=1)``      ``{"a":[42],"k":{"x":1}}`` (``a`` is left out when empty)
==================  =======================================

An object with one key that begins with ``$`` is a tag: ``{"$dt":"2030-01-01T00:00:00+00:00"}``. The tags are ``$dt``
datetime, ``$d`` date, ``$t`` time, ``$td`` timedelta (microseconds), ``$dec`` Decimal, ``$uuid`` UUID, ``$b`` bytes
(base64), and for a project's own types ``$.name`` (:mod:`.codec_types`). A caller's own dict of that form gets one more
``$``, which decoding takes off again.

What changes on the way: tuples become lists, subclasses their base (an ``IntegerChoices`` member its number), bytearray
and memoryview bytes, the zone of a datetime its offset from UTC.
"""

from __future__ import annotations

import json
import math
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from .codec_types import BUILT_IN, MARK, ValueType, forget, register, types_by_kind, types_by_tag
from .errors import InvalidJob
from .job import Undecodable

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

# What the C encoder writes rightly by itself. Exact types: a subclass may print itself differently.
_SCALARS: Final = frozenset((str, int, float, bool, type(None)))
_TEXT: Final = frozenset((str,))
_MAX_INT_BITS: Final = 14_000  # Python itself refuses to read numbers of more than 4300 digits
_MICROSECOND: Final = timedelta(microseconds=1)


# --- encoding


def encode_args(args: tuple[Any, ...], kwargs: Mapping[str, Any], *, limit: int = MAX_BYTES) -> bytes:
    """The arguments of one call as bytes; see the module's table.

    Args:
        limit: the most bytes that are accepted.

    Raises:
        InvalidJob: a value has no stored form, or the whole is too large; the message names the place.
    """
    if not args and not kwargs:
        return b""
    encoded = None
    if _SCALARS.issuperset(map(type, args)) and (not kwargs or _is_flat(kwargs)):
        encoded = _quickly(args if not kwargs else {"a": args, "k": kwargs} if args else {"k": kwargs})
    if encoded is None:
        encoded = _dump(_stored_args(args, kwargs)).encode()
    return encoded if len(encoded) <= limit else _too_large(encoded, limit, "the arguments take")


def encode(value: Any, *, limit: int = MAX_BYTES, what: str = "payload") -> bytes:
    """The canonical bytes of one value. ``what`` names it in messages.

    Raises:
        InvalidJob: see :func:`encode_args`.
    """
    encoded = _quickly(value) if _is_flat(value) else None
    if encoded is None:
        try:
            encoded = _dump(_stored(value, 1)).encode()
        except _Refused as refused:
            raise refused.at(what) from None
    return encoded if len(encoded) <= limit else _too_large(encoded, limit, f"{what} takes")


class _Refused(Exception):
    """A value without a stored form; collects the way to it while the recursion unwinds."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path: list[Any] = []

    def at(self, what: str) -> InvalidJob:
        place = "".join(f"[{_short(key)}]" for key in reversed(self.path[-8:]))
        return InvalidJob(f"{what}{place}: {self.reason}")


def _make_dump() -> Callable[[Any], str]:
    """``json.dumps`` with our settings. Its C part is made once, not per call: four times faster."""
    encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:  # an interpreter without it
        return encoder.encode
    scan = make(None, encoder.default, json.encoder.encode_basestring, None, ":", ",", True, False, False)

    def dump(value: Any) -> str:
        return "".join(scan(value, 0))

    return dump


_dump: Final = _make_dump()


def _is_flat(value: Any) -> bool:
    """Whether it is a dict that needs no pass over its values: text keys, plain values, and not like a tag."""
    return (
        type(value) is dict
        and _SCALARS.issuperset(map(type, value.values()))
        and _TEXT.issuperset(map(type, value))
        and (len(value) != 1 or next(iter(value))[:1] != "$")
    )


def _quickly(value: Any) -> bytes | None:
    """The bytes of plain values; None when one is not storable, and the slow way has to find and name it."""
    try:
        return _dump(value).encode()
    except ValueError:  # NaN, half of a surrogate pair, an int of thousands of digits
        return None


def _stored_args(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    positional = [_stored_argument(n, value) for n, value in enumerate(args)]
    if not kwargs:
        return positional
    named = _tagged({_name(name): _stored_argument(name, value) for name, value in kwargs.items()})
    return {"a": positional, "k": named} if args else {"k": named}


def _stored_argument(place: int | str, value: Any) -> Any:
    try:
        return _stored(value, 1)
    except _Refused as refused:
        raise refused.at(f"argument {_short(place)}") from None


def _name(name: Any) -> str:
    if not isinstance(name, str):
        raise InvalidJob(f"the argument name {_short(name)} is not a text")
    try:
        return _text(name)
    except _Refused as refused:
        raise refused.at(f"argument {_short(name)}") from None


def _too_large(encoded: bytes, limit: int, what: str) -> bytes:
    raise InvalidJob(
        f"{what} {len(encoded)} bytes, at most {limit} are stored; store the data elsewhere and pass its key"
    )


def _stored(value: Any, depth: int) -> Any:
    """``value`` in terms of what JSON has, checked. The cost is one pass over what is not flat."""
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
            raise _Refused(f"{float.__repr__(value)} has no form in JSON; pass None or a text")
        return float.__float__(value)
    if depth > MAX_DEPTH:
        raise _Refused(f"nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, dict):
        return _tagged(_stored_dict(value, depth))
    if isinstance(value, (list, tuple)):
        place: Any = 0
        try:
            items = []
            for place, item in enumerate(value):  # noqa: B007 (read by the except clause)
                items.append(_stored(item, depth + 1))
            return items
        except _Refused as refused:
            refused.path.append(place)
            raise
    return _tag_of(value)


def _own_form(own: ValueType, value: Any, depth: int) -> dict[str, Any]:
    """A value of a project's own type behind its tag."""
    if depth > MAX_DEPTH:
        raise _Refused(f"nested more than {MAX_DEPTH} levels deep")
    try:
        dumped = own.dump(value)
    except Exception as error:
        raise _Refused(f"the dump function of tag {own.tag!r} failed: {type(error).__name__}: {error}") from error
    if type(dumped) is own.kind:
        raise _Refused(f"the dump function of tag {own.tag!r} gave a {own.kind.__qualname__} back")
    return {MARK + own.tag: _stored(dumped, depth + 1)}


def _stored_dict(value: dict[Any, Any], depth: int) -> dict[str, Any]:
    stored: dict[str, Any] = {}
    key: Any = None
    try:
        for key, item in value.items():
            if not isinstance(key, str):
                raise _Refused("its key is not a text, and JSON has no others; use str(key)")
            stored[_text(key)] = _stored(item, depth + 1)
    except _Refused as refused:
        refused.path.append(key)
        raise
    return stored


def _tagged(stored: dict[str, Any]) -> dict[str, Any]:
    """Keeps a caller's dict from being taken for a tag."""
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
            raise _Refused("the text holds half of a surrogate pair, which UTF-8 cannot write") from None
    return value


def _number(value: int) -> int:
    value = int.__int__(value)
    if value.bit_length() > _MAX_INT_BITS:
        raise _Refused(f"an int of {value.bit_length()} bits; at most {_MAX_INT_BITS} are stored, pass it as a text")
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
            raise _Refused(f"Decimal {value} has no stored form; pass None or a text")
        return {"$dec": Decimal.__str__(value)}
    if isinstance(value, UUID):
        return {"$uuid": UUID.__str__(value)}
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"$b": b64encode(bytes(value)).decode("ascii")}
    raise _Refused(_why_not(value))


def _why_not(value: Any) -> str:
    """Why ``value`` cannot be stored, and what to pass instead. Nothing of ``value`` itself is called."""
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}" if kind.__module__ != "builtins" else kind.__qualname__
    if isinstance(value, type):
        return f"the class {value.__qualname__} cannot be stored; pass its name"
    if hasattr(kind, "_meta") and hasattr(kind, "pk"):
        return (
            f"a model instance ({name}) cannot be stored, and would be stale when the job runs; "
            f"pass its primary key (obj.pk) and load it in the task"
        )
    if hasattr(kind, "query") and hasattr(kind, "values_list"):
        return f"{name} is a query; pass the primary keys, list(queryset.values_list('pk', flat=True))"
    if isinstance(value, (set, frozenset)):
        return f"a {name} has no order and no form in JSON; pass sorted(value)"
    if any(base.__name__ == "__proxy__" for base in kind.__mro__):
        return "a lazy text has no fixed value yet; pass str(value)"
    if hasattr(kind, "__dataclass_fields__"):
        return f"{name} is a dataclass; pass dataclasses.asdict(value)"
    if hasattr(kind, "__members__"):
        return f"{name} is an Enum member; pass its .value"
    if callable(value):
        return f"{name} is a callable; pass data, and let the task choose what to call"
    return f"{name} has no stored form; pass text, numbers, lists and dicts, or its primary key"


def _short(key: Any) -> str:
    """``repr(key)`` that is never long and never runs code of a foreign class."""
    if type(key) in _SCALARS and not (type(key) is int and key.bit_length() > 200):
        text = repr(key)
        return text if len(text) <= 40 else f"{text[:40]}…"
    return f"<{type(key).__name__}>"


# --- decoding


def decode_args(data: bytes) -> tuple[list[Any], dict[str, Any]]:
    """``(args, kwargs)`` of what :func:`encode_args` wrote.

    Raises:
        Undecodable: the bytes are not arguments in a form that this release knows.
    """
    if not data:
        return [], {}
    value = decode(data)
    if type(value) is list:
        return value, {}
    if type(value) is dict and value.keys() <= {"a", "k"}:
        args, kwargs = value.get("a", []), value.get("k", {})
        if type(args) is list and type(kwargs) is dict:
            return args, kwargs
    raise Undecodable("these are no arguments: a list, or an object with a list 'a' and an object 'k', was expected")


def decode(data: bytes) -> Any:
    """The value of canonical bytes (any JSON in UTF-8 is read).

    Raises:
        Undecodable: no JSON, no UTF-8, NaN, an unknown tag, or nested too deep to read.
    """
    try:
        text = data.decode().strip(" \t\r\n")
        value, end = (_with_tags if '"$' in text else _plain).raw_decode(text)
    except Undecodable:
        raise
    except json.JSONDecodeError as error:
        raise Undecodable(f"no JSON: {error}") from None
    except UnicodeDecodeError as error:
        raise Undecodable(f"no UTF-8: {error.reason} at byte {error.start}") from None
    except RecursionError:
        raise Undecodable("nested too deep to read") from None
    except (ValueError, ArithmeticError, TypeError, AttributeError) as error:
        raise Undecodable(f"damaged value: {error}") from None
    if end != len(text):
        raise Undecodable(f"no JSON: more text after the value, at character {end}")
    return value


def _untag(value: dict[str, Any]) -> Any:
    if len(value) != 1:
        return value
    ((key, inner),) = value.items()
    if key[:1] != "$":
        return value
    if key[:2] == "$$":
        return {key[1:]: inner}
    read = _TAGS.get(key)
    if read is None and key[:2] == MARK:
        return _own_value(key, inner)
    if read is None:
        raise Undecodable(f"the tag {_short(key)} is not known here; was it written by a newer release?")
    return read(inner)


def _own_value(key: str, inner: Any) -> Any:
    own = types_by_tag.get(key)
    if own is None:
        raise Undecodable(
            f"the tag {_short(key[2:])} of a value of the project is not known in this process; "
            f"register it here too (codec.register, or CODEC_TYPES in the settings)"
        )
    try:
        return own.load(inner)
    except Exception as error:
        raise Undecodable(f"the load function of tag {own.tag!r} failed: {type(error).__name__}: {error}") from error


_TAGS: Final[dict[str, Callable[[Any], Any]]] = {
    "$dt": datetime.fromisoformat,
    "$d": date.fromisoformat,
    "$t": time.fromisoformat,
    "$td": lambda microseconds: timedelta(microseconds=microseconds),
    "$dec": Decimal,
    "$uuid": UUID,
    "$b": lambda text: b64decode(text, validate=True),
}


def _no_constant(name: str) -> Any:
    raise Undecodable(f"{name} is no number")


_plain: Final = json.JSONDecoder(parse_constant=_no_constant)
_with_tags: Final = json.JSONDecoder(object_hook=_untag, parse_constant=_no_constant)

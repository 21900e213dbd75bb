"""Decoding of the bytes that :mod:`.codec` writes."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from . import codecs
from .codec_types import MARK, types_by_tag
from .job import Undecodable
from .refusals import short_key


def decode_args(data: bytes, load: Callable[[bytes], Any] | None = None) -> tuple[list[Any], dict[str, Any]]:
    """Return ``(args, kwargs)`` decoded from the bytes of :func:`.codec.encode_args`.

    Args:
        load: decodes them; None = :func:`decode`.

    Raises:
        Undecodable: the bytes are not arguments in a form that this release supports.
    """
    if not data:
        return [], {}
    value = decode(data) if load is None else load(data)
    if type(value) is list:
        return value, {}
    if type(value) is dict and value.keys() <= {"a", "k"}:
        args, kwargs = value.get("a", []), value.get("k", {})
        if type(args) is list and type(kwargs) is dict:
            return args, kwargs
    raise Undecodable("these are no arguments: a list, or an object with a list 'a' and an object 'k', was expected")


def decode(data: bytes) -> Any:
    """Return the value of canonical bytes (any JSON in UTF-8 is accepted).

    Raises:
        Undecodable: not JSON, not UTF-8, NaN, an unknown tag, nested too deep to read, or stored with another codec.
    """
    try:
        if codecs.is_marked(data):
            return _untagged(codecs.load(data))
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


def _untagged(value: Any) -> Any:
    """Return a plain value with the values behind its tags in place of them."""
    if isinstance(value, dict):
        return _untag({key: _untagged(item) for key, item in value.items()})
    return [_untagged(item) for item in value] if isinstance(value, list) else value


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
        raise Undecodable(f"the tag {short_key(key)} is not known here; was it written by a newer release?")
    return read(inner)


def _own_value(key: str, inner: Any) -> Any:
    own = types_by_tag.get(key)
    if own is None:
        raise Undecodable(
            f"the tag {short_key(key[2:])} of a value of the project is not known in this process; "
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

"""Encoding of arguments and payloads as bytes: canonical JSON, with tags for types that JSON lacks.

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
(base64), and for a project's own types ``$.name`` (:class:`ValueType`). A caller's own dict of that form gets one more
``$``, which decoding removes.

Encoding and decoding change some types: tuples become lists, subclasses become their base (an ``IntegerChoices`` member
its number), bytearray and memoryview become bytes, and the zone of a datetime becomes its offset from UTC.

A project may store the same plain values, tags included, with a codec of its own (:class:`Codec`). JSON has no mark;
the bytes of any other codec begin with one byte, 0x80 plus the codec's number, which cannot begin a text in UTF-8. A
process reads JSON and the bytes of its own codec; those of a third one are refused.

The codec and the own types are choices of the process, like the adapters of a database driver: the processes that
schedule and those that run jobs must make the same ones.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from importlib import import_module
from itertools import chain
from typing import Any, Final, NoReturn, Protocol
from uuid import UUID

from .errors import InvalidJob, Misconfigured
from .inputs import short
from .job import Undecodable

MAX_BYTES: Final = 1024 * 1024
MAX_DEPTH: Final = 32

#: types that the C encoder writes correctly. Exact types: a subclass may print itself differently
_SCALARS: Final = frozenset((str, int, float, bool, type(None)))
_TEXT: Final = frozenset((str,))
#: types that are stored without a tag
_PLAIN_KINDS: Final = _SCALARS | {list, tuple, dict}
#: blanks between the tokens of JSON
_BLANKS: Final = " \t\r\n"
#: first part of the path to an argument of a call
_ARGUMENT: Final = "argument"
#: prefix of all tags of a project
_OWN: Final = "$."
_OWN_TAG: Final = re.compile(r"[a-z0-9_-]{1,40}")
#: bits of a mark; the others are the number of the codec
_MARK: Final = 0x80
_MOST_NUMBER: Final = 0x3F
#: numbers below are those of this package's codecs
_FIRST_OWN_NUMBER: Final = 16
_NAMES: Final = {1: "msgpack"}


# -- types that JSON lacks --------------------------------------------------------------------------------------------

#: tag as stored -> type
types_by_tag: Final[dict[str, ValueType]] = {}
#: class -> type
types_by_kind: Final[dict[type[Any], ValueType]] = {}


@dataclass(frozen=True, slots=True)
class ValueType:
    """Stored form of one of the project's own types: ``ValueType("money", Money, dump, load)``.

    Attributes:
        tag: marks the values in storage: 1 to 40 of ``a-z 0-9 _ -``. It must never change its meaning.
        kind: the type. Its subclasses use the same form, unless they have a tag of their own.
        dump: converts a value into one that can be stored (text, numbers, lists, dicts, dates, other registered types).
            Equal values must give equal results, or equal payloads are not recognised.
        load: converts the result of ``dump`` back. If it raises for a job, the job cannot be read and goes to the
            morgue.
    """

    tag: str
    kind: type[Any]
    dump: Callable[[Any], Any]
    load: Callable[[Any], Any]

    def __post_init__(self) -> None:
        if not isinstance(self.tag, str) or not _OWN_TAG.fullmatch(self.tag):
            raise Misconfigured(f"the tag {short(self.tag)} is not 1 to 40 of a-z, 0-9, _ and -, like 'money'")
        if not isinstance(self.kind, type):
            raise Misconfigured(f"tag {self.tag!r}: {short(self.kind)} is no type; give the class of the values")
        if self.kind in _PLAIN_KINDS or self.kind is object or isinstance(types_by_kind.get(self.kind), _BuiltIn):
            raise Misconfigured(f"tag {self.tag!r}: {self.kind.__name__} has a stored form of its own, which stays")
        if not callable(self.dump) or not callable(self.load):
            raise Misconfigured(f"tag {self.tag!r}: dump and load are functions of one value")

    @property
    def key(self) -> str:
        """Tag as stored. The prefix keeps the tags of projects apart from those of later releases."""
        return _OWN + self.tag


class _BuiltIn(ValueType):
    """Stored form of a type of the standard library.

    The functions are methods of the class itself, because a subclass (pandas.Timestamp) may write digits that cannot be
    read back.
    """

    __slots__ = ()

    def __post_init__(self) -> None:
        types_by_tag[self.key] = types_by_kind[self.kind] = self

    @property
    def key(self) -> str:
        return f"${self.tag}"


_MICROSECOND: Final = timedelta(microseconds=1)
_BuiltIn("dt", datetime, datetime.isoformat, datetime.fromisoformat)
_BuiltIn("d", date, date.isoformat, date.fromisoformat)
_BuiltIn("t", time, time.isoformat, time.fromisoformat)
_BuiltIn("td", timedelta, lambda span: span // _MICROSECOND, lambda number: timedelta(microseconds=number))
_BuiltIn("uuid", UUID, UUID.__str__, UUID)
_DECIMAL: Final = _BuiltIn("dec", Decimal, Decimal.__str__, Decimal)
_BuiltIn("b", bytes, lambda data: b64encode(bytes(data)).decode(), lambda text: b64decode(text, validate=True))
types_by_kind[bytearray] = types_by_kind[memoryview] = types_by_kind[bytes]


def register(tag: str, kind: type[Any], dump: Callable[[Any], Any], load: Callable[[Any], Any]) -> ValueType:
    """Make values of a type storable in this process: see :class:`ValueType`. Repeating a registration has no effect.

    Both the processes that schedule and the processes that run the jobs must register; with Django,
    ``DELAYQ["CODEC_TYPES"]`` does so.

    Raises:
        Misconfigured: an argument is not usable, or the tag or the type belongs to another registration.
    """
    return install(ValueType(tag, kind, dump, load))


def install(made: ValueType) -> ValueType:
    """Register an existing :class:`ValueType`; see :func:`register`."""
    for other in (types_by_tag.get(made.key), types_by_kind.get(made.kind)):
        if other is not None and other != made:
            raise Misconfigured(
                f"tag {made.tag!r} for {made.kind.__qualname__}: {other.tag!r} stands for {other.kind.__qualname__} "
                f"already; a tag stands for one type and a type has one tag"
            )
    types_by_tag[made.key] = types_by_kind[made.kind] = made
    return made


def forget(made: ValueType) -> None:
    """Remove a registration: its values can no longer be stored, and stored ones can no longer be read."""
    if types_by_tag.get(made.key) == made:
        del types_by_tag[made.key], types_by_kind[made.kind]


# -- codec of a project -----------------------------------------------------------------------------------------------


class Codec(Protocol):
    """Codec of plain values: None, bool, int, float, str, list, and dict with text keys.

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
        return _checked(getattr(import_module(module), name))
    except Misconfigured as error:
        raise Misconfigured(f"{path}: {error}") from None
    except (ImportError, AttributeError, ValueError) as error:
        raise Misconfigured(f"{path} cannot be imported: {error}") from error


def use(codec: Codec | None) -> None:
    """Store with this codec from now on, in this process; None = JSON.

    Raises:
        Misconfigured: the object is not a codec.
    """
    global chosen
    chosen = codec if codec is None else _checked(codec)


def _checked(codec: Any) -> Codec:
    if isinstance(codec, type) or not all(callable(getattr(codec, name, None)) for name in ("dumps", "loads")):
        raise Misconfigured(
            f"{short(codec)} is not a codec; give an object with name, number, dumps(value) and loads(data)"
        )
    name, number = getattr(codec, "name", None), getattr(codec, "number", None)
    if not isinstance(name, str) or name in ("", "json"):
        raise Misconfigured(f"the codec's name is {short(name)}; give it a text of its own, which messages show")
    if type(number) is not int or not 1 <= number <= _MOST_NUMBER or _NAMES.get(number, name) != name:
        raise Misconfigured(
            f"the number of codec {name!r} is {short(number)}; give it one from {_FIRST_OWN_NUMBER} to {_MOST_NUMBER}, "
            f"which marks its bytes for ever"
        )
    checked: Codec = codec
    return checked


def dump_with(codec: Codec, value: Any) -> bytes:
    """Return the marked bytes of a plain value whose dicts have their keys in order.

    Raises:
        InvalidJob: the codec cannot store it.
    """
    try:
        return bytes((_MARK | codec.number,)) + codec.dumps(value)
    except Exception as error:  # a codec of a project may raise anything
        raise InvalidJob(
            f"codec {codec.name!r} cannot store the value: {type(error).__name__}: {error}; pass it as a text"
        ) from error


def _is_marked(data: bytes) -> bool:
    return data != b"" and _MARK < data[0] <= _MARK | _MOST_NUMBER


def _load_marked(data: bytes) -> Any:
    """Return the plain value, tags included, of bytes that another codec than JSON has stored."""
    number, codec = data[0] & _MOST_NUMBER, chosen
    if codec is None or codec.number != number:
        named = f" ({_NAMES[number]!r})" if number in _NAMES else ""
        here = "'json'" if codec is None else f"{codec.name!r} (number {codec.number})"
        raise Undecodable(
            f"stored with codec number {number}{named}, but this process uses {here}; "
            f"give all processes the same CODEC in the settings, then retry the job"
        )
    try:
        return codec.loads(data[1:])
    except Exception as error:  # as in dump_with
        raise Undecodable(f"codec {codec.name!r} cannot read the bytes: {type(error).__name__}: {error}") from None


def as_json(data: bytes) -> bytes:
    """Return stored bytes as JSON, tags included. Bytes without a mark are returned unchanged.

    Raises:
        Undecodable: they are another codec's than that of this process, or damaged; or the value has no form in JSON.
    """
    if not _is_marked(data):
        return data
    value = _load_marked(data)
    try:
        return _dump(value).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise Undecodable(f"the stored value has no form in JSON: {error}") from None


def readable(data: bytes) -> str:
    """Return stored bytes as a text for searches; unreadable ones as they are."""
    try:
        return as_json(data).decode(errors="replace")
    except Undecodable:
        return data.decode(errors="replace")


# -- encoding ---------------------------------------------------------------------------------------------------------


def encode_args(args: Sequence[Any], kwargs: Mapping[str, Any], *, limit: int = MAX_BYTES) -> bytes:
    """Return the arguments of one call as bytes; see the table of the module.

    Args:
        limit: maximum number of bytes.

    Raises:
        InvalidJob: a value has no stored form, or the result is too large; the message names the location.
    """
    if not args and not kwargs:
        return b""
    encoded = _quickly(_call(args, kwargs) if kwargs else args)
    if encoded is None:
        stored = [_stored(value, 1, (_ARGUMENT, place)) for place, value in enumerate(args)]
        encoded = _written(_call(stored, _stored(dict(kwargs), 0, (_ARGUMENT,))))
    return encoded if len(encoded) <= limit else _refuse_size(encoded, limit, "the arguments take")


def encode_lists(calls: Sequence[Any], *, limit: int = MAX_BYTES) -> list[bytes] | None:
    """Return the bytes of the arguments of many calls; None if :func:`encode_args` has to look at each.

    All at once take less than half of the time. This is possible for lists of texts, numbers, booleans and None, each
    with at least one item.
    """
    if chosen is not None or not all(calls) or {list} != set(map(type, calls)):
        return None
    if not _SCALARS.issuperset(map(type, chain.from_iterable(calls))):
        return None
    try:
        lines = _dump_lines(calls)[1:-1].encode()
    except ValueError:  # see _quickly()
        return None
    # A line feed inside a text is escaped, so each one found here separates two items or two lists.
    encoded = lines.replace(b"]\n[", b"]\0[").replace(b"\n", b",").split(b"\0")
    return encoded if len(max(encoded, key=len)) <= limit else None


def encode(value: Any, *, limit: int = MAX_BYTES, what: str = "payload") -> bytes:
    """Return the canonical bytes of one value. Messages call it ``what``.

    Raises:
        InvalidJob: see :func:`encode_args`.
    """
    encoded = _quickly(value) or _written(_stored(value, 1, (what,)))
    return encoded if len(encoded) <= limit else _refuse_size(encoded, limit, f"{what} takes")


def _call(args: Any, kwargs: Any) -> Any:
    return args if not kwargs else {"a": args, "k": kwargs} if args else {"k": kwargs}


def _make_dump(separator: str) -> Callable[[Any], str]:
    """Return ``json.dumps`` with our settings. Its C part is created once, not per call, which is four times faster."""
    encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(separator, ":"))
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:  # an interpreter without the C encoder
        return encoder.encode
    scan = make(None, encoder.default, json.encoder.encode_basestring, None, ":", separator, True, False, False)

    def dump(value: Any) -> str:
        return "".join(scan(value, 0))

    return dump


_dump: Final = _make_dump(",")
_dump_lines: Final = _make_dump("\n")


def _quickly(value: Any) -> bytes | None:
    """Return the bytes of a plain value; None if :func:`_stored` has to look at it."""
    try:
        return _dump(value).encode() if chosen is None and _is_plain(value) else None
    except ValueError:  # NaN, half of a surrogate pair, an int of thousands of digits
        return None


def _is_plain(value: Any, levels: int = MAX_DEPTH) -> bool:
    """Return True if a value has no types but those of JSON, keys that are texts, and no dict shaped like a tag."""
    kind = type(value)
    if kind is dict:
        if not _TEXT.issuperset(map(type, value)) or (len(value) == 1 and next(iter(value))[:1] == "$"):
            return False
        items: Collection[Any] = value.values()
    elif kind is list or kind is tuple:
        items = value
    else:
        return kind in _SCALARS
    return levels > 0 and (_SCALARS.issuperset(map(type, items)) or all(_is_plain(item, levels - 1) for item in items))


def _written(stored: Any) -> bytes:
    return _dump(stored).encode() if chosen is None else dump_with(chosen, stored)


def _refuse_size(encoded: bytes, limit: int, what: str) -> NoReturn:
    raise InvalidJob(
        f"{what} {len(encoded)} bytes, at most {limit} are stored; store the data elsewhere and pass its key"
    )


def _stored(value: Any, depth: int, path: tuple[Any, ...]) -> Any:
    """Return ``value`` in types that JSON has, checked.

    Args:
        depth: levels of nesting, this one included.
        path: name of the outermost value, then the keys that lead to this one.
    """
    kind = type(value)
    made = types_by_kind.get(kind)
    if made is None and kind not in _PLAIN_KINDS:
        bases = (types_by_kind[base] for base in kind.__mro__ if base in types_by_kind)
        made = min(bases, key=lambda one: type(one) is _BuiltIn, default=None)  # a project's type goes first
    if made is None and (value is None or isinstance(value, (str, int, float))):
        return _scalar(value, path)
    if depth > MAX_DEPTH:
        raise _refusal(path, f"nested more than {MAX_DEPTH} levels deep")
    if made is not None:
        dumped = _dumped(made, value, path)
        return {made.key: dumped if type(made) is _BuiltIn else _stored(dumped, depth + 1, path)}
    if isinstance(value, dict):
        return _escaped({_key(key, (*path, key)): _stored(one, depth + 1, (*path, key)) for key, one in value.items()})
    if isinstance(value, (list, tuple)):
        return [_stored(one, depth + 1, (*path, place)) for place, one in enumerate(value)]
    raise _refusal(path, _reason_against(value))


def _scalar(value: Any, path: tuple[Any, ...]) -> Any:
    """Return a text, number, bool or None; of a subclass, the value of its base."""
    try:
        text = _dump(value)
        text.encode()
    except UnicodeEncodeError:
        raise _refusal(path, "the text holds half of a surrogate pair, which UTF-8 cannot write") from None
    except ValueError:
        raise _refusal(path, f"{short(value)} has no form in JSON; pass None or a text") from None
    return value if type(value) in _SCALARS else json.loads(text)


def _dumped(made: ValueType, value: Any, path: tuple[Any, ...]) -> Any:
    """Return what is stored behind the tag of a value."""
    if made is _DECIMAL and not value.is_finite():
        raise _refusal(path, f"Decimal {value} has no stored form; pass None or a text")
    try:
        dumped = made.dump(value)
    except Exception as error:
        text = f"the dump function of tag {made.tag!r} failed: {type(error).__name__}: {error}"
        raise _refusal(path, text) from error
    if type(dumped) is made.kind:
        raise _refusal(path, f"the dump function of tag {made.tag!r} gave a {made.kind.__qualname__} back")
    return dumped


def _key(key: Any, path: tuple[Any, ...]) -> str:
    if isinstance(key, str):
        return str(_scalar(key, path))
    raise _refusal(path, "its key is not a text, and JSON has no others; use str(key)")


def _escaped(stored: dict[str, Any]) -> dict[str, Any]:
    """Return a caller's dict with its keys in order, escaped if it has the form of a tag."""
    if len(stored) == 1:
        (key,) = stored
        if key[:1] == "$":
            return {f"${key}": stored[key]}
    return dict(sorted(stored.items()))


def _refusal(path: tuple[Any, ...], reason: str) -> InvalidJob:
    """Return the error for a value without a stored form."""
    what, *keys = path
    if what == _ARGUMENT:
        what = f"{what} {_short(keys.pop(0))}"
    place = "".join(f"[{_short(key)}]" for key in keys[-8:])
    return InvalidJob(f"{what}{place}: {reason}")


def _reason_against(value: Any) -> str:
    """Return the reason why ``value`` cannot be stored, and what to pass instead. No method of ``value`` is called."""
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
    """Return a short ``repr(key)`` without running code of a foreign class."""
    return short(key, 40) if type(key) in _SCALARS else f"<{type(key).__name__}>"


# -- decoding ---------------------------------------------------------------------------------------------------------


def decode_args(data: bytes, load: Callable[[bytes], Any] | None = None) -> tuple[list[Any], dict[str, Any]]:
    """Return ``(args, kwargs)`` decoded from the bytes of :func:`encode_args`.

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
        if _is_marked(data):
            return _untagged(_load_marked(data))
        text = data.decode().strip(_BLANKS)
        value, end = (_with_tags if '"$' in text else _plain).raw_decode(text)  # decode() takes twice as long
    except Undecodable:
        raise
    except RecursionError:
        raise Undecodable("nested too deep to read") from None
    except (ValueError, TypeError) as error:
        raise Undecodable(f"no JSON: {error}") from None
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
    made = types_by_tag.get(key)
    if made is not None:
        try:
            return made.load(inner)
        except Exception as error:
            raise Undecodable(
                f"the load function of tag {made.tag!r} failed: {type(error).__name__}: {error}"
            ) from error
    if key[:2] == _OWN:
        raise Undecodable(
            f"the tag {_short(key[2:])} of a value of the project is not known in this process; "
            f"register it here too (codec.register, or CODEC_TYPES in the settings)"
        )
    raise Undecodable(f"the tag {_short(key)} is not known here; was it written by a newer release?")


def _no_constant(name: str) -> Any:
    raise Undecodable(f"{name} is no number")


_plain: Final = json.JSONDecoder(parse_constant=_no_constant)
_with_tags: Final = json.JSONDecoder(object_hook=_untag, parse_constant=_no_constant)

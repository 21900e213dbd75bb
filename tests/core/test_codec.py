"""Codec: values survive a round trip, equal values have equal bytes, and other types are rejected by name."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, strategies as st

from django_delayq.core import InvalidJob
from django_delayq.core.codec import MAX_BYTES, MAX_DEPTH, decode, decode_args, encode, encode_args, encode_lists
from tests.support.core_values import Undecodable

_zones = st.one_of(st.none(), st.just(UTC), st.integers(-1439, 1439).map(lambda m: timezone(timedelta(minutes=m))))
_scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=-(2**2000), max_value=2**2000),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(),
    st.sampled_from(["", "$", "$dt", '{"$dt":"x"}', '"$', "\x00", "\u2028", "é", "𝄞"]),
    st.datetimes(timezones=_zones),
    st.dates(),
    st.times(),
    st.timedeltas(),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.uuids(),
    st.binary(max_size=50),
)
_keys = st.one_of(st.text(), st.sampled_from(["$", "$$", "$dt", "$$dt", "$b", "$new", "a", "k"]))
_values = st.recursive(
    _scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(_keys, inner, max_size=4)),
    max_leaves=12,
)


def _same(one: Any, other: Any) -> bool:
    """Return True if values and all nested types are equal (1 == True == 1.0 would hide mistakes), -0.0 included."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, float):
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    if isinstance(one, Decimal):
        return one.as_tuple() == other.as_tuple()
    if isinstance(one, datetime):
        return one == other and one.utcoffset() == other.utcoffset()
    return bool(one == other)


@given(_values)
@example({"$dt": 1})
@example({"$": {"$": {"$$": None}}})
@example({"$dt": datetime(2030, 1, 1, tzinfo=UTC)})
@example([{"$new": {"a": {"$b": "x"}}}])
def test_every_storable_value_comes_back_as_it_was_and_equal_ones_have_equal_bytes(value: Any) -> None:
    encoded = encode(value)
    assert _same(decode(encoded), value)
    assert encode(_shuffled(value)) == encoded, "whatever the order of keys"
    assert encode(decode(encoded)) == encoded


@given(st.lists(_values, max_size=4), st.dictionaries(_keys, _values, max_size=4))
@example([], {"$x": 1})
@example([1], {"a": [2], "k": {}})
@example([{"a": [], "k": {}}], {})
@example([{"k": {}}], {})
def test_arguments_come_back_as_they_were(args: list[Any], kwargs: dict[str, Any]) -> None:
    back = decode_args(encode_args(tuple(args), kwargs))
    assert _same(list(back), [args, kwargs])


def _shuffled(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _shuffled(value[key]) for key in reversed(value)}
    return [_shuffled(item) for item in value] if isinstance(value, list) else value


@given(st.dictionaries(_keys, st.one_of(st.integers(), st.text(), st.booleans(), st.none()), max_size=6))
def test_the_short_way_for_flat_values_writes_what_the_long_way_writes(flat: dict[str, Any]) -> None:
    assert encode([flat]) == b"[" + encode(flat) + b"]"
    as_list = encode_args(("x", [], *flat.values()), {})
    assert as_list == b'["x",[]' + b"".join(b"," + encode(value) for value in flat.values()) + b"]"


_plain = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(min_value=-(2**2000), max_value=2**2000),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(),
    st.sampled_from(["", "],[", "]\n[", "]\0[", "\n", "\0", '","', "\\", "\u2028", "\x7f", "$dt", "𝄞"]),
)


@given(st.lists(st.lists(_plain, min_size=1, max_size=4), min_size=1, max_size=6))
def test_lists_that_are_encoded_all_at_once_have_the_bytes_of_each(calls: list[list[Any]]) -> None:
    assert encode_lists(calls) == [encode_args(call, {}) for call in calls]


_UNLIKE = (
    *([], None, (1,), {"a": 1}, "ab", [[1]], [{}], [("a",)], [date(2030, 1, 1)], [Decimal(1)], [b"a"]),
    *([math.nan], [math.inf], ["\ud800"], [10**5000], ["x" * MAX_BYTES], [enum.IntEnum("Size", "SMALL")["SMALL"]]),
)


@pytest.mark.parametrize("place", range(len(_UNLIKE)))
def test_lists_are_not_encoded_all_at_once_beside_what_has_to_be_looked_at(place: int) -> None:
    assert encode_lists([[1], _UNLIKE[place], ["a"]]) is None


@given(st.binary(max_size=200))
@example(b"\xff")
@example(b"{")
@example(b"[1,2]garbage")
@example(b'{"$dt":5}')
@example(b'{"$td":1e300}')
@example(b'{"$dec":"x"}')
@example(b'{"$uuid":5}')
@example(b'{"$b":"%"}')
@example(b'{"$new":1}')
@example(b"NaN")
@example(b"1" * 5000)
@example(b"[" * 100_000)
@example(b'{"a":1}')
@example(b'{"k":[]}')
@example(b'{"x":[]}')
@example(b'"text"')
@example("\u00a0".encode())
def test_foreign_bytes_are_read_or_refused_with_one_kind_of_error(data: bytes) -> None:
    try:
        args, kwargs = decode_args(data)
    except Undecodable:
        return
    assert isinstance(args, list)
    assert isinstance(kwargs, dict)


def test_json_of_other_writers_is_read_with_its_spaces() -> None:
    assert decode_args(b' [1, {"$d" : "2030-01-02"}]\n') == ([1, date(2030, 1, 2)], {})
    assert decode_args(b'{"k": {"x": 1}, "a": [2]}') == ([2], {"x": 1})


@pytest.mark.parametrize(
    ("args", "kwargs", "stored"),
    [
        ((), {}, b""),
        ((42,), {}, b"[42]"),
        ((42, "x"), {}, b'[42,"x"]'),
        ((), {"x": 1}, b'{"k":{"x":1}}'),
        ((42,), {"y": 2, "x": 1}, b'{"a":[42],"k":{"x":1,"y":2}}'),
        (([1, {"b": None, "a": True}],), {}, b'[[1,{"a":true,"b":null}]]'),
        (("é",), {}, '["é"]'.encode()),
    ],
)
def test_the_stored_form_is_short_and_canonical(args: tuple[Any, ...], kwargs: dict[str, Any], stored: bytes) -> None:
    assert encode_args(args, kwargs) == stored


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (datetime(2030, 1, 2, 3, 4, 5, 6, tzinfo=UTC), '{"$dt":"2030-01-02T03:04:05.000006+00:00"}'),
        (datetime(2030, 1, 2, 3), '{"$dt":"2030-01-02T03:00:00"}'),
        (date(2030, 1, 2), '{"$d":"2030-01-02"}'),
        (time(3, 4), '{"$t":"03:04:00"}'),
        (timedelta(days=-1, microseconds=1), '{"$td":-86399999999}'),
        (Decimal("1.50"), '{"$dec":"1.50"}'),
        (UUID(int=1), '{"$uuid":"00000000-0000-0000-0000-000000000001"}'),
        (b"\x00\xff", '{"$b":"AP8="}'),
        (bytearray(b"a"), '{"$b":"YQ=="}'),
        (memoryview(b"abcd")[::2], '{"$b":"YWM="}'),
        ({"$dt": 1}, '{"$$dt":1}'),
        ({"$dt": 1, "x": 2}, '{"$dt":1,"x":2}'),
        ((1, 2), "[1,2]"),
    ],
)
def test_tags_are_what_the_module_says(value: Any, stored: str) -> None:
    assert encode(value) == stored.encode()


def test_the_zone_of_a_datetime_becomes_its_offset_and_the_moment_stays() -> None:
    autumn = datetime(2025, 10, 26, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1)
    back = decode(encode(autumn))
    assert back == autumn.astimezone(UTC)
    assert back.utcoffset() == timedelta(hours=1)


class _Colour(enum.StrEnum):
    RED = "red"


class _Level(enum.IntEnum):
    HIGH = 3


class _Loud(str):
    def __str__(self) -> str:
        return "LOUD"


class _Half(float):
    def __repr__(self) -> str:
        return "half"


class _Stamp(datetime):
    """Stand-in for pandas.Timestamp, which prints more digits than can be parsed."""

    def isoformat(self, *_: Any, **__: Any) -> str:
        return "2030-01-01T00:00:00.000000001"


def test_subclasses_are_stored_as_the_value_they_hold() -> None:
    value = [_Colour.RED, _Level.HIGH, _Loud("quiet"), _Half(0.5), {_Colour.RED: True}]
    assert _same(decode(encode(value)), ["red", 3, "quiet", 0.5, {"red": True}])
    assert encode_args((_Colour.RED, _Level.HIGH), {}) == b'["red",3]'
    assert decode(encode(_Stamp(2030, 1, 1))) == datetime(2030, 1, 1)


class _Order:
    """Stand-in for a model instance."""

    _meta = object()
    pk = 5


class _QuerySet:
    query = None

    def values_list(self) -> None: ...


class __proxy__:
    pass


class _Plain(enum.Enum):
    ONE = 1


@dataclass
class _Data:
    x: int = 1


_loop: list[Any] = []
_loop.append(_loop)


def _deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        (({"x": {1}},), {}, r"argument 0\['x'\]: a set has no order"),
        (([0, {"a": [None, object()]}],), {}, r"argument 0\[1\]\['a'\]\[1\]: object has no stored form"),
        ((1, _Order()), {}, r"argument 1: a model instance .*_Order\) .*pass its primary key \(obj\.pk\)"),
        ((), {"orders": _QuerySet()}, r"argument 'orders': .* is a query; pass the primary keys"),
        ((__proxy__(),), {}, r"lazy text .*pass str\(value\)"),
        ((_Plain.ONE,), {}, r"Enum member; pass its \.value"),
        ((_Data(),), {}, r"dataclasses\.asdict"),
        ((len,), {}, "is a callable"),
        ((_Data,), {}, "the class _Data cannot be stored"),
        ((math.nan,), {}, "argument 0: nan has no form in JSON"),
        ((1, -math.inf), {}, "argument 1: -inf has no form in JSON"),
        ((), {"x": [math.inf]}, r"argument 'x'\[0\]: inf"),
        ((), {"x": math.inf}, "argument 'x': inf"),
        ((Decimal("NaN"),), {}, "Decimal NaN has no stored form"),
        (({1: "x"},), {}, r"argument 0\[1\]: its key is not a text"),
        (({"x": {None: 1}},), {}, r"argument 0\['x'\]\[None\]: its key is not a text"),
        (({object(): 1},), {}, r"argument 0\[<object>\]: its key"),
        (("\ud800",), {}, "argument 0: the text holds half of a surrogate pair"),
        (({"\udfff": 1},), {}, r"argument 0.*surrogate"),
        ((), {"\ud800": 1}, "surrogate"),
        ((), {"x": "\ud800"}, "argument 'x': the text holds half"),
        ((), {5: 1}, "argument 5: its key is not a text"),
        ((2**20_000,), {}, "argument 0: an int of 20001 bits"),
        ((_loop,), {}, f"nested more than {MAX_DEPTH} levels"),
        ((_deep(MAX_DEPTH + 1),), {}, f"nested more than {MAX_DEPTH} levels"),
        (("x" * MAX_BYTES,), {}, "at most 1048576 are stored; store the data elsewhere"),
    ],
)
def test_what_cannot_be_stored_is_refused_by_name(args: tuple[Any, ...], kwargs: Any, message: str) -> None:
    with pytest.raises(InvalidJob, match=message) as caught:
        encode_args(args, kwargs)
    assert len(str(caught.value)) < 400


def test_the_deepest_allowed_value_is_stored() -> None:
    assert decode(encode(_deep(MAX_DEPTH))) == _deep(MAX_DEPTH)


def test_the_limit_is_exact_and_can_be_set() -> None:
    assert encode("é", limit=4) == '"é"'.encode()
    with pytest.raises(InvalidJob, match="payload takes 4 bytes, at most 3"):
        encode("é", limit=3)
    with pytest.raises(InvalidJob, match=r"order 5\['x'\]: a frozenset"):
        encode({"x": frozenset()}, what="order 5")


def test_an_unknown_tag_says_that_a_newer_release_may_have_written_it() -> None:
    with pytest.raises(Undecodable, match="newer release"):
        decode(b'[{"$money":"5"}]')

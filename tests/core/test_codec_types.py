"""Custom types of a project: registered with a tag, they are encoded like any other value."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple

import pytest

from django_delayq.core import InvalidJob, Misconfigured
from django_delayq.core.codec import MAX_DEPTH, ValueType, decode, decode_args, encode, encode_args, forget, register
from tests.support.core_values import Undecodable, types_by_kind, types_by_tag


@dataclass(frozen=True)
class Money:
    amount: Decimal
    currency: str


class Pence(Money):
    """Subclass without its own tag."""


class Point(NamedTuple):
    x: int
    y: int


class Colour(enum.IntEnum):
    RED = 1


class Secret(str):
    __slots__ = ()


def dump_money(value: Money) -> list[Any]:
    return [value.amount, value.currency]


def load_money(stored: list[Any]) -> Money:
    return Money(*stored)


@pytest.fixture(autouse=True)
def money() -> Iterator[ValueType]:
    """Register the type Money until the test ends."""
    before = dict(types_by_tag)
    yield register("money", Money, dump_money, load_money)
    for made in [made for tag, made in types_by_tag.items() if tag not in before]:
        forget(made)
    assert types_by_tag == before
    assert set(types_by_kind.values()) == set(before.values())


FIVE = Money(Decimal("5.00"), "EUR")


def test_a_value_of_a_registered_type_comes_back_as_it_was() -> None:
    assert encode(FIVE) == b'{"$.money":[{"$dec":"5.00"},"EUR"]}'
    assert decode(encode(FIVE)) == FIVE
    assert decode_args(encode_args((FIVE, 1), {"rest": [FIVE, {"a": FIVE}]})) == (
        [FIVE, 1],
        {"rest": [FIVE, {"a": FIVE}]},
    )


def test_equal_values_have_equal_bytes() -> None:
    register("set", set, sorted, set)
    assert encode({3, 1, 2}) == encode({2, 3, 1}) == b'{"$.set":[1,2,3]}'
    assert decode(encode({3, 1, 2})) == {1, 2, 3}


def test_registered_types_may_hold_each_other() -> None:
    register("point", Point, lambda point: {"at": list(point), "price": FIVE}, lambda stored: Point(*stored["at"]))
    assert decode(encode([Point(1, 2)])) == [Point(1, 2)]


def test_a_type_that_would_be_stored_as_its_base_is_kept_once_it_is_registered() -> None:
    values = [Point(1, 2), Colour.RED, Secret("x")]
    assert encode(values) == b'[[1,2],1,"x"]'
    register("point", Point, list, lambda stored: Point(*stored))
    register("colour", Colour, lambda colour: colour.name, lambda name: Colour[name])
    register("secret", Secret, lambda text: text[::-1], lambda text: Secret(text[::-1]))
    back = decode(encode(values))
    assert back == values
    assert [type(value) for value in back] == [Point, Colour, Secret]


def test_a_subclass_is_stored_by_its_base_unless_it_has_a_tag_of_its_own() -> None:
    pence = Pence(Decimal(1), "GBP")
    assert type(decode(encode(pence))) is Money
    register("pence", Pence, dump_money, lambda stored: Pence(*stored))
    assert decode(encode([pence, FIVE])) == [pence, FIVE]


def test_a_callers_dict_that_looks_like_a_projects_tag_comes_back_as_a_dict() -> None:
    for value in ({"$.money": [1, "EUR"]}, {"$$.money": FIVE}, {"$.nobody": None}):
        assert decode(encode(value)) == value


def test_registering_the_same_again_changes_nothing(money: ValueType) -> None:
    assert register("money", Money, dump_money, load_money) == money


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (("money", Point, list, tuple), "'money' stands for Money already"),
        (("cash", Money, dump_money, load_money), "'money' stands for Money already"),
        (("money", Money, dump_money, tuple), "'money' stands for Money already"),
        (("Money!", Point, list, tuple), "is not 1 to 40 of"),
        (("", Point, list, tuple), "is not 1 to 40 of"),
        ((5, Point, list, tuple), "is not 1 to 40 of"),
        (("x", "Point", list, tuple), "is no type"),
        (("x", dict, list, tuple), "dict has a stored form of its own"),
        (("x", Decimal, str, Decimal), "Decimal has a stored form of its own"),
        (("x", object, str, str), "object has a stored form of its own"),
        (("x", Point, None, tuple), "dump and load are functions"),
    ],
)
def test_a_clash_or_a_wrong_part_is_refused(parts: tuple[Any, Any, Any, Any], message: str) -> None:
    with pytest.raises(Misconfigured, match=message):
        register(*parts)
    assert decode(encode(FIVE)) == FIVE


def test_a_tag_that_nobody_registered_here_cannot_be_read() -> None:
    with pytest.raises(Undecodable, match=r"'cash' of a value of the project is not known in this process"):
        decode(b'[{"$.cash":1}]')


def test_what_was_forgotten_is_neither_stored_nor_read(money: ValueType) -> None:
    stored = encode(FIVE)
    forget(money)
    with pytest.raises(Undecodable, match="not known in this process"):
        decode(stored)
    with pytest.raises(InvalidJob, match="is a dataclass"):
        encode(FIVE)
    forget(money)


def test_a_load_function_that_fails_makes_the_value_unreadable_and_nothing_worse() -> None:
    register("point", Point, list, lambda stored: {}["nothing"])
    with pytest.raises(Undecodable, match=r"load function of tag 'point' failed: KeyError: 'nothing'"):
        decode(encode(Point(1, 2)))


@pytest.mark.parametrize(
    ("dump", "message"),
    [
        (lambda point: 1 // 0, r"argument 0\['at'\]: the dump function of tag 'point' failed: ZeroDivisionError"),
        (lambda point: point, r"argument 0\['at'\]: the dump function of tag 'point' gave a Point back"),
        (lambda point: [point], r"nested more than 32 levels deep"),
        (lambda point: {1, 2}, r"argument 0\['at'\]: a set has no order"),
    ],
)
def test_a_dump_function_that_fails_is_refused_by_name(dump: Any, message: str) -> None:
    register("point", Point, dump, tuple)
    with pytest.raises(InvalidJob, match=message):
        encode_args(({"at": Point(1, 2)},), {})


def test_values_of_a_projects_types_count_for_the_depth() -> None:
    register("box", Colour, lambda colour: 1, lambda stored: Colour.RED)
    value: Any = Colour.RED
    for _ in range(MAX_DEPTH - 1):
        value = [value]
    assert encode(value)
    with pytest.raises(InvalidJob, match="nested more than"):
        encode([value])

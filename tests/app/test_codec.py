"""``DELAYQ["CODEC"]`` and ``["CODEC_TYPES"]``: another codec than JSON, and a project's own types in jobs."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from django.core.checks import run_checks

from django_delayq import InvalidJob, Queue, connections, get_job, messagepack, schedule, task
from django_delayq.admin import content
from django_delayq.api.content import held_content
from django_delayq.core import codec
from django_delayq.core.broker import Broker
from django_delayq.core.codec import ValueType, decode, decode_args, encode, encode_args
from django_delayq.core.errors import Misconfigured
from django_delayq.core.job import Undecodable
from django_delayq.core.job_filter import JobFilter
from django_delayq.core.task import registry
from django_delayq.runtime import wiring
from django_delayq.settings.conf import Conf, conf
from django_delayq.status.job_content import split_call

from .running import run_dry

HERE = "tests.app.test_codec"
VALUES: tuple[Any, ...] = (
    datetime(2030, 1, 1, tzinfo=UTC),
    date(2030, 1, 1),
    time(12, 30),
    timedelta(microseconds=7),
    Decimal("5.00"),
    UUID(int=7),
    b"\x00\xff",
    None,
    True,
    -(2**40),
    1.5,
    "grün",
    [1, ["2"]],
    {"$dt": "not a tag"},
    {"b": 1, "a": {}},
)


class Reversed:
    """JSON backwards: a codec that needs no package."""

    name = "reversed"
    number = 17

    def dumps(self, value: Any) -> bytes:
        return json.dumps(value).encode()[::-1]

    def loads(self, data: bytes) -> Any:
        return json.loads(data[::-1])


class Broken(Reversed):
    def dumps(self, value: Any) -> bytes:
        raise struct.error("no room")

    def loads(self, data: bytes) -> Any:
        raise struct.error("torn")


reversed_codec, broken_codec = Reversed(), Broken()
no_codec = 5
nameless = type("Nameless", (Reversed,), {"name": ""})()
taken = type("Taken", (Reversed,), {"number": 1})()
got: list[Any] = []


@pytest.fixture(params=["tests.app.test_codec.reversed_codec", "django_delayq.messagepack.codec"])
def other(request: pytest.FixtureRequest, delayq: Broker, settings: Any) -> str:
    """The settings name another codec than JSON."""
    settings.DELAYQ = {**settings.DELAYQ, "CODEC": request.param}
    return str(request.param)


@pytest.fixture
def send() -> Iterator[Any]:
    """A task, known until the test ends."""

    @task(name="codec.send")
    def send(*args: Any, **kwargs: Any) -> None:
        got.append((args, kwargs))

    got.clear()
    yield send
    registry.remove(send)


@pytest.fixture
def unite() -> Iterator[Any]:
    """A merged task, known until the test ends."""

    @task(name="codec.unite", merge=True, queue="united")
    def unite(payloads: Any) -> None:
        got.append(payloads)

    got.clear()
    yield unite
    registry.remove(unite)


@pytest.mark.usefixtures("other")
def test_a_handler_gets_every_value_as_with_json(send: Any) -> None:
    schedule(send, *VALUES, named=VALUES[0])
    schedule(send)
    run_dry("default")
    assert sorted(got, key=len, reverse=True) == got and (VALUES, {"named": VALUES[0]}) in got and ((), {}) in got


@pytest.mark.usefixtures("other")
def test_payloads_unite_and_equal_ones_are_recognised(unite: Any) -> None:
    schedule(unite, id="a", payload={"x": 1, "y": Decimal(1)}, score=1)
    schedule(unite, id="a", payload={"y": Decimal(1), "x": 1}, score=1)
    schedule(unite, id="a", payload=[], score=2)
    run_dry("united")
    assert got == [{"a": [{"x": 1, "y": Decimal(1)}, []]}]


def test_the_bytes_of_json_have_no_mark_and_those_of_another_codec_have_one(delayq: Broker, settings: Any) -> None:
    assert encode_args((1, "x"), {}) == b'[1,"x"]'
    settings.DELAYQ = {**settings.DELAYQ, "CODEC": f"{HERE}.reversed_codec"}
    assert encode_args((1, "x"), {}) == b"\x91" + b'[1, "x"]'[::-1]
    assert encode_args((), {}) == b""


@pytest.mark.usefixtures("other")
def test_waiting_jobs_in_json_are_run_after_a_change_to_another_codec() -> None:
    assert decode_args(b'[{"$d":"2030-01-01"}]') == ([date(2030, 1, 1)], {})


def test_bytes_of_another_codec_are_refused_with_both_names(delayq: Broker, send: Any, settings: Any) -> None:
    before = settings.DELAYQ
    settings.DELAYQ = {**before, "CODEC": "django_delayq.messagepack.codec"}
    stored = encode_args((5,), {})
    handle = schedule(send, 5)
    settings.DELAYQ = before
    with pytest.raises(Undecodable, match=r"codec number 1 \('msgpack'\), but this process uses 'json'"):
        decode_args(stored)
    run_dry("default")
    view = connections.broker().inspector.page("default", "morgue").jobs[0]
    assert got == [] and view.id == handle.id and "'msgpack'" in view.error["message"]
    settings.DELAYQ = {**before, "CODEC": f"{HERE}.reversed_codec"}
    with pytest.raises(
        Undecodable, match=r"'msgpack'.*uses 'reversed' \(number 17\); give all processes the same CODEC"
    ):
        decode_args(stored)


@pytest.mark.usefixtures("other")
def test_people_see_the_arguments_as_json(send: Any, unite: Any) -> None:
    handle = schedule(send, 5, day=date(2030, 1, 1), delay=60)
    view = get_job(handle)
    assert view is not None and decode_args(view.job.args) == ([5], {"day": date(2030, 1, 1)})
    assert split_call(view.job.args) == ([5], {"day": {"$d": "2030-01-01"}})
    assert json.loads(content.json_text(encode({"a": 1}))) == {"a": 1}
    where = JobFilter(text="2030-01-01")
    assert [found.id for found in connections.broker().inspector.page("default", "waiting", where=where).jobs] == [
        handle.id
    ]


@pytest.mark.usefixtures("other")
def test_consumers_over_http_get_json(send: Any, unite: Any) -> None:
    schedule(send, 5, day=date(2030, 1, 1))
    (job,) = Queue("default").reserve(wait=2)
    with job:
        assert held_content(job) == {"args": [5], "kwargs": {"day": {"$d": "2030-01-01"}}}
        assert job.kwargs == {"day": date(2030, 1, 1)}
    schedule(unite, id="a", payload={"x": Decimal(1)})
    (job,) = Queue("united").reserve(wait=2)
    with job:
        assert held_content(job) == {"payloads": [{"x": {"$dec": "1"}}]}


@pytest.mark.usefixtures("other")
def test_what_json_refuses_every_codec_refuses() -> None:
    for value in (float("nan"), {1: 2}, object(), "\ud800"):
        with pytest.raises(InvalidJob):
            encode(value)


def test_a_codec_that_fails_is_named(delayq: Broker, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "CODEC": f"{HERE}.broken_codec"}
    with pytest.raises(InvalidJob, match="codec 'reversed' cannot store the value: error: no room; pass it as a text"):
        encode(5)
    with pytest.raises(Undecodable, match="codec 'reversed' cannot read the bytes: error: torn"):
        decode(b"\x91x")


def test_numbers_of_more_than_64_bits_do_not_fit_into_messagepack() -> None:
    with pytest.raises(InvalidJob, match="codec 'msgpack' cannot store the value: OverflowError"):
        codec.dump_with(messagepack.codec, 2**70)
    assert len(codec.dump_with(messagepack.codec, [12345, "abc"])) < len(b'[12345,"abc"]')


# --- CODEC_TYPES: a project's own types travel in jobs


@dataclass(frozen=True)
class Money:
    amount: Decimal
    currency: str


class Weight:
    def __init__(self, grams: int) -> None:
        self.grams = grams


stored_money = ("money", Money, lambda money: [money.amount, money.currency], lambda stored: Money(*stored))
stored_weight = ValueType("weight", Weight, lambda weight: weight.grams, Weight)
clashing = ("money", Weight, lambda weight: weight.grams, Weight)
incomplete = ("money", Money)
FIVE = Money(Decimal("5.00"), "EUR")


@pytest.fixture
def known(delayq: Broker, settings: Any) -> None:
    """Both types are in the settings."""
    settings.DELAYQ = {**settings.DELAYQ, "CODEC_TYPES": [f"{HERE}.stored_money", f"{HERE}.stored_weight"]}


@pytest.fixture
def pay() -> Iterator[Any]:
    """A task, known until the test ends."""

    @task(name="codec.pay")
    def pay(price: Any, *, tip: Any = None) -> None:
        got.append((price, tip))

    got.clear()
    yield pay
    registry.remove(pay)


@pytest.mark.usefixtures("known")
def test_a_handler_gets_the_projects_own_types_as_they_were(pay: Any) -> None:
    schedule(pay, FIVE, tip={"also": [FIVE]})
    run_dry()
    assert got == [(FIVE, {"also": [FIVE]})]


@pytest.mark.usefixtures("known")
def test_a_job_shows_them_too(pay: Any) -> None:
    view = get_job(schedule(pay, FIVE, delay=60))
    assert view is not None
    assert decode_args(view.job.args) == ([FIVE], {})


def test_without_the_setting_the_type_is_refused_as_before(delayq: Broker, pay: Any) -> None:
    with pytest.raises(InvalidJob, match=r"argument 0: .*Money is a dataclass"):
        schedule(pay, FIVE)


def test_what_a_test_puts_into_the_setting_is_gone_after_it(settings: Any, delayq: Broker, pay: Any) -> None:
    before = settings.DELAYQ
    settings.DELAYQ = {**before, "CODEC_TYPES": [f"{HERE}.stored_money"]}
    assert schedule(pay, FIVE, delay=60).outcome == "created"
    settings.DELAYQ = before
    with pytest.raises(InvalidJob, match="is a dataclass"):
        schedule(pay, FIVE)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("CODEC", "no.such.codec", "no.such.codec cannot be imported"),
        ("CODEC", f"{HERE}.no_codec", "5 is not a codec; give an object with name, number, dumps"),
        ("CODEC", f"{HERE}.Reversed", "is not a codec; give an object"),
        ("CODEC", f"{HERE}.nameless", "give it a text of its own"),
        ("CODEC", f"{HERE}.taken", "give it one from 16 to 63"),
        ("CODEC_TYPES", ["no.such.thing"], "no.such.thing cannot be imported"),
        ("CODEC_TYPES", [f"{HERE}.incomplete"], r"a ValueType or a tuple \(tag, type, dump, load\) was expected"),
        ("CODEC_TYPES", [f"{HERE}.stored_money", f"{HERE}.clashing"], "'money' stands for Money already"),
    ],
)
def test_a_wrong_path_is_reported_by_a_check_and_stops_a_worker(
    settings: Any, key: str, value: object, message: str
) -> None:
    settings.DELAYQ = {"REDIS": "redis://localhost:6379/0", key: value}
    (finding,) = run_checks(tags=["delayq"])
    assert finding.id == "delayq.E011"
    with pytest.raises(Misconfigured, match=rf"DELAYQ\['{key}'\].*{message}"):
        wiring.make_hooks(conf())


@pytest.mark.parametrize("value", ["shop.money", ["money"], [5]])
def test_the_setting_is_a_list_of_dotted_paths(value: object) -> None:
    with pytest.raises(Misconfigured, match="CODEC_TYPES"):
        Conf.read("DELAYQ", {"CODEC_TYPES": value})

"""``DELAYQ["CODEC"]``: arguments and payloads are stored with another codec than JSON."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
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
from django_delayq.core.codec import decode, decode_args, encode, encode_args
from django_delayq.core.errors import Misconfigured
from django_delayq.core.job import Undecodable
from django_delayq.core.job_filter import JobFilter
from django_delayq.core.task import registry
from django_delayq.runtime import wiring
from django_delayq.settings.conf import conf
from django_delayq.status.job_content import split_call
from django_delayq.worker.worker import Worker

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


def run(*queues: str) -> None:
    config = wiring.make_config(conf(), queues=queues, threads=1, burst=True, dispatcher=False)
    worker = Worker(connections.broker(), registry, config, wiring.make_hooks(conf()))
    worker.start()
    assert worker.done.wait(10)
    assert worker.stop()


@pytest.mark.usefixtures("other")
def test_a_handler_gets_every_value_as_with_json(send: Any) -> None:
    schedule(send, *VALUES, named=VALUES[0])
    schedule(send)
    run("default")
    assert sorted(got, key=len, reverse=True) == got and (VALUES, {"named": VALUES[0]}) in got and ((), {}) in got


@pytest.mark.usefixtures("other")
def test_payloads_unite_and_equal_ones_are_recognised(unite: Any) -> None:
    schedule(unite, id="a", payload={"x": 1, "y": Decimal(1)}, score=1)
    schedule(unite, id="a", payload={"y": Decimal(1), "x": 1}, score=1)
    schedule(unite, id="a", payload=[], score=2)
    run("united")
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
    run("default")
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


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("no.such.codec", "no.such.codec cannot be imported"),
        (f"{HERE}.no_codec", "5 is not a codec; give an object with name, number, dumps"),
        (f"{HERE}.Reversed", "is not a codec; give an object"),
        (f"{HERE}.nameless", "give it a text of its own"),
        (f"{HERE}.taken", "give it one from 16 to 63"),
    ],
)
def test_a_wrong_path_is_reported_by_a_check_and_stops_a_worker(settings: Any, path: str, message: str) -> None:
    settings.DELAYQ = {"REDIS": "redis://localhost:6379/0", "CODEC": path}
    (finding,) = run_checks(tags=["delayq"])
    assert finding.id == "delayq.E011"
    with pytest.raises(Misconfigured, match=rf"DELAYQ\['CODEC'\].*{message}"):
        wiring.make_hooks(conf())

"""Known faults of the seed systems: bytes that are hostile or unreadable, values in wrong units, lost replies."""

from __future__ import annotations

import contextlib
import pickle
import random
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest

from django_delayq.core import fsck
from django_delayq.core.broker import Broker
from django_delayq.core.codec import decode, decode_args
from django_delayq.core.errors import InvalidJob
from django_delayq.core.job import Job, NewJob, Undecodable
from django_delayq.core.outcomes import ack, fail
from django_delayq.core.redis.connection import RedisConfig, connect
from tests.core.stage import Stage
from tests.support.redis_box import RedisBox
from tests.support.tcp_proxy import TcpProxy


class Trap:
    sprung: ClassVar[list[str]] = []

    def __reduce__(self) -> Any:
        return Trap.sprung.append, ("code of the payload ran",)


@pytest.mark.parametrize(
    "payload",
    [
        pickle.dumps(Trap()),
        b"\x04\x08o:\x0bObject\x00",
        b'{"@type":"com.sun.rowset.JdbcRowSetImpl"}',
        b"!!python/object/apply:os.system",
        b'{"$py":"os.system"}',
        b"__import__('os')",
        b"[" * 5000,
        b'{"$dec":"1e999999999"}',
        b"NaN",
    ],
    ids=["pickle", "Marshal", "fastjson", "yaml", "tag", "eval", "deep", "huge number", "NaN"],
)
def test_t55_hostile_bytes_run_nothing(stage: Stage, payload: bytes) -> None:
    stage.put("x", args=payload)
    job = stage.take_one()
    for read in (decode_args, decode):
        with contextlib.suppress(Undecodable, InvalidJob):
            read(job.args)
    assert Trap.sprung == []
    stage.done(job)


@pytest.fixture
def lossy(
    redis_factory: Callable[..., RedisBox], proxy_factory: Callable[..., TcpProxy]
) -> Iterator[tuple[Broker, TcpProxy]]:
    """A broker behind a line that can be cut, on a server of its own."""
    box = redis_factory()
    proxy = proxy_factory(str(box.socket_path))
    connection = connect(RedisConfig.parse(proxy.url))
    broker = Broker(connection)
    yield broker, proxy
    proxy.passing()
    fsck.assert_invariants(broker)
    connection.close()


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("verb", ["schedule", "reserve", "ack", "fail", "kick"])
def test_t60_a_call_whose_reply_is_lost_counts_once(lossy: tuple[Broker, TcpProxy], verb: str, applied: bool) -> None:
    broker, proxy = lossy
    queue = broker.queue("q")
    held: list[Job] = []
    if verb in ("ack", "fail"):
        queue.schedule(NewJob("x", "work"))
        held = queue.reserve(0, 1, worker="w").jobs
    elif verb == "reserve":
        queue.schedule(NewJob("x", "work"))
    elif verb == "kick":
        stage = Stage(broker, clock=False)
        stage.in_morgue("x")
    cut = proxy.cut_after_request if applied else proxy.cut_before_request
    done = proxy.cuts_done
    cut(1, when=lambda chunk: b"EVALSHA" in chunk)
    if verb == "schedule":
        assert queue.schedule(NewJob("x", "work", on_conflict="error")) == "created"
    elif verb == "reserve":
        assert [job.id for job in queue.reserve(0, 1, worker="w").jobs] == ["x"]
    elif verb == "ack":
        assert queue.settle([ack(held[0], 0, 0)]) == [True]
    elif verb == "fail":
        assert queue.settle([fail(held[0], 0, 0, delay_ms=0)]) == [True]
    else:
        assert queue.kick("x") == "kicked"
    assert proxy.cuts_done == done + 1
    counts = broker.inspector.counts("q")
    counted = {"schedule": "created", "reserve": "reserved", "ack": "acked", "fail": "failed", "kick": "kicked"}[verb]
    assert counts.counters[counted] == 1
    assert counts.counters.get("late", 0) == 0
    assert counts.ready + counts.delayed + counts.reserved == (0 if verb == "ack" else 1)


def test_t60_a_line_that_is_cut_again_and_again_loses_and_doubles_nothing(lossy: tuple[Broker, TcpProxy]) -> None:
    broker, proxy = lossy
    queue = broker.queue("q", shards=2)
    dice = random.Random(60)

    def cut_sometimes() -> None:
        cut = proxy.cut_after_request if dice.random() < 0.5 else proxy.cut_before_request
        cut(dice.randint(1, 3), when=lambda chunk: b"EVALSHA" in chunk)

    for number in range(40):
        cut_sometimes()
        assert queue.schedule(NewJob(f"j{number}", "work", on_conflict="error")) == "created"
    cut_sometimes()
    assert set(queue.schedule_many(NewJob(f"k{number}", "work", on_conflict="error") for number in range(1000))) == {
        "created"
    }
    seen: list[str] = []
    for turn in range(200):
        cut_sometimes()
        batch = queue.reserve(turn % 2, 20, worker="w")
        cut_sometimes()
        assert all(queue.settle([ack(job, 0, 0) for job in batch.jobs]))
        seen += [job.id for job in batch.jobs]
    assert sorted(seen) == sorted([f"j{n}" for n in range(40)] + [f"k{n}" for n in range(1000)])

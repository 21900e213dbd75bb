"""Calls from event loops whose connections break, or whose server answers late."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_delayq.core import Broker, Connection, IdTaken, NewJob, QueueUnavailable, RedisConfig, connect, new_id
from tests.support.core_calls import ScriptCall, pack_command, watch_calls

from ..support.cluster_box import ClusterBox
from ..support.redis_box import RedisBox
from .stage import Stage

pytestmark = pytest.mark.server


async def put(broker: Broker) -> str:
    """Schedule a job of the queue "q" from an event loop."""
    new = NewJob(new_id(), "work", fresh=True)
    return await broker.queue("q").schedule_on_loop(new)


def cut(node: RedisBox) -> None:
    """Close the connections of all clients of a node."""
    node.client().client_kill_filter(_type="normal", skipme=True)


@pytest.fixture
def opened(cluster_broker: Broker) -> Broker:
    """Return a broker on the cluster that has opened the queue "q" and loaded the script of these tests."""
    queue = cluster_broker.queue("q", shards=6)
    for _ in range(20):
        queue.schedule(NewJob(new_id(), "work", fresh=True))
    return cluster_broker


async def put_many(broker: Broker, errors: list[Exception]) -> None:
    """Schedule twenty jobs, one by one."""
    for _ in range(20):
        try:
            await put(broker)
        except Exception as error:
            errors.append(error)


def test_on_a_cluster_calls_outlive_the_connections_of_a_node(opened: Broker, cluster_box: ClusterBox) -> None:
    errors: list[Exception] = []

    async def main() -> None:
        calls = asyncio.gather(*(put_many(opened, errors) for _ in range(40)))
        for turn in range(6):
            await asyncio.sleep(0.05)
            cut(cluster_box.nodes[turn % 3])
        await calls

    asyncio.run(main())
    assert errors == []
    assert opened.inspector.counts("q").ready == 20 + 40 * 20


@pytest.fixture
def own_cluster(redis_box: RedisBox) -> Iterator[ClusterBox]:
    """Provide three masters for a test that moves slots."""
    with ClusterBox(binary=redis_box.binary) as box:
        yield box


def test_on_a_cluster_calls_follow_a_slot_that_moves(own_cluster: ClusterBox, prefix: str) -> None:
    connection = connect(RedisConfig.parse(own_cluster.setting))
    broker = Broker(connection, prefix=prefix)
    queue = broker.queue("q")
    queue.schedule(NewJob(new_id(), "work", fresh=True))
    key = queue.present[0].names["meta"]
    source = own_cluster.node_of(key)
    target = next(node for node in own_cluster.nodes if node is not source)
    errors: list[Exception] = []

    async def main() -> bool:
        calls = asyncio.gather(*(put_many(broker, errors) for _ in range(10)))
        move = await asyncio.to_thread(own_cluster.move, own_cluster.slot_of(key), target)
        await asyncio.to_thread(move.carry)
        half = asyncio.gather(*(put_many(broker, errors) for _ in range(10)))
        await asyncio.sleep(0.2)
        was_refused = move.was_refused()
        await asyncio.to_thread(move.finish)
        await asyncio.gather(calls, half, put_many(broker, errors))
        return was_refused

    try:
        assert asyncio.run(main())
        assert errors == []
        assert broker.inspector.counts("q").ready == 1 + 21 * 20
    finally:
        connection.close()


def test_on_a_cluster_calls_to_a_node_that_was_silent_are_repeated(cluster_box: ClusterBox, prefix: str) -> None:
    cluster_box.flush()
    connection = connect(RedisConfig.parse({**cluster_box.setting, "SOCKET_TIMEOUT": 0.4, "RETRIES": 2}))
    broker = Broker(connection, prefix=prefix)
    queue = broker.queue("q", shards=6)
    for _ in range(20):
        queue.schedule(NewJob(new_id(), "work", fresh=True))
    silent = cluster_box.node_of(queue.present[0].keys[0])

    async def main() -> list[Any]:
        assert await put(broker) == "created"
        silent.pause()
        timer = threading.Timer(0.6, silent.resume)
        timer.start()
        try:
            return await asyncio.gather(*(put(broker) for _ in range(100)), return_exceptions=True)
        finally:
            timer.join()

    try:
        assert set(asyncio.run(main())) == {"created"}
        assert broker.inspector.counts("q").ready == 121
    finally:
        connection.close()


@pytest.mark.one_server("the server is stopped")
def test_a_reply_after_its_caller_has_gone_is_not_taken_for_that_of_the_next_call(
    redis_factory: Callable[..., RedisBox],
) -> None:
    box = redis_factory()
    connection = connect(RedisConfig.parse(box.url))

    async def call(*words: bytes, seconds: float = 5.0) -> Any:
        return await connection.loops.exchange(connection.pool(b""), pack_command(*words), time.monotonic() + seconds)

    async def main() -> None:
        await call(b"PING")
        box.pause()
        try:
            with pytest.raises(TimeoutError):
                await call(b"ECHO", b"late", seconds=0.1)
        finally:
            box.resume()
        assert await asyncio.gather(call(b"ECHO", b"next"), call(b"ECHO", b"last")) == [b"next", b"last"]

    try:
        asyncio.run(main())
    finally:
        connection.close()


def test_more_calls_than_connections_wait_for_their_turn(connection: Connection, prefix: str) -> None:
    async def call(number: int) -> Any:
        word = b"%d" % number
        packed = pack_command(b"HGET", prefix, word)
        if number % 3 == 0:
            packed = pack_command(b"HSET", prefix, word, b"x" * number)
        return await connection.loops.exchange(connection.pool(prefix.encode()), packed, time.monotonic() + 20)

    async def main() -> list[Any]:
        calls = [asyncio.ensure_future(call(number)) for number in range(1280)]
        await asyncio.sleep(0)
        for one in calls[5::7]:
            one.cancel()
        return await asyncio.gather(*calls, return_exceptions=True)

    found = asyncio.run(main())
    for number, reply in enumerate(found):
        if number % 7 == 5:
            assert isinstance(reply, asyncio.CancelledError)
        else:
            assert reply == (1 if number % 3 == 0 else None)


@pytest.mark.one_server("the server is stopped")
def test_a_call_whose_reply_is_lost_is_made_once_more_with_the_same_request(
    redis_factory: Callable[..., RedisBox], prefix: str
) -> None:
    box = redis_factory()
    connection = connect(RedisConfig.parse({"URL": box.url, "SOCKET_TIMEOUT": 0.5}))
    broker = Broker(connection, prefix=prefix)
    queue = broker.queue("q")
    queue.schedule(NewJob("a", "work", delay_ms=60_000))

    async def send(ident: str) -> str:
        """Send a job that may exist once, while Redis stands still for longer than an attempt takes."""
        assert await put(broker) == "created"
        box.pause()
        threading.Timer(0.8, box.resume).start()
        return await queue.schedule_on_loop(NewJob(ident, "work", delay_ms=60_000, on_conflict="error"))

    try:
        with pytest.raises(IdTaken, match="already lives"):
            asyncio.run(send("a"))
        assert asyncio.run(send("b")) == "created", "the late first try stored it, and the second one is the same"
        assert broker.inspector.counts("q").delayed == 2
    finally:
        connection.close()


def test_a_job_that_runs_after_the_reply_of_its_call_was_lost_is_stored_once(stage: Stage) -> None:
    """The shortest call leaves the job to the usual one, and would store it when that has been made."""
    stage.put("later", at=60_000)
    taken: list[str] = []

    def lose(call: ScriptCall) -> None:
        if call.name == "schedule" and not taken:
            taken.extend(job.id for job in stage.take())
            stage.put("earlier", at=-60_000)
            raise QueueUnavailable("the reply was lost")

    new = NewJob(new_id(), "work", fresh=True)
    with watch_calls(stage.broker, after=lose):
        assert asyncio.run(stage.queue.schedule_on_loop(new)) == "created"
    assert taken == [new.id]
    assert [job.id for job in stage.take()] == ["earlier"]


def test_on_a_cluster_a_call_ends_at_its_deadline_although_no_node_answers(
    cluster_box: ClusterBox, prefix: str
) -> None:
    cluster_box.flush()
    connection = connect(RedisConfig.parse({**cluster_box.setting, "SOCKET_TIMEOUT": 0.4, "RETRIES": 1}))
    broker = Broker(connection, prefix=prefix)
    broker.queue("q").schedule(NewJob(new_id(), "work", fresh=True))
    for node in cluster_box.nodes:
        node.pause()
    began = time.monotonic()
    try:
        with pytest.raises(QueueUnavailable):
            asyncio.run(put(broker))
        assert time.monotonic() - began < connection.patience * 1.1 + 0.2
    finally:
        for node in cluster_box.nodes:
            node.resume()
        connection.close()

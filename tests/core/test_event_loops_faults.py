"""Verbs on an event loop whose connections break, or whose server answers late."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from django_delayq.core.broker import Broker
from django_delayq.core.job import NewJob, new_id
from django_delayq.core.redis.connection import RedisConfig, connect
from django_delayq.core.replay import run_verb

from ..support.cluster_box import ClusterBox
from ..support.redis_box import RedisBox


async def put(broker: Broker) -> str:
    """Schedule a job of the queue "q" from an event loop."""
    new = NewJob(new_id(), "work", fresh=True)
    return await run_verb(broker, lambda there: there.queue("q").schedule(new))


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


def test_on_a_cluster_calls_outlive_the_connections_of_a_node(opened: Broker, cluster_box: ClusterBox) -> None:
    async def put_many(errors: list[Exception]) -> None:
        for _ in range(20):
            try:
                await put(opened)
            except Exception as error:
                errors.append(error)

    async def main() -> list[Exception]:
        errors: list[Exception] = []
        calls = asyncio.gather(*(put_many(errors) for _ in range(40)))
        for turn in range(6):
            await asyncio.sleep(0.05)
            cut(cluster_box.nodes[turn % 3])
        await calls
        return errors

    assert asyncio.run(main()) == []
    assert opened.inspector.counts("q").ready == 20 + 40 * 20


def test_on_a_cluster_a_silent_node_does_not_delay_the_calls_of_others(cluster_box: ClusterBox, prefix: str) -> None:
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

"""Producers on a cluster without one of its masters: the one of the registry, or one with shards."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from django_delayq.core import Broker, NewJob, QueueUnavailable, RedisConfig, connect, new_id
from tests.support.cluster_box import ClusterBox
from tests.support.core_figures import Limiter, ask_permits
from tests.support.core_stored import LaneNotes, permits_key
from tests.support.redis_box import RedisBox

QUEUES = tuple(f"q{number}" for number in range(9))


@pytest.fixture(scope="module")
def own_cluster(redis_box: RedisBox) -> Iterator[ClusterBox]:
    """Provide a cluster whose masters this module kills; what was written is on their disks."""
    # Each write waits for the disk: on a busy machine longer than the second after which other clusters give a node up.
    with ClusterBox(binary=redis_box.binary, aof="always", cluster_node_timeout=3000) as box:
        yield box


@pytest.fixture
def spread(own_cluster: ClusterBox, prefix: str) -> Iterator[Broker]:
    """Provide a broker on the emptied cluster whose calls may take four seconds."""
    own_cluster.flush()
    connection = connect(RedisConfig.parse({**own_cluster.setting, "SOCKET_TIMEOUT": 1.0, "RETRIES": 3}))
    yield Broker(connection, prefix=prefix)
    connection.close()


def living_queues(cluster: ClusterBox, broker: Broker, dead: RedisBox) -> list[str]:
    names = [name for name in QUEUES if cluster.node_of(broker.queue(name).present[0].keys[0]) is not dead]
    assert 0 < len(names) < len(QUEUES)
    return names


def job() -> NewJob:
    return NewJob(new_id(), "work", fresh=True)


def test_a_process_that_knows_its_queues_schedules_without_the_registry(
    own_cluster: ClusterBox, spread: Broker
) -> None:
    dead = own_cluster.node_of(spread.queues_key)
    living = living_queues(own_cluster, spread, dead)
    dead.kill()
    try:
        began = time.monotonic()
        for name in QUEUES:
            spread.queue(name).read_at -= spread.layout_seconds
        for name in living:
            assert spread.queue(name).schedule(job()) == "created"
        assert time.monotonic() - began < 2.5, "one call waited for the registry, not each"
        with pytest.raises(QueueUnavailable, match="has not read its layout yet, and the registry"):
            spread.queue("unknown")
    finally:
        dead.start()


def test_a_call_waits_for_a_node_that_refuses_connections(own_cluster: ClusterBox, spread: Broker) -> None:
    dead = next(node for node in own_cluster.nodes if node is not own_cluster.node_of(spread.queues_key))
    living = living_queues(own_cluster, spread, dead)
    queue = spread.queue(next(name for name in QUEUES if name not in living))
    assert queue.schedule(job()) == "created"
    dead.kill()
    back = threading.Timer(1.5, dead.start)
    back.start()
    try:
        assert queue.schedule(job()) == "created"
    finally:
        back.join()
    assert sum(counts.ready for counts in spread.inspector.all_counts()) == 2


def test_a_call_ends_at_its_deadline_although_the_node_still_refuses_connections(
    own_cluster: ClusterBox, spread: Broker
) -> None:
    dead = next(node for node in own_cluster.nodes if node is not own_cluster.node_of(spread.queues_key))
    living = living_queues(own_cluster, spread, dead)
    queue = spread.queue(next(name for name in QUEUES if name not in living))
    dead.kill()
    try:
        began = time.monotonic()
        with pytest.raises(QueueUnavailable):
            queue.schedule(job())
        assert spread.connection.patience - 1.0 < time.monotonic() - began < spread.connection.patience + 1.0
    finally:
        dead.start()


def test_permits_change_and_wake_others_while_the_master_of_the_wake_up_is_silent(
    own_cluster: ClusterBox, spread: Broker
) -> None:
    limit = "queue:limited"
    permits_at = own_cluster.node_of(permits_key(spread.prefix, limit))

    def may_freeze(name: str) -> bool:
        frozen = own_cluster.node_of(spread.wake_key(name))
        return frozen not in (permits_at, own_cluster.node_of(spread.queue(name).present[0].keys[0]))

    place = next(name for name in map("q{}".format, range(100)) if may_freeze(name)), 0
    frozen = own_cluster.node_of(spread.wake_key(place[0]))
    living = next(node for node in own_cluster.nodes if node is not frozen)
    queue = spread.queue(place[0])
    (granted,) = ask_permits(spread, {limit: 1}, 1).grants
    assert granted is not None
    queue.schedule(job())
    queue.reserve(0, 1, worker="w", lanes=LaneNotes(whole=True, most=1).pack())
    (block,) = ask_permits(spread, {limit: 1}, 1, place).blocks
    assert block is not None
    queue.reserve(0, 1, worker="w", lanes=LaneNotes(blocks=[block]).pack())
    with living.client().pubsub() as listener:
        listener.subscribe(spread.wake_key(place[0]))
        assert listener.get_message(timeout=10) is not None, "the subscription is confirmed"
        frozen.pause()
        try:
            Limiter(spread.registry).give_back(granted.permits)
            token = listener.get_message(timeout=10)
        finally:
            frozen.resume()
    assert token is not None and token["data"] == b"0"


def test_a_listener_that_gets_the_silent_master_fails_soon_and_the_next_one_gets_another(
    own_cluster: ClusterBox, spread: Broker
) -> None:
    ends: list[str] = []

    def listen() -> None:
        for _ in own_cluster.nodes:
            try:
                spread.waker(QUEUES).close()
                ends.append("listens")
            except QueueUnavailable:
                ends.append("fails")

    spread.connection.client.ping()
    frozen = own_cluster.nodes[1]
    frozen.pause()
    thread = threading.Thread(target=listen, daemon=True)
    try:
        thread.start()
        thread.join(20)
        assert sorted(ends) == ["fails", "listens", "listens"]
    finally:
        frozen.resume()
        thread.join()

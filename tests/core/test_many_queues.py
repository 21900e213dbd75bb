"""Thousands of queues: no extra cost for a call (T51); counting takes one round trip for each node (T45)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
import redis
import redis.connection

from django_delayq.core import Broker, NewJob, QueueUnavailable, RedisConfig, connect
from django_delayq.core.layouts import encode, new_layout
from tests.support.cluster_box import ClusterBox
from tests.support.redis_box import RedisBox

from .epochs_stage import forget_queues, other

pytestmark = [pytest.mark.usefixtures("impatient"), pytest.mark.server]


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets an element for each command sent."""
    sent: list[int] = []
    original = redis.connection.AbstractConnection.send_packed_command

    def counted(self: Any, command: Any, check_health: bool = True) -> None:
        sent.append(1)
        original(self, command, check_health=check_health)

    monkeypatch.setattr(redis.connection.AbstractConnection, "send_packed_command", counted)
    return sent


@pytest.mark.one_server("counts round trips")
def test_t51_the_price_of_a_call_does_not_know_the_number_of_queues(broker: Broker, commands: list[int]) -> None:
    numbers = count()

    def price() -> dict[str, int]:
        process = other(broker)
        prices = {}

        def pay(what: str, act: Callable[[], object]) -> None:
            act()  # the scripts are known from here on
            commands.clear()
            act()
            prices[what] = len(commands)

        pay("open", lambda: forget_queues(process) or process.queue("q7"))
        queue = process.queue("q7")
        pay("schedule", lambda: queue.schedule(NewJob("a", "work")))
        pay("schedule made", lambda: queue.schedule(NewJob(f"m{next(numbers)}", "work", fresh=True, delay_ms=9**9)))
        pay("reserve", lambda: queue.reserve(0, 10, worker="w"))
        pay("cancel", lambda: queue.cancel("nobody"))
        pay("get", lambda: process.inspector.get("q7", "a"))
        pay("served", lambda: process.served(["q7"]))
        pay("announce", lambda: process.announce("w", {}))
        return prices

    broker.queue("q7")
    few = price()
    layout = broker.read_layout("q7")[0]
    broker.client.hset(broker.queues_key, mapping={f"q{number}": layout for number in range(5_000)})
    assert price() == few
    assert max(few.values()) <= 2
    broker.inspector.all_counts()  # the script is known from here on
    commands.clear()
    assert len(broker.inspector.all_counts()) == 5_000
    assert len(commands) == 2, "the registry, and all shards"
    broker.client.delete(broker.queues_key)  # the check of 5,000 queues afterwards would take long


def many(broker: Broker, queues: int, shards: int) -> None:
    """Create queues without a call for each of them, with three jobs in the first and in the last."""
    layout = encode(new_layout(shards, "python"))
    broker.client.hset(broker.queues_key, mapping={f"q{number:04}": layout for number in range(queues)})
    for name in ("q0000", f"q{queues - 1:04}"):
        broker.queue(name).schedule_many(NewJob(f"j{n}", "work", delay_ms=n * 60_000) for n in range(3))


def counted(broker: Broker) -> dict[str, tuple[int, ...]]:
    return {one.queue: one.backlog for one in broker.inspector.all_counts(horizon=[90_000]) if any(one.backlog)}


@pytest.mark.one_server("has its own cluster")
def test_t45_on_a_cluster_it_is_one_round_trip_for_each_node(cluster_broker: Broker, commands: list[int]) -> None:
    many(cluster_broker, 1_000, 16)
    wanted = {"q0000": (1, 1, 1), "q0999": (1, 1, 1)}
    assert counted(cluster_broker) == wanted
    commands.clear()
    assert counted(cluster_broker) == wanted
    assert len(commands) == 1 + 3, "the registry, and each of three nodes"
    cluster_broker.client.delete(cluster_broker.queues_key)


@pytest.mark.one_server("has its own cluster")
def test_what_a_node_does_not_know_or_has_no_more_is_asked_where_it_is(
    cluster_broker: Broker, cluster_box: ClusterBox, commands: list[int]
) -> None:
    many(cluster_broker, 20, 8)
    before = counted(cluster_broker)
    cluster_broker.client.script_flush()
    commands.clear()
    assert counted(cluster_broker) == before
    assert len(commands) == 1 + 3 * 3, "each node: all, one with the source, the rest"
    # A client that was told of no move: a third of the shards lie elsewhere, as far as it knows.
    nodes: Any = cluster_broker.client.nodes_manager
    slots = dict(nodes.slots_cache)
    a, b, c = (next(entry for entry in slots.values() if entry[0].port == node.port) for node in cluster_box.nodes)
    other = {a[0].port: b, b[0].port: c, c[0].port: a}
    nodes.slots_cache = {slot: other[entry[0].port] if slot % 3 == 0 else entry for slot, entry in slots.items()}
    assert counted(cluster_broker) == before


def test_a_line_that_breaks_on_the_way_is_made_anew(broker: Broker, redis_client: redis.Redis) -> None:
    many(broker, 5, 4)
    before = counted(broker)
    for _ in range(2):
        assert redis_client.client_kill_filter(_type="normal", skipme=True) > 0
        assert counted(broker) == before


def test_a_server_that_is_away_is_told_of_as_such(redis_factory: Callable[..., RedisBox]) -> None:
    box = redis_factory()
    connection = connect(RedisConfig.parse(box.url))
    broker = Broker(connection, prefix="t")
    many(broker, 3, 4)
    queues = broker.queues()
    box.kill()
    with pytest.raises(QueueUnavailable):
        broker.inspector.all_counts(queues=queues)
    connection.close()

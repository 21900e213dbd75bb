"""Time limits of calls, whichever part hangs, and producers on a cluster without one of its masters."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from django_delayq.core import Broker, Connection, NewJob, QueueUnavailable, RedisConfig, connect, new_id
from tests.support.cluster_box import ClusterBox
from tests.support.core_figures import Limiter, ask_permits
from tests.support.core_stored import LaneNotes, permits_key
from tests.support.processes import wait_until
from tests.support.redis_box import RedisBox
from tests.support.tcp_proxy import TcpProxy

Factory = Callable[..., RedisBox]
Opener = Callable[..., Connection]
#: seconds that a busy machine may add
SLACK = 0.6


@contextlib.contextmanager
def ends_within(seconds: float) -> Iterator[None]:
    """Assert that the block raises a connection error in time."""
    began = time.monotonic()
    with pytest.raises((redis.RedisError, redis.exceptions.RedisClusterException, QueueUnavailable)):
        yield
    assert time.monotonic() - began < seconds + SLACK


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Return a port that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        yield listener.getsockname()[1]


@pytest.fixture
def full_port() -> Iterator[int]:
    """Return a port with a full backlog, where connections are neither accepted nor refused."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


@pytest.mark.parametrize("used", [True, False], ids=["used", "new"])
@pytest.mark.parametrize("options", [{}, {"requirepass": "s3cret"}, {"tcp": True}], ids=["unix", "password", "tcp"])
def test_a_stopped_redis_is_given_up_after_each_attempt_waited_once(
    used: bool, options: dict[str, Any], redis_factory: Factory, opened: Opener
) -> None:
    box = redis_factory(**options)
    connection = opened(box.url, SOCKET_TIMEOUT=0.1, PASSWORD=options.get("requirepass"))
    if used:
        connection.client.ping()
    box.pause()
    with ends_within(4 * 0.1 + 0.3):
        connection.client.ping()
    box.resume()
    assert connection.client.ping()


@pytest.mark.parametrize("used", [True, False], ids=["used", "new"])
def test_a_line_that_swallows_everything_is_given_up_in_the_same_time(
    used: bool, redis_factory: Factory, proxy_factory: Callable[..., TcpProxy], opened: Opener
) -> None:
    proxy = proxy_factory(redis_factory(tcp=True).address)
    broker = Broker(opened(proxy.url, SOCKET_TIMEOUT=0.1), prefix="hole")
    if used:
        broker.queue("orders").schedule(NewJob("a", "work"))
    proxy.blackhole()
    with ends_within(4 * 0.1 + 0.3):
        broker.queue("orders").schedule(NewJob("b", "work"))


def test_connecting_that_takes_too_long_counts_as_the_call_does(full_port: int, opened: Opener) -> None:
    connection = opened(f"redis://127.0.0.1:{full_port}", SOCKET_TIMEOUT=0.1, RETRIES=1, CONNECT_TIMEOUT=2)
    with ends_within(2 * 0.1 + 0.5):
        connection.client.ping()


def test_the_handshake_and_the_command_share_one_deadline(opened: Opener) -> None:
    """Each step alone is answered in time."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer_slowly() -> None:
            with contextlib.suppress(OSError):
                line, _ = listener.accept()
                with line:
                    while line.recv(1000):
                        time.sleep(0.15)
                        line.sendall(b"+OK\r\n")

        thread = threading.Thread(target=answer_slowly)
        thread.start()
        where = {"HOST": "127.0.0.1", "PORT": listener.getsockname()[1], "PASSWORD": "s3cret"}
        connection = opened(where, SOCKET_TIMEOUT=0.2, RETRIES=0)
        began = time.monotonic()
        with pytest.raises(redis.TimeoutError):
            connection.client.ping()
        assert time.monotonic() - began < 0.2 + 0.2
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(5)


def test_the_wait_for_a_connection_is_part_of_the_call(redis_factory: Factory, opened: Opener) -> None:
    box = redis_factory()
    connection = opened(box.url, MAX_CONNECTIONS=1, SOCKET_TIMEOUT=0.5, RETRIES=0)
    queue = Broker(connection, prefix="part").queue("orders")
    queue.schedule(NewJob("a", "work"))
    held = connection.client.client()  # type: ignore[union-attr]
    held.ping()
    box.pause()
    threading.Timer(0.4, held.close).start()
    with ends_within(0.5 - SLACK + 0.3):
        queue.schedule(NewJob("b", "work"))
    box.resume()


def test_a_caller_in_a_hurry_gives_up_in_time_whatever_the_step(
    silent_port: int, full_port: int, opened: Opener
) -> None:
    for port in (silent_port, full_port):
        hurried = opened(f"redis://127.0.0.1:{port}").hurried(0.2)
        with ends_within(0.2 - SLACK + 0.3):
            hurried.client.ping()
        with ends_within(0.2 - SLACK + 0.3):
            Broker(hurried, prefix="hurry").queue("orders")


def test_a_connection_that_is_kept_has_the_whole_time_for_each_command(redis_url: str, opened: Opener) -> None:
    connection = opened(redis_url).hurried(0.3)
    with connection.client.client() as kept:  # type: ignore[union-attr]
        first = kept.client_id()
        time.sleep(0.35)  # longer than one call may take
        connection.client.client_kill_filter(_id=first)
        assert kept.client_id() != first


def test_sentinels_that_say_nothing_do_not_make_a_call_longer(silent_port: int, opened: Opener) -> None:
    sentinels = [["127.0.0.1", silent_port]] * 3
    connection = opened({"SENTINELS": sentinels, "MASTER": "m"}, SOCKET_TIMEOUT=0.2, RETRIES=1, CONNECT_TIMEOUT=0.5)
    with ends_within(2 * 0.2 + 0.5):
        connection.client.ping()


@pytest.mark.parametrize("used", [True, False], ids=["used", "new"])
def test_a_stopped_cluster_is_given_up_in_the_same_time(used: bool, cluster_box: ClusterBox, opened: Opener) -> None:
    cluster_box.flush()
    broker = Broker(opened(cluster_box.setting, SOCKET_TIMEOUT=0.2, RETRIES=1), prefix="still")
    if used:
        broker.queue("orders").schedule(NewJob("a", "work"))
    for box in cluster_box.boxes:
        box.pause()
    try:
        with ends_within(2 * 0.2 + 0.5):
            broker.queue("orders").schedule(NewJob("b", "work"))
    finally:
        for box in cluster_box.boxes:
            box.resume()
    wait_until(cluster_box.settled, what="the cluster's peace")
    assert broker.queue("orders").schedule(NewJob("c", "work")) == "created"


# -- producers on a cluster without one of its masters: the one of the registry, or one with shards --------------------


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

"""Time limit of one call: the same for new and used connections, whichever part hangs."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from django_delayq.core import Broker, Connection, NewJob, QueueUnavailable

from ..support.cluster_box import ClusterBox
from ..support.processes import wait_until
from ..support.redis_box import RedisBox
from ..support.tcp_proxy import TcpProxy

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
def test_a_schedule_to_a_stopped_redis_ends_in_the_same_time(
    used: bool, redis_factory: Factory, opened: Opener
) -> None:
    box = redis_factory()
    broker = Broker(opened(box.url, SOCKET_TIMEOUT=0.1), prefix="still")
    if used:
        broker.queue("orders").schedule(NewJob("a", "work"))
    box.pause()
    with ends_within(4 * 0.1 + 0.3):
        broker.queue("orders").schedule(NewJob("b", "work"))
    box.resume()
    assert broker.queue("orders").schedule(NewJob("c", "work")) == "created"


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

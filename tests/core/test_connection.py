"""Connection to Redis: settings, faults, blocking calls, existing clients, Sentinel and Cluster."""

from __future__ import annotations

import gc
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis
from redis.sentinel import Sentinel

from django_delayq.core import Broker, Connection, Misconfigured, NewJob, QueueUnavailable
from tests.support.core_calls import Fault, classify

from ..support.cluster_box import ClusterBox
from ..support.processes import wait_until
from ..support.redis_box import RedisBox, free_port
from ..support.sentinel_box import SentinelBox
from ..support.tcp_proxy import TcpProxy

Factory = Callable[..., RedisBox]
Opener = Callable[[object], Connection]


# --- settings


def test_every_way_to_connect_has_the_same_settings(redis_box: RedisBox, opened: Opener) -> None:
    ways = [
        opened("redis://h"),
        opened("rediss://h"),
        opened(redis_box.url),
        opened({"SENTINELS": ["h:1"], "MASTER": "m"}),
        opened(Connection.wrap(redis.Redis.from_url("redis://h", decode_responses=True, protocol=3))),
    ]
    for way in ways:
        assert isinstance(way.client, redis.Redis)
        pool = way.client.connection_pool
        made = pool.make_connection()
        assert (made.socket_timeout, made.socket_connect_timeout) == (5.0, 2.0)
        assert (made.health_check_interval, int(made.protocol), made.encoder.decode_responses) == (0, 2, False)
        assert made.retry.get_retries() == 3
        assert pool.max_connections == 100
        if hasattr(made, "socket_keepalive"):
            assert made.socket_keepalive
            assert made.socket_keepalive_options[socket.TCP_KEEPIDLE] == 30


def test_nothing_connects_before_the_first_command(opened: Opener) -> None:
    dead = f"127.0.0.1:{free_port()}"
    for way in (f"redis://{dead}", {"SENTINELS": [dead], "MASTER": "m"}, {"CLUSTER": [dead]}):
        connection = opened(way)
        connection.close()
        with pytest.raises((redis.RedisError, redis.exceptions.RedisClusterException)) as caught:
            connection.client.ping()
        assert classify(caught.value) is Fault.TRANSIENT


def test_a_close_drops_what_is_idle_and_leaves_what_is_in_use(
    redis_url: str, cluster_connection: Connection, opened: Opener
) -> None:
    connection = opened(redis_url)
    assert isinstance(connection.client, redis.Redis)
    with connection.client.client() as in_use:
        used, idle = in_use.client_id(), connection.client.client_id()
        connection.close()
        assert in_use.client_id() == used
        assert connection.client.client_id() > idle
    cluster_connection.client.set("x", 1)
    cluster_connection.close()
    assert cluster_connection.client.get("x") == b"1"


def test_answers_are_bytes(redis_url: str, opened: Opener) -> None:
    client = opened(redis_url).client
    client.set("x", "é")
    assert client.get("x") == "é".encode()


# --- faults of the line


def test_a_command_whose_answer_was_lost_is_sent_again(
    redis_factory: Factory, proxy_factory: Callable[..., TcpProxy], opened: Opener
) -> None:
    box = redis_factory(tcp=True)
    proxy = proxy_factory(box.address)
    client = opened(proxy.url).client
    client.ping()
    proxy.cut_after_request(when=lambda chunk: b"INCR" in chunk)
    # Applied twice: why every script of the queue carries a request id.
    assert client.incr("x") == 2
    proxy.cut_before_request(when=lambda chunk: b"INCR" in chunk)
    assert client.incr("x") == 3
    assert proxy.cuts_done == 2


@pytest.mark.one_server("the proxy stands before one")
@pytest.mark.parametrize("retries", [0, 2])
def test_a_call_whose_replies_are_lost_is_sent_again_as_often_as_is_set(
    retries: int, redis_factory: Callable[..., RedisBox], proxy_factory: Callable[..., TcpProxy], opened: Opener
) -> None:
    proxy = proxy_factory(redis_factory(tcp=True).address)
    queue = Broker(opened({"URL": proxy.url, "RETRIES": retries})).queue("q")
    queue.schedule(NewJob("first", "work"))
    proxy.cut_after_request(when=lambda chunk: b"EVAL" in chunk, times=9)
    with pytest.raises(QueueUnavailable):
        queue.schedule(NewJob("lost", "work"))
    assert proxy.cuts_done == 1 + retries


def test_a_dead_server_costs_less_than_two_seconds(opened: Opener) -> None:
    client = opened(f"redis://127.0.0.1:{free_port()}").client
    began = time.monotonic()
    with pytest.raises(redis.ConnectionError):
        client.ping()
    assert time.monotonic() - began < 2


def test_a_silent_server_is_given_up_after_the_retries(
    redis_factory: Factory, proxy_factory: Callable[..., TcpProxy], opened: Opener
) -> None:
    proxy = proxy_factory(redis_factory(tcp=True).address)
    client = opened({"URL": proxy.url, "SOCKET_TIMEOUT": 0.1, "RETRIES": 2}).client
    client.ping()
    proxy.blackhole()
    began = time.monotonic()
    with pytest.raises(redis.TimeoutError):
        client.ping()
    assert 0.3 <= time.monotonic() - began < 5
    proxy.passing()
    assert client.ping()


def test_a_restarted_server_is_found_again(redis_factory: Factory, opened: Opener) -> None:
    box = redis_factory(tcp=True)
    connection = opened(box.url)
    connection.client.ping()
    box.restart()
    assert connection.client.ping()


def test_a_wrong_password_is_not_tried_again_and_again(redis_factory: Factory, opened: Opener) -> None:
    box = redis_factory(requirepass="right")
    connection = opened({"URL": box.url, "PASSWORD": "wrong"})
    with pytest.raises(redis.AuthenticationError):
        connection.client.ping()
    right = opened({"URL": box.url, "PASSWORD": "right"}).client
    assert [entry["count"] for entry in right.acl_log()] == [1]


def test_read_only_is_answered_by_a_new_connection(redis_factory: Factory, opened: Opener) -> None:
    box = redis_factory()
    client = opened(box.url).client
    before = client.client_id()
    box.client().execute_command("REPLICAOF", "127.0.0.1", "1")
    with pytest.raises(redis.exceptions.ReadOnlyError):
        client.set("x", 1)
    box.client().execute_command("REPLICAOF", "NO", "ONE")
    client.set("x", 1)
    assert client.client_id() > before


# --- waiting


def test_a_blocking_client_waits_longer_than_a_command_may_take(redis_url: str, opened: Opener) -> None:
    connection = opened({"URL": redis_url, "SOCKET_TIMEOUT": 0.1})
    with connection.blocking() as waiting:
        began = time.monotonic()
        assert waiting.blpop(["wake"], timeout=0.4) is None
        assert time.monotonic() - began >= 0.35
        connection.client.lpush("wake", "1")
        assert waiting.blpop(["wake"], timeout=10) == (b"wake", b"1")


def test_a_wait_that_broke_off_is_not_repeated_by_itself(
    redis_factory: Factory, proxy_factory: Callable[..., TcpProxy], opened: Opener
) -> None:
    box = redis_factory(tcp=True)
    proxy = proxy_factory(box.address)
    waiting = opened(proxy.url).blocking().client()
    waiting.ping()

    def cut() -> None:
        wait_until(lambda: box.client().info("clients")["blocked_clients"] == 1, what="the wait")
        proxy.reset_connections()

    cutter = threading.Thread(target=cut)
    cutter.start()
    with pytest.raises(redis.ConnectionError):
        waiting.blpop(["wake"], timeout=10)
    cutter.join(10)
    assert waiting.ping()
    waiting.close()


def test_a_subscriber_keeps_its_line_when_its_client_is_forgotten(redis_url: str, opened: Opener) -> None:
    connection = opened(redis_url)
    listening = connection.blocking().pubsub(ignore_subscribe_messages=True)
    listening.subscribe("channel")
    gc.collect()
    wait_until(lambda: connection.client.publish("channel", "x") == 1, what="the subscription")
    message = None
    deadline = time.monotonic() + 5
    while message is None and time.monotonic() < deadline:
        message = listening.get_message(timeout=1)
    assert message is not None
    assert message["data"] == b"x"
    listening.close()


def test_close_ends_every_connection_and_a_later_command_opens_a_new_one(
    redis_factory: Factory, opened: Opener
) -> None:
    redis_box = redis_factory()
    connection = opened(redis_box.url)
    before = len(redis_box.client().client_list())
    waiting = connection.blocking()
    waiting.ping()
    connection.client.ping()
    assert len(redis_box.client().client_list()) == before + 2
    connection.close()
    wait_until(lambda: len(redis_box.client().client_list()) == before, what="the connections' end")
    assert connection.client.ping()


# --- taking over a client


def test_a_client_of_django_redis_is_taken_over_without_its_settings(redis_url: str, opened: Opener) -> None:
    from django_redis.pool import ConnectionFactory

    factory = ConnectionFactory({"CONNECTION_POOL_KWARGS": {"decode_responses": True, "max_connections": 1}})
    theirs = factory.connect(f"{redis_url}?db=3")
    ours = opened(Connection.wrap(theirs))
    ours.client.set("x", "1")
    assert theirs.get("x") == "1"
    assert ours.client.get("x") == b"1"
    assert ours.client.connection_pool is not theirs.connection_pool
    assert ours.display_url.endswith("db=3")
    factory.disconnect(theirs)


def test_a_taken_over_password_works_and_is_not_shown(redis_factory: Factory, opened: Opener) -> None:
    box = redis_factory(requirepass="s3cret", tcp=True)
    with redis.Redis(host=box.address[0], port=box.port, password="s3cret") as theirs:
        ours = opened(Connection.wrap(theirs))
        assert ours.client.ping()
        assert "s3cret" not in f"{ours!r}"
        assert "***@" in ours.display_url


@pytest.mark.parametrize("wrong", [None, object(), "redis://h", redis.asyncio.Redis()])
def test_what_is_no_client_is_refused(wrong: Any) -> None:
    with pytest.raises(Misconfigured, match="no synchronous redis-py client"):
        Connection.wrap(wrong)


def test_a_client_that_reads_from_replicas_is_refused() -> None:
    replicas = Sentinel([("h", 1)]).slave_for("shop")
    with pytest.raises(Misconfigured, match="needs the master"):
        Connection.wrap(replicas)


# --- Sentinel and Cluster


def test_sentinel_leads_to_the_new_master_after_a_failover(sentinel_box: SentinelBox, opened: Opener) -> None:
    given = {"SENTINELS": sentinel_box.addresses, "MASTER": sentinel_box.name}
    connection = opened(given)
    wrapped = opened(Connection.wrap(sentinel_box.sentinel().master_for(sentinel_box.name)))
    connection.client.set("x", 1)
    assert wrapped.client.get("x") == b"1"
    assert wrapped.display_url == connection.display_url
    assert connection.client.info()["role"] == "master"
    with connection.blocking() as waiting:
        assert waiting.client_id() != connection.client.client_id()
    old = connection.client.info("server")["tcp_port"]
    sentinel_box.fail_over()

    def written() -> bool:
        for each in (connection, wrapped):
            try:
                each.client.set("y", 2)
            except redis.RedisError as error:
                assert classify(error) is Fault.TRANSIENT
                return False
        return True

    wait_until(written, timeout=30, what="a write on the new master")
    assert connection.client.info("server")["tcp_port"] != old


def test_a_cluster_is_reached_by_any_of_its_nodes(
    cluster_box: ClusterBox, cluster_connection: Connection, opened: Opener
) -> None:
    assert cluster_connection.cluster
    keys = [f"key-{number}" for number in range(30)]
    for key in keys:
        cluster_connection.client.set(key, key)
    dead = ("127.0.0.1", free_port())
    other = opened({"CLUSTER": [dead, cluster_box.addresses[1]]})
    assert other.client is other.client
    assert [other.client.get(key) for key in keys] == [key.encode() for key in keys]
    wrapped = opened(Connection.wrap(other.client))
    assert wrapped.cluster
    assert wrapped.client.get("key-1") == b"key-1"


def test_blocking_clients_of_a_cluster_go_to_its_masters_in_turn(
    cluster_box: ClusterBox, cluster_connection: Connection
) -> None:
    ports = set()
    for _ in cluster_box.nodes:
        with cluster_connection.blocking() as waiting:
            ports.add(waiting.info("server")["tcp_port"])
    assert ports == {node.port for node in cluster_box.nodes}

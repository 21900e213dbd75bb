"""Connection to Redis: settings, faults, blocking calls, other clients, Sentinel, Cluster; the check of a server."""

from __future__ import annotations

import contextlib
import gc
import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.sentinel import Sentinel

from django_delayq.core import Broker, Connection, Misconfigured, NewJob, QueueUnavailable, ack, bury
from tests.support.core_calls import Fault, classify
from tests.support.core_stored import assert_invariants

from ..support.cluster_box import ClusterBox
from ..support.processes import wait_until
from ..support.redis_box import RedisBox, free_port
from ..support.sentinel_box import SentinelBox
from ..support.tcp_proxy import TcpProxy

Factory = Callable[..., RedisBox]
Opener = Callable[..., Connection]


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
    waiting = connection.blocking()
    with connection.client.client() as in_use:
        used, idle, blocking = in_use.client_id(), connection.client.client_id(), waiting.client_id()
        connection.close()
        assert in_use.client_id() == used
        assert connection.client.client_id() > idle
        left = {int(line["id"]) for line in connection.client.client_list()}
        assert used in left and left.isdisjoint({idle, blocking})
    cluster_connection.client.set("x", 1)
    cluster_connection.close()
    assert cluster_connection.client.get("x") == b"1"


# --- faults of the line


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
def test_what_is_no_client_of_a_master_is_refused(wrong: Any) -> None:
    with pytest.raises(Misconfigured, match="no synchronous redis-py client"):
        Connection.wrap(wrong)
    with pytest.raises(Misconfigured, match="needs the master"):
        Connection.wrap(Sentinel([("h", 1)]).slave_for("shop"))


# --- Sentinel and Cluster


def test_over_sentinel_connections_and_verbs_follow_the_master(sentinel_box: SentinelBox, opened: Opener) -> None:
    connection = opened({"SENTINELS": sentinel_box.addresses, "MASTER": sentinel_box.name})
    wrapped = opened(Connection.wrap(sentinel_box.sentinel().master_for(sentinel_box.name)))
    assert wrapped.display_url == connection.display_url
    queue = Broker(connection).queue("orders")
    assert queue.schedule(NewJob("before", "work")) == "created"
    assert queue.schedule(NewJob("far", "work", delay_ms=3_600_000)) == "created"
    (held,) = queue.reserve(0, 10, worker="w").jobs
    with connection.blocking() as waiting:
        assert waiting.client_id() != connection.client.client_id()
    old = connection.client.info("server")["tcp_port"]
    master = sentinel_box.first.client()
    master.set("mark", 1)  # WAIT waits for what its own connection wrote last
    assert master.wait(1, 5000) == 1, "the replica has it all"

    sentinel_box.fail_over()

    def follows() -> bool:
        try:
            wrapped.client.set("mark", 2)
            return queue.schedule(NewJob("after", "work", on_conflict="ignore")) in ("created", "ignored")
        except (redis.RedisError, QueueUnavailable) as error:
            assert classify(error) is Fault.TRANSIENT
            return False

    wait_until(follows, timeout=30, what="a write on the new master")
    assert connection.client.info("server")["tcp_port"] != old
    assert queue.settle([ack(held, 0, 0)]) == [True]
    assert [job.id for job in queue.reserve(0, 10, worker="w").jobs] == ["after"]
    assert_invariants(Broker(connection))


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


# -- check of a server: one that is not fit for a queue has a message that names the remedy; errors of real servers ----


Check = Callable[[object], None]


@pytest.fixture
def check(opened: Opener) -> Check:
    """Return a function that checks the server of a setting."""
    return lambda setting: Broker(opened(setting)).check_server()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"PASSWORD": "wrong"}, "invalid username-password pair"),
        ({"USERNAME": "nobody", "PASSWORD": "right"}, "invalid username-password pair"),
        ({}, "Authentication required"),
        ({"PASSWORD": "right", "DB": 99}, "DB index is out of range"),
    ],
)
def test_what_the_server_does_not_like_is_for_an_operator(
    option: dict[str, Any], message: str, redis_factory: Factory, check: Check
) -> None:
    box = redis_factory(tcp=True, requirepass="right")
    with pytest.raises(Misconfigured, match=rf"Redis refuses this client \(.*{message}") as caught:
        check({"HOST": "127.0.0.1", "PORT": box.port, **option})
    assert "right" not in str(caught.value)


def test_a_server_that_is_not_there_may_come(check: Check, redis_box: RedisBox) -> None:
    for where in (f"redis://127.0.0.1:{free_port()}", f"unix://{redis_box.directory}/other.sock"):
        with pytest.raises(QueueUnavailable, match="Redis cannot be used now"):
            check(where)


def test_check_tells_a_replica(redis_factory: Factory, check: Check) -> None:
    box = redis_factory()
    box.client().execute_command("REPLICAOF", "127.0.0.1", "1")
    with pytest.raises(QueueUnavailable, match="read-only replica"):
        check(box.url)


def test_check_tells_a_cluster_from_a_single_server(
    redis_factory: Factory, cluster_box: ClusterBox, check: Check
) -> None:
    check(cluster_box.setting)
    with pytest.raises(Misconfigured, match=r"node of a Redis Cluster; set DELAYQ\['REDIS'\] = \{'CLUSTER'"):
        check(cluster_box.nodes[0].url)
    with pytest.raises(Misconfigured, match=r"Cluster mode is not enabled|cluster support disabled"):
        check({"CLUSTER": [redis_factory(tcp=True).address]})


def test_a_cluster_says_what_keeps_it_from_serving(redis_factory: Factory, check: Check, opened: Opener) -> None:
    node = redis_factory(port=free_port(also=10000), cluster_enabled="yes", databases=1, requirepass="right")
    for login in ({}, {"PASSWORD": "wrong"}):
        with pytest.raises(Misconfigured, match="Redis refuses this client"):
            check({"CLUSTER": [node.address], **login})
    # Right, but no slot was given to it yet.
    unserved = {"CLUSTER": [node.address], "PASSWORD": "right"}
    with pytest.raises(QueueUnavailable, match="no slot is served"):
        check(unserved)
    with pytest.raises(redis.RedisError) as caught:
        opened(unserved).client.ping()
    assert classify(caught.value) is Fault.TRANSIENT


def test_check_tells_a_sentinel_from_a_server(sentinel_box: SentinelBox, check: Check) -> None:
    with pytest.raises(Misconfigured, match="is a Sentinel, not a Redis server"):
        check(f"redis://127.0.0.1:{sentinel_box.port}")
    with pytest.raises(QueueUnavailable, match="No master found for 'other'"):
        check({"SENTINELS": sentinel_box.addresses, "MASTER": "other"})


@pytest.fixture
def fake_server() -> Iterator[Callable[[Callable[[bytes], bytes]], int]]:
    """Return a function that opens a port and sends ``answer(request)`` for each chunk; an empty answer hangs up."""
    with contextlib.ExitStack() as stack:

        def start(answer: Callable[[bytes], bytes]) -> int:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

            def talk(line: socket.socket) -> None:
                with contextlib.suppress(OSError), line:
                    line.settimeout(5)
                    while (request := line.recv(1000)) and (said := answer(request)):
                        line.sendall(said)

            def serve() -> None:
                with contextlib.suppress(OSError):
                    while True:
                        threading.Thread(target=talk, args=listener.accept()[:1], daemon=True).start()

            threading.Thread(target=serve, daemon=True).start()
            # A blocked accept() notices shutdown(), not close().
            stack.callback(lambda: listener.shutdown(socket.SHUT_RDWR))
            return int(listener.getsockname()[1])

        yield start


def _old_redis(request: bytes) -> bytes:
    if b"INFO" in request:
        body = b"# Server\r\nredis_version:5.0.7\r\nredis_mode:standalone\r\nrole:master\r\n"
        return b"$%d\r\n%s\r\n" % (len(body), body)
    return b"+PONG\r\n" if b"PING" in request else b"+OK\r\n" * request.count(b"SETINFO")


def test_check_tells_a_server_that_is_too_old(fake_server: Any, check: Check) -> None:
    with pytest.raises(Misconfigured, match=r"is Redis 5.0.7; django_delayq needs 6.2 or newer"):
        check(f"redis://127.0.0.1:{fake_server(_old_redis)}")


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (b"-DENIED Redis is running in protected mode because\r\n", Misconfigured),
        (b"-LOADING Redis is loading the dataset in memory\r\n", QueueUnavailable),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", QueueUnavailable),
    ],
)
def test_what_answers_instead_is_classified(
    answer: bytes, kind: type[Exception], fake_server: Any, check: Check
) -> None:
    port = fake_server(lambda _request: answer)
    with pytest.raises(kind):
        check({"HOST": "127.0.0.1", "PORT": port, "RETRIES": 0, "SOCKET_TIMEOUT": 1})


def test_logs_hold_no_secret(redis_factory: Factory, check: Check, caplog: pytest.LogCaptureFixture) -> None:
    box = redis_factory(requirepass="right")
    with caplog.at_level(logging.DEBUG), pytest.raises(Misconfigured) as caught:
        check({"URL": box.url, "PASSWORD": "s3cret"})
    assert "s3cret" not in caplog.text
    assert "s3cret" not in f"{caught.value} {caught.value.__cause__}"


# -- permissions of the Redis user: what the check refuses is what a queue needs, and the documented ones suffice ------


USERS = Path(__file__).parents[2] / "docs" / "users.acl"


def open_as(box: RedisBox, opened: Opener, *rules: str) -> Connection:
    """Return a connection of a user with these rules."""
    box.client().execute_command("ACL", "SETUSER", "app", "reset", "on", ">pw", *rules)
    return opened(box.url, USERNAME="app", PASSWORD="pw")


def test_without_INFO_the_check_and_the_first_call_both_say_what_is_missing(
    redis_factory: Factory, opened: Opener
) -> None:
    connection = open_as(redis_factory(), opened, "~*", "&*", "+@all", "-info")
    for call in (Broker(connection).check_server, lambda: Broker(connection).queue("q")):
        with pytest.raises(Misconfigured, match=r"may not do what a queue does.*'info'.*extend its ACL"):
            call()


def test_the_permissions_that_the_documents_name_suffice(redis_factory: Factory, opened: Opener) -> None:
    (rules,) = re.findall(r"user delayq on >SECRET (.*)", USERS.read_text())
    connection = open_as(redis_factory(), opened, *rules.split())
    broker = Broker(connection)
    broker.check_server()
    queue = broker.queue("q", shards=2)
    waker = broker.waker(["q"])
    news: list[Any] = [NewJob(f"j{n}", "work", fresh=n > 4) for n in range(10)]
    assert queue.schedule(news.pop()) == "created"
    queue.schedule_many(news)
    assert waker.wait(1)
    waker.close()
    assert queue.cancel("j0")
    assert queue.reschedule("j1", delay_ms=0)
    jobs = [job for number in queue.numbers for job in queue.reserve(number, 9, worker="w").jobs]
    queue.touch(jobs)
    queue.settle([*[bury(job, 1, 2, reason="why") for job in jobs[:2]], *[ack(job, 1, 2) for job in jobs[2:]]])
    assert queue.kick(jobs[0].id)
    for number in queue.numbers:
        queue.tick(number)
    broker.announce("w", {}, tasks=["work"])
    broker.limit("q", max_length=100)
    broker.reshard("q", 3)
    assert_invariants(broker)
    assert broker.inspector.counts("q").ready
    assert broker.delete_queue("q", force=True)

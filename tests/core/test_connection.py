"""Connection to Redis: accepted addresses, settings, and error messages."""

from __future__ import annotations

import contextlib
import gc
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from redis.sentinel import Sentinel

from django_delayq.core.errors import Misconfigured, QueueUnavailable
from django_delayq.core.redis.connection import Connection, RedisConfig, connect
from django_delayq.core.redis.faults import Fault, classify

from ..support.cluster_box import ClusterBox
from ..support.processes import wait_until
from ..support.redis_box import RedisBox, free_port
from ..support.sentinel_box import SentinelBox
from ..support.tcp_proxy import TcpProxy

Factory = Callable[..., RedisBox]
Opener = Callable[[object], Connection]
SECRET = "s3cret/pass"


@pytest.fixture
def opened() -> Iterator[Opener]:
    """Return a function that opens a connection and closes it after the test."""
    with contextlib.ExitStack() as stack:

        def make(value: object) -> Connection:
            connection = value if isinstance(value, Connection) else connect(RedisConfig.parse(value))
            stack.callback(connection.close)
            return connection

        yield make


# --- addresses


@pytest.mark.parametrize(
    ("value", "wanted", "shown"),
    [
        ("redis://localhost:6380/3", {"host": "localhost", "port": 6380, "db": 3}, "redis://localhost:6380/3"),
        ("redis://cache", {"host": "cache", "port": 6379, "db": 0}, "redis://cache:6379"),
        (" redis:// ", {"host": "localhost"}, "redis://localhost:6379"),
        ("redis://[::1]:7000/", {"host": "::1", "port": 7000}, "redis://[::1]:7000"),
        ("redis://me:s3cret%2Fpass@h", {"username": "me", "password": SECRET}, "redis://***@h:6379"),
        ("redis://:p%20w@h", {"username": None, "password": "p w"}, "redis://***@h:6379"),
        (
            "redis://h?db=2&socket_timeout=1.5&max_connections=7",
            {"db": 2, "socket_timeout": 1.5, "max_connections": 7},
            "redis://h:6379/2",
        ),
        ("redis://h/1?protocol=3&decode_responses=True", {"db": 1}, "redis://h:6379/1"),
        (
            "rediss://h?ssl_cert_reqs=CERT_NONE",
            {"ssl": True, "ssl_options": {"ssl_cert_reqs": "none", "ssl_check_hostname": False}},
            "rediss://h:6379",
        ),
        ("rediss://h", {"ssl_options": {"ssl_cert_reqs": "required", "ssl_check_hostname": True}}, "rediss://h:6379"),
        ("unix:///run/redis.sock?db=2", {"path": "/run/redis.sock", "db": 2}, "unix:///run/redis.sock?db=2"),
        ("unix://me:s3cret@/run/r.sock", {"path": "/run/r.sock", "password": "s3cret"}, "unix://***@/run/r.sock"),
        ({"URL": "redis://h", "PASSWORD": SECRET, "DB": 4}, {"password": SECRET, "db": 4}, "redis://***@h:6379/4"),
        ({"HOST": "h", "PORT": 1}, {"host": "h", "port": 1}, "redis://h:1"),
        ({"HOST": "h", "SSL_CA_CERTS": "/ca"}, {"ssl": True}, "rediss://h:6379"),
        (
            {"SENTINELS": [["a", 26379], "b:26380"], "MASTER": "shop", "PASSWORD": "x"},
            {"sentinels": (("a", 26379), ("b", 26380)), "sentinel_master": "shop"},
            "sentinel://***@a:26379,b:26380/shop",
        ),
        (
            {"cluster": ["a:7000", ("::1", "7001")]},
            {"cluster_nodes": (("a", 7000), ("::1", 7001))},
            "cluster://a:7000,[::1]:7001",
        ),
        ({"CLUSTER": "a:1,b:2", "DB": 0}, {"cluster_nodes": (("a", 1), ("b", 2))}, "cluster://a:1,b:2"),
    ],
)
def test_addresses_are_understood(value: Any, wanted: dict[str, Any], shown: str) -> None:
    config = RedisConfig.parse(value)
    assert {name: getattr(config, name) for name in wanted} == wanted
    assert config.display_url == shown
    assert RedisConfig.parse(config) is config


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("localhost:6379", "no scheme; write it like 'redis://localhost:6379/0'"),
        ("", "no scheme"),
        ("http://h", "http:// is no Redis URL; use redis://, rediss://"),
        ("redis+sentinel://h", "give Sentinel and Cluster as a dict"),
        ("redis://:s3cret/pass@h:6379", "percent-encode it"),
        ("redis://:s3cret#pass@h:6379", "percent-encode it"),
        ("redis://:s3cret?pass@h:6379", "percent-encode it"),
        ("redis://:123?s3cret@h:6379", "after the '\\?' of the Redis URL is not known"),
        ("redis://:123/s3cret@h:6379", "DB must be a whole number from 0 to 65535"),
        ("redis://[h", "cannot be read"),
        ("redis://h:99999", "cannot be read"),
        ("redis://h/one", "DB must be a whole number"),
        ("redis://h?socket_timout=1", "'socket_timout' of the Redis URL is not known. Did you mean 'socket_timeout'"),
        ("redis://h?sentinels=x", "'sentinels' of the Redis URL is not known"),
        ("redis://h?socket_timeout=0", "SOCKET_TIMEOUT must be a number of seconds above 0"),
        ("redis://h?ssl_cert_reqs=perhaps", "must be 'required', 'optional' or 'none'"),
        ("redis://h?ssl_ca_certs=/ca", "use a rediss:// URL or SSL: True"),
        ("unix://redis.sock", "needs the absolute path"),
        ("unix:///", "needs the absolute path"),
        (None, "not as NoneType"),
        (b"redis://h", "not as bytes"),
        ({}, "where is Redis"),
        ({"PASSWORD": "s3cret"}, "where is Redis"),
        ({"URL": 5}, "URL must be a text"),
        ({"PASSWRD": "s3cret", "HOST": "h"}, "'PASSWRD' is no option of Redis. Did you mean 'PASSWORD'"),
        ({"URL": "redis://h", "CLUSTER": ["a:1"]}, "URL and CLUSTER are different ways"),
        ({"SENTINELS": ["a:1"]}, "belong together"),
        ({"SENTINELS": [], "MASTER": "m"}, "SENTINELS is an empty list"),
        ({"SENTINELS": ["a"], "MASTER": "m"}, r"an address in SENTINELS is \['10.0.0.1', 6379\]"),
        ({"SENTINELS": {"a": 1}, "MASTER": "m"}, "SENTINELS must be a list"),
        ({"CLUSTER": [["a", 0]]}, "PORT must be a whole number from 1 to 65535, not 0"),
        ({"CLUSTER": [5]}, "an address in CLUSTER"),
        ({"CLUSTER": ["a:1"], "DB": 1}, "only database 0"),
        ({"HOST": "h", "PASSWORD": 5}, "PASSWORD must be a text, not int"),
        ({"HOST": "h", "SSL": "maybe"}, "SSL must be True or False"),
        ({"HOST": "h", "RETRIES": True}, "RETRIES must be a whole number from 0 to 10"),
        ({"HOST": "h", "CONNECT_TIMEOUT": float("nan")}, "CONNECT_TIMEOUT must be a number"),
        ({"HOST": "h", "SOCKET_TIMEOUT": 60}, "let one command take 242 s; at most 100 are safe"),
        ("redis://h?retries=10&socket_timeout=9", "let one command take 104 s"),
    ],
)
def test_a_wrong_address_is_refused_with_a_way_out_and_without_its_secrets(value: Any, message: str) -> None:
    with pytest.raises(Misconfigured, match=message) as caught:
        RedisConfig.parse(value)
    assert "s3cret" not in str(caught.value)
    assert "s3cret" not in repr(caught.value.__cause__)


def test_ignored_options_of_a_url_are_told(caplog: pytest.LogCaptureFixture) -> None:
    RedisConfig.parse("redis://h?protocol=3")
    assert "the option protocol of the Redis URL is ignored" in caplog.text


def test_nothing_that_is_printed_holds_a_secret() -> None:
    for value in (
        f"redis://me:{SECRET.replace('/', '%2F')}@h",
        {"SENTINELS": ["h:1"], "MASTER": "m", "PASSWORD": SECRET, "SENTINEL_PASSWORD": SECRET},
        {"HOST": "h", "PASSWORD": SECRET, "SSL_PASSWORD": SECRET},
    ):
        config = RedisConfig.parse(value)
        connection = connect(config)
        printed = f"{config!r} {config.display_url} {connection!r} {connection.display_url} {connection.client!r}"
        assert "s3cret" not in printed
        hash(config)


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
        made = pool.connection_class(**pool.connection_kwargs)
        assert (made.socket_timeout, made.socket_connect_timeout) == (5.0, 2.0)
        assert (made.health_check_interval, int(made.protocol), made.encoder.decode_responses) == (0, 2, False)
        assert made.retry._retries == 3
        assert pool.max_connections == 100
        if hasattr(made, "socket_keepalive"):
            assert made.socket_keepalive
            assert made.socket_keepalive_options[socket.TCP_KEEPIDLE] == 30


def test_nothing_connects_before_the_first_command(opened: Opener) -> None:
    dead = f"127.0.0.1:{free_port()}"
    for way in (f"redis://{dead}", {"SENTINELS": [dead], "MASTER": "m"}, {"CLUSTER": [dead]}):
        connection = opened(way)
        connection.reconnect()
        with pytest.raises((redis.RedisError, redis.exceptions.RedisClusterException)) as caught:
            connection.client.ping()
        assert classify(caught.value) is Fault.TRANSIENT


def test_a_reconnect_drops_what_is_idle_and_leaves_what_is_in_use(
    redis_url: str, cluster_connection: Connection, opened: Opener
) -> None:
    connection = opened(redis_url)
    assert isinstance(connection.client, redis.Redis)
    with connection.client.client() as in_use:
        used, idle = in_use.client_id(), connection.client.client_id()
        connection.reconnect()
        assert in_use.client_id() == used
        assert connection.client.client_id() > idle
    cluster_connection.client.set("x", 1)
    cluster_connection.reconnect()
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


def test_the_time_limit_of_a_wait_lies_behind_it(redis_url: str, opened: Opener) -> None:
    connection = opened(redis_url)
    assert connection.blocking().connection_pool.connection_kwargs["socket_timeout"] is None
    assert connection.blocking(30).connection_pool.connection_kwargs["socket_timeout"] == 35


def test_close_ends_every_connection_and_a_later_command_opens_a_new_one(redis_box: RedisBox, opened: Opener) -> None:
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


def test_a_client_of_django_redis_is_taken_over_without_its_settings(
    redis_url: str, opened: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    from django_redis.pool import ConnectionFactory

    factory = ConnectionFactory({"CONNECTION_POOL_KWARGS": {"decode_responses": True, "max_connections": 1}})
    theirs = factory.connect(f"{redis_url}?db=3")
    ours = opened(Connection.wrap(theirs))
    ours.client.set("x", "1")
    assert theirs.get("x") == "1"
    assert ours.client.get("x") == b"1"
    assert "decodes responses" in caplog.text
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
    assert connection.check()["role"] == "master"
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
    assert other.check()["redis_mode"] == "cluster"
    wrapped = opened(Connection.wrap(other.client))
    assert wrapped.cluster
    assert wrapped.client.get("key-1") == b"key-1"


def test_a_blocking_client_of_a_cluster_goes_to_the_node_of_its_key(
    cluster_box: ClusterBox, cluster_connection: Connection
) -> None:
    for key in ("a", "b", "c", "d"):
        with cluster_connection.blocking(key=key) as waiting:
            cluster_connection.client.lpush(key, "1")
            assert waiting.blpop([key], timeout=5) == (key.encode(), b"1")
            assert waiting.info("server")["tcp_port"] == cluster_box.node_of(key).port
    with cluster_connection.blocking() as anywhere:
        assert anywhere.ping()


# --- check: what is wrong, in words


def test_a_good_server_is_fine(redis_url: str, opened: Opener) -> None:
    assert opened(redis_url).check()["redis_mode"] == "standalone"


@pytest.mark.parametrize(
    ("option", "kind", "message"),
    [
        ({"PASSWORD": "wrong"}, Misconfigured, "refuses the user or the password"),
        ({"USERNAME": "nobody", "PASSWORD": "right"}, Misconfigured, "refuses the user or the password"),
        ({}, Misconfigured, "wants a password; put it into the URL"),
        ({"PASSWORD": "right", "DB": 99}, Misconfigured, "does not have that database number"),
        (
            {"PASSWORD": "right", "SSL": True, "SOCKET_TIMEOUT": 0.2},
            Misconfigured,
            "does not speak TLS; write redis://",
        ),
    ],
)
def test_check_tells_what_the_server_does_not_like(
    option: dict[str, Any], kind: type[Exception], message: str, redis_factory: Factory, opened: Opener
) -> None:
    box = redis_factory(tcp=True, requirepass="right")
    with pytest.raises(kind, match=message) as caught:
        opened({"HOST": "127.0.0.1", "PORT": box.port, **option}).check()
    assert "right" not in str(caught.value)


def test_check_tells_a_password_too_many(redis_url: str, opened: Opener) -> None:
    with pytest.raises(Misconfigured, match="has no password, but one is given"):
        opened({"URL": redis_url, "PASSWORD": "x"}).check()


def test_check_tells_that_nobody_is_there(opened: Opener, redis_box: RedisBox) -> None:
    with pytest.raises(QueueUnavailable, match="nothing listens at redis://127"):
        opened(f"redis://127.0.0.1:{free_port()}").check()
    with pytest.raises(QueueUnavailable, match="nothing listens at unix://"):
        opened(f"unix://{redis_box.directory}/other.sock").check()


def test_check_tells_that_the_name_leads_nowhere(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_name(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", no_name)
    with pytest.raises(QueueUnavailable, match="host name of redis://cache:6379 cannot be resolved"):
        opened("redis://cache").check()


def test_check_tells_a_replica_and_missing_permissions(redis_factory: Factory, opened: Opener) -> None:
    box = redis_factory()
    connection = opened(box.url)
    box.client().execute_command("REPLICAOF", "127.0.0.1", "1")
    with pytest.raises(QueueUnavailable, match="read-only replica"):
        connection.check()
    box.client().execute_command("REPLICAOF", "NO", "ONE")
    box.client().execute_command("ACL", "SETUSER", "default", "-info")
    assert connection.check() == {}
    box.client().execute_command("ACL", "SETUSER", "default", "-ping")
    with pytest.raises(Misconfigured, match="may not do what a queue does"):
        connection.check()


def test_check_tells_a_cluster_from_a_single_server(
    redis_factory: Factory, cluster_box: ClusterBox, opened: Opener
) -> None:
    with pytest.raises(Misconfigured, match=r"node of a Redis Cluster; set DELAYQ\['REDIS'\] = \{'CLUSTER'"):
        opened(cluster_box.nodes[0].url).check()
    alone = redis_factory(tcp=True)
    with pytest.raises(Misconfigured, match="is no Redis Cluster; give its URL"):
        opened({"CLUSTER": [alone.address]}).check()


def test_a_cluster_says_what_keeps_it_from_serving(redis_factory: Factory, opened: Opener) -> None:
    node = redis_factory(port=free_port(also=10000), cluster_enabled="yes", databases=1, requirepass="right")
    with pytest.raises(Misconfigured, match="wants a password"):
        opened({"CLUSTER": [node.address]}).check()
    with pytest.raises(Misconfigured, match="refuses the user or the password"):
        opened({"CLUSTER": [node.address], "PASSWORD": "wrong"}).check()
    # Right, but no slot was given to it yet.
    unserved = opened({"CLUSTER": [node.address], "PASSWORD": "right"})
    with pytest.raises(QueueUnavailable, match="no slot is served"):
        unserved.check()
    with pytest.raises(redis.RedisError) as caught:
        unserved.client.ping()
    assert classify(caught.value) is Fault.TRANSIENT


def test_check_tells_a_sentinel_from_a_server(sentinel_box: SentinelBox, opened: Opener) -> None:
    with pytest.raises(Misconfigured, match="is a Sentinel, not a Redis server"):
        opened(f"redis://127.0.0.1:{sentinel_box.port}").check()
    with pytest.raises(QueueUnavailable, match="No master found for 'other'"):
        opened({"SENTINELS": sentinel_box.addresses, "MASTER": "other"}).check()


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


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        (b"\x15\x03\x03\x00\x02\x02\x46", "speaks TLS; write rediss://"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "is no Redis server; correct the host or port"),
        (b"-DENIED Redis is running in protected mode because\r\n", "is in protected mode"),
    ],
)
def test_check_tells_who_answers_instead(answers: bytes, message: str, fake_server: Any, opened: Opener) -> None:
    port = fake_server(lambda _request: answers)
    with pytest.raises(Misconfigured, match=message):
        opened({"HOST": "127.0.0.1", "PORT": port, "RETRIES": 0, "SOCKET_TIMEOUT": 1}).check()


def test_check_tells_tls_from_silence(opened: Opener) -> None:
    """A TLS server may hang up on plain text without a word."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)  # without a certificate it refuses every handshake, in TLS
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    line, _ = listener.accept()
                    with line, contextlib.suppress(OSError):
                        if line.recv(1, socket.MSG_PEEK) == b"\x16":
                            context.wrap_socket(line, server_side=True)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        with pytest.raises(Misconfigured, match="speaks TLS; write rediss://"):
            opened(f"redis://127.0.0.1:{listener.getsockname()[1]}").check()
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(5)


def _old_redis(request: bytes) -> bytes:
    if b"INFO" in request:
        body = b"# Server\r\nredis_version:5.0.7\r\nredis_mode:standalone\r\nrole:master\r\n"
        return b"$%d\r\n%s\r\n" % (len(body), body)
    return b"+PONG\r\n" if b"PING" in request else b"+OK\r\n" * request.count(b"SETINFO")


def test_check_tells_a_server_that_is_too_old(fake_server: Any, opened: Opener) -> None:
    with pytest.raises(Misconfigured, match=r"is Redis 5.0.7; django_delayq needs 6.2 or newer"):
        opened(f"redis://127.0.0.1:{fake_server(_old_redis)}").check()


def test_check_tells_a_server_that_is_still_loading(fake_server: Any, opened: Opener) -> None:
    port = fake_server(lambda request: b"-LOADING Redis is loading the dataset in memory\r\n")
    with pytest.raises(QueueUnavailable, match="is loading its data"):
        opened({"HOST": "127.0.0.1", "PORT": port, "RETRIES": 0}).check()


def test_check_tells_a_server_that_does_not_answer(
    redis_factory: Factory, proxy_factory: Callable[..., TcpProxy], opened: Opener
) -> None:
    proxy = proxy_factory(redis_factory(tcp=True).address)
    proxy.blackhole()
    with pytest.raises(QueueUnavailable, match="does not answer in time"):
        opened({"URL": proxy.url, "SOCKET_TIMEOUT": 0.1, "RETRIES": 0}).check()


def test_logs_hold_no_secret(redis_factory: Factory, opened: Opener, caplog: pytest.LogCaptureFixture) -> None:
    box = redis_factory(requirepass="right")
    with caplog.at_level(logging.DEBUG), pytest.raises(Misconfigured) as caught:
        opened({"URL": box.url, "PASSWORD": "s3cret"}).check()
    assert "s3cret" not in caplog.text
    assert "s3cret" not in f"{caught.value} {caught.value.__cause__}"

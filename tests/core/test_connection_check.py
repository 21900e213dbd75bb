"""Check of a server: one that is not fit for a queue has a message that names the remedy; errors of real servers."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from django_delayq.core import Broker, Connection, Misconfigured, QueueUnavailable
from tests.support.core_calls import Fault, classify

from ..support.cluster_box import ClusterBox
from ..support.redis_box import RedisBox, free_port
from ..support.sentinel_box import SentinelBox
from ..support.tcp_proxy import TcpProxy

Factory = Callable[..., RedisBox]
Opener = Callable[[object], Connection]
Check = Callable[[object], None]


@pytest.fixture
def check(opened: Opener) -> Check:
    """Return a function that checks the server of a setting."""
    return lambda setting: Broker(opened(setting)).check_server()


def test_a_good_server_is_fine(redis_url: str, check: Check) -> None:
    check(redis_url)


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


def test_a_password_too_many_is_for_an_operator(redis_url: str, check: Check) -> None:
    with pytest.raises(Misconfigured, match=r"Redis refuses this client \(.*without any password configured"):
        check({"URL": redis_url, "PASSWORD": "x"})


def test_a_server_that_is_not_there_may_come(check: Check, redis_box: RedisBox) -> None:
    for where in (f"redis://127.0.0.1:{free_port()}", f"unix://{redis_box.directory}/other.sock"):
        with pytest.raises(QueueUnavailable, match="Redis cannot be used now"):
            check(where)


def test_a_name_that_leads_nowhere_may_do_so_later(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_name(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", no_name)
    with pytest.raises(QueueUnavailable, match="Name or service not known"):
        check("redis://cache")


def test_check_tells_a_replica_and_missing_permissions(redis_factory: Factory, check: Check) -> None:
    box = redis_factory()
    box.client().execute_command("REPLICAOF", "127.0.0.1", "1")
    with pytest.raises(QueueUnavailable, match="read-only replica"):
        check(box.url)
    box.client().execute_command("REPLICAOF", "NO", "ONE")
    box.client().execute_command("ACL", "SETUSER", "default", "-info")
    with pytest.raises(Misconfigured, match=r"may not do what a queue does.*'info'.*extend its ACL"):
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


def test_a_server_that_does_not_answer_is_unavailable(
    redis_factory: Factory, proxy_factory: Callable[..., TcpProxy], check: Check
) -> None:
    proxy = proxy_factory(redis_factory(tcp=True).address)
    proxy.blackhole()
    with pytest.raises(QueueUnavailable, match="TimeoutError"):
        check({"URL": proxy.url, "SOCKET_TIMEOUT": 0.1, "RETRIES": 0})


def test_logs_hold_no_secret(redis_factory: Factory, check: Check, caplog: pytest.LogCaptureFixture) -> None:
    box = redis_factory(requirepass="right")
    with caplog.at_level(logging.DEBUG), pytest.raises(Misconfigured) as caught:
        check({"URL": box.url, "PASSWORD": "s3cret"})
    assert "s3cret" not in caplog.text
    assert "s3cret" not in f"{caught.value} {caught.value.__cause__}"

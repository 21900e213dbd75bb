"""Check of a connection: each fault of a server has a message that names the remedy."""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from django_delayq.core import Connection, Misconfigured, QueueUnavailable
from tests.support.core_calls import Fault, classify

from ..support.cluster_box import ClusterBox
from ..support.redis_box import RedisBox, free_port
from ..support.sentinel_box import SentinelBox
from ..support.tcp_proxy import TcpProxy

Factory = Callable[..., RedisBox]
Opener = Callable[[object], Connection]


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
    with pytest.raises(Misconfigured, match=r"may not do what a queue does.*'info'.*extend its ACL"):
        connection.check()
    box.client().execute_command("ACL", "SETUSER", "default", "+info", "-ping")
    with pytest.raises(Misconfigured, match=r"may not do what a queue does"):
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

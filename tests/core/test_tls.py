"""Redis behind TLS, and with TLS of its own: certificates are verified, and everything works as without it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from django_delayq.core import Broker, Connection, Misconfigured, NewJob, QueueUnavailable, ack
from tests.support.core_stored import assert_invariants

from ..support.redis_box import RedisBox, free_port
from ..support.tls_front import TlsFront, make_certificate

Opener = Callable[..., Connection]
pytestmark = [
    pytest.mark.one_server("a front of one server"),
    pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates"),
]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Certificate that clients trust, and its key."""
    return make_certificate(tmp_path_factory.mktemp("tls") / "trusted")


@pytest.fixture(params=["front", "server"])
def front(
    request: pytest.FixtureRequest, redis_box: RedisBox, authority: tuple[Path, Path]
) -> Iterator[TlsFront | TlsServer]:
    """TLS in front of the usual server, and a server with TLS of its own, if the program has it."""
    with TlsFront(redis_box, *authority) if request.param == "front" else TlsServer(*authority) as front:
        yield front


class TlsServer:
    """Redis that speaks TLS on a loopback port. ``with TlsServer(certificate, key) as server: server.url``."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self._port = free_port()
        files: dict[str, Any] = {"tls_cert_file": certificate, "tls_key_file": key, "tls_ca_cert_file": certificate}
        self._box = RedisBox(tls_port=self._port, tls_auth_clients="no", **files)

    @property
    def url(self) -> str:
        return f"rediss://127.0.0.1:{self._port}/0"

    def __enter__(self) -> TlsServer:
        try:
            self._box.start()
        except RuntimeError:
            self._box.close()
            pytest.skip(f"{self._box.binary} has no TLS")
        return self

    def __exit__(self, *_: object) -> None:
        self._box.close()


def test_jobs_live_and_consumers_are_woken_behind_tls(
    front: TlsFront | TlsServer, opened: Opener, authority: tuple[Path, Path], prefix: str
) -> None:
    broker = Broker(opened(front.url, SSL_CA_CERTS=str(authority[0])), prefix=prefix)
    broker.check_server()
    queue = broker.queue("q", shards=2)
    waker = broker.waker(["q"])
    large = b"x" * 300_000
    queue.schedule_many([NewJob(f"j{number}", "work", large) for number in range(20)])
    assert waker.wait(5)
    waker.close()
    jobs = [job for number in queue.numbers for job in queue.reserve(number, 50, worker="w").jobs]
    assert {job.args for job in jobs} == {large}
    assert queue.settle([ack(job, 1, 2) for job in jobs]) == [True] * 20
    assert_invariants(broker)


@pytest.mark.parametrize("options", [{}, {"SSL_CA_CERTS": "another"}], ids=["of nobody", "of another authority"])
def test_a_certificate_that_is_not_trusted_is_refused_and_the_error_says_so(
    front: TlsFront | TlsServer, opened: Opener, options: dict[str, str], tmp_path: Path, prefix: str
) -> None:
    if options:
        options = {"SSL_CA_CERTS": str(make_certificate(tmp_path / "other", "other.example")[0])}
    connection = opened(front.url, **options)
    with pytest.raises(Misconfigured, match=r"certificate verify failed.*check .*certificates"):
        Broker(connection, prefix=prefix).queue("q").schedule(NewJob("a", "work"))


def test_a_client_without_tls_is_told_that_the_server_does_not_answer(
    front: TlsFront | TlsServer, opened: Opener, prefix: str
) -> None:
    connection = opened(front.url.replace("rediss:", "redis:"), SOCKET_TIMEOUT=0.5, RETRIES=0)
    with pytest.raises(QueueUnavailable):
        Broker(connection, prefix=prefix).queue("q").schedule(NewJob("a", "work"))

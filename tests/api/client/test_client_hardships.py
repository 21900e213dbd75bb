"""The Python clients where things go wrong: strangers that answer, lost answers, errors that cannot be told."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from django_delayq import connections
from django_delayq.client import ApiError, AsyncClient, Client, HeldJob, Invalid, Throttled, TryLater, Unavailable
from tests.support.api_caller import ROOT

from ..world import CANCEL

real = pytest.mark.django_db(transaction=True)
PROJECT = str(Path(__file__).resolve().parents[3])


class Stranger:
    """A server that gives the answers it is told to, one after another; ``heard`` are the headers of the requests.

    An answer is (status, content type, body), with further headers as a dict behind it; None hangs up.
    """

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.heard: list[dict[str, str]] = []
        stranger = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                stranger.heard.append(dict(self.headers))
                answer = stranger.answers.pop(0)
                if answer is None:
                    self.close_connection = True
                    return
                status, kind, body, *more = answer
                self.send_response(status)
                named = {"Content-Type": kind, "Content-Length": str(len(body))}
                for name, value in [*named.items(), *(more[0].items() if more else ())]:
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_GET

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/"


@pytest.fixture
def stranger() -> Iterator[Stranger]:
    made = Stranger()
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join(10)


def fetch(kind: type[Client | AsyncClient], url: str, times: int = 1, **options: Any) -> list[Any]:
    """Return the answers to so many requests of a client of this class; with ``trusts`` it is given one of httpx."""
    path, trusts = "v1/queues", options.pop("trusts", {})
    if issubclass(kind, Client):
        with httpx.Client(**trusts) as http, kind(url, **options, **({"http": http} if trusts else {})) as client:
            return [client.request("GET", path) for _ in range(times)]

    async def main() -> list[Any]:
        async with (
            httpx.AsyncClient(**trusts) as http,
            kind(url, **options, **({"http": http} if trusts else {})) as client,
        ):
            return [await client.request("GET", path) for _ in range(times)]

    return asyncio.run(main())


both = pytest.mark.parametrize("kind", [Client, AsyncClient])
JSON = "application/json"
PROBLEM = "application/problem+json"
HTML = b"<html><body><h1>502 Bad Gateway</h1></body></html>"


NO_ANSWERS: list[Any] = [
    ((502, "text/html", HTML), Unavailable, "http_502"),
    ((504, JSON, b'{"message": "Endpoint request timed out"}'), Unavailable, "http_504"),
    ((400, JSON, b'{"errors": ["no such field", null], "code": 7}'), Invalid, "7"),
    ((422, JSON, b'{"errors": {"jobs": ["wrong"]}}'), Invalid, "http_422"),
    ((429, PROBLEM, b'{"code": "throttled", "retry_after": -3}', {"Retry-After": "7"}), Throttled, "throttled"),
    ((500, JSON, b"<html>"), ApiError, "http_500"),
    ((200, "text/html", b"<html>Log in</html>"), ApiError, "http_200"),
    ((200, JSON, b"<html>"), ApiError, "http_200"),
    ((200, JSON, b"[]"), ApiError, "http_200"),
    ((200, JSON, b""), ApiError, "http_200"),
    ((302, "text/html", b"", {"Location": "https://elsewhere.example/"}), ApiError, "http_302"),
]


def test_what_is_no_answer_of_the_api_is_an_api_error(stranger: Stranger) -> None:
    for answer, error, code in NO_ANSWERS:
        stranger.answers = [answer]
        with pytest.raises(ApiError) as told:
            fetch(Client, stranger.url, retries=0)
        assert (type(told.value), told.value.code) == (error, code), answer
        assert told.value.retry_after == (7 if code == "throttled" else None)


UNDER_WAY = (409, PROBLEM, b'{"code": "idempotency_in_progress", "retry_after": 58}', {"Retry-After": "58"})
TAKEN = {"queue": "mail", "id": "a", "lease": "0.1", "key": "k", "task": "raw", "body": "x"}


def test_jobs_of_an_answer_that_was_lost_are_waited_for(stranger: Stranger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_delayq.client.http._FIRST_PAUSE", 0.01)
    taken = (200, JSON, json.dumps({"jobs": [TAKEN]}).encode())
    stranger.answers = [None, UNDER_WAY, UNDER_WAY, UNDER_WAY, taken]
    with Client(stranger.url, retries=1) as client:
        (job,) = client.reserve("mail", wait=20)
    assert (job.id, job.body, job.releases, job.attempt) == ("a", b"x", 0, 1)
    assert len({heard["Idempotency-Key"] for heard in stranger.heard}) == 1


def test_nobody_waits_for_ever_for_an_answer_that_was_lost(stranger: Stranger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_delayq.client.http._FIRST_PAUSE", 0.01)
    stranger.answers = [None, *[UNDER_WAY] * 100]
    with Client(stranger.url, retries=1, timeout=0.5) as client, pytest.raises(TryLater) as told:
        client.reserve("mail")
    assert (told.value.code, told.value.retry_after) == ("idempotency_in_progress", 58)
    assert len(stranger.heard) < 20


@both
def test_the_token_is_for_the_server_of_the_address_only(stranger: Stranger, kind: Any) -> None:
    stranger.answers = [(302, "text/html", b"", {"Location": stranger.url}), (200, JSON, b"{}")]
    with pytest.raises(ApiError):
        fetch(kind, stranger.url, token="secret", retries=0)
    assert [heard["Authorization"] for heard in stranger.heard] == ["Token secret"]


@both
def test_cookies_and_proxies_of_the_environment_are_ignored(
    stranger: Stranger, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    stranger.answers = [(200, JSON, b'{"queues": []}', {"Set-Cookie": "sessionid=5; Path=/"})] * 2
    assert fetch(kind, stranger.url, times=2, retries=0) == [{"queues": []}] * 2
    assert [heard.get("Cookie") for heard in stranger.heard] == [None, None]


@pytest.mark.parametrize("token", ["secret\n", "se cret", "sécret"])
def test_a_token_that_is_none_is_refused_without_telling_it(token: str) -> None:
    with pytest.raises(ValueError) as told:
        Client("http://127.0.0.1:1/", token=token)
    assert "cret" not in str(told.value)


def test_what_is_no_json_is_refused_before_anything_is_sent(stranger: Stranger) -> None:
    with Client(stranger.url) as client:
        for wrong in (float("nan"), "\ud800"):
            with pytest.raises(ValueError):
                client.schedule("orders", "shop.cancel_order", args=[wrong])
    assert stranger.heard == []


@pytest.fixture
def certificate(stranger: Stranger, tmp_path: Path) -> Path:
    """Certificate that the stranger has signed itself, and shows from now on."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("openssl makes the certificate")
    file, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    options = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=127.0.0.1"]
    options += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(file)]
    subprocess.run([program, "req", *options], check=True, capture_output=True, timeout=60)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file, key)
    stranger.server.socket = context.wrap_socket(stranger.server.socket, server_side=True)
    return file


@both
def test_a_certificate_that_nobody_vouches_for_is_refused(stranger: Stranger, kind: Any, certificate: Path) -> None:
    url = stranger.url.replace("http", "HTTPS")
    with pytest.raises(Unavailable, match="CERTIFICATE_VERIFY_FAILED"):
        fetch(kind, url, token="secret", retries=0)
    assert stranger.heard == []
    stranger.answers = [(200, JSON, b'{"queues": []}')]
    trusts = {"verify": ssl.create_default_context(cafile=str(certificate)), "headers": {"X-Proxy": "yes"}}
    assert fetch(kind, url, retries=0, trusts=trusts) == [{"queues": []}]
    assert stranger.heard[0]["X-Proxy"] == "yes"


# --- jobs in the hand ---


@real
@pytest.mark.parametrize("message", ["no text: \ud800", "x" * 5_000_000], ids=["surrogate", "large"])
def test_a_block_fails_whatever_its_error_says(client: Client, message: str) -> None:
    (held,) = client.reserve("mail")
    error = RuntimeError(message)
    with pytest.raises(RuntimeError) as told, held:
        raise error
    assert told.value is error
    job = client.job("mail", held.id)
    assert job is not None
    assert (job["state"], job["failures"], job["error"]["class"]) == ("delayed", 1, "RuntimeError")
    assert job["error"]["message"][:4] == message[:4]


@real
def test_many_fail_at_once_with_a_large_error(client: Client) -> None:
    client.put_many("mail", [{"body": "x", "id": f"j{number}"} for number in range(60)])
    jobs = client.reserve("mail", max=100)
    assert client.fail(jobs, RuntimeError("x" * 100_000), delay=60) == [True] * 61


@real
def test_a_touch_holds_a_job_as_long_as_it_was_reserved_for_or_as_the_job_says(client: Client) -> None:
    client.put_many("mail", [{"body": "x", "id": "b"}, {"body": "x", "id": "own", "ttr": 30}])
    first, second, own = sorted(
        client.reserve("mail", max=3, ttr=timedelta(minutes=10)), key=lambda job: job.id == "own"
    )
    assert first.touch() and client.touch([second]) == [True]
    soon = datetime.now(UTC) + timedelta(minutes=9)
    assert all(job.lease_ends is not None and job.lease_ends > soon for job in (first, second))
    assert first.touch(30) and first.lease_ends is not None and first.lease_ends < soon
    assert own.release()
    (own,) = client.reserve("mail")
    for ttr, left in ((None, 31), (90, 90), (None, 31)):
        assert own.touch(ttr) and left - 6 < own.seconds_left <= left


@real
def test_a_block_that_lost_its_job_says_so(client: Client, delayq: Any, caplog: pytest.LogCaptureFixture) -> None:
    (job,) = client.reserve("mail")
    with caplog.at_level(logging.WARNING, "django_delayq.client"), job:
        assert client.release([_twin(client, job)]) == [True]
        assert not job.touch()
    assert [record.message for record in caplog.records] == [
        f"{job.id} is done, but its lease was lost, so it may run again"
    ]


def _twin(client: Client, job: HeldJob) -> HeldJob:
    """The same lease in other hands."""
    return HeldJob(queue=job.queue, id=job.id, lease=job.lease, key=job.key, task=job.task, body=None, _client=client)


@real
def test_a_durable_job_is_taken_in_while_redis_is_away(client: Client, settings: Any) -> None:
    here = settings.DELAYQ
    settings.DELAYQ = {**here, "REDIS": "redis://127.0.0.1:1/0"}
    connections.close_broker()
    taken = client.schedule("orders", CANCEL, args=[5], id="durable", durable=True)
    assert (taken.id, taken.outcome) == ("durable", "outbox")
    for options in ({"id": "plain", "durable": False}, {"durable": True}):
        with pytest.raises(Unavailable) as told:
            client.schedule("orders", CANCEL, args=[5], **options)
        assert told.value.code == "unavailable"
    settings.DELAYQ = here
    connections.close_broker()


# --- processes ---


@real
def test_a_process_that_was_forked_has_a_connection_and_a_name_of_its_own(client: Client, live_server: Any) -> None:
    program = f"""
import os, sys
sys.path.insert(0, {PROJECT!r})
from django_delayq.client import Client
client = Client({live_server.url + ROOT!r})
assert client.request("GET", "healthz")
child = os.fork()
if not child:
    print(bool(client.request("GET", "healthz")), client._worker.endswith(f"-{{os.getpid()}}"), flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(bool(client.request("GET", "healthz")), client._worker.endswith(f"-{{os.getpid()}}"))
"""
    answer = subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert answer.stdout.split() == ["True"] * 4


def test_a_request_may_take_the_timeout_and_what_its_verb_waits_for() -> None:
    spans: list[dict[str, float]] = []

    def refuse(request: httpx.Request) -> httpx.Response:
        spans.append(request.extensions["timeout"])
        raise httpx.ConnectError("away", request=request)

    with httpx.Client(transport=httpx.MockTransport(refuse)) as http:
        client = Client("https://shop.example/delayq/", timeout=7, retries=0, http=http)
        with pytest.raises(Unavailable):
            client.request("GET", "v1/queues")
        with pytest.raises(Unavailable):
            client.reserve("mail", wait=20)
    assert [(span["connect"], span["read"]) for span in spans] == [(7, 7), (7, 27)]

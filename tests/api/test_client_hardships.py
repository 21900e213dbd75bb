"""The Python client where things go wrong: strangers that answer, answers that are lost, errors that cannot be told."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from django_delayq import connections
from django_delayq.client import ApiError, Client, Invalid, Throttled, TryLater, Unavailable

from .conftest import ALL, ROOT, Caller
from .world import CANCEL, World, tasks

real = pytest.mark.django_db(transaction=True)
PROJECT = str(Path(__file__).resolve().parents[2])


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


@pytest.fixture
def client(delayq: Any, transactional_db: None, live_server: Any, caller: Callable[..., Caller]) -> Iterator[Client]:
    """Of somebody who may everything, in a world with something in every place."""
    with tasks():
        World().refresh()
        with Client(live_server.url + ROOT, token=caller(*ALL).token, retries=0) as made:
            yield made


JSON = "application/json"
PROBLEM = "application/problem+json"
HTML = b"<html><body><h1>502 Bad Gateway</h1></body></html>"


@pytest.mark.parametrize(
    ("answer", "kind", "code"),
    [
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
    ],
)
def test_what_is_no_answer_of_the_api_is_an_api_error(stranger: Stranger, answer: Any, kind: type, code: str) -> None:
    stranger.answers = [answer]
    with Client(stranger.url, retries=0) as client, pytest.raises(ApiError) as told:
        client.queues()
    assert (type(told.value), told.value.code) == (kind, code)
    assert told.value.retry_after == (7 if code == "throttled" else None)


UNDER_WAY = (409, PROBLEM, b'{"code": "idempotency_in_progress", "retry_after": 58}', {"Retry-After": "58"})
TAKEN = {"queue": "mail", "id": "a", "lease": "0.1", "key": "k", "task": "raw", "body": "x"}


def test_jobs_of_an_answer_that_was_lost_are_waited_for(stranger: Stranger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_delayq.client.wire._FIRST_PAUSE", 0.01)
    taken = (200, JSON, json.dumps({"jobs": [TAKEN]}).encode())
    stranger.answers = [None, UNDER_WAY, UNDER_WAY, UNDER_WAY, taken]
    with Client(stranger.url, retries=1) as client:
        (job,) = client.reserve("mail", wait=20)
    assert (job.id, job.body) == ("a", b"x")
    assert len({heard["Idempotency-Key"] for heard in stranger.heard}) == 1


def test_nobody_waits_for_ever_for_an_answer_that_was_lost(stranger: Stranger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_delayq.client.wire._FIRST_PAUSE", 0.01)
    stranger.answers = [None, *[UNDER_WAY] * 100]
    with Client(stranger.url, retries=1, timeout=0.5) as client, pytest.raises(TryLater) as told:
        client.reserve("mail")
    assert (told.value.code, told.value.retry_after) == ("idempotency_in_progress", 58)
    assert len(stranger.heard) < 20


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
    assert job is not None and job.error is not None
    assert (job.state, job.failures, job.error.kind) == ("delayed", 1, "RuntimeError")
    assert job.error.message[:4] == message[:4]


@real
def test_many_fail_at_once_with_a_large_error(client: Client) -> None:
    client.put_many("mail", [{"body": "x", "id": f"j{number}"} for number in range(60)])
    jobs = client.reserve("mail", max=100)
    assert client.fail(jobs, RuntimeError("x" * 100_000), delay=60) == [True] * 61


@real
def test_a_touch_holds_a_job_as_long_as_it_was_reserved_for(client: Client) -> None:
    client.put("mail", "x", id="b")
    first, second = client.reserve("mail", max=2, ttr=timedelta(minutes=10))
    assert first.touch() and client.touch([second]) == [True]
    soon = datetime.now(UTC) + timedelta(minutes=9)
    assert all(job.lease_ends is not None and job.lease_ends > soon for job in (first, second))
    assert first.touch(30) and first.lease_ends is not None and first.lease_ends < soon


@real
def test_a_block_that_lost_its_job_says_so(client: Client, delayq: Any, caplog: pytest.LogCaptureFixture) -> None:
    (job,) = client.reserve("mail")
    with caplog.at_level(logging.WARNING, "django_delayq.client"), job:
        assert client.release([_twin(client, job)]) == [True]
        assert not job.touch()
    assert [record.message for record in caplog.records] == [
        f"{job.id}: done, but its lease was lost, so it may be run again"
    ]


def _twin(client: Client, job: Any) -> Any:
    """The same lease in other hands."""
    return type(job)(queue=job.queue, id=job.id, lease=job.lease, key=job.key, task=job.task, body=None, _client=client)


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


# --- orders ---


@real
def test_limits_may_be_spans(client: Client) -> None:
    assert client.limit_queue("mail", morgue_ttl=timedelta(hours=1)).limits["morgue_ttl"] == 3600


@real
def test_of_many_orders_what_was_done_before_an_error_is_told(client: Client) -> None:
    with pytest.raises(Invalid) as told:
        client.cancel("mail", [*(f"n{number}" for number in range(1000)), ""])
    assert told.value.done == [(f"n{number}", "gone") for number in range(1000)]


# --- processes ---


@real
def test_a_process_that_was_forked_has_a_connection_and_a_name_of_its_own(client: Client, live_server: Any) -> None:
    program = f"""
import os, sys
sys.path.insert(0, {PROJECT!r})
from django_delayq.client import Client
client = Client({live_server.url + ROOT!r})
assert client.healthy()
child = os.fork()
if not child:
    print(client.healthy(), client._worker.endswith(f"-{{os.getpid()}}"), flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(client.healthy(), client._worker.endswith(f"-{{os.getpid()}}"))
"""
    answer = subprocess.run(
        [sys.executable, "-I", "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ},
    )
    assert answer.stdout.split() == ["True"] * 4

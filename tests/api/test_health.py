"""Health: alive without asking anybody, ready when Redis and the database answer, and nothing else is told."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import OperationalError, connection, connections as databases

from django_delayq.api import jobs
from tests.support.api_caller import ROOT, Caller


@contextlib.contextmanager
def redis_at(settings: Any, url: str) -> Iterator[None]:
    """The settings name another Redis."""
    before = settings.DELAYQ
    settings.DELAYQ = {**before, "REDIS": url}
    yield
    settings.DELAYQ = before


@pytest.fixture
def stranger(caller: Callable[..., Caller]) -> Caller:
    """Caller without credentials."""
    return caller(anonymous=True)


def test_a_process_that_answers_is_alive_without_redis_and_the_database(settings: Any, client: Any) -> None:
    # Without any database mark, and with a Redis at which nobody listens.
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": "redis://127.0.0.1:1/0"}
    answer = client.get(f"{ROOT}healthz")
    assert (answer.json(), "no-store" in answer["Cache-Control"]) == ({"status": "ok"}, True)


@pytest.mark.parametrize("path", ["healthz", "readyz"])
def test_only_get_and_head_are_known(path: str, stranger: Caller) -> None:
    assert stranger("HEAD", path) == (200, None)
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        assert stranger(method, path)[0] == 405


def test_ready_when_redis_and_the_database_answer(stranger: Caller) -> None:
    assert stranger.get("readyz") == (200, {"status": "ok", "redis": "ok", "database": "ok"})


def test_not_ready_without_redis(stranger: Caller, settings: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "django_delayq.api"), redis_at(settings, "redis://:a-secret@127.0.0.1:1/0"):
        assert stranger.get("readyz") == (503, {"status": "away", "redis": "away", "database": "ok"})
    assert "not ready, redis is away" in caplog.text
    assert "a-secret" not in caplog.text


@pytest.mark.one_server("a proxy stands before one server")
def test_a_redis_that_hangs_is_not_waited_for(
    stranger: Caller, settings: Any, redis_factory: Any, proxy_factory: Any
) -> None:
    proxy = proxy_factory(redis_factory(tcp=True).address)
    with redis_at(settings, proxy.url):
        assert stranger.get("readyz")[0] == 200
        proxy.blackhole()
        began = time.monotonic()
        assert stranger.get("readyz") == (503, {"status": "away", "redis": "away", "database": "ok"})
        assert time.monotonic() - began < 2.5


def test_not_ready_without_the_database(stranger: Caller, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(execute: Any, sql: str, *rest: Any) -> Any:
        from django.db import OperationalError

        assert sql == "SELECT 1"
        raise OperationalError("server closed the connection unexpectedly")

    with connection.execute_wrapper(refuse), caplog.at_level(logging.WARNING, "django_delayq.api"):
        assert stranger.get("readyz") == (503, {"status": "away", "redis": "ok", "database": "away"})
    assert "not ready, database is away" in caplog.text


@pytest.mark.django_db(transaction=True)
def test_a_database_connection_that_broke_meanwhile_is_made_anew(delayq: Any, client: Any) -> None:
    broken = []

    def break_once(execute: Any, *rest: Any) -> Any:
        from django.db import OperationalError

        if not broken:
            broken.append(connection.connection)
            raise OperationalError("server closed the connection unexpectedly")
        return execute(*rest)

    connection.ensure_connection()
    with connection.execute_wrapper(break_once):
        assert client.get(f"{ROOT}readyz").status_code == 200
    assert connection.connection is not broken[0]


def test_a_slow_database_is_not_ready(stranger: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    from django_delayq.api import operations as health

    monkeypatch.setattr(health, "BUDGET", -1.0)
    assert stranger.get("readyz") == (503, {"status": "away", "redis": "ok", "database": "away"})


def test_a_request_is_in_no_transaction_of_any_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(databases.settings, "ledger", databases.settings["default"])
    assert jobs.Jobs.as_view({"get": "list_jobs"})._non_atomic_requests == set(databases) > {"ledger"}


def test_without_the_database_the_answer_is_503(api: Caller, delayq: Any, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(execute: Any, sql: str, *rest: Any) -> Any:
        raise OperationalError("connection to server at db.internal failed")

    with connection.execute_wrapper(refuse):
        status, body = api.get("v1/queues")
    assert (status, body["code"], api.response["Retry-After"]) == (503, "unavailable", "5")
    assert body["detail"].startswith("the database does not answer now; retry.")
    assert "db.internal" not in api.response.content.decode()
    assert "db.internal" in caplog.text

"""Reserves that wait, on a real server under ASGI."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import django
import pytest

from django_delayq.core.job import NewJob
from tests.support.postgres_box import PostgresDatabase
from tests.support.processes import wait_until
from tests.support.redis_box import RedisBox

from .settings import MOST_OF_ONE, MOST_WAITS
from .stage import PATIENCE, Pending, Server, environment, running, timed

RESERVE = "queues/feed/reserve"


def put(server: Server, count: int = 1, **options: object) -> None:
    jobs = [NewJob(f"j{number}", "raw", b"%d" % number, **options) for number in range(count)]  # type: ignore[arg-type]
    assert set(server.broker.queue("feed").schedule_many(jobs)) == {"created"}


def test_a_hundred_waits_hold_no_database_connection_and_are_answered_at_once(
    asgi: Server, asgi_database: PostgresDatabase
) -> None:
    pending = [asgi.ask(RESERVE, {"wait": 20, "max": 1}) for _ in range(100)]
    asgi.wait_until(sleeping=100)
    wait_until(lambda: asgi_database.sessions() == [], PATIENCE, "no session of the server in the database")
    put(asgi, 100)
    began = time.monotonic()
    answers = [one.answer() for one in pending]
    took = time.monotonic() - began
    assert sorted(job["id"] for _, body, _ in answers for job in body["jobs"]) == sorted(f"j{n}" for n in range(100))
    assert {(status, len(body["jobs"])) for status, body, _ in answers} == {(200, 1)}
    assert asgi.places("feed") == {"reserved": 100}
    assert took < 5, "a fraction of a second, but for a machine that has other things to do"
    entries = [{"id": job["id"], "lease": job["lease"]} for _, body, _ in answers for job in body["jobs"]]
    assert {one["counted"] for one in asgi.post("ack", {"jobs": entries})["results"]} == {True}


def test_a_delayed_job_is_handed_out_when_it_falls_due_and_not_before(asgi: Server) -> None:
    put(asgi, delay_ms=1500)
    took, (status, body, _) = timed(asgi.ask(RESERVE, {"wait": 20}).answer)
    assert (status, [job["id"] for job in body["jobs"]]) == (200, ["j0"])
    assert 1.3 < took < 6
    assert asgi.broker.now_ms() >= asgi.broker.inspector.page("feed", "reserved").jobs[0].due_ms


def test_a_wait_in_which_nothing_falls_due_is_over_when_it_is(asgi: Server) -> None:
    took, (status, body, headers) = timed(asgi.ask(RESERVE, {"wait": 0.5}).answer)
    assert (status, body, headers["Retry-After"]) == (200, {"jobs": []}, None)
    assert 0.45 < took < 6


def test_a_wait_ends_before_the_lease_of_a_job_that_the_caller_holds(asgi: Server) -> None:
    put(asgi)
    (held,) = asgi.post("reserve", {"ttr": 4})["jobs"]
    asked = {"wait": 20, "holding": [held["lease_ends"]], "deadline_margin": 2}
    took, (status, body, headers) = timed(asgi.ask(RESERVE, asked).answer)
    assert (status, body, headers["Retry-After"]) == (200, {"jobs": [], "deadline_soon": True}, None)
    assert took < 4
    (touched,) = asgi.post("touch", {"jobs": [{"id": held["id"], "lease": held["lease"], "ttr": 600}]})["results"]
    assert touched["held"], "there was time for that"
    pending = asgi.ask(RESERVE, {**asked, "holding": [touched["lease_ends"]]})
    asgi.wait_until(sleeping=1)
    asgi.broker.queue("feed").schedule(NewJob("new", "raw"))
    _, body, _ = pending.answer()
    assert ([job["id"] for job in body["jobs"]], "deadline_soon" in body) == (["new"], False)


def test_what_is_due_is_not_waited_for(asgi: Server) -> None:
    put(asgi, 3)
    took, (_, body, _) = timed(asgi.ask("reserve", {"queues": ["wide", "feed"], "wait": 20, "max": 250}).answer)
    assert len(body["jobs"]) == 3
    assert took < 6


def test_a_client_that_goes_away_gets_nothing(asgi: Server) -> None:
    gone = asgi.ask(RESERVE, {"wait": 20})
    asgi.wait_until(sleeping=1)
    gone.hang_up()
    asgi.wait_until(sleeping=0)
    put(asgi)
    assert asgi.places("feed") == {"ready": 1}
    assert [job["noe"] for job in asgi.post("reserve")["jobs"]] == [0], "it was in nobody's hands"


@pytest.mark.skipif(django.VERSION >= (6,), reason="behind the view nobody hears of it there; the lease ends by itself")
def test_a_job_of_a_client_that_is_gone_before_the_answer_goes_back_at_once(asgi: Server) -> None:
    put(asgi)
    gone = asgi.ask(RESERVE, {"wait": 20, "ttr": 3600}, **{"X-Hold-Back": "60"})
    wait_until(lambda: asgi.places("feed") == {"reserved": 1}, PATIENCE, "the job in its hands")
    gone.hang_up()
    wait_until(lambda: asgi.places("feed") == {"ready": 1}, PATIENCE, "the job back")
    (job,) = asgi.post("reserve")["jobs"]
    assert (job["attempt"], job["noe"]) == (1, 1), "not counted"


def test_an_answer_that_is_kept_is_for_the_next_request_with_its_key(asgi: Server) -> None:
    put(asgi)
    gone = asgi.ask(RESERVE, {"wait": 20}, **{"X-Hold-Back": "60", "Idempotency-Key": "kept"})
    wait_until(lambda: asgi.broker.client.keys("asgi:answer:*") != [], PATIENCE, "the mark of the key")
    wait_until(lambda: asgi.places("feed") == {"reserved": 1}, PATIENCE, "the job in its hands")
    (name,) = asgi.broker.client.keys("asgi:answer:*")
    wait_until(lambda: b'"jobs"' in (asgi.broker.client.get(name) or b""), PATIENCE, "the answer")
    gone.hang_up()
    _, body, headers = asgi.ask(RESERVE, {"wait": 20}, **{"Idempotency-Key": "kept"}).answer()
    assert ([job["id"] for job in body["jobs"]], headers["Idempotent-Replayed"]) == (["j0"], "true")
    entry = {"id": "j0", "lease": body["jobs"][0]["lease"]}
    assert asgi.post("ack", {"jobs": [entry]})["results"] == [{"id": "j0", "counted": True}]
    asgi.broker.client.delete(name)


def test_the_key_of_a_wait_that_was_given_up_is_free_again(asgi: Server) -> None:
    gone = asgi.ask(RESERVE, {"wait": 20}, **{"Idempotency-Key": "free"})
    asgi.wait_until(sleeping=1)
    gone.hang_up()
    wait_until(lambda: asgi.broker.client.keys("asgi:answer:*") == [], PATIENCE, "no mark of the key")
    put(asgi)
    _, body, _ = asgi.ask(RESERVE, {"wait": 20}, **{"Idempotency-Key": "free"}).answer()
    assert [job["id"] for job in body["jobs"]] == ["j0"]
    (name,) = asgi.broker.client.keys("asgi:answer:*")
    asgi.broker.client.delete(name)


def test_one_wait_too_many_of_a_user_or_of_all_is_answered_at_once(asgi: Server, asgi_tokens: tuple[str, str]) -> None:
    pending: list[Pending] = []
    for token, room in zip(asgi_tokens, (MOST_OF_ONE, MOST_WAITS), strict=True):
        mine = {"Authorization": f"Token {token}"}
        pending += [asgi.ask(RESERVE, {"wait": 20}, **mine) for _ in range(room - len(pending))]
        asgi.wait_until(sleeping=room)
        took, (status, body, headers) = timed(asgi.ask(RESERVE, {"wait": 20}, **mine).answer)
        assert (status, body, headers["Retry-After"]) == (200, {"jobs": []}, "1")
        assert took < 6
    for one in pending:
        one.hang_up()
    asgi.wait_until(sleeping=0)
    again = asgi.ask(RESERVE, {"wait": 20})
    asgi.wait_until(sleeping=1)
    again.hang_up()


def test_who_may_not_is_told_so_at_once(asgi: Server) -> None:
    for headers, status in (({"Authorization": "Token no"}, 401), ({"Content-Type": "text/plain"}, 415)):
        assert asgi.ask(RESERVE, {"wait": 20}, **headers).answer()[0] == status
    assert asgi.ask("queues/nowhere/reserve", {"wait": 20}).answer()[0] == 404
    assert asgi.ask(RESERVE, {"wait": 21}).answer()[0] == 400


# --- the end of a server, and of Redis


@pytest.fixture
def mortal(asgi_database: PostgresDatabase, asgi_token: str) -> Iterator[tuple[Server, RedisBox]]:
    """A server that a test may end, with a Redis that it may end."""
    with RedisBox() as box, running(environment(box.url, asgi_database.url), asgi_token) as server:
        server.broker.queue("feed", kind="pull")
        yield server, box


def test_the_servers_handlers_of_signals_stay_as_they_are(asgi: Server) -> None:
    pending = asgi.ask(RESERVE, {"wait": 20})
    asgi.wait_until(sleeping=1)
    handlers = asgi.handlers()
    assert all("Server.handle_exit" in handler for handler in handlers.values()), handlers
    pending.hang_up()


def test_a_server_whose_project_ends_the_waits_when_it_stops_sends_everyone_away(
    mortal: tuple[Server, RedisBox],
) -> None:
    server, _ = mortal
    pending = [server.ask(RESERVE, {"wait": 20}) for _ in range(20)]
    server.wait_until(sleeping=20)
    assert server.process is not None
    server.process.send_signal(signal.SIGTERM)
    took, answers = timed(lambda: [one.answer() for one in pending])
    assert {(status, len(body["jobs"]), headers["Retry-After"]) for status, body, headers in answers} == {(200, 0, "1")}
    left, _ = timed(lambda: server.process and server.process.wait(PATIENCE))
    assert took + left < 10, "much less than the waits"


def test_a_wait_whose_redis_is_gone_ends_as_a_problem(mortal: tuple[Server, RedisBox]) -> None:
    server, box = mortal
    pending = server.ask(RESERVE, {"wait": 2})
    server.wait_until(sleeping=1)
    box.close()
    took, (status, body, headers) = timed(pending.answer)
    assert (status, body["code"], headers["Content-Type"]) == (503, "unavailable", "application/problem+json")
    assert int(headers["Retry-After"]) >= 1
    assert took < 15

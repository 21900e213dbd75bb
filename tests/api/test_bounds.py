"""Limits that hold for every way of asking: what is visible, kept and taken."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.core.handlers.asgi import ASGIRequest
from django.db import OperationalError, connection
from django.db import connections as databases
from django.test import Client
from rest_framework.request import Request

from django_delayq import Queue, connections
from django_delayq.access.problems import Problem
from django_delayq.api import jobs
from django_delayq.api.parsing import check_head
from django_delayq.core.broker import Broker
from django_delayq.core.job import NewJob
from django_delayq.core.outcomes import ack
from django_delayq.pull import search
from tests.support.api_caller import ROOT, Caller

from .errands import carry
from .routes import picture

HERE = "tests.api.test_bounds"
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "http.md"


def only_mail(request: Any, action: str, queue: str) -> bool:
    """A rule of a project: this user has one queue."""
    return queue in ("", "mail")


# --- what is about the whole deployment


@pytest.fixture
def shared(delayq: Any, settings: Any) -> Any:
    """Two queues, of which one is for the caller, and a worker that serves both."""
    for name in ("mail", "salaries"):
        queue = delayq.queue(name)
        queue.schedule(NewJob("1", "shop.pay", b"[[],{}]"))
        (job,) = queue.reserve_id("1", worker="w", ttr_ms=60_000, started=True).jobs
        settlement = ack(job, int(delayq.now_ms()), 7)
        queue.settle([settlement])
        delayq.tally.ended(name, [settlement])
    delayq.tally.flush()
    running = [
        {"slot": n, "queue": name, "id": f"{name}-7", "task": "shop.pay", "started_ms": 1, "ids": 1}
        for n, name in enumerate(("mail", "salaries"))
    ]
    delayq.announce("w1", {"queues": ["mail", "salaries"], "threads": 2, "running": 2, "jobs": running})
    settings.DELAYQ = {**settings.DELAYQ, "API": {"allow": f"{HERE}.only_mail"}}
    return connections.broker()


@pytest.mark.parametrize("path", ["v1/status", "v1/workers", "v1/workers/w1", "v1/queues"])
def test_what_the_projects_rule_hides_is_in_no_overview(path: str, shared: Any, api: Caller) -> None:
    status, body = api.get(path)
    assert status == 200
    assert "mail" in json.dumps(body)
    assert "salaries" not in json.dumps(body)


def test_totals_are_those_of_the_queues_that_are_seen(shared: Any, api: Caller) -> None:
    _, body = api.get("v1/status")
    assert (body["totals"]["done"], body["totals"]["run_so_far"]["count"]) == (1, 1)
    assert [job["queue"] for worker in body["workers"] for job in worker["jobs"]] == ["mail"]
    assert set(shared.figures().lateness) == {"mail", "salaries"}


# --- bodies


@pytest.mark.parametrize(("body", "told"), [(b'{"max": 5}', False), (b'{"max": 5}', True), (b"", False)])
def test_a_body_of_http_2_whose_length_is_not_told_is_not_taken_for_none(body: bytes, told: bool) -> None:
    headers = [(b"content-type", b"application/json"), *([(b"content-length", b"%d" % len(body))] if told else [])]
    http = ASGIRequest({"method": "POST", "path": "/v1/reserve", "headers": headers}, io.BytesIO(body))
    if body and not told:
        with pytest.raises(Problem) as refusal:
            check_head(Request(http))
        assert (refusal.value.status_code, refusal.value.code) == (411, "length_required")
    else:
        check_head(Request(http))
    assert http.read() == body


# --- masks


def test_secrets_are_hidden_in_bytes_that_are_no_utf_8_as_well(api: Caller, delayq: Any) -> None:
    delayq.queue("mail", kind="pull")
    secret = b'{"password": "open sesame", "name": "M\xfcller"}'
    for ident, body in (("text", secret), ("other", b"\xff\x00\xfe")):
        api.post("v1/queues/mail/jobs", {"id": ident, "body_base64": base64.b64encode(body).decode(), "delay": 60})
    shown = {job["id"]: base64.b64decode(job["body_base64"]) for job in api.get("v1/queues/mail/jobs")[1]["jobs"]}
    assert (b"sesame" in shown["text"], b"M\xfcller" in shown["text"]) == (False, True)
    assert shown["other"] == b"\xff\x00\xfe"


# --- answers


def test_a_reserve_ends_when_it_has_taken_enough_bytes(
    caller: Callable[..., Caller], delayq: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "MOST_BYTES", 25_000)
    wide = delayq.queue("wide", shards=16, kind="pull")
    wide.schedule_many([NewJob(f"j{n}", "raw", b"x" * 10_000) for n in range(64)])
    consumer = caller("consume")
    seen: list[str] = []
    while jobs := consumer.post("v1/queues/wide/reserve", {"max": 250})[1]["jobs"]:
        # One shard gives what it has in one move (up to 4 MiB); no other one is asked behind that.
        assert len(jobs) <= 16
        seen += [job["id"] for job in jobs]
    assert sorted(seen) == sorted(f"j{n}" for n in range(64))


# --- kept answers


def kept(broker: Broker) -> list[Any]:
    return [
        (broker.client.get(name)[:1], broker.client.ttl(name))
        for name in broker.client.scan_iter(match=f"{broker.prefix}:answer:*")
    ]


def test_a_verb_that_was_not_complete_goes_on_under_the_same_key(
    api: Caller, delayq: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = delayq.queue("errands")
    queue.schedule_many([NewJob(f"j{number}", carry.name, b"[]", delay_ms=60_000) for number in range(300)])
    monkeypatch.setattr(jobs, "LONGEST", -1.0)
    key = {"Idempotency-Key": "k"}
    assert api.post("v1/queues/errands/cancel", {"all": True}, **key)[1]["complete"] is False
    assert (api.response["Idempotent-Answer"], kept(delayq)) == ("not-kept", [])
    monkeypatch.setattr(jobs, "LONGEST", 10.0)
    _, body = api.post("v1/queues/errands/cancel", {"all": True}, **key)
    assert (body["complete"], "Idempotent-Replayed" in api.response) == (True, False)
    assert len(kept(delayq)) == 1


def test_reserved_jobs_are_not_kept_longer_than_they_are_held(caller: Callable[..., Caller], delayq: Any) -> None:
    delayq.queue("mail", kind="pull").schedule(NewJob("7", "raw", b"bytes"))
    consumer = caller("consume")
    consumer.post("v1/queues/mail/reserve", {"ttr": 30}, **{"Idempotency-Key": "k"})
    ((mark, seconds),) = kept(delayq)
    assert (mark, 25 < seconds <= 30) == (b"a", True)


@pytest.mark.parametrize(("wanted", "own"), [({"max": 2}, 20), ({"id": "7"}, 20), ({"id": "9"}, 300)])
def test_jobs_reserved_for_their_own_ttr_are_not_kept_longer_than_the_first_of_them_is_held(
    caller: Callable[..., Caller], delayq: Any, wanted: dict[str, Any], own: int
) -> None:
    program = caller("consume", "produce", "admin")
    program.post("v1/queues", {"name": "mail", "kind": "pull"})
    program.post("v1/queues/mail/jobs", {"jobs": [{"id": "7", "body": "x", "ttr": 20}, {"id": "8", "body": "y"}]})
    program.post("v1/queues/mail/jobs", {"id": "9", "body": "z", "ttr": 300, "delay": 1 if "max" in wanted else 0})
    jobs = program.post("v1/queues/mail/reserve", wanted, **{"Idempotency-Key": "k"})[1]["jobs"]
    assert "7" in {job["id"] for job in jobs} or own == 300
    ((mark, seconds),) = [one for one in kept(delayq) if one[0] == b"a"]
    assert (mark, own - 5 < seconds <= own) == (b"a", True)


# --- databases


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


# --- doors of the project


def test_health_needs_no_login_where_everything_else_does(delayq: Any, db: None, settings: Any) -> None:
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django.contrib.auth.middleware.LoginRequiredMiddleware"]
    for path in ("healthz", "readyz"):
        assert Client().get(ROOT + path).status_code == 200
    assert Client().get(f"{ROOT}v1/queues").status_code == 401


@pytest.mark.parametrize("path", ["healthz", "readyz"])
def test_health_knows_other_methods_only_as_405(path: str, delayq: Any, db: None) -> None:
    assert Client(enforce_csrf_checks=True).post(ROOT + path, b"", "application/json").status_code == 405


# --- queues that come and go


def test_a_queue_that_was_deleted_and_made_again_is_served(caller: Callable[..., Caller], delayq: Any) -> None:
    program = caller("consume", "admin", "produce")
    for _ in range(3):
        assert program.post("v1/queues", {"name": "mail", "kind": "pull", "shards": 2})[0] == 201
        for number in range(4):
            program.post("v1/queues/mail/jobs", {"id": f"j{number}", "body": "x"})
        _, body = program.post("v1/queues/mail/reserve", {"max": 250})
        assert sorted(job["id"] for job in body["jobs"]) == ["j0", "j1", "j2", "j3"]
        (old,) = [job for job in body["jobs"] if job["id"] == "j0"]
        assert program.delete("v1/queues/mail?force=true")[0] == 204
    assert program.post("v1/queues/mail/ack", {"jobs": [{"id": "j0", "lease": old["lease"]}]})[0] == 404


def test_who_looks_at_options_changes_nothing(delayq: Any, caller: Callable[..., Caller]) -> None:
    delayq.queue("mail", kind="pull").schedule(NewJob("7", "raw", b"x"))
    before = picture(delayq)
    assert caller()("OPTIONS", "v1/queues/mail/reserve") == (204, None)
    assert caller(anonymous=True)("OPTIONS", "v1/queues/mail/reserve")[0] == 401
    assert picture(delayq) == before
    assert Queue("mail").counts().ready == 1


# --- the rule in the documentation


def of_the_documentation(request: Any, action: str, queue: str) -> bool:
    (code,) = re.findall(r"```python\n(def may\(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    namespace: dict[str, Any] = {}
    exec(code, namespace)
    return bool(namespace["may"](request, action, queue))


def test_the_documented_rule_keeps_everybody_to_his_own_queues(shared: Any, api: Caller, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "API": {"allow": f"{HERE}.of_the_documentation"}}
    mine = f"{api.user.username}.mail"
    assert [api.post("v1/queues", {"name": name, "kind": "pull"})[0] for name in (mine, "other")] == [201, 403]
    assert api.post(f"v1/queues/{mine}/jobs", {"body": "x"})[0] == 201
    for names, status in (([mine], 200), ([mine, "mail"], 403), (["nowhere"], 403)):
        assert api.post("v1/reserve", {"queues": names})[0] == status
    for path in ("v1/status", "v1/workers", "v1/queues", "v1/openapi.json"):
        assert (api.get(path)[0], b"salaries" in api.response.content) == (200, False)
    for method, path in (
        ("GET", "metrics"),
        ("POST", "v1/workers/w1/stop"),
        ("POST", "v1/workers/w1/dump"),
        ("GET", "v1/workers/w1/dump"),
        ("GET", "v1/queues/salaries"),
    ):
        assert api(method, path)[0] == 403

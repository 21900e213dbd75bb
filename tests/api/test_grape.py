"""Grape's interface: its addresses, its answers, its error codes."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import pytest

from django_delayq.core.job import NewJob

from .conftest import ROOT, Caller

pytestmark = pytest.mark.urls("tests.api.grape_urls")


class Grape:
    """A client of Grape: ``grape("POST", "job/produce", b"data", tube="mail", jid="7")`` gives ``(status, answer)``."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller

    def __call__(self, method: str, path: str, data: bytes | None = None, **query: Any) -> tuple[int, Any]:
        return self.caller(method, f"grape/api/{path}?{urlencode(query)}", data)

    def produce(self, data: bytes = b"data", **query: Any) -> tuple[int, Any]:
        return self("POST", "job/produce", data, **{"tube": "mail", "jid": "7", **query})


@pytest.fixture
def grape(api: Caller, delayq: Any) -> Grape:
    """Who may everything; there is a tube "mail"."""
    delayq.queue("mail", kind="pull")
    return Grape(api)


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def job(ident: str = "7", *, dtr: int = 0, ttr: int = 1000, noe: int = 0, data: bytes = b"data") -> dict[str, Any]:
    return {"id": ident, "dtr": dtr, "ttr": ttr, "noe": noe, "data": encoded(data)}


def held_for(broker: Any, ident: str) -> float:
    view = broker.inspector.get("mail", ident)
    return float(view.deadline_ms - broker.now_ms())


# --- a job's life


def test_a_job_is_produced_consumed_and_finished(grape: Grape, delayq: Any) -> None:
    data = bytes(range(256))
    assert grape.produce(data, ttr=5000) == (200, True)
    assert grape("GET", "job/consume", tube="mail") == (200, [job(ttr=5000, data=data)])
    assert 4000 < held_for(delayq, "7") <= 5000
    assert grape("GET", "job/consume", tube="mail") == (200, [])
    assert grape("DELETE", "job/finish", tube="mail", jid="7") == (200, True)
    assert grape("DELETE", "job/finish", tube="mail", jid="7") == (200, False)
    counts = delayq.inspector.counts("mail")
    assert (counts.ready, counts.reserved, counts.counters["acked"]) == (0, 0, 1)


def test_the_data_is_base64_for_urls_without_padding(grape: Grape) -> None:
    grape.produce(b"\xfb\xff\xfe?")
    assert grape("GET", "job/consume", tube="mail")[1][0]["data"] == "-__-Pw"


def test_a_delayed_job_waits(grape: Grape, delayq: Any) -> None:
    assert grape.produce(dtr=60_000) == (200, True)
    assert grape("GET", "job/consume", tube="mail") == (200, [])
    view = delayq.inspector.get("mail", "7")
    assert 59_000 < view.due_ms - delayq.now_ms() <= 60_000
    assert view.job.context == {"dtr": 60_000, "ttr": 1000}


def test_each_job_is_held_for_its_own_ttr(grape: Grape, delayq: Any) -> None:
    for ident, ttr in (("a", 0), ("b", 2500), ("c", 90_000), ("d", 2500)):
        grape.produce(jid=ident, ttr=ttr)
    delayq.queue("mail").schedule(NewJob("e", "raw", b"put by others"))
    found = {one["id"]: one["ttr"] for one in grape("GET", "job/consume", tube="mail", max=10)[1]}
    assert found == {"a": 1000, "b": 2500, "c": 90_000, "d": 2500, "e": 60_000}
    for ident, ttr in found.items():
        assert ttr - 900 < held_for(delayq, ident) <= ttr


def test_consume_takes_at_most_max_and_takes_no_offence_at_nonsense(grape: Grape) -> None:
    for place in range(4):
        grape.produce(jid=f"{place}")
    assert len(grape("GET", "job/consume", tube="mail", max="lots")[1]) == 1
    assert len(grape("POST", "job/consume", tube="mail", max="2")[1]) == 2
    assert len(grape("GET", "job/consume", tube="mail", max="99999999999")[1]) == 1
    assert grape("GET", "job/consume", tube="mail", max="-5") == (200, [])


def test_head_takes_no_jobs(grape: Grape, delayq: Any) -> None:
    grape.produce()
    assert grape("HEAD", "job/consume", tube="mail")[0] == 405
    assert delayq.inspector.counts("mail").ready == 1


def test_a_released_job_comes_again_and_its_number_of_executions_grows(grape: Grape) -> None:
    grape.produce()
    for noe in range(3):
        assert grape("GET", "job/consume", tube="mail") == (200, [job(noe=noe)])
        assert grape("PUT", "job/release", tube="mail", jid="7") == (200, True)
    assert grape("PUT", "job/release", tube="mail", jid="7") == (200, False)


def test_a_job_is_released_with_a_delay(grape: Grape, delayq: Any) -> None:
    grape.produce()
    grape("GET", "job/consume", tube="mail")
    assert grape("PUT", "job/release", tube="mail", jid="7", dtr=30_000) == (200, True)
    counts = delayq.inspector.counts("mail")
    assert (counts.delayed, counts.failed) == (1, 0)
    assert 29_000 < delayq.inspector.get("mail", "7").due_ms - delayq.now_ms() <= 30_000


@pytest.mark.parametrize("verb", ["bury", "failure"])
def test_a_buried_job_is_seen_kicked_or_discarded(verb: str, grape: Grape, delayq: Any) -> None:
    for ident in ("a", "b"):
        grape.produce(jid=ident)
        grape("GET", "job/consume", tube="mail")
        assert grape("PUT", f"job/{verb}", tube="mail", jid=ident) == (200, True)
    assert grape("PUT", f"job/{verb}", tube="mail", jid="a") == (200, False)
    assert grape("GET", "job/peek", tube="mail") == (200, [job("a", noe=1)])
    assert grape("GET", "job/peek", tube="mail", max=9) == (200, [job("a", noe=1), job("b", noe=1)])
    assert grape("PUT", "job/kick", tube="mail", jid="a", dtr=0) == (200, True)
    assert grape("PUT", "job/kick", tube="mail", jid="a") == (200, False)
    assert grape("DELETE", "job/discard", tube="mail", jid="b") == (200, True)
    assert grape("DELETE", "job/discard", tube="mail", jid="b") == (200, False)
    assert grape("GET", "job/peek", tube="mail", max=9) == (200, [])
    assert grape("GET", "job/consume", tube="mail") == (200, [job("a")])


def test_a_kick_may_come_with_a_delay(grape: Grape, delayq: Any) -> None:
    grape.produce()
    grape("GET", "job/consume", tube="mail")
    grape("PUT", "job/bury", tube="mail", jid="7")
    assert grape("PUT", "job/kick", tube="mail", jid="7", dtr=60_000) == (200, True)
    assert delayq.inspector.counts("mail").delayed == 1


def test_an_id_that_lives_is_not_produced_again(grape: Grape) -> None:
    assert grape.produce(b"first") == (200, True)
    assert grape.produce(b"second") == (200, False)
    assert grape("GET", "job/consume", tube="mail") == (200, [job(data=b"first")])
    assert grape.produce(b"third") == (200, False)
    assert grape("DELETE", "job/finish", tube="mail", jid="7") == (200, True)
    assert grape.produce(b"fourth") == (200, True)


def test_a_waiting_job_is_deleted_and_one_in_hand_does_not_come_back(grape: Grape, delayq: Any) -> None:
    grape.produce()
    assert grape("DELETE", "job/delete", tube="mail", jid="7") == (200, True)
    assert grape("DELETE", "job/delete", tube="mail", jid="7") == (200, False)
    grape.produce()
    grape("GET", "job/consume", tube="mail")
    assert grape("DELETE", "job/delete", tube="mail", jid="7") == (200, False)
    grape("PUT", "job/release", tube="mail", jid="7")
    assert grape("GET", "job/consume", tube="mail") == (200, [])
    assert delayq.inspector.get("mail", "7") is None


def test_the_lease_of_another_consumer_can_be_ended_because_grape_knows_no_leases(
    grape: Grape, caller: Callable[..., Caller]
) -> None:
    grape.produce()
    grape("GET", "job/consume", tube="mail")
    assert Grape(caller("consume"))("DELETE", "job/finish", tube="mail", jid="7") == (200, True)


def test_any_characters_and_any_type_of_body_come_through(grape: Grape) -> None:
    ident = "a/b?c=ü %&#"
    assert grape.produce(b"a=b&c=d", jid=ident) == (200, True)
    response = grape.caller.client.post(
        f"{ROOT}grape/api/job/produce?tube=mail&jid=form", b"a=b", "application/x-www-form-urlencoded",
        headers={"Authorization": f"Token {grape.caller.token}"},
    )  # fmt: skip
    assert (response.status_code, response.json()) == (200, True)
    found = grape("GET", "job/consume", tube="mail", max=2)[1]
    assert {one["id"]: one["data"] for one in found} == {ident: encoded(b"a=b&c=d"), "form": encoded(b"a=b")}


def test_no_data_is_data_too(grape: Grape) -> None:
    assert grape("POST", "job/produce", tube="mail", jid="7") == (200, True)
    assert grape("GET", "job/consume", tube="mail") == (200, [job(data=b"")])


def test_a_body_whose_length_is_not_told_is_not_lost(grape: Grape) -> None:
    """As a server under ASGI hands in a chunked body: there is no Content-Length."""
    from io import BytesIO

    from django.core.handlers.asgi import ASGIRequest

    from django_delayq.api.grape.jobs import Produce

    scope = {"type": "http", "method": "POST", "path": "/produce", "query_string": b"tube=mail&jid=7",
             "headers": [(b"authorization", f"Token {grape.caller.token}".encode()),
                         (b"transfer-encoding", b"chunked")]}  # fmt: skip
    response = Produce.as_view()(ASGIRequest(scope, BytesIO(b"chunked")))
    assert response.status_code == 200
    assert grape("GET", "job/consume", tube="mail") == (200, [job(data=b"chunked")])


# --- tubes


def test_tubes_are_made_listed_counted_and_deleted(grape: Grape, delayq: Any) -> None:
    delayq.queue("tasks")
    assert grape("POST", "tube/create", tube="images") == (200, True)
    assert grape("POST", "tube/create", tube="images") == (200, True)
    assert delayq.queue("images").kind == "pull"
    assert grape("GET", "tube/list") == (200, ["images", "mail"])
    for ident in ("a", "b", "c"):
        grape.produce(jid=ident)
    grape.produce(jid="d", dtr=60_000)
    for one in grape("GET", "job/consume", tube="mail", max=2)[1][:1]:
        grape("PUT", "job/bury", tube="mail", jid=one["id"])
    status, mail = grape("GET", "tube/stats/mail")
    now = mail.pop("dateTime")
    assert abs(now - delayq.now_ms()) < 60_000
    assert (status, mail) == (200, {"tubeName": "mail", "delayQueueSize": 2, "retainQueueSize": 1,
                                    "failedQueueSize": 1})  # fmt: skip
    status, both = grape("GET", "tube/stats")
    assert (status, [one["tubeName"] for one in both]) == (200, ["images", "mail"])
    assert {**both[1], "dateTime": 0} == {**mail, "dateTime": 0}
    assert grape("POST", "tube/delete", tube="mail") == (200, True)
    assert grape("GET", "tube/list") == (200, ["images"])


# --- errors


@pytest.mark.parametrize(("query", "code"), [
    ({"tube": "nowhere"}, 1000),
    ({"tube": "tasks"}, 1000),
    ({"tube": ""}, 1001),
    ({"tube": "1st"}, 1002),
    ({"tube": "a b"}, 1002),
    ({"tube": "t" * 65}, 1003),
    ({"jid": ""}, 2001),
    ({"jid": "x" * 256}, 2001),
    ({"jid": "a\nb"}, 2001),
    ({"dtr": "soon"}, 2002),
    ({"dtr": "9" * 19}, 2002),
    ({"dtr": ""}, 2002),
    ({"ttr": "1.5"}, 2003),
    ({"ttr": "9" * 30}, 2003),
])  # fmt: skip
def test_what_is_wrong_is_told_with_grapes_codes(query: dict[str, str], code: int, grape: Grape, delayq: Any) -> None:
    delayq.queue("tasks")
    status, body = grape.produce(**query)
    assert (status, body["code"], sorted(body)) == (400, code, ["code", "desc"])
    assert grape.caller.response["Content-Type"] == "application/json"
    assert delayq.inspector.counts("mail").ready == 0


def test_a_negative_delay_is_none(grape: Grape) -> None:
    assert grape.produce(dtr=-5) == (200, True)
    assert grape("GET", "job/consume", tube="mail") == (200, [job()])


def test_a_tube_cannot_take_the_name_of_another_queue(grape: Grape, delayq: Any) -> None:
    delayq.queue("tasks")
    status, body = grape("POST", "tube/create", tube="tasks")
    assert (status, body["code"]) == (400, 1002)


def test_too_much_data_is_refused(grape: Grape, settings: Any, delayq: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "API": {"max_body": 2048}, "MAX_ARGS_BYTES": 1024}
    assert grape.produce(b"x" * 1024) == (200, True)
    status, body = grape.produce(b"x" * 1025, jid="8")
    assert (status, body["code"]) == (400, 400)
    status, body = grape.produce(b"x" * 2049, jid="8")
    assert (status, body["code"]) == (413, 413)


def test_a_full_tube_and_a_paused_one_refuse(grape: Grape, delayq: Any) -> None:
    delayq.limit("mail", max_length=1)
    grape.produce()
    status, body = grape.produce(jid="8")
    assert (status, body["code"]) == (429, 429)
    assert grape.caller.response["Retry-After"] == "5"
    delayq.pause("mail", "in")
    status, body = grape.produce(jid="9")
    assert (status, body["code"]) == (503, 9999)


def test_an_address_that_grape_does_not_have(grape: Grape) -> None:
    status, body = grape("GET", "job/nothing")
    assert (status, body) == (404, {"code": 404, "desc": "invalid path: /delayq/grape/api/job/nothing"})


def test_a_method_that_grape_does_not_have(grape: Grape) -> None:
    status, body = grape("GET", "job/produce", tube="mail", jid="7")
    assert (status, body["code"]) == (405, 405)


def test_without_a_token_grape_tells_nothing(caller: Callable[..., Caller]) -> None:
    status, body = Grape(caller(anonymous=True))("GET", "tube/list")
    assert (status, body["code"], sorted(body)) == (401, 401, ["code", "desc"])


def test_without_tokens_nobody_gets_in(caller: Callable[..., Caller], settings: Any, api: Caller) -> None:
    sessions = "rest_framework.authentication.SessionAuthentication"
    settings.DELAYQ = {**settings.DELAYQ, "API": {"authentication": [sessions]}}
    status, body = Grape(api)("GET", "tube/list")
    assert (status, body["code"]) == (503, 9999)


def test_grape_is_off_unless_a_project_includes_it(api: Caller, settings: Any) -> None:
    settings.ROOT_URLCONF = "tests.urls"
    assert api.get("grape/api/tube/list")[0] == 404

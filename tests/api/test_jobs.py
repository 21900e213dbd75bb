"""Jobs are listed and shown over HTTP."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from django_delayq.core import settlement
from django_delayq.core.broker import Broker
from django_delayq.core.times import iso_of
from django_delayq.masking import HIDDEN
from tests.support.api_caller import Caller
from tests.support.moments import in_days

from .errands import bury, carry, collect, fail, greet, ids, live, put, reserve, waiting

QUEUE = "v1/queues/errands"
JOBS = f"{QUEUE}/jobs"
#: seconds
LATER = int(in_days(30).timestamp())


# --- lists ---


def test_waiting_jobs_come_in_the_order_of_their_due_times(api: Caller, five: Broker) -> None:
    status, body = api.get(JOBS)
    assert ids((status, body)) == ["now1", "now2", *"abcde"]
    assert body["cursor"] is None
    assert ids(api.get(f"{JOBS}?state=delayed&order=desc")) == [*"edcba"]
    assert ids(api.get(f"{JOBS}?state=ready")) == ["now1", "now2"]


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("state", ["waiting", "delayed"])
def test_pages_go_on_behind_their_cursors(api: Caller, five: Broker, order: str, state: str) -> None:
    whole = ids(api.get(f"{JOBS}?state={state}&order={order}"))
    found, cursor, pages = [], "", 0
    while cursor is not None:
        status, body = api.get(f"{JOBS}?state={state}&order={order}&limit=2&cursor={cursor}")
        found += ids((status, body))
        cursor, pages = body["cursor"], pages + 1
    assert (found, pages) == (whole, -(-len(whole) // 2))


def test_a_list_is_narrowed_by_moments_id_and_task(api: Caller, five: Broker) -> None:
    due = live(five, "c").due_ms
    iso = datetime.fromtimestamp(due / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    assert ids(api.get(f"{JOBS}?min={iso}")) == [*"cde"]
    assert ids(api.get(f"{JOBS}?max={due / 1000:.3f}")) == ["now1", "now2", *"abc"]
    assert ids(api.get(f"{JOBS}?state=delayed&max={iso}&min={iso}")) == ["c"]
    assert ids(api.get(f"{JOBS}?id=c")) == ids(api.get(f"{JOBS}?id=c&state=delayed")) == ["c"]
    assert ids(api.get(f"{JOBS}?id=c&state=ready")) == ids(api.get(f"{JOBS}?id=nosuch")) == []
    assert ids(api.get(f"{JOBS}?task=errands.greet")) == ["now1", "now2"]
    status, body = api.get(f"{JOBS}?task=errands.carry&limit=2")
    assert (ids((status, body)), body["cursor"] is not None, body["examined"]) == (["a", "b"], True, 4)


def test_bounds_never_widen_what_is_ready_or_delayed(api: Caller, five: Broker) -> None:
    later = live(five, "c").due_ms / 1000
    assert ids(api.get(f"{JOBS}?state=ready&max={later:.3f}")) == ["now1", "now2"]
    assert ids(api.get(f"{JOBS}?state=delayed&min=1")) == [*"abcde"]


def test_reserved_gated_and_failed_jobs_have_lists_of_their_own(api: Caller, five: Broker) -> None:
    fail(five, "b", times=2)
    fail(five, "a")
    reserve(five, "c")
    reserve(five, "d")
    put(five, carry, "again", id="d", delay=60)
    assert ids(api.get(f"{JOBS}?state=reserved")) == ["c", "d"]
    assert ids(api.get(f"{JOBS}?state=gated")) == ["d"]
    assert ids(api.get(f"{JOBS}?state=failed")) == ["b", "a"]
    assert ids(api.get(f"{JOBS}?state=failed&by=failures")) == ["a", "b"]
    assert ids(api.get(f"{JOBS}?state=failed&by=failures&min=2")) == ["b"]
    assert ids(api.get(f"{JOBS}?state=failed&by=updated&order=desc&limit=1")) == ["a"]
    assert ids(api.get(f"{JOBS}?state=failed&id=a")) == ["a"]
    assert ids(api.get(f"{JOBS}?state=gated&id=c")) == []


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ("state=morgue", "/state"),
        ("state=reserved&by=due", "/by"),
        ("by=deadline", "/by"),
        ("by=size", "/by"),
        ("order=up", "/order"),
        ("limit=0", "/limit"),
        ("limit=-1", "/limit"),
        ("limit=251", "/limit"),
        ("limit=1000000000000000000", "/limit"),
        ("limit=x", "/limit"),
        ("limit=1.5", "/limit"),
        ("limit=%C2%B2", "/limit"),
        ("min=soon", "/min"),
        ("max=2030-01-01", "/max"),
        ("min=1e400", "/min"),
        ("max=1e17", "/max"),
        ("min=nan", "/min"),
        ("state=failed&by=failures&min=2030-01-01T00:00:00Z", "/min"),
        ("id=x&min=5", "/min"),
        ("id=x&cursor=y", "/cursor"),
        ("id=a%00b", "/id"),
        ("id=" + "x" * 300, "/id"),
        ("colour=red", "/colour"),
    ],
)
def test_a_query_that_makes_no_sense_is_refused(api: Caller, five: Broker, query: str, pointer: str) -> None:
    status, body = api.get(f"{JOBS}?{query}")
    assert (status, body["code"], [error["pointer"] for error in body.get("errors", ())]) == (400, "invalid", [pointer])


# --- one job ---


def test_a_job_counts_timeouts_releases_buries_and_kicks_over_its_whole_life(api: Caller, delayq: Broker) -> None:
    put(delayq, greet, "Ada", id="x")
    queue = delayq.queue("errands")

    def counts() -> dict[str, int]:
        status, body = api.get(f"{JOBS}/x")
        assert status == 200
        return {name: body[name] for name in ("timeouts", "releases", "buries", "kicks")}

    fail(delayq, "x", times=3, delay_ms=0, outcome="timeout")
    for _ in range(2):
        bury(delayq, "x")
        assert api.post(f"{QUEUE}/kick", {"ids": ["x"]})[1]["counts"] == {"kicked": 1}
    assert counts() == {"timeouts": 3, "releases": 0, "buries": 2, "kicks": 2}
    assert queue.settle([settlement.release(reserve(delayq, "x"), delay_ms=0)]) == [True]
    bury(delayq, "x")
    assert counts() == {"timeouts": 3, "releases": 1, "buries": 3, "kicks": 2}
    (buried,) = api.get(f"{QUEUE}/morgue/x")[1]["jobs"]
    assert {name: buried[name] for name in counts()} == counts()


def test_a_job_shows_everything_but_secrets(api: Caller, delayq: Broker) -> None:
    put(
        delayq,
        greet,
        "Ada",
        kwargs={"password": "letmein"},
        id="x",
        at=LATER,
        context={"token": "t", "trace": "r"},
        priority=1,
    )
    view = live(delayq, "x")
    assert view.created_ms is not None and abs(view.created_ms / 1000 - time.time()) < 60
    assert api.get(f"{JOBS}/x") == (
        200,
        {
            "queue": "errands",
            "id": "x",
            "key": view.job.key.hex(),
            "task": "errands.greet",
            "state": "delayed",
            "created": iso_of(view.created_ms),
            "due": iso_of(LATER * 1000),
            "priority": 1,
            "merged": False,
            "failures": 0,
            "reserves": 0,
            "crashes": 0,
            "releases": 0,
            "timeouts": 0,
            "buries": 0,
            "kicks": 0,
            "quarantined": False,
            "parked": False,
            "context": {"token": HIDDEN, "trace": "r"},
            "size": len(view.job.args),
            "cut": False,
            "args": ["Ada"],
            "kwargs": {"password": HIDDEN},
            "gated_due": None,
            "worker": None,
            "lease_ends": None,
            "buried": None,
            "reason": "",
            "outcome": "",
            "error": None,
        },
    )


def test_positional_secrets_and_those_of_errors_are_hidden(api: Caller, delayq: Broker) -> None:
    put(delayq, greet, "Ada", "letmein", id="x")
    fail(delayq, "x")
    body = api.get(f"{JOBS}/x")[1]
    assert (body["args"], body["failures"], body["state"]) == (["Ada", HIDDEN], 1, "delayed")
    assert body["error"] == {"class": "OSError", "message": f"token={HIDDEN}", "traceback": ""}


def test_a_job_in_quarantine_says_why_it_waits(api: Caller, delayq: Broker) -> None:
    put(delayq, carry, 1, id="x")
    fail(delayq, "x", delay_ms=0, outcome="crashed", quarantine=True)
    body = api.get(f"{JOBS}/x")[1]
    assert (body["state"], body["quarantined"]) == ("ready", True)
    (queue,) = [queue for queue in api.get("v1/status")[1]["queues"] if queue["name"] == "errands"]
    assert queue["quarantine"] == 1


def test_a_reserved_job_tells_who_has_it_and_what_waits_behind_it(api: Caller, delayq: Broker) -> None:
    put(delayq, carry, 1, id="x")
    reserve(delayq, "x")
    put(delayq, carry, 2, id="x", at=LATER)
    body = api.get(f"{JOBS}/x")[1]
    lease = datetime.fromtimestamp((live(delayq, "x").deadline_ms or 0) / 1000, UTC).isoformat(timespec="milliseconds")
    told = {name: body[name] for name in ("state", "worker", "lease_ends", "gated_due", "reserves", "args")}
    assert told == {
        "state": "reserved",
        "worker": "w1",
        "lease_ends": lease.replace("+00:00", "Z"),
        "reserves": 1,
        "gated_due": iso_of(LATER * 1000),
        "args": [1],
    }


def test_what_only_python_has_is_shown_as_plain_json(api: Caller, delayq: Broker) -> None:
    from decimal import Decimal
    from uuid import UUID

    moment = datetime(2030, 1, 1, tzinfo=UTC)
    put(delayq, carry, moment, moment.date(), timedelta(minutes=1), Decimal("1.50"), UUID(int=1), b"\xff", id="x")
    assert api.get(f"{JOBS}/x")[1]["args"] == [
        "2030-01-01T00:00:00+00:00",
        "2030-01-01",
        60.0,
        "1.50",
        "00000000-0000-0000-0000-000000000001",
        "/w==",
    ]


def test_the_first_payloads_of_a_merged_job_are_shown(api: Caller, delayq: Broker) -> None:
    for n in range(60):
        put(delayq, collect, id="m", payload={"n": n, "token": "t"}, score=n, delay=60)
    body = api.get(f"{JOBS}/m")[1]
    assert (body["merged"], body["payload_count"], "args" in body) == (True, 60, False)
    assert body["payloads"] == [{"payload": {"n": n, "token": HIDDEN}, "score": str(n)} for n in range(50)]
    assert "payloads" not in api.get(JOBS)[1]["jobs"][0]


def test_large_arguments_are_left_out_of_lists(api: Caller, delayq: Broker) -> None:
    put(delayq, carry, "x" * 20_000, id="x")
    (job,) = api.get(JOBS)[1]["jobs"]
    assert (job["cut"], job["size"], "args" in job) == (True, 20_004, False)
    assert api.get(f"{JOBS}/x")[1]["args"] == ["x" * 20_000]


def test_bytes_are_shown_as_text_or_base64(api: Caller, delayq: Broker, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"raw": {"kind": "pull"}}}
    for ident, body in (("a", {"body": '{"token": "t", "n": 1}'}), ("b", {"body_base64": "/wA="})):
        assert api.post("v1/queues/raw/jobs", {"id": ident, **body})[0] == 201
    shown = [api.get(f"v1/queues/raw/jobs/{ident}")[1] for ident in "ab"]
    assert shown[0]["body"] == f'{{"token": "{HIDDEN}", "n": 1}}'
    assert (shown[1]["body_base64"], shown[1]["task"], "args" in shown[1]) == ("/wA=", "raw", False)


def test_a_buried_job_is_shown_if_none_of_its_id_lives(api: Caller, delayq: Broker) -> None:
    put(delayq, greet, "Ada", id="x")
    bury(delayq, "x", reason="pin=1234")
    body = api.get(f"{JOBS}/x")[1]
    assert (body["state"], body["buried"] is not None, body["args"]) == ("morgue", True, ["Ada"])


def test_what_there_is_not_is_not_found(api: Caller, delayq: Broker) -> None:
    delayq.queue("errands")
    assert [
        (api.get(path)[0], api.get(path)[1]["code"])
        for path in (
            f"{JOBS}/nosuch",
            "v1/queues/nosuch/jobs/x",
            "v1/queues/nosuch/jobs",
            f"{JOBS}/{'x' * 256}",
        )
    ] == [(404, f"{what}_not_found") for what in ("job", "queue", "queue", "job")]
    assert delayq.queue_names() == ["errands"]


@pytest.mark.broken_on_purpose
def test_a_job_that_nobody_can_read_is_shown_as_bytes(api: Caller, delayq: Broker) -> None:
    from django_delayq.core.job import NewJob

    queue = delayq.queue("errands")
    for ident, args in (
        ("a", b"\xff\xfe"),
        ("b", b'["\\ud800", 1e999, NaN]'),
        ("c", b"[" * 5000),
        ("d", b'{"a":[{"$nosuch":1}]}'),
        ("e", b'["\\ud800"]'),
    ):
        queue.schedule(NewJob(ident, "errands.carry", args, options=b'{"context":{"x":NaN,"y":"\\ud800"}}'))
    assert ids(api.get(JOBS)) == [*"abcde"]
    shown = {ident: api.get(f"{JOBS}/{ident}")[1] for ident in "abcde"}
    assert (shown["a"]["body_base64"], shown["d"]["body"], shown["e"]["args"]) == (
        "//4=",
        '{"a": [{"$nosuch": 1}]}',
        ["?"],
    )
    assert shown["a"]["context"] == {"x": "nan", "y": "?"}


# --- who may ---


def test_each_route_asks_for_its_permission(caller: Callable[..., Caller], five: Broker) -> None:
    routes = {
        "view": [
            ("GET", JOBS, None),
            ("GET", f"{JOBS}/a", None),
            ("GET", f"{QUEUE}/morgue", None),
            ("GET", f"{QUEUE}/morgue/a", None),
        ],
        "operate": [
            ("DELETE", f"{JOBS}/a", None),
            ("PATCH", f"{JOBS}/a", {"delay": 1}),
            *(
                ("POST", f"{QUEUE}/{verb}", {"ids": ["a"], **more})
                for verb, more in (
                    ("cancel", {}),
                    ("run-now", {}),
                    ("reschedule", {"delay": 1}),
                    ("kick", {}),
                    ("discard", {}),
                )
            ),
            ("POST", f"{QUEUE}/kill-failed", {}),
            ("POST", f"{QUEUE}/delete-failed", {}),
        ],
    }
    stranger = caller(anonymous=True)
    everything = {"view", "produce", "consume", "operate", "admin"}
    before = [view.due_ms for view in five.inspector.page("errands", "waiting").jobs]
    for action, calls in routes.items():
        others = caller(*(everything - {action}))
        assert [stranger(*call)[0] for call in calls] == [401] * len(calls)
        assert [others(*call)[0] for call in calls] == [403] * len(calls)
    assert [view.due_ms for view in five.inspector.page("errands", "waiting").jobs] == before
    for action, calls in routes.items():
        allowed = caller(action)
        assert {allowed(*call)[0] for call in calls} <= {200, 404}


def test_no_route_answers_another_method(api: Caller, five: Broker) -> None:
    for method, path in (
        ("PUT", JOBS),
        ("DELETE", JOBS),
        ("POST", f"{JOBS}/a"),
        ("GET", f"{QUEUE}/cancel"),
        ("DELETE", f"{QUEUE}/kick"),
        ("GET", f"{QUEUE}/kill-failed"),
        ("POST", f"{QUEUE}/morgue"),
    ):
        status, body = api(method, path)
        assert (status, body["code"]) == (405, "method_not_allowed")
    assert len(waiting(five)) == 7

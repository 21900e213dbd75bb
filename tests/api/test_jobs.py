"""Jobs are listed and shown over HTTP."""

from __future__ import annotations

import base64
import time
from typing import Any

import pytest

from django_delayq.api import jobs
from django_delayq.api.requests import filter_of
from django_delayq.core import outcomes as settlement, reading
from django_delayq.core.broker import Broker
from django_delayq.core.job import NewJob
from django_delayq.core.times import datetime_of, iso_of
from django_delayq.masking import HIDDEN
from tests.support.api_caller import Caller
from tests.support.moments import in_days

from .errands import FIRST, HALF_PAST, bury, carry, collect, fail, greet, ids, live, put, reserve

QUEUE = "v1/queues/errands"
JOBS = f"{QUEUE}/jobs"
#: seconds
LATER = int(in_days(30).timestamp())
MORGUE = f"{QUEUE}/morgue"

pytestmark = pytest.mark.django_db


# --- lists ---


def pages(api: Caller, address: str) -> list[list[dict[str, Any]]]:
    """The jobs of each page, the next of which is asked for with the cursor of the last."""
    found, cursor = [], ""
    while cursor is not None:
        status, body = api.get(f"{address}&cursor={cursor}")
        assert status == 200
        found.append(body["jobs"])
        cursor = body["cursor"]
    return found


def test_waiting_jobs_come_in_the_order_of_their_due_times(api: Caller, five: Broker) -> None:
    status, body = api.get(JOBS)
    assert ids((status, body)) == ["now1", "now2", *"abcde"]
    assert body["cursor"] is None
    assert ids(api.get(f"{JOBS}?state=delayed&order=desc")) == [*"edcba"]
    assert ids(api.get(f"{JOBS}?state=ready")) == ["now1", "now2"]


def test_pages_go_on_behind_their_cursors(api: Caller, five: Broker) -> None:
    for ident in ("x", "y", "z"):
        put(five, greet, ident, id=ident)
        bury(five, ident)
    fives = [f"{JOBS}?state={state}&order={order}" for state in ("waiting", "delayed") for order in ("asc", "desc")]
    for address in (*fives, f"{MORGUE}?by=id"):
        whole = ids(api.get(address))
        found = [[job["id"] for job in page] for page in pages(api, f"{address}&limit=2")]
        assert found == [whole[start : start + 2] for start in range(0, len(whole), 2)], address


def test_a_list_is_narrowed_by_moments_id_and_task(api: Caller, five: Broker) -> None:
    due = live(five, "c").due_ms
    iso = iso_of(due)
    assert ids(api.get(f"{JOBS}?min={iso}")) == [*"cde"]
    assert ids(api.get(f"{JOBS}?max={due / 1000:.3f}")) == ["now1", "now2", *"abc"]
    assert ids(api.get(f"{JOBS}?state=delayed&max={iso}&min={iso}")) == ["c"]
    assert ids(api.get(f"{JOBS}?state=ready&max={iso}")) == ["now1", "now2"], "bounds never widen what is ready"
    assert ids(api.get(f"{JOBS}?state=delayed&min=1")) == [*"abcde"], "or delayed"
    assert ids(api.get(f"{JOBS}?id=c")) == ids(api.get(f"{JOBS}?id=c&state=delayed")) == ["c"]
    assert ids(api.get(f"{JOBS}?id=c&state=ready")) == ids(api.get(f"{JOBS}?id=nosuch")) == []
    assert ids(api.get(f"{JOBS}?task=errands.greet")) == ["now1", "now2"]
    status, body = api.get(f"{JOBS}?task=errands.carry&limit=2")
    assert (ids((status, body)), body["cursor"] is not None, body["examined"]) == (["a", "b"], True, 4)


def test_reserved_gated_and_failed_jobs_have_lists_of_their_own(api: Caller, five: Broker) -> None:
    fail(five, "b", times=2)
    fail(five, "a")
    reserve(five, "c")
    reserve(five, "d")
    put(five, carry, "again", id="d", delay=60)
    for query, found in {
        "reserved": "cd",
        "gated": "d",
        "failed": "ba",
        "failed&by=failures": "ab",
        "failed&by=failures&min=2": "b",
        "failed&by=updated&order=desc&limit=1": "a",
        "failed&id=a": "a",
        "gated&id=c": "",
    }.items():
        assert ids(api.get(f"{JOBS}?state={query}")) == [*found], query


def test_the_morgue_is_listed_by_burial_or_id_in_both_directions(api: Caller, three: Broker) -> None:
    moment = (live(three, "a").buried_ms or 0) / 1000
    for query, found in {
        "": "cab",
        "by=updated": "cab",
        "order=desc": "bac",
        "by=id": "abc",
        "by=id&order=desc&min=b": "cb",
        "by=id&max=b": "ab",
        "id=b": "b",
        "task=errands.carry": "",
        f"min={moment + 60:.3f}": "",
    }.items():
        assert ids(api.get(f"{MORGUE}?{query}")) == [*found], query
    assert "a" in ids(api.get(f"{MORGUE}?min={moment:.3f}&max={moment:.3f}"))
    put(three, greet, "x", id="alive")
    assert (api.get(f"{MORGUE}/alive")[0], ids(api.get(f"{MORGUE}?id=alive"))) == (404, [])


def test_all_records_of_an_id_are_shown_page_by_page_the_last_one_first(api: Caller, delayq: Broker) -> None:
    for n, ident in enumerate(["a/b c"] * 5 + ["b"]):
        put(delayq, carry, n, id=ident)
        bury(delayq, ident, reason="exhausted")
    found = pages(api, f"{MORGUE}/a%2Fb%20c?limit=2")
    assert [[job["args"] for job in page] for page in found] == [[[4], [3]], [[2], [1]], [[0]]]
    assert {(job["state"], job["reason"], job["error"]["class"]) for page in found for job in page} == {
        ("morgue", "exhausted", "OSError")
    }
    status, body = api.get(f"{MORGUE}/nosuch")
    assert (status, body["code"]) == (404, "job_not_found")


def test_what_one_answer_about_an_id_holds_is_bounded(api: Caller, delayq: Broker) -> None:
    for n in range(9):
        put(delayq, carry, n, "x" * 300_000, id="a")
        bury(delayq, "a")
    found = pages(api, f"{MORGUE}/a?limit=250")
    assert [[job["args"][0] for job in page] for page in found] == [[8, 7, 6, 5], [4, 3, 2, 1], [0]]
    assert {job["cut"] for page in found for job in page} == {False}


def test_jobs_are_listed_by_conditions(api: Caller, stock: Broker) -> None:
    two_hours_later = FIRST.timestamp() + 2 * 3600
    rows = {
        "jobs?prefix=north": ["north-1", "north-2"],
        "jobs?text=TO%20SOUTH": ["south-1"],
        f"jobs?due_from={HALF_PAST}&due_before={two_hours_later}": ["north-2"],
        "jobs?task=errands.greet": ["greet-1"],
        "jobs?failures=2": ["failed-2", "failed-3"],
        "jobs?state=failed&failures=2": ["failed-2", "failed-3"],
        "jobs?failures=1&failures_to=2": ["failed-1", "failed-2"],
        "jobs?state=failed&failures=&failures_to=2": ["failed-1", "failed-2"],
        "jobs?failures_to=0&prefix=south": ["south-1"],
        "jobs?state=failed&failures=2&by=updated&order=desc": ["failed-2", "failed-3"],
        "jobs?never_started=true&prefix=no": ["north-1", "north-2"],
        "jobs?state=reserved&prefix=north": ["north-running"],
        "jobs?state=reserved&text=nothing": [],
        "jobs?id=north-1&text=north": ["north-1"],
        "jobs?id=north-1&task=errands.greet": [],
        "morgue?prefix=north": ["north-dead"],
        "morgue?text=to%20south": ["south-dead"],
        "morgue?text=oserror": ["north-dead", "south-dead"],
        "jobs?text=Ada": ["greet-1"],
        "jobs?text=letmein": [],  # a masked value
        "jobs?id_from=north-2&id_to=south-1": ["north-2", "south-1"],
        f"jobs?buried_before={FIRST.timestamp()}": [],
        "morgue?id_from=south": ["south-dead"],
        f"morgue?buried_from={HALF_PAST}": [],
        f"morgue?buried_before={FIRST.timestamp()}&id_to=north-dead": ["north-dead"],
    }
    assert {path: sorted(ids(api.get(f"{QUEUE}/{path}"))) for path in rows} == rows


def test_a_page_with_conditions_ends_in_time_and_says_how_far_it_looked(
    api: Caller, delayq: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "PAGE_SECONDS", 0.0)
    monkeypatch.setattr(reading, "_AT_ONCE_COMPLETE", 5)
    for number in range(12):
        put(delayq, carry, "wanted" if number == 11 else "", id=f"j{number:02}", delay=60)
    found, cursor, examined = [], "", []
    while cursor is not None:
        status, body = api.get(f"{JOBS}?text=wanted&cursor={cursor}")
        found += ids((status, body))
        cursor = body["cursor"]
        examined.append(body["examined"])
    assert (found, examined) == (["j11"], [5, 5, 2])


@pytest.mark.parametrize("text", [False, True])
def test_a_moment_is_the_very_millisecond_that_it_names(text: bool) -> None:
    """A sum in floating point would be a fraction above some of them, and leave out the job of that millisecond."""
    for ms in range(1_795_413_660_000, 1_795_413_661_000):
        moment = datetime_of(ms) if text else ms / 1000
        assert filter_of({"buried_from": moment}).buried_from_ms == ms


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
    told = {name: body[name] for name in ("state", "worker", "lease_ends", "gated_due", "reserves", "args")}
    assert told == {
        "state": "reserved",
        "worker": "w1",
        "lease_ends": iso_of(live(delayq, "x").deadline_ms),
        "reserves": 1,
        "gated_due": iso_of(LATER * 1000),
        "args": [1],
    }


def test_the_first_payloads_of_a_merged_job_are_shown(api: Caller, delayq: Broker) -> None:
    for n in range(60):
        put(delayq, collect, id="m", payload={"n": n, "token": "t"}, score=n, delay=60)
    body = api.get(f"{JOBS}/m")[1]
    assert (body["merged"], body["payload_count"], "args" in body) == (True, 60, False)
    assert body["payloads"] == [{"payload": {"n": n, "token": HIDDEN}, "score": str(n)} for n in range(50)]
    assert "payloads" not in api.get(JOBS)[1]["jobs"][0]
    assert ids(api.get(f'{JOBS}?text="n":59')) == ["m"], "payloads are searched"
    assert ids(api.get(f'{JOBS}?text="n":60')) == []


def test_large_arguments_are_left_out_of_lists(api: Caller, delayq: Broker) -> None:
    put(delayq, carry, "x" * 20_000, id="x")
    (job,) = api.get(JOBS)[1]["jobs"]
    assert (job["cut"], job["size"], "args" in job) == (True, 20_004, False)
    assert api.get(f"{JOBS}/x")[1]["args"] == ["x" * 20_000]


def test_bytes_are_shown_as_text_or_base64(api: Caller, delayq: Broker, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"raw": {"kind": "pull"}}}
    latin = base64.b64encode(b'{"password": "open sesame", "name": "M\xfcller"}').decode()
    for ident, body in (
        ("a", {"body": '{"token": "t", "n": 1}'}),
        ("b", {"body_base64": "/wA="}),
        ("c", {"body_base64": latin}),
    ):
        assert api.post("v1/queues/raw/jobs", {"id": ident, **body})[0] == 201
    shown = [api.get(f"v1/queues/raw/jobs/{ident}")[1] for ident in "abc"]
    hidden = base64.b64decode(shown[2]["body_base64"])
    assert (b"sesame" in hidden, b"M\xfcller" in hidden) == (False, True), "in bytes that are no UTF-8 as well"
    assert shown[0]["body"] == f'{{"token": "{HIDDEN}", "n": 1}}'
    assert (shown[1]["body_base64"], shown[1]["task"], "args" in shown[1]) == ("/wA=", "raw", False)


def test_what_there_is_not_is_not_found(api: Caller, delayq: Broker) -> None:
    delayq.queue("errands")
    assert [
        (api.get(path)[0], api.get(path)[1]["code"])
        for path in (f"{JOBS}/nosuch", "v1/queues/nosuch/jobs/x", "v1/queues/nosuch/jobs", f"{JOBS}/{'x' * 256}")
    ] == [(404, f"{what}_not_found") for what in ("job", "queue", "queue", "job")]
    assert delayq.queue_names() == ["errands"]


@pytest.mark.broken_on_purpose
def test_a_job_that_nobody_can_read_is_shown_as_bytes(api: Caller, delayq: Broker) -> None:
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


def test_what_is_larger_than_an_answer_may_be_is_left_out_of_it(api: Caller, delayq: Broker) -> None:
    for n in range(20):
        put(delayq, collect, id="m", payload=f"{n}" + "x" * 100_000, score=n)
    bury(delayq, "m")
    (job,) = api.get(f"{MORGUE}/m")[1]["jobs"]
    assert (job["cut"], job["payload_count"], job["payloads"], job["size"] > 2_000_000) == (True, 20, [], True)
    assert api.get(f"{QUEUE}/jobs/m")[1] == job

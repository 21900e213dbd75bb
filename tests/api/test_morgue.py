"""The morgue over HTTP: looked at, emptied, brought back."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from django_delayq.api import jobs as module
from django_delayq.core import outcomes as settlement
from django_delayq.core.broker import Broker
from django_delayq.core.job import NewJob
from tests.support.api_caller import Caller

from .errands import bury, carry, collect, greet, live, put, reserve, waiting

QUEUE = "v1/queues/errands"
MORGUE = f"{QUEUE}/morgue"


def ids(answer: tuple[int, Any]) -> list[str]:
    assert answer[0] == 200, answer
    return [job["id"] for job in answer[1]["jobs"]]


def buried(broker: Broker) -> list[str]:
    return [view.id for view in broker.inspector.page("errands", "morgue", limit=250).jobs]


@pytest.fixture
def three(delayq: Broker) -> Broker:
    """c, a and b were buried in this order."""
    for ident in "cab":
        put(delayq, greet, ident, id=ident)
        bury(delayq, ident)
    return delayq


def test_the_morgue_is_listed_by_burial_or_id_in_both_directions(api: Caller, three: Broker) -> None:
    assert ids(api.get(MORGUE)) == ids(api.get(f"{MORGUE}?by=updated")) == [*"cab"]
    assert ids(api.get(f"{MORGUE}?order=desc")) == [*"bac"]
    assert ids(api.get(f"{MORGUE}?by=id")) == [*"abc"]
    assert ids(api.get(f"{MORGUE}?by=id&order=desc&min=b")) == [*"cb"]
    assert ids(api.get(f"{MORGUE}?by=id&max=b")) == [*"ab"]
    assert ids(api.get(f"{MORGUE}?id=b")) == ["b"]
    assert ids(api.get(f"{MORGUE}?task=errands.carry")) == []
    moment = (live(three, "a").buried_ms or 0) / 1000
    assert "a" in ids(api.get(f"{MORGUE}?min={moment:.3f}&max={moment:.3f}"))
    assert ids(api.get(f"{MORGUE}?min={moment + 60:.3f}")) == []


def test_its_pages_go_on_behind_their_cursors(api: Caller, three: Broker) -> None:
    found, cursor = [], ""
    while cursor is not None:
        status, body = api.get(f"{MORGUE}?by=id&limit=1&cursor={cursor}")
        found += ids((status, body))
        cursor = body["cursor"]
    assert found == [*"abc"]


def test_all_records_of_an_id_are_shown_the_last_one_first(api: Caller, delayq: Broker) -> None:
    for n in (1, 2):
        put(delayq, carry, n, id="a/b c")
        bury(delayq, "a/b c", reason="exhausted")
    status, body = api.get(f"{MORGUE}/a%2Fb%20c")
    assert (status, [job["args"] for job in body["jobs"]], body["cursor"]) == (200, [[2], [1]], None)
    assert [(job["state"], job["reason"], job["error"]["class"]) for job in body["jobs"]] == [
        ("morgue", "exhausted", "OSError")
    ] * 2
    status, body = api.get(f"{MORGUE}/nosuch")
    assert (status, body["code"]) == (404, "job_not_found")


def pages(api: Caller, address: str) -> list[list[dict[str, Any]]]:
    """The jobs of each page, the next of which is asked for with the cursor of the last."""
    found, cursor = [], ""
    while cursor is not None:
        status, body = api.get(f"{address}&cursor={cursor}")
        assert status == 200
        found.append(body["jobs"])
        cursor = body["cursor"]
    return found


def test_the_records_of_an_id_are_shown_page_by_page(api: Caller, delayq: Broker) -> None:
    for n in range(5):
        put(delayq, carry, n, id="a")
        bury(delayq, "a")
    put(delayq, carry, id="b")
    bury(delayq, "b")
    assert [[job["args"] for job in page] for page in pages(api, f"{MORGUE}/a?limit=2")] == [
        [[4], [3]],
        [[2], [1]],
        [[0]],
    ]
    for wrong in ("limit=0", "limit=251", "limit=x", "cursor=x", "order=asc"):
        assert api.get(f"{MORGUE}/a?{wrong}")[0] == 400


def test_what_one_answer_about_an_id_holds_is_bounded(api: Caller, delayq: Broker) -> None:
    for n in range(9):
        put(delayq, carry, n, "x" * 300_000, id="a")
        bury(delayq, "a")
    found = pages(api, f"{MORGUE}/a?limit=250")
    assert [[job["args"][0] for job in page] for page in found] == [[8, 7, 6, 5], [4, 3, 2, 1], [0]]
    assert {job["cut"] for page in found for job in page} == {False}


def test_what_is_larger_than_an_answer_may_be_is_left_out_of_it(api: Caller, delayq: Broker) -> None:
    for n in range(20):
        put(delayq, collect, id="m", payload=f"{n}" + "x" * 100_000, score=n)
    bury(delayq, "m")
    (job,) = api.get(f"{MORGUE}/m")[1]["jobs"]
    assert (job["cut"], job["payload_count"], job["payloads"], job["size"] > 2_000_000) == (True, 20, [], True)
    assert api.get(f"{QUEUE}/jobs/m")[1] == job


def test_payloads_of_a_buried_job_are_shown(api: Caller, delayq: Broker) -> None:
    for n in range(3):
        put(delayq, collect, id="m", payload=n, score=n)
    bury(delayq, "m")
    (job,) = api.get(f"{MORGUE}/m")[1]["jobs"]
    assert (job["payload_count"], job["payloads"]) == (3, [{"payload": n, "score": str(n)} for n in range(3)])


def test_jobs_are_kicked_one_by_one_with_a_delay(api: Caller, three: Broker) -> None:
    put(three, greet, "again", id="a", delay=5)
    assert api.post(f"{QUEUE}/kick", {"ids": ["a", "b", "nosuch"], "delay": 60}) == (
        200,
        {
            "results": [
                {"id": "a", "outcome": "live"},
                {"id": "b", "outcome": "kicked"},
                {"id": "nosuch", "outcome": "gone"},
            ],
            "counts": {"live": 1, "kicked": 1, "gone": 1},
        },
    )
    assert (waiting(three), buried(three)) == (["a", "b"], ["c", "a"])
    assert 55_000 < live(three, "b").due_ms - three.now_ms() <= 60_000


def test_a_kick_may_take_the_place_of_a_live_job(api: Caller, three: Broker) -> None:
    put(three, greet, "again", id="a", delay=5)
    assert api.post(f"{QUEUE}/kick", {"ids": ["a"], "replace": True})[1]["counts"] == {"kicked": 1}
    assert live(three, "a").arguments == (["a"], {})


def test_a_certain_record_is_kicked_or_discarded_by_its_key(api: Caller, delayq: Broker) -> None:
    for n in (1, 2, 3):
        put(delayq, carry, n, id="a")
        bury(delayq, "a")
    third, second, first = (job["key"] for job in api.get(f"{MORGUE}/a")[1]["jobs"])
    assert api.post(f"{QUEUE}/discard", {"jobs": [{"id": "a", "key": second}]})[1]["counts"] == {"discarded": 1}
    assert api.post(f"{QUEUE}/kick", {"jobs": [{"id": "a", "key": first}]})[1]["counts"] == {"kicked": 1}
    assert live(delayq, "a").arguments == ([1], {})
    assert [job["key"] for job in api.get(f"{MORGUE}/a")[1]["jobs"]] == [third]
    assert api.post(f"{QUEUE}/discard", {"jobs": [{"id": "a"}, {"id": "a"}]})[1]["counts"] == {
        "discarded": 1,
        "gone": 1,
    }


def test_all_are_kicked_at_a_pace(api: Caller, three: Broker) -> None:
    assert api.post(f"{QUEUE}/kick", {"all": True, "delay": 100, "per_second": 0.1}) == (
        200,
        {"counts": {"kicked": 3}, "complete": True, "seen": 3, "total": 3},
    )
    dues = [live(three, ident).due_ms for ident in waiting(three)]
    assert [round((due - dues[0]) / 1000) for due in dues] == [0, 10, 20]
    assert 95_000 < dues[0] - three.now_ms() <= 100_000


def test_all_that_is_old_is_discarded(api: Caller, three: Broker) -> None:
    assert api.post(f"{QUEUE}/discard", {"all": True, "older_than": 3600})[1] == {
        "counts": {},
        "complete": True,
        "seen": 0,
        "total": 3,
    }
    assert len(buried(three)) == 3
    assert api.post(f"{QUEUE}/discard", {"all": True})[1]["counts"] == {"discarded": 3}
    assert buried(three) == []


def test_some_are_discarded(api: Caller, three: Broker) -> None:
    assert api.post(f"{QUEUE}/discard", {"ids": ["a", "nosuch"]})[1]["counts"] == {"discarded": 1, "gone": 1}
    assert buried(three) == ["c", "b"]


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        *(
            (verb, body)
            for verb in ("kick", "discard")
            for body in (
                {},
                {"ids": []},
                {"jobs": []},
                {"jobs": ["a"]},
                {"jobs": [{"key": "00" * 16}]},
                {"jobs": [{"id": "a", "key": "zz"}]},
                {"jobs": [{"id": "a", "key": "é" * 32}]},
                {"jobs": [{"id": "a", "key": 5}]},
                {"jobs": [{"id": "a", "x": 1}]},
                {"ids": ["a"], "jobs": [{"id": "a"}]},
                {"all": False},
                {"ids": ["a"], "all": True},
                {"ids": ["a\0"]},
                [],
                "5",
            )
        ),
        ("kick", {"ids": ["a"], "delay": "soon"}),
        ("kick", {"ids": ["a"], "delay": 1e300}),
        ("kick", {"ids": ["a"], "replace": 1}),
        ("kick", {"all": True, "per_second": 0}),
        ("kick", {"all": True, "per_second": -1}),
        ("kick", {"all": True, "per_second": 1e-300}),
        ("kick", {"all": True, "per_second": "5"}),
        ("kick", {"ids": ["a"], "per_second": 5}),
        ("kick", {"ids": ["a"], "older_than": 5}),
        ("discard", {"ids": ["a"], "older_than": 5}),
        ("discard", {"all": True, "older_than": -5}),
        ("discard", {"all": True, "older_than": None}),
    ],
)
def test_what_cannot_be_meant_is_refused(api: Caller, three: Broker, verb: str, body: Any) -> None:
    status, answer = api.post(f"{QUEUE}/{verb}", body)
    assert (status, answer["code"], buried(three), waiting(three)) == (400, "invalid", [*"cab"], [])


@pytest.mark.parametrize(
    "query", ["by=due", "state=waiting", "limit=0", "by=id&min=%00", "order=", "id=a&max=b", "min=x"]
)
def test_a_query_that_makes_no_sense_is_refused(api: Caller, three: Broker, query: str) -> None:
    status, answer = api.get(f"{MORGUE}?{query}")
    assert (status, answer["code"]) == (400, "invalid")


def test_a_live_job_is_not_in_the_morgue(api: Caller, delayq: Broker) -> None:
    put(delayq, greet, "a", id="a")
    reserve(delayq, "a")
    assert api.get(f"{MORGUE}/a")[0] == 404
    assert ids(api.get(f"{MORGUE}?id=a")) == []


def test_a_pace_goes_on_over_the_requests_that_a_large_morgue_takes(
    api: Caller, delayq: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LONGEST", -1.0)
    queue = delayq.queue("errands")
    queue.schedule_many([NewJob(f"j{number}", greet.name, b"[]") for number in range(600)])
    while jobs := queue.reserve(queue.numbers[0], 250, worker="w1").jobs:
        queue.settle([settlement.bury(job, 1, 1, reason="exhausted") for job in jobs])
    body: dict[str, Any] = {"all": True, "per_second": 50, "delay": 60}
    answers = [api.post(f"{QUEUE}/kick", body)[1]]
    while not answers[-1]["complete"]:
        answers.append(api.post(f"{QUEUE}/kick", {**body, "cursor": answers[-1]["cursor"]})[1])
    assert ([one["complete"] for one in answers], "cursor" in answers[-1]) == ([False, False, True], False)
    dues = [view.due_ms for page in pages_of(delayq) for view in page]
    gaps = [later - earlier for earlier, later in itertools.pairwise(dues)]
    assert (len(dues), min(gaps), max(gaps)) == (600, 20, 20)


def pages_of(broker: Broker) -> Iterator[Any]:
    """Yield the waiting jobs by due time, page by page."""
    page = broker.inspector.page("errands", "waiting", limit=250)
    yield page.jobs
    while page.cursor:
        page = broker.inspector.page("errands", "waiting", limit=250, cursor=page.cursor)
        yield page.jobs


@pytest.mark.parametrize("wrong", ["x", "-1", "nan", "inf", "1e3", "", "MQ"])
def test_a_kick_at_a_pace_takes_the_cursors_of_its_own_answers_only(api: Caller, delayq: Broker, wrong: str) -> None:
    delayq.queue("errands")
    assert api.post(f"{QUEUE}/kick", {"all": True, "per_second": 50, "cursor": wrong})[0] == 400
    assert api.post(f"{QUEUE}/kick", {"all": True, "cursor": "1"})[0] == 400

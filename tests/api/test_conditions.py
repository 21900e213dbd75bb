"""Conditions over HTTP: lists, searches, and bulk verbs on what matches.

Nereus is the model: it lists live jobs by range of id, of time and of retries, and its operators act on what they see.
"""

from __future__ import annotations

from typing import Any

import pytest

from django_delayq.api import jobs
from django_delayq.core import reading
from django_delayq.core.broker import Broker
from tests.support.api_caller import Caller
from tests.support.moments import in_days

from .errands import bury, carry, collect, fail, greet, ids, put, reserve, waiting

QUEUE = "v1/queues/errands"
JOBS = f"{QUEUE}/jobs"
#: due time of the first job
FIRST = in_days(30)
HALF_PAST = f"{FIRST:%Y-%m-%dT}00:30:00Z"
pytestmark = pytest.mark.django_db


@pytest.fixture
def stock(delayq: Broker) -> Broker:
    """Jobs of two customers that wait; three failed, one runs, two are buried."""
    for ident, hours in (("north-1", 0), ("north-2", 1), ("south-1", 2)):
        put(delayq, carry, f"to {ident}", id=ident, at=FIRST.timestamp() + hours * 3600)
    put(delayq, greet, "Ada", kwargs={"password": "letmein"}, id="greet-1", at=FIRST.timestamp() + 4 * 3600)
    for ident, times in (("failed-1", 1), ("failed-2", 2), ("failed-3", 3)):
        put(delayq, carry, id=ident)
        fail(delayq, ident, times=times)
    put(delayq, carry, "running", id="north-running")
    reserve(delayq, "north-running")
    for ident in ("north-dead", "south-dead"):
        put(delayq, carry, f"to {ident}", id=ident)
        bury(delayq, ident)
    return delayq


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("jobs?prefix=north", ["north-1", "north-2"]),
        ("jobs?text=TO%20SOUTH", ["south-1"]),
        ("jobs?due_from={half_past}&due_before={two_hours_later}", ["north-2"]),
        ("jobs?task=errands.greet", ["greet-1"]),
        ("jobs?failures=2", ["failed-2", "failed-3"]),
        ("jobs?state=failed&failures=2", ["failed-2", "failed-3"]),
        ("jobs?failures=1&failures_to=2", ["failed-1", "failed-2"]),
        ("jobs?state=failed&failures=&failures_to=2", ["failed-1", "failed-2"]),
        ("jobs?failures_to=0&prefix=south", ["south-1"]),
        ("jobs?state=failed&failures=2&by=updated&order=desc", ["failed-3", "failed-2"]),
        ("jobs?never_started=true&prefix=no", ["north-1", "north-2"]),
        ("jobs?state=reserved&prefix=north", ["north-running"]),
        ("jobs?state=reserved&text=nothing", []),
        ("jobs?id=north-1&text=north", ["north-1"]),
        ("jobs?id=north-1&task=errands.greet", []),
        ("morgue?prefix=north", ["north-dead"]),
        ("morgue?text=to%20south", ["south-dead"]),
        ("morgue?text=oserror", ["north-dead", "south-dead"]),
    ],
)
def test_jobs_are_listed_by_conditions(api: Caller, stock: Broker, path: str, found: list[str]) -> None:
    path = path.format(half_past=HALF_PAST, two_hours_later=FIRST.timestamp() + 2 * 3600)
    assert sorted(ids(api.get(f"{QUEUE}/{path}"))) == sorted(found)


def test_masked_values_are_not_searched(api: Caller, stock: Broker) -> None:
    assert ids(api.get(f"{JOBS}?text=Ada")) == ["greet-1"]
    assert ids(api.get(f"{JOBS}?text=letmein")) == []
    assert api.post(f"{QUEUE}/cancel", {"where": {"text": "letmein"}})[1]["counts"] == {}
    assert "greet-1" in waiting(stock)


def test_payloads_of_merged_jobs_are_searched(api: Caller, delayq: Broker) -> None:
    for number in range(3):
        put(delayq, collect, id="m", payload={"number": number})
    assert ids(api.get(f'{JOBS}?text="number":2')) == ["m"]
    assert ids(api.get(f'{JOBS}?text="number":5')) == []


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


@pytest.mark.parametrize(
    ("verb", "where", "counts", "left"),
    [
        ("cancel", {"prefix": "north"}, {"cancelled": 2}, ["south-1", "greet-1"]),
        (
            "cancel",
            {"due_before": HALF_PAST, "task": carry.name, "never_started": True},
            {"cancelled": 1},
            ["north-2", "south-1", "greet-1"],
        ),
        ("run-now", {"text": "to south"}, {"moved": 1}, ["south-1", "north-1", "north-2", "greet-1"]),
    ],
)
def test_a_verb_changes_the_waiting_jobs_that_match(
    api: Caller, stock: Broker, verb: str, where: dict[str, Any], counts: dict[str, int], left: list[str]
) -> None:
    status, body = api.post(f"{QUEUE}/{verb}", {"where": where})
    assert (status, body["counts"], body["complete"]) == (200, counts, True)
    assert "cursor" not in body
    assert [ident for ident in waiting(stock) if not ident.startswith("failed")] == left
    assert stock.inspector.counts("errands").reserved == 1


def test_failed_jobs_that_match_are_buried_or_deleted(api: Caller, stock: Broker) -> None:
    assert api.post(f"{QUEUE}/kill-failed", {"where": {"failures": 5, "failures_to": 4}})[0] == 400
    assert api.post(f"{QUEUE}/kill-failed", {"where": {"failures": 3}})[1]["counts"] == {"killed": 1}
    assert api.post(f"{QUEUE}/delete-failed", {"where": {"prefix": "failed-1"}})[1]["counts"] == {"deleted": 1}
    assert [ident for ident in waiting(stock) if ident.startswith("failed")] == ["failed-2"]


def test_morgue_records_that_match_are_kicked_or_discarded(api: Caller, stock: Broker) -> None:
    kicked = api.post(f"{QUEUE}/kick", {"where": {"text": "to north"}, "delay": 60})
    assert (kicked[0], kicked[1]["counts"]) == (200, {"kicked": 1})
    assert api.post(f"{QUEUE}/discard", {"where": {"prefix": "south"}})[1]["counts"] == {"discarded": 1}
    assert stock.inspector.counts("errands").morgue == 0
    assert "north-dead" in waiting(stock)


def test_a_verb_ends_in_time_and_its_cursor_continues(
    api: Caller, delayq: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "LONGEST", 0.0)
    for number in range(600):
        put(delayq, carry, id=f"{'a' if number % 100 == 0 else 'b'}-{number:03}", delay=60)
    body: dict[str, Any] = {"where": {"prefix": "a-"}}
    cancelled = requests = 0
    while True:
        status, answer = api.post(f"{QUEUE}/cancel", body)
        assert status == 200
        cancelled, requests = cancelled + answer["counts"].get("cancelled", 0), requests + 1
        if answer["complete"]:
            break
        body["cursor"] = answer["cursor"]
    assert (cancelled, requests) == (6, 3)


@pytest.mark.parametrize(
    ("verb", "body", "pointer", "text"),
    [
        ("cancel", {"where": {}}, "/where", "at least one condition"),
        ("cancel", {"where": {"colour": "red"}}, "/where/colour", "unknown member"),
        ("cancel", {"where": {"failures": -1}}, "/where/failures", "failures"),
        ("cancel", {"where": {"due_from": "soon"}}, "/where/due_from", "no moment"),
        ("cancel", {"where": {"text": "x" * 2000}}, "/where/text", "up to 1000"),
        ("cancel", {"where": {"task": "a"}, "all": True}, "", "exactly one"),
        ("cancel", {"where": 5}, "/where", ""),
        ("kill-failed", {"cursor": ""}, "/cursor", "goes with where"),
        ("discard", {"where": {"task": "a"}, "older_than": 5}, "/older_than", "goes with all"),
        ("run-now", {"where": {"task": "a"}, "cursor": "x"}, "/cursor", "is not a cursor"),
        ("run-now", {"where": {"task": "a"}, "cursor": ["x"]}, "/cursor", "a cursor is a text"),
        ("kick", {"where": {"task": "a"}, "cursor": 5}, "/cursor", "a cursor is a text"),
    ],
)
def test_conditions_that_make_no_sense_are_refused(
    api: Caller, stock: Broker, verb: str, body: dict[str, Any], pointer: str, text: str
) -> None:
    before = waiting(stock)
    status, problem = api.post(f"{QUEUE}/{verb}", body)
    assert status == 400, problem
    (error,) = problem["errors"]
    assert (error["pointer"], text in error["detail"]) == (pointer, True), error
    assert waiting(stock) == before


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ("failures=x", "/failures"),
        ("failures_to=x", "/failures_to"),
        ("due_from=soon", "/due_from"),
        ("text=" + "x" * 1001, "/text"),
        ("prefix=a%00", "/prefix"),
    ],
)
def test_a_query_that_makes_no_sense_is_refused(api: Caller, stock: Broker, query: str, pointer: str) -> None:
    status, problem = api.get(f"{JOBS}?{query}")
    assert (status, [error["pointer"] for error in problem["errors"]]) == (400, [pointer])


def test_who_may_only_view_changes_nothing(caller: Any, stock: Broker) -> None:
    viewer = caller("view")
    assert ids(viewer.get(f"{JOBS}?prefix=north")) == ["north-1", "north-2"]
    assert viewer.post(f"{QUEUE}/cancel", {"where": {"prefix": "north"}})[0] == 403

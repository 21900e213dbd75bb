"""Jobs are cancelled, moved, buried and deleted over HTTP, one or many, durable ones as well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from django_delayq import schedule, signals
from django_delayq.core.broker import Broker
from django_delayq.models import OutboxJob
from tests.support.api_caller import Caller

from .errands import carry, fail, ids, keep, live, put, reserve, waiting

QUEUE = "v1/queues/errands"
JOBS = f"{QUEUE}/jobs"


# --- cancel ---


def test_a_waiting_job_is_cancelled(api: Caller, five: Broker) -> None:
    heard: list[Any] = []

    def hear(**words: Any) -> None:
        heard.append((words["id"], words["queue"], words["outcome"]))

    signals.job_cancelled.connect(hear)
    try:
        assert api.delete(f"{JOBS}/c") == (200, {"outcome": "cancelled"})
    finally:
        signals.job_cancelled.disconnect(hear)
    assert (waiting(five), heard) == (["now1", "now2", *"abde"], [("c", "errands", "cancelled")])
    status, body = api.delete(f"{JOBS}/c")
    assert (status, body["code"]) == (404, "job_not_found")


def test_a_running_job_is_told_to_stop(api: Caller, five: Broker) -> None:
    reserve(five, "c")
    assert api.delete(f"{JOBS}/c") == (200, {"outcome": "stopping"})


def test_many_jobs_are_cancelled_at_once(api: Caller, five: Broker) -> None:
    reserve(five, "c")
    assert api.post(f"{QUEUE}/cancel", {"ids": ["a", "c", "nosuch", "b"]}) == (
        200,
        {
            "results": [
                {"id": "a", "outcome": "cancelled"},
                {"id": "c", "outcome": "stopping"},
                {"id": "nosuch", "outcome": "gone"},
                {"id": "b", "outcome": "cancelled"},
            ],
            "counts": {"cancelled": 2, "stopping": 1, "gone": 1},
        },
    )
    assert waiting(five) == ["now1", "now2", "d", "e"]


def test_all_waiting_jobs_are_cancelled(api: Caller, five: Broker) -> None:
    reserve(five, "c")
    assert api.post(f"{QUEUE}/cancel", {"all": True}) == (
        200,
        {"counts": {"cancelled": 6}, "complete": True, "seen": 6, "total": 6},
    )
    assert (waiting(five), live(five, "c").state) == ([], "reserved")


def test_what_takes_too_long_is_not_complete_and_goes_on_with_the_next_call(
    api: Caller, delayq: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django_delayq.api import jobs

    monkeypatch.setattr(jobs, "LONGEST", -1.0)
    status, body = api.post(JOBS, {"jobs": [{"task": "errands.carry", "delay": 60}] * 600})
    assert (status, body["counts"]) == (200, {"created": 600})
    answers = []
    while not answers or not answers[-1][1]["complete"]:
        answers.append(api.post(f"{QUEUE}/cancel", {"all": True}))
    assert answers[0] == (200, {"counts": {}, "complete": False, "seen": 250, "total": 600})
    assert (len(answers), answers[-1][1]["counts"], waiting(delayq)) == (3, {"cancelled": 100}, [])


# --- another due time ---


def test_a_job_is_moved_to_a_moment_or_by_a_delay(api: Caller, five: Broker) -> None:
    assert api.patch(f"{JOBS}/c", {"at": "2030-01-01T00:00:00Z"}) == (
        200,
        {"outcome": "moved", "due": "2030-01-01T00:00:00.000Z"},
    )
    assert live(five, "c").due_ms == 1893456000_000
    status, body = api.patch(f"{JOBS}/c", {"delay": 7})
    assert (status, body["outcome"]) == (200, "moved")
    assert 5_000 < live(five, "c").due_ms - five.now_ms() <= 7_000


def test_what_runs_has_no_due_time_but_what_waits_behind_it_has(api: Caller, five: Broker) -> None:
    reserve(five, "c")
    status, body = api.patch(f"{JOBS}/c", {"delay": 7})
    assert (status, body["code"]) == (409, "conflict")
    put(five, carry, id="c", delay=60)
    assert api.patch(f"{JOBS}/c", {"at": 1893456000})[0] == 200
    assert live(five, "c").gated_due_ms == 1893456000_000
    status, body = api.patch(f"{JOBS}/nosuch", {"delay": 7})
    assert (status, body["code"]) == (404, "job_not_found")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"delay": 5, "at": 5},
        {"delay": "soon"},
        {"delay": "5"},
        {"delay": None},
        {"delay": 10**15},
        {"at": "later"},
        {"at": "2030-01-01T00:00:00"},
        {"at": True},
        {"at": -5},
        {"at": 1e15},
        {"when": 5},
        [],
        {"delay": 5, "x": 1},
    ],
)
def test_a_due_time_that_cannot_be_meant_is_refused(api: Caller, five: Broker, body: Any) -> None:
    before = live(five, "c").due_ms
    many = {"ids": ["c"], **body} if isinstance(body, dict) else body
    for answer in (api.patch(f"{JOBS}/c", body), api.post(f"{QUEUE}/reschedule", many)):
        assert (answer[0], answer[1]["code"]) == (400, "invalid")
    assert live(five, "c").due_ms == before


def test_many_jobs_are_moved(api: Caller, five: Broker) -> None:
    reserve(five, "c")
    assert api.post(f"{QUEUE}/reschedule", {"ids": ["e", "c", "nosuch"], "at": 5}) == (
        200,
        {
            "results": [
                {"id": "e", "outcome": "moved"},
                {"id": "c", "outcome": "not_waiting"},
                {"id": "nosuch", "outcome": "not_waiting"},
            ],
            "counts": {"moved": 1, "not_waiting": 2},
        },
    )
    assert waiting(five)[0] == "e"


def test_jobs_are_made_due_now(api: Caller, five: Broker) -> None:
    assert api.post(f"{QUEUE}/run-now", {"ids": ["e", "nosuch"]}) == (
        200,
        {
            "results": [{"id": "e", "outcome": "moved"}, {"id": "nosuch", "outcome": "not_waiting"}],
            "counts": {"moved": 1, "not_waiting": 1},
        },
    )
    assert live(five, "e").state == "ready"
    status, body = api.post(f"{QUEUE}/run-now", {"all": True})
    assert (status, body["complete"], {view.state for view in five.inspector.page("errands", "waiting").jobs}) == (
        200,
        True,
        {"ready"},
    )


@pytest.mark.parametrize("verb", ["cancel", "run-now"])
@pytest.mark.parametrize(
    "body",
    [
        {},
        {"ids": []},
        {"ids": "a"},
        {"ids": {"a": 1}},
        {"ids": [None]},
        {"ids": ["a", "b\n"]},
        {"ids": [1.5]},
        {"ids": ["x" * 256]},
        {"all": False},
        {"all": 1},
        {"all": "true"},
        {"ids": ["a"], "all": True},
        {"id": "a"},
    ],
)
def test_a_verb_without_clear_jobs_is_refused(api: Caller, five: Broker, verb: str, body: Any) -> None:
    before = waiting(five)
    status, answer = api.post(f"{QUEUE}/{verb}", body)
    assert (status, answer["code"], waiting(five)) == (400, "invalid", before)


def test_more_ids_than_a_request_may_have_are_refused(api: Caller, five: Broker, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "API": {"max_jobs": 2}}
    assert [
        api.post(f"{QUEUE}/{verb}", {"ids": ["a", "b", "c"], **more})[0]
        for verb, more in (
            ("cancel", {}),
            ("run-now", {}),
            ("reschedule", {"delay": 1}),
            ("kick", {}),
            ("discard", {}),
        )
    ] == [413] * 5
    assert len(waiting(five)) == 7


# --- failed jobs ---


def test_failed_jobs_are_buried_or_deleted(api: Caller, five: Broker) -> None:
    fail(five, "a")
    fail(five, "b")
    assert api.post(f"{QUEUE}/kill-failed") == (200, {"counts": {"killed": 2}, "complete": True, "seen": 2, "total": 2})
    assert sorted(ids(api.get(f"{QUEUE}/morgue"))) == ["a", "b"]
    fail(five, "c")
    assert api.post(f"{QUEUE}/delete-failed", {})[1]["counts"] == {"deleted": 1}
    assert waiting(five) == ["now1", "now2", "d", "e"]
    assert api.post(f"{QUEUE}/kill-failed", {"all": True})[0] == 400


# --- durable jobs ---


def there() -> list[tuple[str, str]]:
    return list(OutboxJob._default_manager.order_by("pk").values_list("job_id", "state"))


@pytest.fixture
def unsent(delayq: Broker, transactional_db: None) -> Broker:
    """The durable job a is with Redis; b waits in the outbox; c is no durable one."""
    schedule(keep, 1, id="a", delay=60)
    schedule(carry, 1, id="c", queue="errands", delay=60)
    delayq.pause("errands", "in")
    schedule(keep, 2, id="b", delay=60)
    delayq.resume("errands", "in")
    assert (there(), waiting(delayq)) == ([("a", "sent"), ("b", "unsent")], ["a", "c"])
    return delayq


def test_durable_jobs_are_cancelled_in_the_outbox_too(unsent: Broker, caller: Callable[..., Caller]) -> None:
    api = caller("operate")
    assert api.post(f"{QUEUE}/cancel", {"ids": ["c", "b", "a", "nosuch"]})[1]["results"] == [
        {"id": ident, "outcome": outcome}
        for ident, outcome in zip(["c", "b", "a", "nosuch"], ["cancelled"] * 3 + ["gone"], strict=True)
    ]
    assert waiting(unsent) == []
    assert ("b", "unsent") not in there()


def test_all_means_what_waits_in_the_outbox_as_well(unsent: Broker, caller: Callable[..., Caller]) -> None:
    api = caller("operate")
    assert api.post(f"{QUEUE}/cancel", {"all": True})[1] == {
        "counts": {"cancelled": 3},
        "complete": True,
        "seen": 3,
        "total": 3,
    }
    assert (waiting(unsent), dict(there())["b"]) == ([], "cancelled")


def test_durable_jobs_are_moved_in_the_outbox_too(unsent: Broker, caller: Callable[..., Caller]) -> None:
    api = caller("operate")
    assert api.patch(f"{JOBS}/b", {"at": 1893456000})[0] == 200
    assert OutboxJob._default_manager.get(job_id="b").due_ms == 1893456000_000
    assert api.post(f"{QUEUE}/run-now", {"ids": ["a", "b", "c"]})[1]["counts"] == {"moved": 3}
    assert live(unsent, "a").state == "ready"
    assert OutboxJob._default_manager.get(job_id="b").expected_ms <= unsent.now_ms()
    assert api.delete(f"{JOBS}/b") == (200, {"outcome": "cancelled"})

"""Jobs are cancelled, moved, buried, kicked and deleted over HTTP: named, all of them, or those that match.

Nereus is the model of the conditions: its operators act on what they see.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_delayq import schedule, signals
from django_delayq.api import jobs as module
from django_delayq.core import outcomes as settlement
from django_delayq.core.broker import Broker
from django_delayq.core.job import NewJob
from django_delayq.models import OutboxJob
from tests.support.api_caller import Caller

from .errands import HALF_PAST, buried, bury, carry, fail, greet, keep, live, put, reserve, waiting

QUEUE = "v1/queues/errands"
JOBS = f"{QUEUE}/jobs"
LATER = 1893456000

pytestmark = pytest.mark.django_db


def outcomes(**by_id: str) -> tuple[int, Any]:
    """Return the answer of a verb on jobs that were named."""
    found = list(by_id.values())
    results = [{"id": ident, "outcome": outcome} for ident, outcome in by_id.items()]
    return 200, {"results": results, "counts": {outcome: found.count(outcome) for outcome in found}}


def done(counts: dict[str, int], total: int, **more: Any) -> tuple[int, Any]:
    """Return the answer of a verb on all jobs."""
    return 200, {"counts": counts, "complete": True, "seen": total, "total": total, **more}


# --- named, or all


def test_a_waiting_job_is_cancelled_and_a_running_one_told_to_stop(api: Caller, five: Broker) -> None:
    heard: list[Any] = []

    def hear(**words: Any) -> None:
        heard.append((words["id"], words["queue"], words["outcome"]))

    signals.job_cancelled.connect(hear)
    try:
        assert api.delete(f"{JOBS}/c") == (200, {"outcome": "cancelled"})
    finally:
        signals.job_cancelled.disconnect(hear)
    assert (waiting(five), heard) == (["now1", "now2", *"abde"], [("c", "errands", "cancelled")])
    assert api.delete(f"{JOBS}/c")[1]["code"] == "job_not_found"
    reserve(five, "d")
    assert api.delete(f"{JOBS}/d") == (200, {"outcome": "stopping"})
    asked = {"ids": ["a", "d", "nosuch", "b"]}
    assert api.post(f"{QUEUE}/cancel", asked) == outcomes(a="cancelled", d="stopping", nosuch="gone", b="cancelled")
    assert waiting(five) == ["now1", "now2", "e"]
    assert api.post(f"{QUEUE}/cancel", {"all": True}) == done({"cancelled": 3}, 3)
    assert (waiting(five), live(five, "d").state) == ([], "reserved")


def test_a_job_is_moved_to_a_moment_or_by_a_delay(api: Caller, five: Broker) -> None:
    moved = {"outcome": "moved", "due": "2030-01-01T00:00:00.000Z"}
    assert api.patch(f"{JOBS}/c", {"at": "2030-01-01T00:00:00Z"}) == (200, moved)
    assert live(five, "c").due_ms == LATER * 1000
    status, body = api.patch(f"{JOBS}/c", {"delay": 7})
    assert (status, body["outcome"]) == (200, "moved")
    assert 5_000 < live(five, "c").due_ms - five.now_ms() <= 7_000
    reserve(five, "c")
    assert api.patch(f"{JOBS}/c", {"delay": 7})[1]["code"] == "conflict"
    put(five, carry, id="c", delay=60)
    assert api.patch(f"{JOBS}/c", {"at": LATER})[0] == 200
    assert live(five, "c").gated_due_ms == LATER * 1000, "that of what waits behind it"
    assert api.patch(f"{JOBS}/nosuch", {"delay": 7})[1]["code"] == "job_not_found"


def test_many_jobs_are_moved_or_made_due_now(api: Caller, five: Broker) -> None:
    reserve(five, "c")
    told = outcomes(e="moved", c="not_waiting", nosuch="not_waiting")
    assert api.post(f"{QUEUE}/reschedule", {"ids": ["e", "c", "nosuch"], "at": 5}) == told
    assert waiting(five)[0] == "e"
    assert api.post(f"{QUEUE}/run-now", {"ids": ["d", "nosuch"]}) == outcomes(d="moved", nosuch="not_waiting")
    assert live(five, "d").state == "ready"
    assert api.post(f"{QUEUE}/run-now", {"all": True})[1]["complete"]
    assert {view.state for view in five.inspector.page("errands", "waiting").jobs} == {"ready"}


def test_more_ids_than_a_request_may_have_are_refused(api: Caller, five: Broker, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "API": {"max_jobs": 2}}
    verbs = (("cancel", {}), ("run-now", {}), ("reschedule", {"delay": 1}), ("kick", {}), ("discard", {}))
    assert [api.post(f"{QUEUE}/{verb}", {"ids": [*"abc"], **more})[0] for verb, more in verbs] == [413] * 5
    assert len(waiting(five)) == 7


def test_failed_jobs_are_buried_or_deleted(api: Caller, five: Broker) -> None:
    fail(five, "a")
    fail(five, "b")
    assert api.post(f"{QUEUE}/kill-failed") == done({"killed": 2}, 2)
    assert sorted(buried(five)) == ["a", "b"]
    fail(five, "c")
    assert api.post(f"{QUEUE}/delete-failed", {})[1]["counts"] == {"deleted": 1}
    assert waiting(five) == ["now1", "now2", "d", "e"]


def test_jobs_are_kicked_one_by_one_with_a_delay(api: Caller, three: Broker) -> None:
    put(three, greet, "again", id="a", delay=5)
    told = outcomes(a="live", b="kicked", nosuch="gone")
    assert api.post(f"{QUEUE}/kick", {"ids": ["a", "b", "nosuch"], "delay": 60}) == told
    assert (waiting(three), buried(three)) == (["a", "b"], ["c", "a"])
    assert 55_000 < live(three, "b").due_ms - three.now_ms() <= 60_000
    assert api.post(f"{QUEUE}/kick", {"ids": ["a"], "replace": True})[1]["counts"] == {"kicked": 1}
    assert live(three, "a").arguments == (["a"], {})


def test_a_certain_record_is_kicked_or_discarded_by_its_key(api: Caller, delayq: Broker) -> None:
    for n in (1, 2, 3):
        put(delayq, carry, n, id="a")
        bury(delayq, "a")
    third, second, first = (job["key"] for job in api.get(f"{QUEUE}/morgue/a")[1]["jobs"])
    assert api.post(f"{QUEUE}/discard", {"jobs": [{"id": "a", "key": second}]})[1]["counts"] == {"discarded": 1}
    assert api.post(f"{QUEUE}/kick", {"jobs": [{"id": "a", "key": first}]})[1]["counts"] == {"kicked": 1}
    assert live(delayq, "a").arguments == ([1], {})
    assert [job["key"] for job in api.get(f"{QUEUE}/morgue/a")[1]["jobs"]] == [third]
    counts = {"discarded": 1, "gone": 1}
    assert api.post(f"{QUEUE}/discard", {"jobs": [{"id": "a"}, {"id": "a"}]})[1]["counts"] == counts


def test_some_or_all_that_is_old_is_discarded(api: Caller, three: Broker) -> None:
    status, answer = api.post(f"{QUEUE}/discard", {"all": True, "older_than": 3600})
    assert (status, answer) == (200, {"counts": {}, "complete": True, "seen": 0, "total": 3})
    assert api.post(f"{QUEUE}/discard", {"ids": ["a", "nosuch"]})[1]["counts"] == {"discarded": 1, "gone": 1}
    assert buried(three) == ["c", "b"]
    assert api.post(f"{QUEUE}/discard", {"all": True})[1]["counts"] == {"discarded": 2}
    assert buried(three) == []


@pytest.mark.parametrize("delay", [-1, -0.001, -86_400.5])
def test_a_negative_delay_is_due_now_in_every_verb(api: Caller, delayq: Broker, delay: float) -> None:
    before = delayq.now_ms()
    assert api.post(JOBS, {"task": "errands.carry", "id": "one", "delay": delay})[0] == 201
    several = [{"task": "errands.carry", "id": ident, "delay": delay} for ident in ("a", "b")]
    assert api.post(JOBS, {"jobs": several})[0] in (200, 201)
    for ident in ("moved", "kicked", "fail", "release"):
        put(delayq, carry, id=ident, delay=3600)
    assert api.patch(f"{JOBS}/moved", {"delay": delay})[0] == 200
    bury(delayq, "kicked")
    assert api.post(f"{QUEUE}/kick", {"ids": ["kicked"], "delay": delay})[1]["counts"] == {"kicked": 1}
    for verb in ("fail", "release"):
        (job,) = api.post(f"{QUEUE}/reserve", {"id": verb, "early": True})[1]["jobs"]
        entry = {"id": verb, "lease": job["lease"], "delay": delay}
        assert api.post(f"{QUEUE}/{verb}", {"jobs": [entry]})[1]["results"] == [{"id": verb, "counted": True}]
    views = [live(delayq, ident) for ident in ("one", "a", "b", "moved", "kicked", "fail", "release")]
    assert {view.state for view in views} == {"ready"}
    assert all(before - 1 <= view.due_ms <= delayq.now_ms() for view in views)


# --- those that match


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
        ("cancel", {"text": "letmein"}, {}, ["north-1", "north-2", "south-1", "greet-1"]),  # a masked value
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


def test_failed_and_buried_jobs_that_match_are_changed(api: Caller, stock: Broker) -> None:
    assert api.post(f"{QUEUE}/kill-failed", {"where": {"failures": 5, "failures_to": 4}})[0] == 400
    assert api.post(f"{QUEUE}/kill-failed", {"where": {"failures": 3}})[1]["counts"] == {"killed": 1}
    assert api.post(f"{QUEUE}/delete-failed", {"where": {"prefix": "failed-1"}})[1]["counts"] == {"deleted": 1}
    assert [ident for ident in waiting(stock) if ident.startswith("failed")] == ["failed-2"]
    status, kicked = api.post(f"{QUEUE}/kick", {"where": {"text": "to north"}, "delay": 60})
    assert (status, kicked["counts"]) == (200, {"kicked": 1})
    assert api.post(f"{QUEUE}/discard", {"where": {"id_from": "s", "buried_before": HALF_PAST}})[1]["counts"] == {
        "discarded": 1
    }
    assert (buried(stock), "north-dead" in waiting(stock)) == (["failed-3"], True)


# --- what takes too long


def test_what_takes_too_long_is_not_complete_and_goes_on_with_the_next_call(
    api: Caller, delayq: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LONGEST", -1.0)
    status, body = api.post(JOBS, {"jobs": [{"task": "errands.carry", "delay": 60}] * 600})
    assert (status, body["counts"]) == (200, {"created": 600})
    answers = []
    while not answers or not answers[-1][1]["complete"]:
        answers.append(api.post(f"{QUEUE}/cancel", {"all": True}))
    assert answers[0] == (200, {"counts": {"cancelled": 250}, "complete": False, "seen": 250, "total": 600})
    assert (len(answers), answers[-1][1]["counts"], waiting(delayq)) == (3, {"cancelled": 100}, [])


def test_a_verb_on_what_matches_ends_in_time_and_its_cursor_continues(
    api: Caller, delayq: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LONGEST", 0.0)
    for number in range(600):
        put(delayq, carry, id=f"{'a' if number % 100 == 0 else 'b'}-{number:03}", delay=60)
    body: dict[str, Any] = {"where": {"prefix": "a-"}}
    answers = [api.post(f"{QUEUE}/cancel", body)[1]]
    while not answers[-1]["complete"]:
        answers.append(api.post(f"{QUEUE}/cancel", {**body, "cursor": answers[-1]["cursor"]})[1])
    assert [one["counts"].get("cancelled", 0) for one in answers] == [3, 2, 1]


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


# --- durable jobs


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
    told = outcomes(c="cancelled", b="cancelled", a="cancelled", nosuch="gone")
    assert caller("operate").post(f"{QUEUE}/cancel", {"ids": ["c", "b", "a", "nosuch"]}) == told
    assert waiting(unsent) == []
    assert ("b", "unsent") not in there()


def test_all_means_what_waits_in_the_outbox_as_well(unsent: Broker, caller: Callable[..., Caller]) -> None:
    assert caller("operate").post(f"{QUEUE}/cancel", {"all": True}) == done({"cancelled": 3}, 3)
    assert (waiting(unsent), dict(there())["b"]) == ([], "cancelled")


def test_durable_jobs_are_moved_in_the_outbox_too(unsent: Broker, caller: Callable[..., Caller]) -> None:
    api = caller("operate")
    assert api.patch(f"{JOBS}/b", {"at": LATER})[0] == 200
    assert OutboxJob._default_manager.get(job_id="b").due_ms == LATER * 1000
    assert api.post(f"{QUEUE}/run-now", {"ids": ["a", "b", "c"]})[1]["counts"] == {"moved": 3}
    assert live(unsent, "a").state == "ready"
    assert OutboxJob._default_manager.get(job_id="b").expected_ms <= unsent.now_ms()
    assert api.delete(f"{JOBS}/b") == (200, {"outcome": "cancelled"})

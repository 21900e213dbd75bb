"""What operators see and do in many jobs at once, on both brokers."""

from __future__ import annotations

from typing import Any

import pytest

from django_delayq.core import bulk
from django_delayq.core.errors import InvalidJob
from django_delayq.core.views import JobView

from .stand import Make, Stand


@pytest.fixture
def full(make_stand: Make) -> Stand:
    """Three shards with a job in every state."""
    stand = make_stand(shards=3)
    stand.put("failing", args=b"[1]")
    stand.failed(stand.take_one(), 1000)
    stand.wait(1000)
    stand.failed(stand.take_one(), 60_000)
    for ident in ("held", "gated"):
        stand.put(ident)
    stand.take()
    stand.put("gated", at=70_000)
    stand.in_morgue("dead", args=b"[9]")
    stand.wait(1)
    stand.in_morgue("dead", args=b'["needle"]')
    stand.add("merged", b'"one"', "1")
    stand.add("merged", b'"two"', "2")
    stand.put("ready")
    stand.put("delayed", at=500_000, options=b'{"context":{"trace":"needle"}}')
    return stand


def ids(views: list[JobView]) -> list[str]:
    return [view.id for view in views]


def test_counts(full: Stand) -> None:
    counts = full.broker.inspector.counts("q")
    assert (counts.ready, counts.delayed, counts.reserved, counts.gated, counts.failed, counts.morgue) == (
        2, 2, 2, 1, 1, 2)  # fmt: skip
    assert full.broker.inspector.all_counts() == [counts]
    assert full.broker.inspector.counts("nowhere").ready == 0
    full.wait(2500)
    assert full.broker.inspector.counts("q").lag_seconds == 2.5


@pytest.mark.parametrize(
    ("place", "by", "wanted"),
    [
        ("waiting", "", {"merged", "ready", "failing", "delayed"}),
        ("reserved", "", {"held", "gated"}),
        ("failed", "", {"failing"}),
        ("failed", "failures", {"failing"}),
        ("morgue", "", {"dead"}),
        ("morgue", "id", {"dead"}),
    ],
)
@pytest.mark.parametrize("reverse", [False, True])
def test_pages_go_on_where_the_last_one_ended(
    full: Stand, place: str, by: str, wanted: set[str], reverse: bool
) -> None:
    inspector, cursor, found = full.broker.inspector, "", []
    whole = ids(inspector.page("q", place, by, reverse=reverse).jobs)
    while True:
        page = inspector.page("q", place, by, cursor=cursor, limit=1, reverse=reverse)
        found += ids(page.jobs)
        cursor = page.cursor
        if not cursor:
            break
    assert (found, set(found)) == (whole, wanted)
    if place == "waiting":
        assert whole[-2:] == (["ready", "merged"] if reverse else ["failing", "delayed"]) or reverse


def test_wrong_questions(full: Stand) -> None:
    inspector = full.broker.inspector
    for wrong in ({"place": "nowhere"}, {"place": "waiting", "by": "colour"}, {"place": "waiting", "cursor": "?"}):
        with pytest.raises(InvalidJob):
            inspector.page("q", **wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidJob):
        inspector.search("q", "")
    assert inspector.page("nowhere", "waiting").jobs == []
    assert inspector.get("nowhere", "a") is None


def test_one_job(full: Stand) -> None:
    inspector = full.broker.inspector
    gated = inspector.get("q", "gated")
    assert gated is not None
    assert (gated.state, gated.gated_due_ms is not None, gated.gated and gated.gated.task) == ("reserved", True, "work")
    dead = inspector.get("q", "dead")
    assert dead is not None
    assert (dead.state, dead.arguments, dead.reason, len(inspector.graves("q", "dead"))) == (
        "morgue", (["needle"], {}), "buried", 2)  # fmt: skip
    merged = inspector.get("q", "merged")
    assert merged is not None
    assert (merged.payload_count, [payload.data for payload in inspector.payloads("q", "merged")]) == (
        2, [b'"one"', b'"two"'])  # fmt: skip
    assert list(inspector.payloads("q", "nobody")) == []


@pytest.mark.parametrize(
    ("wanted", "found"),
    [("NEEDLE", {"delayed", "dead"}), ("two", {"merged"}), ("held", {"held"}), ("nothing at all", set())],
)
def test_search(full: Stand, wanted: str, found: set[str]) -> None:
    assert {view.id for view in full.broker.inspector.search("q", wanted)} == found


def test_search_by_a_function(full: Stand) -> None:
    inspector = full.broker.inspector
    assert {view.id for view in inspector.search("q", lambda view: view.job.failures == 2)} == {"failing"}
    assert {view.id for view in inspector.search("q", lambda view: len(view.payloads) == 2)} == {"merged"}
    assert len(list(inspector.search("q", lambda view: True, limit=3))) == 3


def test_all_of_the_morgue_comes_back(full: Stand) -> None:
    seen: list[Any] = []
    assert bulk.kick_all(full.queue, progress=lambda done, total: seen.append((done, total))) == {
        "kicked": 1, "live": 1}  # fmt: skip
    assert bulk.kick_all(full.queue, replace=True) == {"kicked": 1}
    assert (full.world()["morgue"], full.world()["lives"]["dead"]["args"], seen[-1]) == ([], b'["needle"]', (2, 2))


def test_chosen_ones_come_back_or_go(full: Stand) -> None:
    keys = [view.job.key for view in full.broker.inspector.graves("q", "dead")]
    assert bulk.kick_many(full.queue, ["nobody", ("dead", keys[0])], delay_ms=5) == {"gone": 1, "kicked": 1}
    assert bulk.discard_many(full.queue, [("dead", keys[0]), ("dead", keys[1])]) == {"gone": 1, "discarded": 1}
    assert full.world()["morgue"] == []


def test_kicked_jobs_may_fall_due_one_behind_the_other(stand: Stand) -> None:
    for n in range(3):
        stand.in_morgue(f"j{n}")
    assert bulk.kick_all(stand.queue, delay_ms=1000, per_second=2) == {"kicked": 3}
    assert stand.short() == {"waiting": ["j0 +1000", "j1 +1500", "j2 +2000"]}


def test_the_morgue_is_emptied_up_to_a_moment(full: Stand) -> None:
    moment = full.broker.inspector.page("q", "morgue").jobs[-1].buried_ms
    assert bulk.discard_all(full.queue, before_ms=moment) == {"discarded": 1}
    assert bulk.discard_all(full.queue) == {"discarded": 1}


@pytest.mark.parametrize(("act", "word"), [(bulk.kill_failed, "killed"), (bulk.delete_failed, "deleted")])
def test_what_failed_is_killed_or_deleted(full: Stand, act: Any, word: str) -> None:
    assert act(full.queue) == {word: 1}
    world = full.world()
    assert ("failing" in world["lives"], "failing" in world["morgue"], world["counters"][word]) == (
        False, word == "killed", 1)  # fmt: skip


def test_a_killed_merged_job_lies_in_several_graves(stand: Stand) -> None:
    for n in range(300):
        stand.add("a", b"%d" % n, str(n))
    stand.failed(stand.take_one(), 1000)
    assert bulk.kill_failed(stand.queue) == {"killed": 1}
    assert sorted(len(grave["payloads"]) for grave in stand.world()["graves"]) == [50, 250]


def test_all_that_waits_is_cancelled(full: Stand) -> None:
    assert bulk.cancel_all(full.queue) == {"cancelled": 4}
    assert set(full.world()["lives"]) == {"held", "gated"}


def test_all_that_waits_is_due_now(full: Stand) -> None:
    assert bulk.run_all_now(full.queue) == {"moved": 4}
    assert full.broker.inspector.counts("q").delayed == 0

"""Views and actions on many jobs at once, on both brokers."""

from __future__ import annotations

from typing import Any

import pytest

from django_delayq.core import bulk
from django_delayq.core.errors import InvalidJob
from django_delayq.core.job import Undecodable
from django_delayq.core.operations.views import JobView

from .stand import T0, Make, Stand


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
        2,
        2,
        2,
        1,
        1,
        2,
    )
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
        "morgue",
        (["needle"], {}),
        "buried",
        2,
    )
    merged = inspector.get("q", "merged")
    assert merged is not None
    assert (merged.payload_count, [payload.data for payload in inspector.payloads("q", "merged")]) == (
        2,
        [b'"one"', b'"two"'],
    )
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
        "kicked": 1,
        "live": 1,
    }
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
        False,
        word == "killed",
        1,
    )


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


# -- ranges of a page, large arguments, the backlog


def walked(stand: Stand, place: str, by: str = "", *, limit: int = 2, **options: Any) -> list[str]:
    """The ids of a range, by pages, in both directions."""

    def walk(reverse: bool) -> list[str]:
        found, cursor = [], ""
        while True:
            page = stand.broker.inspector.page("q", place, by, cursor=cursor, limit=limit, reverse=reverse, **options)
            found += ids(page.jobs)
            if not (cursor := page.cursor):
                return found
            assert len(page.jobs) == limit

    forth = walk(False)
    assert sorted(walk(True)) == sorted(forth)
    return forth


@pytest.fixture
def row(make_stand: Make) -> Stand:
    """Eight jobs over three shards, due 10 ms one after another, two at each moment."""
    stand = make_stand(shards=3)
    for n in range(8):
        stand.put(f"j{n}", at=10 + n // 2 * 10, priority=n % 3)
    return stand


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 250])
@pytest.mark.parametrize(
    ("low", "high", "wanted"),
    [
        (None, None, "01234567"),
        (10, 40, "01234567"),
        (11, 40, "234567"),
        (10.5, 39.5, "2345"),
        (20, 20, "23"),
        (None, 19, "01"),
        (31, None, "67"),
        (50, None, ""),
        (30, 20, ""),
    ],
)
def test_a_page_has_what_falls_due_in_a_range(
    row: Stand, low: float | None, high: float | None, wanted: str, limit: int
) -> None:
    def moment(ms: float | None) -> float | None:
        return None if ms is None else T0 + ms

    found = walked(row, "waiting", limit=limit, low=moment(low), high=moment(high))
    assert sorted(found) == [f"j{n}" for n in wanted]
    assert [int(ident[1]) // 2 for ident in found] == sorted(int(ident[1]) // 2 for ident in found)


def test_a_range_of_the_morgue_by_time_and_by_id(stand: Stand) -> None:
    for ident in ("b", "a", "ab", "ä", "a"):
        stand.in_morgue(ident)
        stand.wait(10)
    assert walked(stand, "morgue", low=T0 + 10, high=T0 + 30) == ["a", "ab", "ä"]
    assert walked(stand, "morgue", "id", low="a", high="a") == ["a", "a"]
    assert walked(stand, "morgue", "id", low="ab") == ["ab", "b", "ä"]
    assert walked(stand, "morgue", "id", high="aa") == ["a", "a"]
    assert walked(stand, "morgue", "id", low="", high="ÿ") == ["a", "a", "ab", "b", "ä"]


def test_a_range_of_leases_and_of_failures(stand: Stand) -> None:
    for ident in "abc":
        stand.put(ident)
    (first,) = stand.batch(1).jobs
    stand.wait(10)
    stand.batch(2)
    assert walked(stand, "reserved", low=T0 + 15_001) == ["b", "c"]
    assert walked(stand, "reserved", high=T0 + 15_000) == [first.id]
    stand.failed(first)
    stand.wait(1)
    (again,) = stand.take()
    stand.failed(again, 1000)
    assert walked(stand, "failed", "failures", low=2, high=2) == [first.id]
    assert walked(stand, "failed", "failures", low=3) == []
    assert walked(stand, "failed", "updated", low=T0 + 11) == [first.id]
    assert walked(stand, "failed", "updated", high=T0 + 10) == []


def test_a_cursor_goes_on_inside_its_range_whatever_came_and_went(row: Stand) -> None:
    inspector = row.broker.inspector
    bounds = {"low": T0 + 20, "high": T0 + 40}
    first = inspector.page("q", "waiting", limit=3, **bounds)
    for view in first.jobs:
        row.queue.cancel(view.id)
    row.put("sooner", at=20, due_policy="replace")
    row.put("outside", at=41)
    rest = inspector.page("q", "waiting", limit=250, cursor=first.cursor, **bounds)
    assert sorted(ids(first.jobs) + ids(rest.jobs)) == [f"j{n}" for n in range(2, 8)]
    assert rest.cursor == ""


@pytest.mark.parametrize(
    ("by", "bound"), [("due", "x"), ("due", True), ("due", float("nan")), ("id", 5), ("id", "\ud800")]
)
def test_a_bound_that_can_be_none_is_refused(stand: Stand, by: str, bound: Any) -> None:
    place = "morgue" if by == "id" else "waiting"
    for end in ("low", "high"):
        with pytest.raises(InvalidJob, match="a bound of the order"):
            stand.broker.inspector.page("q", place, by, **{end: bound})


LARGE = b'["' + b"x" * 5000 + b'"]'
OPTIONS = b'{"context":{"trace":"needle"}}'


def told(view: JobView) -> tuple[Any, ...]:
    gated = view.gated and (view.gated.args, view.gated_left_out)
    return view.id, view.cut, view.size, view.job.args, view.job.task, dict(view.job.context), view.payload_count, gated


def test_large_arguments_stay_where_they_are(stand: Stand) -> None:
    stand.put("small", args=b"[1]", options=OPTIONS)
    stand.put("large", args=LARGE, options=OPTIONS, at=10)
    (held,) = stand.batch(1).jobs
    stand.put("small", args=LARGE, at=50)
    stand.add("merged", b"1" * 3000, "1", at=20)
    inspector, context = stand.broker.inspector, {"trace": "needle"}
    large = ("large", True, 5004, b"", "work", context, 0, None)
    assert [told(view) for view in inspector.page("q", "waiting", most_bytes=5003).jobs] == [
        large,
        ("merged", False, 0, b"", "sync", {}, 1, None),
    ]
    assert [told(view) for view in inspector.page("q", "reserved", most_bytes=2).jobs] == [
        ("small", True, 3, b"", "work", context, 0, (b"", 5004))
    ]
    assert [told(view) for view in inspector.page("q", "reserved", most_bytes=3).jobs] == [
        ("small", False, 3, b"[1]", "work", context, 0, (b"", 5004))
    ]
    whole = inspector.page("q", "waiting", most_bytes=5004).jobs[0]
    assert told(whole) == ("large", False, 5004, LARGE, "work", context, 0, None)
    assert whole.arguments == (["x" * 5000], {})
    cut = inspector.get("q", "large", most_bytes=10)
    assert cut is not None and told(cut) == large
    with pytest.raises(Undecodable, match="5004 bytes of arguments were left out"):
        _ = cut.arguments
    assert stand.done(held) == [True]


def test_large_arguments_of_buried_jobs_stay_where_they_are(stand: Stand) -> None:
    stand.in_morgue("large", args=LARGE, options=OPTIONS)
    stand.wait(1)
    stand.in_morgue("small", args=b"[1]")
    stand.wait(1)
    stand.add("merged", b"1" * 3000, "1.5")
    stand.add("merged", b"2" * 3001, "2")
    assert stand.buried(stand.take_one(), "why")
    inspector = stand.broker.inspector
    wanted = [
        ("large", True, 5004, b"", "work", {"trace": "needle"}, 0, None),
        ("small", False, 3, b"[1]", "work", {}, 0, None),
        ("merged", True, 6001, b"", "sync", {}, 2, None),
    ]
    assert [told(view) for view in inspector.page("q", "morgue", most_bytes=100).jobs] == wanted
    assert [
        told(view) for ident in ("large", "small", "merged") for view in inspector.graves("q", ident, most_bytes=100)
    ] == wanted
    assert [(view.reason, view.payloads) for view in inspector.graves("q", "merged", most_bytes=100)] == [("why", ())]
    assert [(view.cut, view.size, len(view.payloads)) for view in inspector.page("q", "morgue").jobs] == [
        (False, 5004, 0),
        (False, 3, 0),
        (False, 6001, 2),
    ]


def test_the_backlog_is_divided_by_when_it_falls_due(make_stand: Make) -> None:
    stand = make_stand(shards=3)
    for n, at in enumerate((-5, 0, 1, 999, 1000, 1001, 59_999, 60_000, 60_001, 10**9)):
        stand.put(f"j{n}", at=at, priority=n % 3)
    inspector = stand.broker.inspector
    (counts,) = inspector.all_counts(horizon=[1000, 60_000])
    assert counts.backlog == (2, 3, 3, 2)
    assert sum(counts.backlog) == counts.ready + counts.delayed
    assert inspector.counts("q").backlog == (2, 8)
    assert inspector.counts("nowhere").backlog == (0, 0)
    (by_shard,) = inspector.all_counts(horizon=[1000, 60_000], by_shard=True)
    assert [number for number, _ in by_shard.shards] == list(stand.queue.numbers)
    assert [sum(bins) for bins in zip(*(one.backlog for _, one in by_shard.shards), strict=True)] == [2, 3, 3, 2]
    for wrong in ([0], [5, 5], [2, 1], [1.5]):
        with pytest.raises(InvalidJob, match="a horizon is a list of increasing whole milliseconds"):
            inspector.all_counts(horizon=wrong)  # type: ignore[arg-type]


def test_the_last_ticks_of_many_ids(stand: Stand) -> None:
    stand.queue.schedule_tick(stand.new("a"), T0 + 1)
    stand.queue.schedule_tick(stand.new("a"), T0 + 2)
    assert stand.broker.inspector.last_ticks([(stand.queue, "a"), (stand.queue, "b")]) == [T0 + 2, None]
    assert stand.broker.inspector.last_ticks([]) == []

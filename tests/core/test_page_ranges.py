"""Pages of a range: of due times, leases, failures, burials and ids."""

from __future__ import annotations

from typing import Any

import pytest

from django_delayq.core import Broker, InvalidJob, JobView

from .stage import LEASE, T0, Stage


def ids(views: list[JobView]) -> list[str]:
    return [view.id for view in views]


def walked(stage: Stage, place: str, by: str = "", *, limit: int = 2, **options: Any) -> list[str]:
    """Return the ids of a range, read by pages, after a walk in the other direction that has to find the same."""

    def walk(reverse: bool) -> list[str]:
        found, cursor = [], ""
        while True:
            page = stage.broker.inspector.page("q", place, by, cursor=cursor, limit=limit, reverse=reverse, **options)
            found += ids(page.jobs)
            if not (cursor := page.cursor):
                return found
            assert len(page.jobs) == limit

    forth = walk(False)
    assert sorted(walk(True)) == sorted(forth)
    return forth


@pytest.fixture
def row(clocked: Broker) -> Stage:
    """Eight jobs over three shards, due 10 ms one after another, two at each moment."""
    stage = Stage(clocked, shards=3)
    for n in range(8):
        stage.put(f"j{n}", at=10 + n // 2 * 10, priority=n % 3)
    return stage


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
    row: Stage, low: float | None, high: float | None, wanted: str, limit: int
) -> None:
    def moment(ms: float | None) -> float | None:
        return None if ms is None else T0 + ms

    found = walked(row, "waiting", limit=limit, low=moment(low), high=moment(high))
    assert sorted(found) == [f"j{n}" for n in wanted]
    assert [int(ident[1]) // 2 for ident in found] == sorted(int(ident[1]) // 2 for ident in found)


def test_a_range_of_the_morgue_by_time_and_by_id(stage: Stage) -> None:
    for ident in ("b", "a", "ab", "ä", "a"):
        stage.in_morgue(ident)
        stage.wait(10)
    assert walked(stage, "morgue", low=T0 + 10, high=T0 + 30) == ["a", "ab", "ä"]
    assert walked(stage, "morgue", "id", low="a", high="a") == ["a", "a"]
    assert walked(stage, "morgue", "id", low="ab") == ["ab", "b", "ä"]
    assert walked(stage, "morgue", "id", high="aa") == ["a", "a"]
    assert walked(stage, "morgue", "id", low="", high="ÿ") == ["a", "a", "ab", "b", "ä"]


def test_a_range_of_leases_and_of_failures(stage: Stage) -> None:
    for ident in "abc":
        stage.put(ident)
    (first,) = stage.batch(1).jobs
    stage.wait(10)
    stage.batch(2)
    assert walked(stage, "reserved", low=T0 + LEASE + 1) == ["b", "c"]
    assert walked(stage, "reserved", high=T0 + LEASE) == [first.id]
    stage.failed(first)
    stage.wait(1)
    (again,) = stage.take()
    stage.failed(again, 1000)
    assert walked(stage, "failed", "failures", low=2, high=2) == [first.id]
    assert walked(stage, "failed", "failures", low=3) == []
    assert walked(stage, "failed", "updated", low=T0 + 11) == [first.id]
    assert walked(stage, "failed", "updated", high=T0 + 10) == []


def test_a_cursor_goes_on_inside_its_range_whatever_came_and_went(row: Stage) -> None:
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
def test_a_bound_that_can_be_none_is_refused(stage: Stage, by: str, bound: Any) -> None:
    place = "morgue" if by == "id" else "waiting"
    for end in ("low", "high"):
        with pytest.raises(InvalidJob, match="a bound of the order"):
            stage.broker.inspector.page("q", place, by, **{end: bound})

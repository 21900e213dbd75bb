"""Pages of the jobs that meet conditions: by index where there is one, bounded and continued by a cursor elsewhere.

Nereus is the model: its browser lists live jobs by range of id, of time and of retries.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest

from django_delayq.core import Broker, InvalidJob
from tests.support.core_values import encode_args

from .bulk_stage import JobFilter
from .stage import T0, Stage
from .world import unchanged


@pytest.fixture
def stage(clocked: Broker) -> Stage:
    """Create jobs of two customers over three shards: 12 that wait, of which three failed; one runs, two are buried."""
    stage = Stage(clocked, shards=3)
    for ident in ("north-x", "south-x"):
        stage.in_morgue(ident, at=-1, args=encode_args((f"{ident}@example.org",), {}))
    for number in range(12):
        customer = "north" if number % 3 == 0 else "south"
        stage.put(
            f"{customer}-{number:02}",
            at=number * 1000,
            task="mail.send" if number % 2 else "work",
            priority=number % 8,
            args=encode_args((f"{customer}@example.org",), {}),
        )
    for ident, times in (("failed-1", 1), ("failed-2", 2), ("failed-3", 3)):
        stage.put(ident, at=-1)
        for _ in range(times):
            (job,) = stage.queue.reserve_id(ident, worker="w", early=True).jobs
            assert stage.failed(job, 500_000 + times, error=b'{"class":"OSError"}')
    stage.put("held", at=-1)
    (job,) = stage.queue.reserve_id("held", worker="w").jobs
    return stage


def pages(stage: Stage, place: str = "waiting", limit: int = 250, **options: Any) -> list[list[str]]:
    """Return the ids on each page."""
    found, cursor = [], ""
    while True:
        with unchanged(stage.broker):
            page = stage.broker.inspector.page("q", place, limit=limit, cursor=cursor, **options)
        found.append([view.id for view in page.jobs])
        cursor = page.cursor
        if not cursor:
            return found


def ids(stage: Stage, place: str = "waiting", **conditions: Any) -> list[str]:
    (page,) = pages(stage, place, where=JobFilter(**conditions))
    return page


NORTH = ["north-00", "north-03", "north-06", "north-09"]
FAILED = ["failed-1", "failed-2", "failed-3"]


@pytest.mark.parametrize(
    ("place", "conditions", "found"),
    [
        ("waiting", {"prefix": "north-"}, NORTH),
        ("waiting", {"text": "NORTH@"}, NORTH),
        ("waiting", {"task": "mail.send", "prefix": "north"}, ["north-03", "north-09"]),
        ("waiting", {"due_from_ms": T0 + 3000, "due_before_ms": T0 + 5000}, ["north-03", "south-04"]),
        ("waiting", {"due_from_ms": T0 + 4500, "due_before_ms": T0 + 6000.5}, ["south-05", "north-06"]),
        ("waiting", {"failures": 2}, ["failed-2", "failed-3"]),
        ("waiting", {"failures": 1, "never_started": True}, []),
        ("failed", {"failures": 2}, ["failed-2", "failed-3"]),
        ("failed", {"failures_to": 2}, ["failed-1", "failed-2"]),
        ("failed", {"failures": 2, "failures_to": 2}, ["failed-2"]),
        ("failed", {"failures_to": 0}, []),
        ("waiting", {"failures": 1, "failures_to": 2}, ["failed-1", "failed-2"]),
        ("waiting", {"failures_to": 0, "prefix": "north-"}, NORTH),
        ("failed", {"text": "oserror", "prefix": "failed-1"}, ["failed-1"]),
        ("reserved", {"prefix": "he"}, ["held"]),
        ("reserved", {"never_started": True}, []),
        ("morgue", {"prefix": "north"}, ["north-x"]),
        ("morgue", {"text": "south-x@example"}, ["south-x"]),
        ("waiting", {"text": "nowhere"}, []),
        ("waiting", {"task": "mail"}, []),
    ],
)
def test_the_jobs_that_meet_all_conditions_are_listed_in_order(
    stage: Stage, place: str, conditions: dict[str, Any], found: list[str]
) -> None:
    assert ids(stage, place, **conditions) == found


def test_jobs_that_were_never_started_are_told_from_those_that_were(stage: Stage) -> None:
    assert len(ids(stage, never_started=True)) == 12
    assert set(ids(stage)) - set(ids(stage, never_started=True)) == set(FAILED)


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("reverse", [False, True])
def test_pages_have_as_many_jobs_as_wanted_and_every_match_once(stage: Stage, limit: int, reverse: bool) -> None:
    found = pages(stage, limit=limit, reverse=reverse, where=JobFilter(prefix="north"))
    assert list(chain(*found)) == (NORTH[::-1] if reverse else NORTH)
    assert all(len(page) == limit for page in found[:-1])


def test_a_page_whose_time_is_over_has_what_was_found_and_a_cursor(stage: Stage) -> None:
    where = JobFilter(text="north@")
    first = stage.broker.inspector.page("q", "waiting", where=where, seconds=0)
    assert (first.examined, first.cursor) == (15, "")
    for number in range(200):
        stage.put(f"more-{number}", at=-5000)
    first = stage.broker.inspector.page("q", "waiting", where=where, seconds=0)
    assert (len(first.jobs), first.examined) == (0, 50)
    assert list(chain(*pages(stage, where=where, seconds=0))) == NORTH


def test_an_index_limits_how_many_jobs_are_read(stage: Stage) -> None:
    def examined(place: str, **conditions: Any) -> int:
        return stage.broker.inspector.page("q", place, where=JobFilter(**conditions)).examined

    assert examined("waiting", due_before_ms=T0 + 2000) == 2
    assert examined("failed", failures=3) == 1
    assert examined("failed", failures_to=2) == 2
    assert examined("failed", failures_to=0) == 0
    assert examined("morgue", prefix="north") == 1
    assert examined("waiting", prefix="north") == 15, "there is no index of waiting jobs by id"


def test_a_range_and_the_conditions_hold_together(stage: Stage) -> None:
    where = JobFilter(due_before_ms=T0 + 8000)
    (page,) = pages(stage, by="due", low=T0 + 4000, high=T0 + 20_000, where=where)
    assert page == ["south-04", "south-05", "north-06", "south-07"]


def test_a_text_is_found_behind_the_size_that_is_shown(stage: Stage) -> None:
    stage.put("large", at=1, args=encode_args(("x" * 5000 + "needle",), {}))
    page = stage.broker.inspector.page("q", "waiting", where=JobFilter(text="needle"), most_bytes=100)
    (view,) = page.jobs
    assert (view.id, view.cut, view.job.args, view.size > 5000) == ("large", True, b"", True)


def test_payloads_of_merged_jobs_are_searched(stage: Stage) -> None:
    for number in range(5):
        stage.add("merged", b'"payload %d"' % number, str(number))
    (view,) = stage.broker.inspector.page("q", "waiting", where=JobFilter(text="payload 3")).jobs
    assert (view.id, view.payloads, view.payload_count) == ("merged", (), 5)
    assert ids(stage, text="payload 7") == []


def test_a_further_condition_takes_the_place_of_the_stored_text(stage: Stage) -> None:
    page = stage.broker.inspector.page(
        "q", "waiting", where=JobFilter(text="north", prefix="south"), accepts=lambda view: view.id.endswith("1")
    )
    assert [view.id for view in page.jobs] == ["south-01", "south-11"]


def test_the_beginning_of_an_id_ends_where_the_last_one_that_begins_with_it_does(clocked: Broker) -> None:
    stage = Stage(clocked)
    for ident in ("a", "ab", "a\U0010ffff\U0010ffff", "b", "A"):
        stage.in_morgue(ident, at=-1)
    assert sorted(ids(stage, "morgue", prefix="a")) == ["a", "ab", "a\U0010ffff\U0010ffff"]


def test_an_order_that_the_place_does_not_have_is_refused(stage: Stage) -> None:
    with pytest.raises(InvalidJob, match="not ordered by 'id'"):
        stage.broker.inspector.page("q", "waiting", "id", where=JobFilter(prefix="a"))

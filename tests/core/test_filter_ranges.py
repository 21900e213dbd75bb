"""Conditions for a range of ids, and for the time of a burial."""

from __future__ import annotations

import pytest

from django_delayq.core import InvalidJob, bulk

from .bulk_stage import JobFilter
from .stage import T0, Stage

IDS = ("a", "b", "ba", "bz", "c", "é", "z")


@pytest.fixture
def both(wide: Stage) -> Stage:
    """Return three shards with the same ids waiting and in the morgue, where one is buried each second."""
    for ident in IDS:
        wide.put(ident)
        (job,) = [job for number in wide.queue.numbers for job in wide.take(number=number)]
        assert wide.buried(job)
        wide.wait(1000)
    for ident in IDS:
        wide.put(ident, at=50_000)
    return wide


def found(stage: Stage, place: str, **conditions: object) -> list[str]:
    page = stage.broker.inspector.page("wide", place, where=JobFilter(**conditions))  # type: ignore[arg-type]
    return sorted(view.id for view in page.jobs)


@pytest.mark.parametrize("place", ["waiting", "morgue"])
@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ({"id_from": "b"}, ["b", "ba", "bz", "c", "z", "é"]),
        ({"id_to": "bz"}, ["a", "b", "ba", "bz"]),
        ({"id_from": "b0", "id_to": "bzz"}, ["ba", "bz"]),
        ({"id_from": "ba", "id_to": "ba"}, ["ba"]),
        ({"id_from": "z"}, ["z", "é"]),
        ({"prefix": "b", "id_from": "ba"}, ["ba", "bz"]),
        ({"prefix": "b", "id_to": "ba"}, ["b", "ba"]),
        ({"prefix": "b", "id_from": "c"}, []),
    ],
)
def test_a_range_of_ids_has_both_its_ends(
    both: Stage, place: str, conditions: dict[str, str], expected: list[str]
) -> None:
    assert found(both, place, **conditions) == expected
    page = both.broker.inspector.page("wide", "morgue", "id", where=JobFilter(**conditions))  # type: ignore[arg-type]
    assert sorted(view.id for view in page.jobs) == expected
    assert page.examined == len(expected), "the index of the morgue gives no other job"


def test_the_time_of_the_burial_is_a_range_of_the_morgue_only(both: Stage) -> None:
    assert found(both, "morgue", buried_from_ms=T0 + 2000, buried_before_ms=T0 + 4000) == ["ba", "bz"]
    assert found(both, "morgue", buried_before_ms=T0 + 1000.5) == ["a", "b"]
    assert found(both, "morgue", buried_from_ms=T0 + 5000, id_to="y") == []
    assert found(both, "waiting", buried_from_ms=0) == []
    where = JobFilter(buried_from_ms=T0 + 6000)
    assert both.broker.inspector.page("wide", "morgue", where=where).examined == 1, "by index"


def test_bulk_verbs_take_the_ranges(both: Stage) -> None:
    def change(verb: bulk.Verb, **conditions: object) -> dict[str, int]:
        return dict(bulk.change(both.queue, verb, JobFilter(**conditions)).counts)  # type: ignore[arg-type]

    assert change(bulk.CANCEL, id_from="b", id_to="bz") == {"cancelled": 3}
    assert change(bulk.kick(), id_from="b", id_to="c", buried_from_ms=T0 + 2000) == {"kicked": 2, "live": 1}
    assert change(bulk.DISCARD, buried_before_ms=T0 + 2000) == {"discarded": 2}
    assert found(both, "morgue") == ["c", "z", "é"]


def test_ranges_that_hold_nothing_or_cannot_be_are_refused() -> None:
    with pytest.raises(InvalidJob, match="exchange id_from and id_to"):
        JobFilter(id_from="b", id_to="a")
    with pytest.raises(InvalidJob, match="id_to is a text"):
        JobFilter(id_to="x" * 256)


def test_a_range_of_failures_that_no_job_has_is_refused() -> None:
    with pytest.raises(InvalidJob, match="exchange failures and failures_to"):
        JobFilter(failures=3, failures_to=2)
    for wrong in (-1, True, "2"):
        with pytest.raises(InvalidJob, match="failures_to must be"):
            JobFilter(failures_to=wrong)  # type: ignore[arg-type]
    assert not JobFilter(failures_to=0).is_empty
    with pytest.raises(InvalidJob, match="buried_from_ms must be a number of Unix ms"):
        JobFilter(buried_from_ms="yesterday")  # type: ignore[arg-type]

"""Reserve of the first job that matches, filtered pages and bulk operations, on both brokers."""

from __future__ import annotations

from typing import Any

import pytest

from django_delayq.core.filtered_bulk import CANCEL, DISCARD, change_matching
from django_delayq.core.matching import Holder, reserve_match
from django_delayq.core.operations.job_filter import JobFilter

from .stand import T0, Make, Stand


@pytest.fixture
def stand(make_stand: Make) -> Stand:
    """Four jobs that wait over two shards, a merged one and one in the morgue."""
    stand = make_stand(shards=2)
    stand.in_morgue("dead", args=b'["north"]')
    for number in range(4):
        stand.put(f"job-{number}", at=1000 * number, args=f'["Grüße","{"north" if number % 2 else "south"}"]'.encode())
    stand.add("merged", b'"one"', "1")
    stand.add("merged", b'"needle"', "2")
    return stand


def take(stand: Stand, *, early: bool = False, **conditions: Any) -> list[str]:
    holder = Holder("w", 60_000, early=early)
    calls = reserve_match(stand.queue, JobFilter(**conditions), holder)
    return [job.id for batch, _ in calls for job in batch.jobs][:1]


def test_the_first_job_that_matches_is_reserved(stand: Stand) -> None:
    assert take(stand, text="NEEDLE") == ["merged"]
    assert take(stand, text="needle") == []
    assert take(stand, text="Grüße", prefix="job-1") == []
    stand.wait(1000)
    assert take(stand, text="Grüße", prefix="job-1") == ["job-1"]
    assert take(stand, prefix="job-3", early=True) == ["job-3"]


def test_a_buried_job_is_reserved_by_its_id(stand: Stand) -> None:
    assert not stand.queue.reserve_id("dead", worker="w").jobs
    (job,) = stand.queue.reserve_id("dead", worker="w", buried=True).jobs
    assert (job.args, job.failures, job.counts.kicks) == (b'["north"]', 0, 1)
    assert not stand.queue.reserve_id("dead", worker="w", buried=True).jobs


def test_pages_take_conditions(stand: Stand) -> None:
    def ids(place: str, **conditions: Any) -> list[str]:
        page = stand.broker.inspector.page("q", place, where=JobFilter(**conditions))
        return [view.id for view in page.jobs]

    assert ids("waiting", text="north") == ["job-1", "job-3"]
    assert ids("waiting", due_from_ms=T0 + 1000, due_before_ms=T0 + 3000) == ["job-1", "job-2"]
    assert ids("waiting", text="needle") == ["merged"]
    assert ids("morgue", prefix="de") == ["dead"]


def test_the_jobs_that_match_are_changed(stand: Stand) -> None:
    assert change_matching(stand.queue, CANCEL, JobFilter(text="north")).counts == {"cancelled": 2}
    assert change_matching(stand.queue, DISCARD, JobFilter(text="north")).counts == {"discarded": 1}
    counts = stand.broker.inspector.counts("q")
    assert (counts.ready + counts.delayed, counts.morgue) == (3, 0)

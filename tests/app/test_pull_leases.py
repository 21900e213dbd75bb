"""Leases of those who pull, when they run out: dispatchers take them back, other processes do not."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from django_delayq import Queue, connections
from django_delayq.core.job import NewJob
from tests.support.processes import wait_until
from tests.support.reaping import reaping

from .pull_stage import PATIENCE, one, places

pytestmark = pytest.mark.usefixtures("pull_queues")


@pytest.fixture
def dispatcher(pull_queues: None) -> Iterator[None]:
    with reaping(connections.broker(), "feed", "wide"):
        yield


@pytest.mark.parametrize("name", ["default", "feed"])
def test_who_pulls_takes_no_lease_back(name: str) -> None:
    """The policies of its jobs may be those of another release, and signals belong to the dispatchers."""
    live = connections.queue(name)
    live.schedule(NewJob("a", "unknown here"))
    live.reserve(0, 1, worker="gone", ttr_ms=50, started=True)
    assert Queue(name).reserve(wait=0.5) == []
    assert live.expired(0), "its time was over"
    assert places(name) == {"reserved": 1}


@pytest.mark.usefixtures("dispatcher")
def test_t04_a_holder_that_overstays_its_lease_loses_the_job_for_good(feed: Queue) -> None:
    feed.put(b"x", id="a")
    late = one(feed, ttr=0.05)
    again = one(feed, wait=PATIENCE)
    assert again.token > late.token
    with late:
        pass
    assert late.lost
    assert not late.touch()
    assert places("feed") == {"reserved": 1, "failed": 1}
    assert again.ack()


@pytest.mark.usefixtures("dispatcher")
def test_a_lease_that_runs_out_counts_as_a_crash_and_the_third_one_buries_the_job(feed: Queue) -> None:
    handle = feed.put(b"x", id="a")
    assert one(feed, ttr=0.05)
    assert one(feed, wait=PATIENCE, ttr=0.05).attempt == 2
    wait_until(
        lambda: not feed.reserve() and places("feed") == {"delayed": 1, "failed": 1}, PATIENCE, "the second crash"
    )
    assert handle.run_now()
    assert one(feed, ttr=0.05).attempt == 3
    wait_until(lambda: not feed.reserve() and places("feed") == {"morgue": 1}, PATIENCE, "the third crash")
    (view,) = feed.peek(place="morgue")
    assert (view.reason, view.job.crashes, view.job.failures, view.error["class"]) == ("poison", 3, 3, "Crashed")


@pytest.mark.usefixtures("dispatcher")
def test_leases_of_many_jobs_that_run_out_together_come_back_together() -> None:
    live = connections.queue("wide")
    live.schedule_many(NewJob(f"j{number}", "raw") for number in range(1000))
    wide = Queue("wide")
    for _ in range(4):
        assert len(wide.reserve(250, ttr=0.5)) == 250
    back: set[str] = set()
    until = time.monotonic() + PATIENCE
    while len(back) < 1000 and time.monotonic() < until:
        back.update(job.id for job in wide.reserve(250, wait=1))
    assert len(back) == 1000

"""Pages and reports stay fast and complete with large amounts of data."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import pytest

from django_delayq.core.broker import Broker
from django_delayq.core.job import NewJob
from django_delayq.core.job_view import JobView
from django_delayq.core.outcomes import bury
from django_delayq.core.redis.connection import RedisConfig, connect
from tests.support.redis_box import RedisBox

from .conftest import MakeMill


def fill(broker: Broker, waiting: int, dead: int) -> None:
    """``waiting`` delayed jobs and ``dead`` in the morgue, in four shards."""
    queue = broker.queue("default", shards=4)
    queue.schedule_many(NewJob(f"dead-{number:07}", "mill.grind") for number in range(dead))
    for shard in range(4):
        while jobs := queue.reserve(shard, 250, worker="test").jobs:
            assert all(queue.settle([bury(job, 0, 0, reason="for the test") for job in jobs]))
    base = int(broker.now_ms()) + 3_600_000
    queue.schedule_many(
        NewJob(f"job-{number:07}", "mill.grind", due_ms=base + number // 3, delay_ms=None) for number in range(waiting)
    )


def walk(
    broker: Broker, place: str, by: str, *, meanwhile: Callable[[int], None] = lambda page: None, reverse: bool = False
) -> list[JobView]:
    """All pages of a place, one after another."""
    found: list[JobView] = []
    cursor = ""
    for number in itertools.count():
        page = broker.inspector.page("default", place, by, cursor=cursor, limit=250, reverse=reverse)
        found += page.jobs
        cursor = page.cursor
        if not cursor:
            return found
        meanwhile(number)
    raise AssertionError("unreachable")


def pages_are_complete_and_stable(broker: Broker, waiting: int, dead: int) -> None:
    fill(broker, waiting, dead)
    queue = broker.queue("default")
    gone = {f"job-{number:07}" for number in range(0, waiting, waiting // 40)}
    left = iter(sorted(gone))

    def meanwhile(page: int) -> None:
        """While somebody turns the pages, jobs come and go."""
        queue.schedule(NewJob(f"fresh-{page}", "mill.grind", delay_ms=1_000))
        if ident := next(left, None):
            queue.cancel(ident)

    seen = walk(broker, "waiting", "due", meanwhile=meanwhile)
    ids = [view.id for view in seen]
    assert len(ids) == len(set(ids)), "nobody is shown twice"
    assert {f"job-{number:07}" for number in range(waiting)} - gone <= set(ids), "nobody who stays is left out"
    assert [view.due_ms for view in seen] == sorted(view.due_ms for view in seen)

    for by, reverse in (("updated", False), ("updated", True), ("id", False)):
        graves = walk(broker, "morgue", by, reverse=reverse)
        assert {view.id for view in graves} == {f"dead-{number:07}" for number in range(dead)}
        assert len(graves) == dead
        keys = [view.id if by == "id" else view.buried_ms for view in graves]
        assert keys == sorted(keys, reverse=reverse)  # type: ignore[type-var]


def test_t47_thousands_of_jobs_and_of_dead_ones_are_paged_through(broker: Broker) -> None:
    pages_are_complete_and_stable(broker, 8_000, 2_000)


@pytest.mark.slow
def test_t47_a_million_jobs_and_a_hundred_thousand_dead_are_paged_through(broker: Broker) -> None:
    began = time.monotonic()
    pages_are_complete_and_stable(broker, 1_000_000, 100_000)
    print(f"filled and paged in {time.monotonic() - began:.0f} s")


def test_t02_ten_thousand_leases_that_end_at_once_are_all_recovered(make_mill: MakeMill) -> None:
    mill = make_mill(lease=2.0)
    ids = mill.put_many("grind", 10_000)
    queue = mill.broker.queue("default")
    while queue.reserve(0, 250, worker="a holder that is never heard of again").jobs:
        pass
    assert mill.counts().reserved == 10_000
    mill.start("--threads", 4, "--log-format", "json", "--verbosity", 0)
    mill.wait_ended(ids, 60)
    mill.wait_empty()
    assert mill.starts_by_id() == dict.fromkeys(ids, 1)
    assert mill.counts().morgue == 0


@pytest.mark.parametrize("jobs", [20_000, pytest.param(10_000_000, marks=pytest.mark.slow)])
def test_t50_many_delayed_jobs_are_resident_at_a_known_number_of_bytes(
    redis_factory: Callable[..., RedisBox], jobs: int
) -> None:
    """The benchmark ``memory --jobs 10000000`` measures the same on both servers, and by key."""
    server = redis_factory()
    with server.client() as client:
        broker = Broker(connect(RedisConfig.parse(server.url)))
        queue = broker.queue("shop")
        before = client.info("memory")["used_memory"]
        for first in range(0, jobs, 10_000):
            numbers = range(first, min(first + 10_000, jobs))
            made = (NewJob(f"order-{n:010}", "shop.cancel", b"[12345678]", delay_ms=3_600_000 + n) for n in numbers)
            assert len(queue.schedule_many(made)) == len(numbers)
        assert broker.inspector.counts("shop").delayed == jobs
        per_job = (client.info("memory")["used_memory"] - before) / jobs
        broker.connection.close()
    print(f"{jobs:,} delayed jobs: {per_job:.1f} bytes each")
    assert 150 < per_job < 260, f"{per_job:.0f} bytes a job"

"""A process in which jobs cannot begin holds back instead of taking one job after another only to give it back."""

from __future__ import annotations

import time

import pytest

from django_delayq.core import Broker, Job
from django_delayq.worker.fetch import ReadinessGate
from tests.support.worker_stage import Hooks, config, eventually, put, registry_of, working

pytestmark = pytest.mark.one_server("the fetch loop is the same on a cluster")


def test_g1_while_the_database_is_away_few_jobs_are_taken_and_afterwards_all_are_done(broker: Broker) -> None:
    turned_away: list[str] = []
    done: list[int] = []
    away_until: list[float] = []

    def reach(job: Job) -> None:
        if not away_until:
            away_until.append(time.monotonic() + 0.6)
        if time.monotonic() < away_until[0]:
            turned_away.append(job.id)
            raise ConnectionError("the database is away")

    def work(number: int) -> None:
        done.append(number)

    for number in range(100):
        put(broker, "work", number)
    with working(broker, registry_of(work), config(threads=3), Hooks(before_job=reach)):
        eventually(lambda: len(done) == 100, "the end of all jobs")
    assert sorted(done) == list(range(100))
    assert 3 <= len(turned_away) <= 12, "two or three rounds of what three threads hold"


def test_pauses_grow_while_no_job_can_begin_and_end_with_the_first_that_can() -> None:
    now = [100.0]
    readiness, pauses = ReadinessGate(lambda: now[0]), []
    for _ in range(7):
        readiness.unfit()
        readiness.unfit()  # the next job in hand
        pauses.append(readiness.until - now[0])
        now[0] = readiness.until
    assert pauses == [0.25, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0]
    readiness.fit()
    assert readiness.until == 0.0
    readiness.unfit()
    assert readiness.until - now[0] == 0.25

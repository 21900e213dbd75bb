"""Ends of runs are stored with patience: nothing is given up early, and no run pays for another one."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from django_delayq.core import Broker, NewJob, QueueUnavailable, ack, bury, fail, release
from tests.support.attempt_stage import Attempt, make_attempt, make_job
from tests.support.core_calls import held_by, watch_calls
from tests.support.duty_stage import Settling, source_of

LEASE = 15.0


def failing(times: int) -> Callable[[], str]:
    """A call that Redis answers only after so many tries."""
    left = iter(range(times))

    def call() -> str:
        if next(left, None) is not None:
            raise QueueUnavailable("away")
        return "answer"

    return call


@pytest.mark.parametrize("seconds_left", [[-20.0, 5.0], [-3 * LEASE], []])
def test_ends_are_sent_again_until_redis_answers(seconds_left: list[float]) -> None:
    """However long that takes: during an outage no lease is taken, so the end still counts; else the reply says so."""
    now = time.monotonic()
    attempts = [make_attempt(make_job(id=f"j{place}"), deadline=now + left) for place, left in enumerate(seconds_left)]
    assert Settling().call(failing(2), attempts, make_attempt().source) == "answer"


def test_an_end_that_cannot_be_stored_takes_no_other_with_it(broker: Broker) -> None:
    queue = broker.queue("default", shards=1)
    queue.schedule_many(NewJob(ident, "work") for ident in "abc")
    source = source_of(queue)
    attempts = [
        Attempt(job, source, 0.0, time.monotonic() + LEASE, 0.0) for job in queue.reserve(0, 9, worker="w").jobs
    ]
    unstorable: Any = "soon"
    attempts[0].settlement, attempts[2].settlement = ack(attempts[0].job, 1, 1), ack(attempts[2].job, 1, 1)
    attempts[1].settlement = fail(attempts[1].job, 1, 1, delay_ms=unstorable)
    settler = Settling(source)
    settler.settle(attempts)
    assert [job.id for job in held_by(queue, "w")] == ["b"]
    assert settler.settled == 2


def test_an_end_is_stored_although_the_reserve_that_it_was_sent_with_failed(broker: Broker) -> None:
    queue = broker.queue("default", shards=1)
    queue.schedule(NewJob("a", "work"))
    (job,) = queue.reserve(0, 1, worker="w").jobs
    source = source_of(queue)
    attempt = Attempt(job, source, 0.0, time.monotonic() + LEASE, 0.0)
    attempt.settlement = ack(job, 1, 1)
    settler = Settling(source)
    settler.held.add(attempt)

    def unreadable() -> None:
        raise ValueError("a reply that cannot be read")

    assert settler.call(unreadable, [attempt], source) is None
    assert (settler.settled, settler.held, list(held_by(queue, "w"))) == (1, set(), [])


def test_all_kinds_of_ends_are_stored_in_one_call_with_the_next_reserve(broker: Broker) -> None:
    """A retry, a release and a burial as well as acks; what is due again at once may come back with the reply."""
    queue = broker.queue("default", shards=1)
    queue.schedule_many(NewJob(ident, "work") for ident in ("done", "failed", "later", "again", "dead", "next"))
    source = source_of(queue)
    jobs = {job.id: job for job in queue.reserve(0, 5, worker="w").jobs}
    attempts = {ident: Attempt(job, source, 0.0, time.monotonic() + LEASE, 0.0) for ident, job in jobs.items()}
    for ident, settlement in (
        ("done", ack(jobs["done"], 1, 1)),
        ("failed", fail(jobs["failed"], 1, 1, delay_ms=60_000)),
        ("later", release(jobs["later"], delay_ms=60_000)),
        ("again", release(jobs["again"])),
        ("dead", bury(jobs["dead"], reason="no")),
    ):
        attempts[ident].settlement = settlement
    settler = Settling(source)
    with watch_calls(broker) as calls:
        fetched = settler.settle_and_reserve(list(attempts.values()), 9)
    assert [call.name for call in calls] == ["settle"]
    assert {attempt.job.id for attempt in fetched} == {"again", "next"}
    assert settler.settled == 5 and settler.held == set(fetched)
    counts = broker.inspector.counts("default")
    assert (counts.delayed, counts.failed, counts.morgue, counts.reserved) == (2, 1, 1, 2)
    assert {job.id for job in held_by(queue, "w")} == {"again", "next"}

"""Ends of runs are stored with patience: nothing is given up early, and no run pays for another one."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from django_delayq.core import Broker, NewJob, QueueUnavailable, ack, fail
from tests.support.attempt_stage import Attempt, make_attempt, make_job
from tests.support.core_calls import held_by
from tests.support.duty_stage import settler_of, source_of

LEASE = 15.0


@pytest.fixture
def settler() -> Any:
    return settler_of(lease=LEASE)[0]


def failing(times: int) -> Callable[[], str]:
    """A call that Redis answers only after so many tries."""
    left = iter(range(times))

    def call() -> str:
        if next(left, None) is not None:
            raise QueueUnavailable("away")
        return "answer"

    return call


@pytest.mark.parametrize(("seconds_left", "answer"), [([-20.0, 5.0], "answer"), ([-20.0, -16.0], None), ([], "answer")])
def test_ends_are_sent_again_while_any_of_their_leases_may_be_held(
    settler: Any, seconds_left: list[float], answer: str | None
) -> None:
    now = time.monotonic()
    attempts = [make_attempt(make_job(id=f"j{place}"), deadline=now + left) for place, left in enumerate(seconds_left)]
    assert settler.call_with_retries(failing(2), attempts, make_attempt().source) == answer


def test_ends_are_kept_for_as_long_as_redis_is_away() -> None:
    """During an outage no lease is taken, however long it lasts: the end still counts when Redis is back."""
    settler, _ = settler_of(lease=LEASE, outage=60.0)
    attempts = [make_attempt(make_job(id="a"), deadline=time.monotonic() - 3 * LEASE)]
    assert settler.call_with_retries(failing(2), attempts, make_attempt().source) == "answer"


def test_what_was_given_up_is_remembered_as_ones_own(settler: Any) -> None:
    """Else a look for leases that nobody works on would give back a job whose end may be on its way."""
    settler.halted = True
    for ident in ("a", "b"):
        attempt = make_attempt(make_job(id=ident))
        assert settler.call_with_retries(failing(9), [attempt], attempt.source) is None
    assert [ident for _, ident, _ in settler.abandoned] == ["a", "b"]


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
    settler, _ = settler_of(source, lease=LEASE)
    settler.add(source, attempts)
    settler.settle_all()
    assert [job.id for job in held_by(queue, "w")] == ["b"]
    assert settler.settled == 2


def test_an_end_is_stored_although_the_reserve_that_it_was_sent_with_failed(broker: Broker) -> None:
    queue = broker.queue("default", shards=1)
    queue.schedule(NewJob("a", "work"))
    (job,) = queue.reserve(0, 1, worker="w").jobs
    source = source_of(queue)
    attempt = Attempt(job, source, 0.0, time.monotonic() + LEASE, 0.0)
    attempt.settlement = ack(job, 1, 1)
    settler, _ = settler_of(source, lease=LEASE)
    settler.held.add(attempt)

    def unreadable() -> None:
        raise ValueError("a reply that cannot be read")

    assert settler.call_with_retries(unreadable, [attempt], source) is None
    assert (settler.settled, settler.held, list(held_by(queue, "w"))) == (1, set(), [])

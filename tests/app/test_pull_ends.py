"""Ends of jobs that are pulled: those who listen are called as in a worker, whoever settles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from django_delayq import Queue, connections, schedule, task
from django_delayq.core.broker import Broker
from django_delayq.core.task import registry
from django_delayq.core.verdicts import Bury, Release
from django_delayq.pull import HeldJob
from tests.support.listening import Ears, listening
from tests.support.processes import wait_until
from tests.support.reaping import reaping

from .pull_stage import one, places


@pytest.fixture
def ears(delayq: Broker, settings: Any) -> Iterator[Ears]:
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"feed": {"kind": "pull"}}}
    with listening() as ears:
        yield ears


@pytest.fixture
def parcel(ears: Ears) -> Iterator[Any]:
    """A task with two attempts that hears of its last one."""

    @task(name="pull.parcel", max_attempts=2, retry_in=0, on_exhausted=ears.exhausted)
    def parcel(number: int, *, to: str = "") -> None: ...

    yield parcel
    registry.remove(parcel)


def test_a_failure_by_pull_is_sent_as_a_signal_and_the_last_one_calls_the_tasks_hook(ears: Ears, parcel: Any) -> None:
    schedule(parcel, 7, to="Ann", id="a")
    queue = Queue("default")
    first = one(queue)
    assert first.fail(ValueError("closed"))
    last = one(queue)
    assert last.fail("again")
    stored = first.record.args
    assert ears.heard == [
        ("job_failed", "a", stored, "ValueError", "closed", ("failed", 0.0)),
        ("on_exhausted", "a", ([7], {"to": "Ann"}), "Exception", "again", 2),
        ("job_buried", "a", stored, "Exception", "again", "exhausted"),
    ]


def test_raw_bytes_have_signals_without_a_task(ears: Ears) -> None:
    feed = Queue("feed")
    for ident in ("a", "b"):
        feed.put(b"x", id=ident)
    failed, buried = feed.reserve(2)
    assert failed.fail("no", delay=60) and buried.bury("nonsense")
    assert [(event, ident, more) for event, ident, _, _, _, more in ears.heard] == [
        ("job_failed", failed.id, ("failed", 60.0)),
        ("job_buried", buried.id, "nonsense"),
    ]
    assert ears.heard[1][3:5] == (Bury.__name__, "nonsense")


def test_an_ack_and_a_release_are_no_ends_to_hear_of(ears: Ears, parcel: Any) -> None:
    schedule(parcel, 7)
    queue = Queue("default")
    assert one(queue).fail(Release())
    assert one(queue).ack()
    assert ears.heard == []


def test_who_lost_the_lease_calls_nobody(ears: Ears, parcel: Any) -> None:
    schedule(parcel, 7)
    job = one(Queue("default"))
    assert job._core_queue.settle([_given_back(job)]) == [True]
    assert not job.fail("no")
    assert job.lost and ears.heard == []


def _given_back(job: HeldJob) -> Any:
    from django_delayq.core.outcomes import release

    return release(job.record)


def test_a_lease_that_ran_out_is_heard_of_where_it_is_taken_back(ears: Ears, parcel: Any) -> None:
    schedule(parcel, 7, id="a")
    one(Queue("default"), ttr=0.05)
    with reaping(connections.broker(), "default", hears=True):
        wait_until(lambda: places("default") == {"ready": 1, "failed": 1}, what="the first crash")
        one(Queue("default"), ttr=0.05)
        wait_until(lambda: places("default") == {"morgue": 1}, what="the second one")
    assert [(event, kind, more) for event, _, _, kind, _, more in ears.heard] == [
        ("job_failed", "Crashed", ("crashed", 0.0)),
        ("on_exhausted", "Crashed", 2),
        ("job_buried", "Crashed", "poison"),
    ]
    assert "ran out during the attempt" in ears.heard[0][4]


def report(job: Any, error: BaseException) -> None:
    reported.append((job.task, job.id, job.attempt, str(error)))


reported: list[Any] = []


def test_a_failure_by_pull_is_reported_to_the_error_tracker(ears: Ears, parcel: Any, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "HOOKS": {"report_error": "tests.app.test_pull_ends.report"}}
    reported.clear()
    schedule(parcel, 7, id="a")
    queue = Queue("default")
    assert one(queue).fail(ValueError("closed"))
    assert one(queue).ack()
    assert reported == [("pull.parcel", "a", 1, "closed")]

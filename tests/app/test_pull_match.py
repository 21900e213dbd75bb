"""``Queue.reserve_match``: the first job that matches, taken in one call."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from django_delayq import InvalidJob, Queue, schedule, task
from django_delayq.core.broker import Broker
from django_delayq.core.task import registry


@pytest.fixture(autouse=True)
def _queues(delayq: Broker, settings: Any) -> None:
    kinds = {name: {"kind": "pull", "shards": 3} for name in ("feed", "other")}
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": kinds}


def test_the_first_job_of_several_queues_that_matches_is_held_as_any_other() -> None:
    Queue("feed").put(b"one", id="1")
    Queue("other").put(b'{"customer": 17}', id="2", context={"tenant": "north"})
    both = Queue("feed", "other")
    assert both.reserve_match(text="customer: 17") is None
    job = both.reserve_match(text='"customer": 17', ttr=timedelta(seconds=9), by="importer")
    assert job is not None
    assert (job.id, job.queue, job.body, job.attempt) == ("2", "other", b'{"customer": 17}', 1)
    assert both.soon_ending(10) == [job]
    assert job.fail("broken", delay=0)
    again = both.reserve_match(prefix="2", text="NORTH")
    assert again is not None
    assert (again.attempt, again.ack()) == (2, True)


def test_a_job_that_waits_for_its_time_is_reserved_early_if_that_is_wanted() -> None:
    Queue("feed").put(b"later", id="1", delay=3600)
    assert Queue("feed").reserve_match(text="later") is None
    job = Queue("feed").reserve_match(text="later", early=True)
    assert job is not None and job.release()


def test_a_call_of_a_task_is_found_by_its_name_and_by_its_arguments() -> None:
    @task(name="match.pay", queue="bills")
    def pay(amount: int, *, note: str) -> None:
        return None

    try:
        schedule(pay, 5, note="first", id="a")
        schedule(pay, 7, note="second", id="b")
        job = Queue("bills").reserve_match(task="match.pay", text='"note":"second"')
        assert job is not None
        assert (job.id, list(job.args), dict(job.kwargs)) == ("b", [7], {"note": "second"})
    finally:
        registry.remove(pay)


@pytest.mark.parametrize(
    ("given", "message"),
    [({}, "reserve which job"), ({"text": b"x"}, "text is a text"), ({"prefix": "a", "ttr": 0}, "ttr is 0")],
)
def test_a_wrong_argument_is_refused_at_the_call(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidJob, match=message):
        Queue("feed").reserve_match(**given)

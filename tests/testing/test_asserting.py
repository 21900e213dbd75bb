"""assert_scheduled, refute_scheduled and delayq_fake.scheduled_jobs(): what they accept, and what they say."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from unittest.mock import ANY

import pytest

from django_delayq import InvalidJob, schedule
from django_delayq.testing import Fake

from .works import note, sync, tell

HALF_HOUR = timedelta(minutes=30)


def message_of(failed: pytest.ExceptionInfo[AssertionError]) -> list[str]:
    return str(failed.value).splitlines()


def test_a_scheduled_job_has_what_was_asked_for(delayq_fake: Fake) -> None:
    now = delayq_fake.freeze(datetime(2030, 1, 1, tzinfo=UTC))
    schedule(note, "x", times=2, id=7, delay=HALF_HOUR, priority=1, context={"trace": "t"})
    (job,) = delayq_fake.scheduled_jobs()
    assert job == delayq_fake.assert_scheduled(note)
    assert (job.task, job.args, job.kwargs, job.payloads, job.id, job.queue) == (
        "works.note",
        ["x"],
        {"times": 2},
        [],
        "7",
        "notes",
    )
    assert (job.due, job.delay, job.priority, job.context, job.state, job.failures) == (
        now + HALF_HOUR,
        HALF_HOUR,
        1,
        {"trace": "t"},
        "delayed",
        0,
    )


def test_every_wish_is_looked_at(delayq_fake: Fake) -> None:
    now = delayq_fake.clock.now
    schedule(note, "x", times=2, id=7, delay=HALF_HOUR, priority=1, context={"trace": "t"})
    wishes: dict[str, tuple[Any, Any]] = {
        "args": (("x",), ["y"]),
        "kwargs": ({"times": 2}, {}),
        "id": (7, 8),
        "queue": ("notes", "others"),
        "delay": (1800, 1700),
        "at": (now + HALF_HOUR, now),
        "context": ({"trace": "t"}, {}),
        "priority": (1, 4),
        "state": ("delayed", "ready"),
        "failures": (0, 1),
        "count": (1, 2),
    }
    good = {name: fits for name, (fits, _) in wishes.items()}
    delayq_fake.assert_scheduled(note, **good)
    for name, (_, value) in wishes.items():
        with pytest.raises(AssertionError):
            delayq_fake.assert_scheduled(note, **{**good, name: value})
        if name != "count":
            delayq_fake.refute_scheduled(note, **{name: value})
            with pytest.raises(AssertionError):
                delayq_fake.refute_scheduled(note, **{name: good[name]})
    with pytest.raises(TypeError, match="not asserted by colour="):
        delayq_fake.assert_scheduled(note, colour="red")


def test_arguments_are_compared_as_they_are_stored(delayq_fake: Fake) -> None:
    schedule(note, kwargs={"text": (1, Decimal("2.50"), date(2030, 1, 1)), "times": 1})
    delayq_fake.assert_scheduled(note, args=[], kwargs={"text": (1, Decimal("2.50"), date(2030, 1, 1)), "times": 1})
    delayq_fake.assert_scheduled(note, kwargs={"text": [1, Decimal("2.50"), date(2030, 1, 1)], "times": 1})
    delayq_fake.assert_scheduled(note, kwargs={"text": ANY, "times": 1})


def test_payloads_are_in_the_order_of_their_scores(delayq_fake: Fake) -> None:
    for payload, score in (((3,), 3), ((1,), 1), ((2,), 2)):
        schedule(sync, id="a", payload=payload, score=score)
    delayq_fake.assert_scheduled(sync, id="a", payloads=[(1,), (2,), (3,)], count=1)


def test_a_due_time_may_be_off_by_so_much(delayq_fake: Fake) -> None:
    schedule(note, "x", delay=60.8)
    delayq_fake.assert_scheduled(note, delay=60)
    delayq_fake.refute_scheduled(note, delay=60, within=0.5)
    delayq_fake.assert_scheduled(note, delay=50, within=timedelta(seconds=11))
    delayq_fake.assert_scheduled(note, at=delayq_fake.clock.now + timedelta(seconds=70), within=10)


@pytest.mark.django_db(transaction=True)
def test_the_delay_of_a_job_that_was_moved_counts_from_the_move(delayq_fake: Fake) -> None:
    handle = schedule(note, "x", delay=60)
    delayq_fake.travel(30)
    handle.reschedule(delay=100)
    delayq_fake.assert_scheduled(note, delay=100, at=delayq_fake.clock.now + timedelta(seconds=100))


def test_the_message_tells_the_nearest_miss_and_all_there_is(delayq_fake: Fake) -> None:
    schedule(note, "x", id="1", delay=60)
    schedule(note, "y", id="2", delay=60)
    schedule(tell, id="3")
    with pytest.raises(AssertionError) as failed:
        delayq_fake.assert_scheduled(note, args=["y"], delay=HALF_HOUR)
    assert message_of(failed) == [
        "no job of works.note with args=['y'], delay=0:30:00 is scheduled",
        "nearest: works.note('y') id=2 queue=notes delay=0:01:00 delayed",
        "    delay is 0:01:00, not 0:30:00",
        "scheduled jobs:",
        "    works.note('x') id=1 queue=notes delay=0:01:00 delayed",
        "    works.note('y') id=2 queue=notes delay=0:01:00 delayed",
        "    works.tell() id=3 queue=notes delay=0:00:00 ready",
    ]


def test_the_message_of_an_empty_queue(delayq_fake: Fake) -> None:
    with pytest.raises(AssertionError) as failed:
        delayq_fake.assert_scheduled(note)
    assert message_of(failed) == ["no job of works.note is scheduled", "no jobs are scheduled"]


def test_a_count_is_exact(delayq_fake: Fake) -> None:
    schedule(note, "x")
    schedule(note, "x")
    delayq_fake.assert_scheduled(note, count=2)
    assert delayq_fake.assert_scheduled(note, args=["y"], count=0) is None
    with pytest.raises(AssertionError, match=r"2 jobs of works\.note are scheduled, expected 1"):
        delayq_fake.assert_scheduled(note, count=1)


def test_refute_tells_what_is_there(delayq_fake: Fake) -> None:
    delayq_fake.refute_scheduled(note)
    schedule(note, "x", id="1")
    with pytest.raises(AssertionError) as failed:
        delayq_fake.refute_scheduled(note, args=["x"])
    assert message_of(failed) == [
        "1 job of works.note with args=['x'] is scheduled, expected 0",
        "scheduled jobs:",
        "    works.note('x') id=1 queue=notes delay=0:00:00 ready",
    ]


def test_a_task_may_be_meant_by_its_name(delayq_fake: Fake) -> None:
    schedule(note, "x")
    delayq_fake.assert_scheduled("works.note")
    assert delayq_fake.scheduled_jobs("works.note", queue="notes")
    assert not delayq_fake.scheduled_jobs("works.gone")
    assert not delayq_fake.scheduled_jobs(queue="other")


def test_long_lists_are_cut(delayq_fake: Fake) -> None:
    for n in range(30):
        schedule(note, str(n))
    with pytest.raises(AssertionError) as failed:
        delayq_fake.assert_scheduled(tell)
    assert message_of(failed)[-1] == "    … and 10 more"


def test_a_span_that_is_none_is_refused(delayq_fake: Fake) -> None:
    with pytest.raises(InvalidJob, match="timedelta or a number of seconds, not 'soon'"):
        delayq_fake.assert_scheduled(note, delay="soon")  # type: ignore[arg-type]


@pytest.mark.parametrize("ask", [Fake.assert_scheduled, Fake.refute_scheduled])
def test_arguments_that_no_call_could_have_are_refused(delayq_fake: Fake, ask: Callable[..., Any]) -> None:
    schedule(note, "x")
    with pytest.raises(TypeError, match="args must be a list or tuple, got 'x'"):
        ask(delayq_fake, note, args="x")
    with pytest.raises(TypeError, match="kwargs must be a dict, got 5"):
        ask(delayq_fake, note, kwargs=5)


def test_a_misspelled_name_refutes_nothing(delayq_fake: Fake) -> None:
    with pytest.raises(InvalidJob, match=r"no task is named 'works.nite'. Did you mean 'works.note'"):
        delayq_fake.refute_scheduled("works.nite")
    delayq_fake.refute_scheduled("works.note")


def test_a_misspelled_state_is_no_state(delayq_fake: Fake) -> None:
    schedule(note, "x")
    for ask in (delayq_fake.assert_scheduled, delayq_fake.refute_scheduled, delayq_fake.scheduled_jobs):
        with pytest.raises(InvalidJob, match=r"a job's state is delayed, .*, not 'reddy'. Did you mean 'ready'"):
            ask(note, state="reddy")

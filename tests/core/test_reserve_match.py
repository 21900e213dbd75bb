"""Reserve of the first job that matches; nereus and dyno-queues (``popMsgWithPredicate``) are the models."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from django_delayq.core import Broker, InvalidJob, Job
from django_delayq.core.matching import Holder, Position, check_match, reserve_match
from tests.support.core_calls import send_twice
from tests.support.core_stored import unpack_fields
from tests.support.core_values import encode_args

from .bulk_stage import JobFilter
from .stage import Stage
from .world import unchanged


@pytest.fixture
def stage(clocked: Broker) -> Stage:
    return Stage(clocked, shards=2)


def args(*values: Any) -> bytes:
    return encode_args(values, {})


def take(stage: Stage, *, early: bool = False, worker: str = "w", **conditions: Any) -> Job | None:
    """Reserve the first job that matches, or return None after all jobs were examined."""
    holder = Holder(worker, ttr_ms=60_000, started=True, early=early)
    for batch, _ in reserve_match(stage.queue, check_match(JobFilter(**conditions)), holder):
        for job in batch.jobs:
            return job
    return None


def id_of(job: Job | None) -> str | None:
    return job and job.id


def test_a_job_that_is_not_due_hides_no_due_one_of_a_later_class(stage: Stage) -> None:
    stage.put("later", at=5_000, priority=0)
    stage.put("now", priority=7)
    assert id_of(take(stage, task="work")) == "now"


@pytest.mark.parametrize(
    ("conditions", "found"),
    [
        ({"text": "c@example.org"}, "c"),
        ({"text": "C@EXAMPLE"}, "c"),  # ASCII letters in either case
        ({"text": 'say "hi"'}, "b"),  # stored escaped
        ({"text": "Grüße"}, "b"),
        ({"text": "mail.send"}, "d"),  # the task's name
        ({"task": "mail.send"}, "d"),
        ({"task": "mail"}, None),  # a name, no part of one
        ({"prefix": "d"}, "d"),
        ({"prefix": "d", "task": "work"}, None),
        ({"text": "trace-7"}, "e"),  # the context
        ({"text": "score me"}, "m"),  # a payload
        ({"text": "nowhere"}, None),
        ({"text": "later"}, None),  # not due
    ],
)
def test_the_first_due_job_that_matches_is_reserved(
    stage: Stage, conditions: dict[str, str], found: str | None
) -> None:
    stage.put("a", args=args("a@example.org"))
    stage.put("b", args=args('say "hi"', "Grüße"))
    stage.put("c", args=args("c@example.org"))
    stage.put("d", task="mail.send")
    stage.put("e", options=b'{"context":{"trace":"trace-7"}}')
    stage.add("m", b'"score me"')
    stage.put("z", at=5_000, args=args("later"))
    job = take(stage, **conditions)
    assert id_of(job) == found
    if job is not None:
        assert stage.done(job) == [True]


def test_of_several_the_most_urgent_class_and_the_earliest_due_time_go_first(clocked: Broker) -> None:
    stage = Stage(clocked)
    for ident, at, priority in (("late", -100, 4), ("early", -900, 4), ("urgent", -1, 0), ("other", -999, 4)):
        stage.put(ident, at=at, priority=priority, args=args("yes" if ident != "other" else "no"))
    assert [id_of(take(stage, text="yes")) for _ in range(4)] == ["urgent", "early", "late", None]
    assert id_of(take(stage, text="no")) == "other"


def test_a_job_may_be_reserved_before_it_is_due(stage: Stage) -> None:
    stage.put("a", at=60_000, args=args("later"))
    assert take(stage, text="later") is None
    assert id_of(take(stage, text="later", early=True)) == "a"


def test_the_lease_and_the_attempt_are_those_of_any_reserve(clocked: Broker) -> None:
    stage = Stage(clocked)
    stage.put("a", args=args("x"))
    job = take(stage, text="x", worker="me")
    assert job is not None
    assert stage.picture() == {"reserved": ["a by me until +60000 started unrenewed"]}
    assert stage.failed(job)
    assert stage.counters()["reserved"] == 1


def test_a_call_that_finds_nothing_changes_nothing(stage: Stage) -> None:
    stage.put("a", args=args("x"))
    with unchanged(stage.broker):
        assert take(stage, text="y") is None


def test_a_paused_queue_hands_out_nothing(stage: Stage) -> None:
    stage.put("a", args=args("x"))
    stage.broker.pause("q", "out")
    assert take(stage, text="x") is None
    stage.broker.resume("q", "out")
    assert id_of(take(stage, text="x")) == "a"


def test_a_job_that_came_too_late_is_passed_over(clocked: Broker) -> None:
    stage = Stage(clocked)
    expires = b'{"expires_ms":%d}' % (clocked.now_ms() - 1_000_000_000_000)
    stage.put("old", at=-900, args=args("x"), options=expires)
    stage.put("new", at=-100, args=args("x"))
    assert id_of(take(stage, text="x")) == "new"
    assert "waiting" not in stage.picture()


def test_one_call_examines_a_bounded_number_of_jobs_and_the_next_one_goes_on(clocked: Broker) -> None:
    stage = Stage(clocked)
    for number in range(180):
        stage.put(
            f"job-{number:03}", at=-1000 + number, priority=number % 2, args=args("wanted" if number == 179 else "")
        )
    calls = list(reserve_match(stage.queue, JobFilter(text="wanted"), Holder("w", 60_000), at_once=50))
    assert [len(batch.jobs) for batch, _ in calls] == [0, 0, 0, 1]
    assert [place is None for _, place in calls] == [False, False, False, True]


def test_it_goes_on_behind_a_job_that_is_gone(clocked: Broker) -> None:
    stage = Stage(clocked)
    for number in range(60):
        stage.put(f"job-{number:02}", at=-1000 + number, args=args("wanted" if number == 40 else ""))
    _, place = next(reserve_match(stage.queue, JobFilter(text="wanted"), Holder("w", 60_000), at_once=25))
    assert isinstance(place, Position)
    assert stage.queue.cancel(place.member.decode()) == "cancelled"
    batch, _ = next(reserve_match(stage.queue, JobFilter(text="wanted"), Holder("w", 60_000), place, at_once=25))
    assert [job.id for job in batch.jobs] == ["job-40"]


def test_a_call_that_is_sent_again_gets_the_same_job(clocked: Broker) -> None:
    stage = Stage(clocked)
    stage.put("a", at=-2, args=args("x"))
    stage.put("b", at=-1, args=args("x"))
    with send_twice(stage.broker) as replies:
        assert id_of(take(stage, text="x")) == "a"
    ((first, again),) = replies
    assert unpack_fields(first[0]) == unpack_fields(again[0]), "the job and its lease"
    assert stage.picture()["waiting"] == ["b -1"]


def test_two_callers_never_get_the_same_job(clocked: Broker) -> None:
    stage = Stage(clocked, shards=2)
    for number in range(200):
        stage.put(f"job-{number}", args=args("even" if number % 2 == 0 else "odd"))
    found: list[str] = []

    def work() -> None:
        while (job := take(stage, text="even")) is not None:
            found.append(job.id)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == sorted(f"job-{number}" for number in range(0, 200, 2))


def test_a_position_survives_as_a_cursor() -> None:
    for place in (Position(3), Position(1025, b"5", b"1700000000000123", b"a:\n\xff")):
        assert Position.of(str(place)) == place
    for text in ("", "x", "5:", "ä", "MTo5OmFiYzpk"):
        with pytest.raises(InvalidJob, match="not a cursor of a reserve"):
            Position.of(text)


@pytest.mark.parametrize(
    ("conditions", "message"),
    [
        ({}, "reserve which job"),
        ({"text": "a", "failures": 1}, "by text, task and prefix only"),
        ({"text": "x" * 1001}, "text is a text of up to 1000 bytes"),
        ({"text": 5}, "text is a text"),
        ({"prefix": "\ud800"}, "prefix is a text"),
        ({"failures": -1}, "failures is a number"),
        ({"due_from_ms": "soon"}, "due_from_ms is a moment"),
    ],
)
def test_conditions_that_no_job_can_meet_are_refused(conditions: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidJob, match=message):
        check_match(JobFilter(**conditions))

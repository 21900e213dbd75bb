"""delayq_fake.run_due(): what is due is run as a worker would run it, on a clock that the test moves."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from django_delayq import (
    InvalidJob,
    QueueUnavailable,
    get_job,
    schedule,
    schedule_many,
    signals,
)
from django_delayq.core.errors import Crashed, DelayQError
from django_delayq.core.job import NewJob
from django_delayq.testing import Fake

from ..support.moments import in_days
from . import works
from .works import chain, decide, last, note, partly, sync, tell

MINUTE = timedelta(minutes=1)


def test_what_is_due_is_run_and_the_rest_waits(delayq_fake: Fake, done: list[Any]) -> None:
    schedule(note, "now")
    schedule(note, "later", delay=60)
    began = delayq_fake.clock.now
    report = delayq_fake.run_due()
    assert (done, len(report), delayq_fake.clock.now) == (["now"], 1, began)
    assert [job.args for job in delayq_fake.scheduled_jobs()] == [["later"]]


def test_the_clock_moves_from_due_time_to_due_time_and_ends_at_until(delayq_fake: Fake, done: list[Any]) -> None:
    began = delayq_fake.clock.now
    schedule(note, "third", delay=90)
    schedule(note, "second", delay=30)
    schedule(note, "first", delay=30, priority=0)
    report = delayq_fake.run_due(until=2 * MINUTE)
    assert done == ["first", "second", "third"]
    assert [ran.at - began for ran in report.runs] == [MINUTE / 2, MINUTE / 2, MINUTE * 1.5]
    assert delayq_fake.clock.now == began + 2 * MINUTE


def test_a_job_that_schedules_another_is_followed(delayq_fake: Fake, done: list[Any]) -> None:
    schedule(chain, 3)
    delayq_fake.run_due(until=timedelta(minutes=2))
    assert done == [3, 2, 1]
    delayq_fake.run_due(until=60)
    assert done == [3, 2, 1, 0]


def test_until_may_be_a_moment(delayq_fake: Fake, done: list[Any]) -> None:
    at = in_days(30)
    schedule(note, "x", at=at)
    assert not delayq_fake.run_due(until=at - timedelta(hours=1)).runs
    delayq_fake.run_due(until=at)
    assert done == ["x"]
    with pytest.raises(InvalidJob, match="no time zone"):
        delayq_fake.run_due(until=at.replace(tzinfo=None))


def test_a_moment_from_the_machines_clock_is_not_missed_by_milliseconds(delayq_fake: Fake, done: list[Any]) -> None:
    from django.utils import timezone

    for n in range(50):
        schedule(note, "x", id=n, at=timezone.now() + MINUTE)
    assert len(delayq_fake.run_due(until=MINUTE)) == 50


def test_a_failure_is_stored_and_then_raised(delayq_fake: Fake, done: list[Any]) -> None:
    schedule(note, "x", id="1")
    delayq_fake.fail_next(note, ConnectionError("away"))
    with pytest.raises(ConnectionError, match="away"):
        delayq_fake.run_due()
    (job,) = delayq_fake.scheduled_jobs(note)
    assert (job.state, job.failures, job.delay, job.error["message"]) == ("delayed", 1, MINUTE, "away")
    delayq_fake.run_due(until=MINUTE)
    assert done == ["x"]


def test_retries_follow_the_back_off_until_the_morgue(delayq_fake: Fake, done: list[Any]) -> None:
    schedule(note, "x", id="1")
    delayq_fake.fail_next(note, ValueError, times=3)
    report = delayq_fake.run_due(until=10 * MINUTE, raise_errors=False)
    assert [(ran.attempt, ran.outcome, ran.retry_in) for ran in report.runs] == [
        (1, "failed", MINUTE),
        (2, "failed", MINUTE),
        (3, "exhausted", None),
    ]
    assert report.failed == report.runs
    assert [ran.outcome for ran in report.buried] == ["exhausted"]
    assert [(type(ran.error), str(ran).partition(":")[0]) for ran in report.buried] == [
        (ValueError, "works.note id=1 exhausted (attempt 3)")
    ]
    (buried,) = delayq_fake.scheduled_jobs(state="morgue")
    assert (buried.id, buried.reason, buried.failures) == ("1", "exhausted", 3)
    assert not delayq_fake.scheduled_jobs()
    assert done == []


def test_an_error_that_is_raised_several_times_has_the_traceback_of_one_attempt(delayq_fake: Fake) -> None:
    schedule(note, "x", id="1")
    delayq_fake.fail_next(note, ConnectionError("away"), times=3)
    delayq_fake.run_due(until=10 * MINUTE, raise_errors=False)
    (buried,) = delayq_fake.scheduled_jobs(state="morgue")
    assert buried.error["traceback"].count("in _call_handler") == 1


@pytest.mark.parametrize(
    ("verdict", "outcome", "state", "delay"),
    [("retry", "failed", "delayed", 5), ("release", "released", "delayed", 7), ("bury", "buried", "morgue", None)],
)
def test_a_verdict_is_no_error(delayq_fake: Fake, verdict: str, outcome: str, state: str, delay: float | None) -> None:
    schedule(decide, verdict, id="1")
    report = delayq_fake.run_due()
    wait = None if delay is None else timedelta(seconds=delay)
    assert [(ran.outcome, ran.retry_in) for ran in report.runs] == [(outcome, wait)]
    (job,) = delayq_fake.scheduled_jobs(decide, state=state)
    assert wait is None or job.delay == wait


def test_of_a_partial_failure_only_the_bad_ones_come_back(delayq_fake: Fake) -> None:
    for ident in ("good", "bad-1", "bad-2"):
        schedule(partly, id=ident, payload=1)
    report = delayq_fake.run_due()
    assert {ran.id: ran.outcome for ran in report.runs} == {"good": "succeeded", "bad-1": "failed", "bad-2": "failed"}
    assert [job.id for job in delayq_fake.scheduled_jobs(partly)] == ["bad-1", "bad-2"]


def test_a_batch_leaves_the_jobs_of_other_tasks_where_they_are(delayq_fake: Fake, done: list[Any]) -> None:
    for ident, work in (("a", sync), ("good", partly), ("b", sync)):
        schedule(work, id=ident, payload=1)
    report = delayq_fake.run_due()
    assert [(ran.id, ran.attempt) for ran in report.runs] == [("a", 1), ("b", 1), ("good", 1)]
    assert done == [{"a": [1], "b": [1]}]


def test_the_job_knows_itself(delayq_fake: Fake, done: list[Any]) -> None:
    schedule(tell, id="7", context={"trace": "abc"}, delay=60)
    delayq_fake.run_due(until=60)
    assert done == [("7", 1, 7, {"trace": "abc"}, delayq_fake.clock.now, True)]


def test_signals_and_middlewares_are_those_of_a_worker(delayq_fake: Fake, done: list[Any], settings: Any) -> None:
    heard: list[str] = []

    def hear(signal: Any, **details: Any) -> None:
        heard.append(next(name for name, known in vars(signals).items() if known is signal))

    settings.DELAYQ = {**settings.DELAYQ, "MIDDLEWARE": ["tests.testing.test_running.noting"]}
    listened = (signals.job_started, signals.job_succeeded, signals.job_failed, signals.job_scheduled)
    for signal in listened:
        signal.connect(hear)
    try:
        schedule(note, "x")
        delayq_fake.fail_next(note, ValueError)
        delayq_fake.run_due(until=MINUTE, raise_errors=False)
    finally:
        for signal in listened:
            signal.disconnect(hear)
    assert heard == ["job_scheduled", "job_started", "job_failed", "job_started", "job_succeeded"]
    assert done == ["before works.note", "before works.note", "x", "after"]


def noting(next: Any) -> Any:
    def call(run: Any) -> Any:
        works.done.append(f"before {run.job.task}")
        result = next(run)
        works.done.append("after")
        return result

    return call


def test_max_jobs_ends_it_early(delayq_fake: Fake, done: list[Any]) -> None:
    schedule_many(note, [{"args": [str(n)]} for n in range(5)])
    assert len(delayq_fake.run_due(max_jobs=2)) == 2
    assert done == ["0", "1"]


def test_a_task_that_schedules_itself_for_ever_is_found_out(delayq_fake: Fake, monkeypatch: Any) -> None:
    monkeypatch.setattr("django_delayq.testing.running.SELF_SCHEDULING", 20)
    schedule(works.again)
    with pytest.raises(RuntimeError, match=r"works.again is due again. If a task schedules itself, pass a smaller"):
        delayq_fake.run_due()
    assert len(delayq_fake.run_due(max_jobs=1)) == 1


def test_a_task_that_nobody_knows_is_told(delayq_fake: Fake) -> None:
    delayq_fake.broker.queue("notes").schedule(NewJob("1", "works.gone"))
    with pytest.raises(DelayQError, match=r"works.gone id=1 cannot be run: unknown task"):
        delayq_fake.run_due()
    delayq_fake.assert_scheduled("works.gone", delay=1.5, within=0.5)


def test_a_paused_queue_is_left_alone_and_so_is_a_pull_queue(delayq_fake: Fake, done: list[Any]) -> None:
    schedule(note, "x")
    delayq_fake.broker.pause("notes", "out")
    delayq_fake.broker.queue("feed", kind="pull").schedule(NewJob("1", "raw"))
    assert not delayq_fake.run_due(until=MINUTE).runs
    delayq_fake.broker.resume("notes")
    delayq_fake.run_due()
    assert done == ["x"]


def test_a_lease_that_ran_out_comes_back(delayq_fake: Fake, done: list[Any]) -> None:
    schedule(note, "x", id="1")
    queue = delayq_fake.broker.queue("notes")
    assert queue.reserve(0, 1, worker="somebody").jobs
    assert not delayq_fake.run_due(until=10).runs
    delayq_fake.run_due(until=10)
    assert done == ["x"]


def test_a_lease_that_ran_out_during_the_last_attempt_calls_those_who_listen(
    delayq_fake: Fake, done: list[Any]
) -> None:
    schedule(last)
    assert delayq_fake.broker.queue("notes").reserve(0, 1, worker="somebody", started=True).jobs
    delayq_fake.run_due(until=20)
    assert done == [Crashed]


def test_a_job_that_runs_is_seen_as_such(delayq_fake: Fake, monkeypatch: Any, done: list[Any]) -> None:
    seen: list[Any] = []

    def look(*args: Any) -> None:
        schedule(note, "behind it", id="1")
        seen.extend(job.state for job in delayq_fake.scheduled_jobs(note))

    monkeypatch.setattr(note, "func", look)
    schedule(note, "x", id="1")
    delayq_fake.run_due(max_jobs=1)
    view = get_job(note, id="1")
    assert view is not None
    assert (sorted(seen), view.state, view.arguments) == (["gated", "reserved"], "ready", (["behind it"], {}))


def test_payloads_of_a_running_job_and_of_the_one_behind_it(delayq_fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def look(payloads: Any) -> None:
        for payload in ("behind", "running"):
            schedule(sync, id="a", payload=payload, score=int(payload == "running"), delay=60)
        seen.extend((job.state, job.payloads, job.delay) for job in delayq_fake.scheduled_jobs(sync))

    monkeypatch.setattr(sync, "func", look)
    schedule(sync, id="a", payload="running", score=1, delay=30)
    delayq_fake.run_due(until=30)
    assert seen == [("reserved", ["running"], MINUTE * 0), ("gated", ["behind", "running"], MINUTE)]
    assert [(job.state, job.payloads, job.delay) for job in delayq_fake.scheduled_jobs(sync)] == [
        ("delayed", ["behind", "running"], MINUTE)
    ]


def test_a_queue_that_a_job_resumes_is_run_in_the_same_call(
    delayq_fake: Fake, done: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = delayq_fake.broker
    schedule(note, "x")
    broker.pause("notes", "out")
    monkeypatch.setattr(sync, "func", lambda payloads: broker.resume("notes"))
    schedule(sync, id="a", payload=1)
    assert [ran.task for ran in delayq_fake.run_due().runs] == ["works.sync", "works.note"]


def test_jobs_of_several_queues_run_in_the_order_of_their_due_times(delayq_fake: Fake, done: list[Any]) -> None:
    for delay in (30, 10, 20):
        schedule(note, str(delay), queue=f"q{delay}", delay=delay)
    delayq_fake.travel(MINUTE)
    delayq_fake.run_due()
    assert done == ["10", "20", "30"]


def test_an_outage_during_a_run_loses_nothing(
    delayq_fake: Fake, done: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    outage = delayq_fake.redis_down()
    monkeypatch.setattr(sync, "func", lambda payloads: outage.__enter__())
    schedule(sync, id="a", payload=1)
    schedule(note, "x")
    with pytest.raises(QueueUnavailable):
        delayq_fake.run_due()
    outage.__exit__(None, None, None)
    monkeypatch.undo()
    delayq_fake.run_due(until=MINUTE)
    assert done == ["x", {"a": [1]}]


# -- what the real scripts do here, too --------------------


@pytest.mark.parametrize("redis", ["redis://nowhere/0", {"URL": "redis://nowhere/0", "WAIT_REPLICAS": 1}])
def test_confirmed_jobs_are_stored_without_a_wait(delayq_fake: Fake, settings: Any, redis: object) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": redis}
    assert schedule(note, "x", wait_for_confirmation=True).outcome == "created"
    assert schedule_many(note, [{"args": ["x"]}], wait_for_confirmation=True) == {"created": 1}
    assert len(delayq_fake.scheduled_jobs()) == 2


def test_run_due_waits_for_the_end_of_a_pause(delayq_fake: Fake) -> None:
    schedule(note, "1")
    delayq_fake.broker.pause("notes", "out", seconds=600)
    assert not delayq_fake.run_due(until=0).runs
    delayq_fake.travel(599)
    assert not delayq_fake.run_due(until=0).runs
    delayq_fake.travel(1)
    assert len(delayq_fake.run_due(until=0).runs) == 1

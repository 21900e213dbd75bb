"""``ack="early"``: the job is done when its run begins; it never begins twice, and a crash loses it."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from django_delayq import PartialFailure, current_job
from django_delayq.core import Broker, QueueUnavailable, Release, Settlement, release
from tests.support.attempt_stage import Attempt, make_attempt, make_job, payloads_of, perform
from tests.support.core_calls import watch_calls
from tests.support.worker_stage import (
    Hooks,
    events_of,
    fails_once,
    places,
    put,
    registry_of,
    run_dry,
)


def events(broker: Broker) -> list[tuple[str, str]]:
    """(outcome, id) of everything that ended."""
    return sorted((event.outcome, event.id) for event in events_of(broker))


def test_nothing_of_the_job_is_left_when_its_handler_begins(broker: Broker) -> None:
    seen: list[Any] = []

    def work() -> None:
        job = current_job()
        assert job is not None
        seen.append((places(broker), job.touch(), job.lost, job.should_stop))

    put(broker, "work", id="x")
    run_dry(broker, registry_of(work, ack="early"))
    assert seen == [({}, True, False, False)] and places(broker) == {}
    assert events(broker) == [("succeeded", "x")]


@pytest.mark.parametrize("error", [ValueError("no"), Release(delay=0), SystemExit()])
def test_a_failure_is_told_and_not_tried_again(broker: Broker, error: BaseException) -> None:
    ran: list[int] = []
    told: list[tuple[str, Any, Any]] = []

    def work() -> None:
        ran.append(1)
        raise error

    def notify(event: str, **details: Any) -> None:
        told.append((event, details.get("outcome"), details.get("retry_in")))

    put(broker, "work", id="x")
    run_dry(
        broker, registry_of(work, ack="early", max_attempts=1), Hooks(wants=lambda event, task: True, notify=notify)
    )
    assert ran == [1] and places(broker) == {} and events(broker) == [("failed", "x")]
    assert told == [("job_started", None, None), ("job_failed", "failed", None)]


def test_a_timeout_is_told_as_one(broker: Broker) -> None:
    def work() -> None:
        while True:
            threading.Event().wait(0.01)

    put(broker, "work", id="x")
    run_dry(broker, registry_of(work, ack="early", timeout=0.1))
    assert places(broker) == {} and events(broker) == [("timeout", "x")]


def test_the_heartbeat_does_not_miss_the_lease_that_is_gone(broker: Broker) -> None:
    seen: list[bool] = []

    def work() -> None:
        job = current_job()
        assert job is not None
        threading.Event().wait(0.5)
        seen.append(job.should_stop or job.lost)

    for _ in range(3):
        put(broker, "work")
    run_dry(broker, registry_of(work, ack="early"), heartbeat=0.02)
    assert seen == [False] * 3 and places(broker) == {}


def test_a_job_whose_lease_was_lost_does_not_begin(broker: Broker) -> None:
    ran: list[int] = []

    def work() -> None:
        ran.append(1)

    def take_away(job: Any) -> None:
        if job.reserves == 1:
            broker.queue("default").settle([release(job)])

    put(broker, "work")
    run_dry(broker, registry_of(work, ack="early"), Hooks(before_job=take_away))
    assert ran == [1] and places(broker) == {}  # once, by its second lease


class Unreachable:
    """A queue whose Redis is away."""

    name = "default"

    def settle(self, settlements: list[Settlement]) -> list[bool]:
        raise QueueUnavailable("no route")


def fate(attempt: Attempt) -> tuple[str, str]:
    assert attempt.settlement is not None
    return attempt.settlement.verb, attempt.settlement.reason


def test_without_redis_the_job_does_not_begin_and_goes_back() -> None:
    ran: list[int] = []

    def work() -> None:
        ran.append(1)

    attempt = make_attempt(make_job(), source=SimpleNamespace(queue=Unreachable()))
    deadline = attempt.deadline
    perform(attempt, registry_of(work, ack="early"))
    assert ran == [] and fate(attempt) == ("release", "its early ack failed")
    assert attempt.deadline == deadline and not attempt.acked and not attempt.lost


def test_an_early_ack_whose_reply_was_lost_leaves_no_open_run(broker: Broker) -> None:
    ran: list[int] = []

    def work() -> None:
        ran.append(1)

    put(broker, "work", id="x")
    with watch_calls(broker, after=fails_once("settle")):
        run_dry(broker, registry_of(work, ack="early"))
    assert ran == [] and places(broker) == {} and events(broker) == [("crashed", "x")]
    (end,) = events_of(broker)
    assert (int(end.fields["started"]) <= broker.now_ms(), end.fields["ms"]) == (True, "0"), "not when its lease ends"
    assert broker.inspector.counts("default").begun == 0


class Answering:
    """A queue that acks what it is told to."""

    name = "default"

    def __init__(self, *answers: bool) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, str, bool]] = []

    def settle(self, settlements: list[Settlement]) -> list[bool]:
        self.asked += [(one.verb, one.job.id, one.event) for one in settlements]
        return self.answers


def test_of_a_batch_those_begin_whose_lease_still_stood() -> None:
    seen: list[Any] = []

    def work(batch: dict[str, list[Any]]) -> None:
        job = current_job()
        assert job is not None
        seen.append((batch, [one.id for one in job.jobs]))
        raise PartialFailure({"c": ValueError()})

    queue = Answering(False, True, True)
    members = [
        make_attempt(make_job(id=ident, merged=True, payloads=payloads_of(ident)), source=SimpleNamespace(queue=queue))
        for ident in "abc"
    ]
    hooks = Hooks(before_job=lambda job: seen.append(len(current_job().jobs)))  # type: ignore[union-attr]
    perform(members, registry_of(work, merge=True, batch_size=3, ack="early"), hooks)
    assert queue.asked == [("ack_early", ident, False) for ident in "abc"]
    assert seen == [3, ({"b": ["b"], "c": ["c"]}, ["b", "c"])]
    assert [fate(member)[0] for member in members] == ["release", "record", "record"]
    assert [member.settlement.outcome for member in members[1:] if member.settlement] == ["succeeded", "failed"]
    assert [member.lost for member in members] == [True, False, False]
    assert [member.acked for member in members] == [False, True, True]

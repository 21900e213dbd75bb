"""Limits of concurrency for pulled jobs: each job that is handed out takes a permit until it is settled."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from django_delayq import Queue, RateLimited, limits, task
from django_delayq.core import fsck
from django_delayq.core.broker import Broker
from django_delayq.core.errors import JobIsLimited, Misconfigured
from django_delayq.core.job import NewJob
from django_delayq.core.task import Task, registry
from django_delayq.settings.conf import QueueConf
from tests.support.api_caller import make_caller
from tests.support.core_figures import permits_end_in_ms, taken_permits


@pytest.fixture(autouse=True)
def _queues(delayq: Broker, settings: Any) -> None:
    kinds = {"feed": {"kind": "pull", "shards": 2, "concurrency": 2}}
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": kinds}


@pytest.fixture
def limited() -> Iterator[Task]:
    """A task of which one job may run at a time."""

    @task(name="limited", queue="tasks", concurrency=1)
    def handler(number: int = 0) -> None: ...

    made = registry.get("limited")
    assert made is not None
    yield made
    registry.remove(made)


def test_a_waiting_caller_of_an_empty_limited_queue_sends_nothing(delayq: Broker) -> None:
    def commands() -> int:
        return int(delayq.client.info("stats")["total_commands_processed"])

    queue = Queue("feed")
    before = commands()
    assert queue.reserve(10, wait=3.0) == []
    # What it sends at its beginning, and a safety check, with the commands inside its scripts; not a loop without end.
    assert commands() - before <= 500


def test_a_limited_queue_hands_out_no_more_jobs_than_it_has_permits(delayq: Broker) -> None:
    queue = Queue("feed")
    for number in range(5):
        queue.put(b"%d" % number)
    held = queue.reserve(5)
    held += queue.reserve(5)
    assert len(held) == 2
    assert queue.reserve(1) == []
    assert held[0].ack()
    assert len(queue.reserve(5)) == 1
    assert taken_permits(delayq, "queue:feed") == 2
    fsck.assert_invariants(delayq)


def test_a_caller_that_waits_gets_the_permit_that_is_freed(delayq: Broker) -> None:
    queue = Queue("feed")
    for number in range(3):
        queue.put(b"%d" % number, id=f"job-{number}")
    held = queue.reserve(5) + queue.reserve(5)
    timer = threading.Timer(0.3, held[0].release, kwargs={"delay": 60})
    timer.start()
    began = time.monotonic()
    assert len(queue.reserve(1, wait=20)) == 1
    assert time.monotonic() - began < 4
    timer.join()


@pytest.mark.parametrize("end", ["ack", "fail", "release", "bury"])
def test_every_end_of_a_pulled_job_frees_its_permit(delayq: Broker, limited: Task, end: str) -> None:
    core = delayq.queue("tasks")
    for number in range(2):
        core.schedule(NewJob(f"job-{number}", "limited"))
    (held,) = Queue("tasks").reserve(5)
    assert Queue("tasks").reserve(5) == []
    assert delayq.inspector.counts("tasks").parked == 1
    assert getattr(held, end)()
    assert taken_permits(delayq, "task:limited") == 0
    assert len(Queue("tasks").reserve(5)) == 1


def test_a_permit_lasts_as_long_as_the_lease_and_is_renewed_with_it(delayq: Broker, limited: Task) -> None:
    delayq.queue("tasks").schedule(NewJob("a", "limited"))
    delayq.queue("tasks").schedule(NewJob("b", "limited"))
    (held,) = Queue("tasks").reserve(1, ttr=1)
    (end,) = permits_end_in_ms(delayq, "task:limited")
    assert 0 < end <= 1100, "a tenth longer than the lease"
    assert held.touch(30)
    (end,) = permits_end_in_ms(delayq, "task:limited")
    assert 30_000 < end <= 33_000
    assert Queue("tasks").reserve(1) == []
    held.ack()
    assert len(Queue("tasks").reserve(1)) == 1


@pytest.mark.django_db
def test_a_job_with_limits_is_not_handed_out_by_its_id_and_waits_again(delayq: Broker, limited: Task) -> None:
    delayq.queue("tasks").schedule(NewJob("a", "limited"))
    delayq.queue("tasks").schedule(NewJob("b", "free", group="g"))
    for ident, reason in (("a", "task:limited"), ("b", "group:tasks:g")):
        with pytest.raises(JobIsLimited, match=reason):
            Queue("tasks").reserve_id(ident)
        status, problem = make_caller("consume").post("v1/queues/tasks/reserve", {"id": ident})
        assert (status, problem["code"]) == (409, "conflict")
        assert reason in problem["detail"] and "without an id" in problem["detail"]
    counts = delayq.inspector.counts("tasks")
    assert (counts.ready, counts.reserved, counts.failed) == (2, 0, 0)
    assert sorted(job.id for job in Queue("tasks").reserve(9)) == ["a", "b"]
    fsck.assert_invariants(delayq)


def test_a_limit_that_was_set_at_run_time_is_one_of_a_wanted_job_too(delayq: Broker) -> None:
    limits.set("tasks", concurrency=1)
    delayq.queue("tasks").schedule(NewJob("a", "free"))
    with pytest.raises(JobIsLimited, match="queue:tasks"):
        Queue("tasks").reserve_id("a")


@pytest.mark.django_db
def test_over_http_a_touch_renews_a_permit_and_an_end_frees_it(delayq: Broker, limited: Task) -> None:
    for ident in ("a", "b"):
        delayq.queue("tasks").schedule(NewJob(ident, "limited"))
    caller = make_caller("consume")

    def reserved(**options: Any) -> list[dict[str, Any]]:
        status, answer = caller.post("v1/queues/tasks/reserve", options)
        assert status == 200
        jobs: list[dict[str, Any]] = answer["jobs"]
        return jobs

    (held,) = reserved(max=2, ttr=1)
    entry = {"id": held["id"], "lease": held["lease"]}
    assert caller.post("v1/queues/tasks/touch", {"jobs": [{**entry, "ttr": 30}]})[0] == 200
    (end,) = permits_end_in_ms(delayq, "task:limited")
    assert 30_000 < end <= 33_000
    assert reserved() == []
    status, answer = caller.post("v1/queues/tasks/ack", {"jobs": [entry]})
    assert (status, answer["results"][0]["counted"]) == (200, True)
    assert taken_permits(delayq, "task:limited") == 0
    assert len(reserved()) == 1


def test_a_limit_of_each_process_is_refused_for_a_pull_queue() -> None:
    with pytest.raises(Misconfigured, match='a queue of kind "pull" has only a "total"'):
        QueueConf.read("feed", {"kind": "pull", "concurrency": {"local": 2}})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (0, "concurrency must be"),
        ("3", "concurrency must be"),
        ({}, "concurrency is empty"),
        ({"totl": 3}, "did you mean|Did you mean"),
        ({"local": 0}, "concurrency: local must be"),
    ],
)
def test_a_wrong_limit_is_refused_at_once(value: object, message: str) -> None:
    with pytest.raises(Misconfigured, match=message):

        @task(name="wrong", concurrency=value)
        def wrong() -> None: ...


def test_a_pulled_job_that_is_refused_lets_its_group_wait(delayq: Broker) -> None:
    core = delayq.queue("tasks")
    for ident in ("a1", "a2", "b1"):
        core.schedule(NewJob(ident, "free", group=ident[0]))
    held = Queue("tasks").reserve(3)
    assert sorted(job.id for job in held) == ["a1", "a2", "b1"]
    for job in held:
        job.fail(RateLimited(retry_after=30, scope="group")) if job.id == "a1" else job.release()
    assert [job.id for job in Queue("tasks").reserve(3)] == ["b1"]


def test_the_limit_of_a_group_holds_for_pulled_jobs(delayq: Broker) -> None:
    core = delayq.queue("tasks")
    for number in range(3):
        core.schedule(NewJob(f"a{number}", "free", group="a", options=b'{"group_limits":[2,0,0]}'))
    held = Queue("tasks").reserve(3, ttr=1)
    assert len(held) == 2
    assert taken_permits(delayq, "group:tasks:a") == 2
    assert held[0].touch(30)
    assert held[1].ack()
    assert len(Queue("tasks").reserve(3)) == 1
    assert taken_permits(delayq, "group:tasks:a") == 2


def test_a_permit_that_was_granted_in_the_last_call_of_the_limiter_is_used(delayq: Broker) -> None:
    """One reserve asks up to ten times; the group in the tenth question is the first one that is free."""
    core = delayq.queue("tasks")
    for number in range(9):
        core.schedule(NewJob(f"held{number}", "free", group=f"g{number}"))
        limits.set("tasks", group=f"g{number}", concurrency=1)
    assert len(Queue("tasks").reserve(9)) == 9
    for number in range(9):
        core.schedule(NewJob(f"left{number}", "free", group=f"g{number}"))
    limits.set("tasks", group="last", concurrency=1)
    core.schedule(NewJob("last", "free", priority=7, group="last"))
    assert [job.id for job in Queue("tasks").reserve(1)] == ["last"]


def test_a_job_that_was_written_without_limits_of_its_group_has_the_constant_ones_of_its_task(delayq: Broker) -> None:
    """Spark does not know the task of its rows."""

    @task(name="grouped", queue="tasks", group_concurrency=2, group_rate=lambda: "1/h")
    def handler() -> None: ...

    core = delayq.queue("tasks")
    for number in range(3):
        core.schedule(NewJob(f"a{number}", "grouped", group="a"))
    assert len(Queue("tasks").reserve(3)) == 2
    registry.remove(handler)

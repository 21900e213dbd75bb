"""Limits of concurrency are kept by workers: who pulls is refused, or gets other jobs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from django_delayq import Queue, task
from django_delayq.core import fsck
from django_delayq.core.broker import Broker
from django_delayq.core.errors import InvalidJob, Misconfigured
from django_delayq.core.job import NewJob
from django_delayq.core.task import Task, registry
from django_delayq.settings.conf import QueueConf
from tests.support.api_caller import make_caller


@pytest.fixture(autouse=True)
def _queues(delayq: Broker, settings: Any) -> None:
    queues = {"few": {"concurrency": 2}, "local": {"concurrency": {"local": 2}}}
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": queues}


@pytest.fixture
def limited() -> Iterator[Task]:
    """A task of which one job may run at a time."""

    @task(name="limited", queue="work", concurrency=1)
    def handler(number: int = 0) -> None: ...

    made = registry.get("limited")
    assert made is not None
    yield made
    registry.remove(made)


def test_a_puller_of_a_limited_queue_is_told_why_it_gets_nothing(delayq: Broker) -> None:
    delayq.queue("few").schedule(NewJob("a", "shop.pay"))
    for pull in (lambda: Queue("few").reserve(), lambda: Queue("few").reserve_id("a")):
        with pytest.raises(InvalidJob, match="queue 'few' has a limit of concurrency, which only workers keep"):
            pull()
    delayq.queue("local").schedule(NewJob("b", "shop.pay"))
    (held,) = Queue("local").reserve()
    assert held.ack()


@pytest.mark.django_db
def test_so_is_one_over_http(delayq: Broker) -> None:
    delayq.queue("few").schedule(NewJob("a", "shop.pay"))
    caller = make_caller("consume")
    for path, body in (
        ("queues/few/reserve", {}),
        ("queues/few/reserve", {"id": "a"}),
        ("reserve", {"queues": ["few"]}),
    ):
        status, answer = caller.post(f"v1/{path}", body)
        assert (status, answer["code"]) == (400, "invalid")
        assert "which only workers keep" in answer["detail"]


def test_jobs_of_a_limited_task_are_left_to_workers(delayq: Broker, limited: Task) -> None:
    core = delayq.queue("work")
    core.schedule(NewJob("a", "limited"))
    core.schedule(NewJob("b", "shop.pay"))
    assert [job.id for job in Queue("work").reserve(5)] == ["b"]
    assert Queue("work").reserve(5) == []
    with pytest.raises(InvalidJob, match="job 'a' is of task limited, whose limit of concurrency only workers keep"):
        Queue("work").reserve_id("a")
    (job,) = core.reserve(core.numbers[0], 5, worker="w", ttr_ms=60_000).jobs
    assert (job.id, job.failures, job.crashes) == ("a", 0, 0)
    fsck.assert_invariants(delayq)


def test_a_limit_is_refused_for_a_pull_queue() -> None:
    for limit in (3, {"local": 2}):
        with pytest.raises(Misconfigured, match="programs that pull jobs choose how many they reserve"):
            QueueConf.read("feed", {"kind": "pull", "concurrency": limit})


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

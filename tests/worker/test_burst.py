"""A burst ends when nothing is ready, also nothing that its own attempts made ready."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from django_delayq.core import Broker, RedisConfig, Registry, connect
from tests.support.worker_stage import (
    DEADLINE,
    EXIT_NO_REDIS,
    EXIT_OK,
    config,
    exit_code,
    places,
    put,
    put_payload,
    registry_named,
    registry_of,
    run_dry,
    working,
)


@pytest.fixture
def calls() -> list[object]:
    """The values with which the handlers were called."""
    return []


@pytest.mark.parametrize("threads", [1, 3])
def test_content_that_waited_behind_an_attempt_runs_too(broker: Broker, calls: list[object], threads: int) -> None:
    def work(number: int) -> None:
        calls.append(number)
        if number < 3:
            put(broker, "work", number + 1, id="5")

    put(broker, "work", 1, id="5")
    run_dry(broker, registry_of(work), threads=threads, dispatcher=False)
    assert calls == [1, 2, 3] and not places(broker)


def test_payloads_that_one_attempt_cannot_take_run_too(broker: Broker, calls: list[object]) -> None:
    def work(payloads: dict[str, list[int]]) -> None:
        calls.extend(payloads["5"])

    for number in range(600):
        put_payload(broker, "work", "5", number, score=number)
    run_dry(broker, registry_of(work, merge=True), dispatcher=False)
    assert calls == list(range(600)) and not places(broker)


def test_jobs_that_a_handler_schedules_run_too(broker: Broker, calls: list[object]) -> None:
    def work(number: int) -> None:
        calls.append(number)
        if number < 5:
            put(broker, "work", number + 1, queue="other" if number % 2 else "default")

    broker.queue("other", shards=3)
    put(broker, "work", 1)
    run_dry(broker, registry_of(work), queues=("default", "other"), dispatcher=False)
    assert calls == [1, 2, 3, 4, 5]


def test_a_burst_does_not_wait_for_what_is_due_later(broker: Broker, calls: list[object]) -> None:
    def work(number: int) -> None:
        calls.append(number)
        put(broker, "work", number, id="5", delay_ms=3_600_000)

    put(broker, "work", 1, id="5")
    run_dry(broker, registry_of(work), dispatcher=False)
    assert calls == [1] and places(broker) == {"delayed": 1}


# --- without Redis


@pytest.mark.one_server("how a worker ends is the same on a cluster")
def test_a_burst_gives_up_when_redis_does_not_come(redis_factory: Callable[..., Any]) -> None:
    box = redis_factory()
    broker = Broker(connect(RedisConfig.parse(box.url)))
    box.stop()
    with working(broker, Registry(), config(burst=True, redis_patience=0.5)) as worker:
        assert worker.done.is_set() and exit_code(worker) == EXIT_NO_REDIS


@pytest.mark.one_server("how a worker ends is the same on a cluster")
def test_a_burst_gives_up_when_redis_leaves_and_does_not_return(redis_factory: Callable[..., Any]) -> None:
    box = redis_factory()
    broker = Broker(connect(RedisConfig.parse(box.url)))

    def work() -> None:
        box.stop()

    put(broker, "work")
    with working(broker, registry_of(work), config(burst=True, redis_patience=0.5, grace=0.2)) as worker:
        assert worker.done.wait(DEADLINE)
        assert exit_code(worker) == EXIT_NO_REDIS


def test_a_burst_that_has_redis_ends_well(broker: Broker, calls: list[object]) -> None:
    put(broker, "append", 1)
    worker = run_dry(broker, registry_named("append", calls.append), redis_patience=0.0)
    assert calls == [1] and exit_code(worker) == EXIT_OK

"""A worker tells Redis how late its jobs began and how long they ran: seldom, never when idle, and at its end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from django_delayq.core import Broker, NewJob, RedisConfig, connect
from django_delayq.core.figures import BUCKETS_MS, Figures
from tests.support.core_calls import ScriptCall, watch_calls
from tests.support.core_figures import is_scheduled, set_pace
from tests.support.duty_stage import RedisHealth
from tests.support.redis_box import RedisBox
from tests.support.supervisor_stage import Program
from tests.support.worker_stage import (
    DEADLINE,
    config,
    encode_args,
    eventually,
    outage_of,
    put,
    put_payload,
    registry_of,
    run_dry,
    working,
)


def counts(figures: Figures) -> tuple[dict[str, int], dict[tuple[str, str], int]]:
    """Return the number of starts by queue, and of attempts by queue and task."""
    return (
        {queue: found.count for queue, found in figures.lateness.items()},
        {name: found.count for name, found in figures.run.items()},
    )


def test_every_attempt_is_counted_by_queue_and_task(broker: Broker) -> None:
    def work() -> None:
        pass

    def fails() -> None:
        raise ValueError("no")

    def sync(batch: dict[str, Any]) -> None:
        pass

    registry = registry_of(work, fails, retry_in=lambda n: 0.0, max_attempts=3)
    registry.add(next(iter(registry_of(sync, merge=True, batch_size=10))))
    for _ in range(300):
        put(broker, "work")
    put(broker, "work", queue="other")
    put(broker, "fails")
    put(broker, "unknown")
    for ident in "abc":
        put_payload(broker, "sync", ident, 1, queue="crm")
    run_dry(broker, registry, queues=("default", "other", "crm"))
    assert counts(broker.figures()) == (
        {"default": 303, "other": 1, "crm": 3},
        {("default", "work"): 300, ("default", "fails"): 3, ("other", "work"): 1, ("crm", "sync"): 3},
    )


def test_lateness_counts_from_the_due_time_and_length_from_the_start(broker: Broker) -> None:
    def work() -> None:
        threading.Event().wait(0.06)

    late = int(broker.now_ms()) - 40_000
    broker.queue("default").schedule(NewJob("a", "work", encode_args((), {}), due_ms=late, delay_ms=None))
    run_dry(broker, registry_of(work))
    figures = broker.figures()
    assert figures.lateness["default"].counts[BUCKETS_MS.index(60_000)] == 1
    assert 40_000 <= figures.lateness["default"].sum_ms < 60_000
    assert 60 <= figures.run["default", "work"].sum_ms < 10_000


def test_jobs_that_are_acked_before_they_begin_are_counted_when_they_end(broker: Broker) -> None:
    def work() -> None:
        pass

    put(broker, "work")
    run_dry(broker, registry_of(work, ack="early"))
    assert counts(broker.figures()) == ({"default": 1}, {("default", "work"): 1})


def test_the_run_that_killed_its_process_is_counted_by_the_supervisor(
    program: Callable[..., Program],
    broker: Broker,
) -> None:
    put(broker, "crash_once")
    program()
    eventually(lambda: counts(broker.figures())[1] == {("default", "crash_once"): 2})


def test_a_worker_tells_while_it_works_and_in_few_calls(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[float] = []

    def remember(call: ScriptCall) -> None:
        if call.name == "note":
            told.append(time.monotonic())

    def work() -> None:
        pass

    began = time.monotonic()
    set_pace(monkeypatch, 0.2)
    with watch_calls(broker, before=remember), working(broker, registry_of(work)):
        for _ in range(60):
            put(broker, "work")
            threading.Event().wait(0.01)
        eventually(lambda: counts(broker.figures())[0] == {"default": 60})
    # Each call tells what was counted for at least one pace; one more may come at the end of the worker.
    assert 2 <= len(told) <= (told[-1] - began) / 0.2 + 1


def test_an_idle_worker_tells_nothing(broker: Broker) -> None:
    with working(broker, registry_of(print), config(heartbeat=0.02)):
        eventually(lambda: broker.workers())
        first = broker.workers()[0]["seen_ms"]
        eventually(lambda: broker.workers()[0]["seen_ms"] > first + 100)  # several heartbeats
        assert not is_scheduled(broker.tally)
    assert not broker.client.exists(f"{{{broker.prefix}}}:figures")


def test_figures_of_an_outage_are_told_when_it_is_over(redis_factory: Callable[..., Any]) -> None:
    box: RedisBox = redis_factory(aof="always")
    connection = connect(RedisConfig.parse(f"{box.url}?retries=0"))
    broker = Broker(connection)
    began, go = threading.Event(), threading.Event()

    def work() -> None:
        began.set()
        assert go.wait(DEADLINE)

    put(broker, "work")
    with working(broker, registry_of(work), config(heartbeat=0.1)) as worker:
        assert began.wait(DEADLINE)
        box.kill()
        eventually(lambda: outage_of(worker))
        go.set()
        box.start()
        eventually(lambda: counts(broker.figures())[0] == {"default": 1})
        errors = eventually(lambda: broker.figures().counts)
    assert set(errors) == {("redis_error", "transient")}
    assert errors["redis_error", "transient"] >= 1
    connection.close()


def test_the_weather_counts_what_redis_does_and_not_what_we_do() -> None:
    seen: list[str] = []
    health = RedisHealth(seen.append)
    health.failed("loop", ConnectionError("gone"))
    health.failed("loop", ZeroDivisionError())
    health.failed("loop", ConnectionError("gone"))
    assert seen == ["transient", "transient"]

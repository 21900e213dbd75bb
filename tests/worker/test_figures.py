"""A worker tells Redis how late its jobs began and how long they ran: seldom, never when idle, and at its end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from django_delayq.core import Broker, NewJob, RedisConfig, ack, bury, connect
from django_delayq.worker.dispatcher import SAMPLE_SECONDS, DepthSampler
from tests.support.core_figures import BUCKETS_MS, Figures
from tests.support.duty_stage import RedisHealth
from tests.support.redis_box import RedisBox
from tests.support.worker_stage import (
    Gate,
    config,
    depths_of,
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


def test_figures_of_an_outage_are_told_when_it_is_over(redis_factory: Callable[..., Any]) -> None:
    box: RedisBox = redis_factory(aof="always")
    connection = connect(RedisConfig.parse(f"{box.url}?retries=0"))
    broker = Broker(connection)
    gate = Gate()
    put(broker, "work")
    with working(broker, registry_of(gate.work), config(heartbeat=0.1)) as worker:
        gate.wait_begun()
        box.kill()
        eventually(lambda: outage_of(worker))
        gate.open()
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


# --- samples of the depth


def sample(broker: Broker, name: str = "w1") -> DepthSampler:
    sampler = DepthSampler(broker, name)
    assert sampler.run() == SAMPLE_SECONDS
    sampler.run()
    return sampler


def stock(broker: Broker) -> None:
    """Two jobs that wait, one that runs and one in the morgue in "orders"; one done in "mail"."""
    orders, mail = broker.queue("orders", shards=3), broker.queue("mail")
    orders.schedule(NewJob("later", "t", delay_ms=600_000))
    orders.schedule(NewJob("now", "t"))
    for name in ("dead", "held"):
        orders.schedule(NewJob(name, "t"))
        (job,) = orders.reserve_id(name, worker="w", ttr_ms=60_000).jobs
        if name == "dead":
            orders.settle([bury(job, 0, 1, reason="buried")])
    mail.schedule(NewJob("one", "t"))
    (job,) = mail.reserve_id("one", worker="w", ttr_ms=60_000).jobs
    mail.settle([ack(job, 1, 2)])


def points(broker: Broker, *queues: str) -> list[Any]:
    return [series[-1] for series in depths_of(broker, queues).values() if series]


def test_t86_a_sample_has_each_queue_and_all_together(broker: Broker) -> None:
    stock(broker)
    sample(broker)
    assert [
        (one.delayed, one.ready, one.reserved, one.failed, one.morgue) for one in points(broker, "orders", "mail", "")
    ] == [(1, 1, 1, 0, 1), (0, 0, 0, 0, 0), (1, 1, 1, 0, 1)]


def test_a_process_that_ends_within_a_minute_sends_nothing(broker: Broker) -> None:
    stock(broker)
    assert DepthSampler(broker, "w1").run() == SAMPLE_SECONDS
    assert points(broker, "orders") == []


def test_of_several_dispatchers_one_takes_the_sample(broker: Broker) -> None:
    stock(broker)
    sample(broker)
    calls: list[str] = []
    broker.observe(lambda verb, seconds, failed: calls.append(verb))
    sample(broker, "w2")
    broker.observe(None)
    assert calls == [], "neither counted nor stored"


def test_a_sample_takes_one_call_for_all_queues_beside_the_counts(broker: Broker) -> None:
    stock(broker)
    calls: list[str] = []
    broker.observe(lambda verb, seconds, failed: calls.append(verb))
    sample(broker)
    broker.observe(None)
    assert calls[-1] == "depth"
    # On a cluster the counts are a call for each shard, sent together and not observed.
    assert calls[:-1] == ([] if broker.connection.cluster else ["stats"])


def test_the_queues_that_did_most_have_series_and_all_are_in_the_total(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_delayq.worker.dispatcher.MOST_QUEUES", 1)
    stock(broker)
    sample(broker)
    assert [bool(points(broker, name)) for name in ("orders", "mail", "")] == [True, False, True]


def test_lateness_is_that_of_the_attempts_since_the_last_sample(broker: Broker) -> None:
    stock(broker)
    sampler = sample(broker)
    (before,) = points(broker, "")
    assert before.p50_ms is None
    broker.queue("mail").schedule(NewJob("two", "t"))
    (job,) = broker.queue("mail").reserve_id("two", worker="w", ttr_ms=60_000).jobs
    broker.tally.ended("mail", [ack(job, job.due_ms + 400, 1)])
    broker.tally.flush()
    broker.client.delete(f"{{{broker.prefix}}}:sampler")
    sampler.run()
    (after,) = points(broker, "mail")
    assert 250 < after.p50_ms <= 500


def test_without_queues_nothing_is_stored(broker: Broker) -> None:
    sample(broker)
    assert points(broker, "") == []

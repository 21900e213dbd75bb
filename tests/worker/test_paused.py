"""A worker and a queue that somebody pauses."""

from __future__ import annotations

import threading
import time

import redis

from django_delayq.core import Broker
from tests.support.worker_stage import calls_of, config, eventually, is_resting, places, put, registry_of, working


def test_t62_a_worker_sleeps_while_its_queue_is_paused_and_wakes_when_it_is_resumed(
    broker: Broker, redis_client: redis.Redis
) -> None:
    started: list[float] = []
    running, go_on = threading.Event(), threading.Event()

    def work() -> None:
        started.append(time.monotonic())

    def hold() -> None:
        running.set()
        assert go_on.wait(15)

    broker.queue("default", shards=2)
    with working(broker, registry_of(work, hold)) as worker:
        put(broker, "hold")
        assert running.wait(15)
        broker.pause("default", "out")
        for _ in range(10):
            put(broker, "work")
        go_on.set()
        eventually(lambda: places(broker) == {"ready": 10})  # what ran was settled as ever
        eventually(lambda: is_resting(worker))
        before, begin = calls_of(redis_client), time.monotonic()
        threading.Event().wait(4.0)  # the length of the measurement, not a way to wait for something
        rate = (calls_of(redis_client) - before) / (time.monotonic() - begin)
        assert started == []
        assert rate < 2.0  # that of a worker without work, and one look of ours
        resumed = time.monotonic()
        broker.resume("default")
        eventually(lambda: len(started) == 10)
        eventually(lambda: places(broker) == {})
    assert started[0] - resumed < 0.5


def test_consumers_wake_up_when_a_pause_for_a_time_ends(broker: Broker, redis_client: redis.Redis) -> None:
    started: list[float] = []

    def work() -> None:
        started.append(broker.now_ms())

    broker.queue("default", shards=2)
    with working(broker, registry_of(work), config(dispatcher=False)) as worker:
        broker.pause("default", "out", seconds=7)
        end = broker.queue("default").layout["paused"]["out"]
        for _ in range(10):
            put(broker, "work")
        eventually(lambda: is_resting(worker))
        threading.Event().wait(1.5)  # until the calls of its start are over
        before, begin = calls_of(redis_client), time.monotonic()
        threading.Event().wait(4.0)  # the length of the measurement
        rate = (calls_of(redis_client) - before) / (time.monotonic() - begin)
        assert started == []
        assert rate < 2.0, "no polling"
        eventually(lambda: len(started) == 10)
    assert 0 <= started[0] - end < 500

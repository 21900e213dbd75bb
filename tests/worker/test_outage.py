"""Redis goes away, comes back, forgets to answer: no loop dies, nothing is lost, nothing runs early or needlessly."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

import pytest
from redis.exceptions import AuthenticationError

from django_delayq.core import (
    Broker,
    Misconfigured,
    Queue,
    QueueFull,
    QueueUnavailable,
    RedisConfig,
    Tick,
    connect,
)
from django_delayq.core.redis.faults import Fault
from tests.support.duty_stage import (
    Loop,
    RedisHealth,
    TickingQueue,
    check_now,
    cleanup_of,
    pauses_of,
    poller_of,
    reaper_of,
)
from tests.support.supervisor_stage import orphaned_child
from tests.support.worker_stage import (
    DEADLINE,
    Worker,
    config,
    eventually,
    places,
    put,
    registry_of,
    run_dry,
    runs_jobs,
    waiting_for_redis,
    working,
)


@pytest.mark.parametrize("refusal", [QueueUnavailable("gone"), AuthenticationError("NOAUTH")], ids=["away", "NOAUTH"])
def test_a_worker_that_still_waits_for_redis_stops_at_once(
    refusal: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """The grace is for running jobs, and none runs yet. No job may be taken any more if Redis returns."""
    connection = connect(RedisConfig.parse("redis://127.0.0.1:1/0"))
    worker = Worker(Broker(connection), registry_of(print), config(grace=60.0))

    def kill() -> None:
        assert tried.wait(DEADLINE)
        os.kill(os.getpid(), signal.SIGTERM)

    killer = threading.Thread(target=kill)
    begin = time.monotonic()
    with caplog.at_level(logging.INFO, "django_delayq.worker"), waiting_for_redis(worker, refusal) as tried:
        killer.start()
        assert worker.run() == 0
    killer.join()
    assert time.monotonic() - begin < DEADLINE / 2
    assert not runs_jobs(worker)
    assert not [line for line in caplog.messages if "is back" in line or "started" in line]
    connection.close()


def test_a_child_that_still_waits_for_redis_ends_when_its_supervisor_is_gone() -> None:
    """A supervisor may die before its child has asked the kernel for a signal in that case."""
    connection = connect(RedisConfig.parse("redis://127.0.0.1:1/0"))
    spec = orphaned_child(parent=os.getpid())
    worker = Worker(Broker(connection), registry_of(print), config(), child_spec=spec)
    rescue = threading.Timer(DEADLINE, os.kill, (os.getpid(), signal.SIGTERM))
    rescue.start()
    assert worker.run() == 0
    assert rescue.is_alive(), "it ended by itself"
    rescue.cancel()
    connection.close()


@pytest.mark.parametrize("cut", ["cut_after_request", "cut_before_request"])
def test_an_answer_that_is_lost_is_asked_for_again(
    redis_factory: Callable[..., Any], proxy_factory: Callable[..., Any], cut: str
) -> None:
    box = redis_factory(tcp=True)
    proxy = proxy_factory(box.address)
    connection = connect(RedisConfig.parse(proxy.url))
    broker = Broker(connection)
    ran: Counter[int] = Counter()

    def work(n: int) -> None:
        ran[n] += 1

    for n in range(100):
        put(broker, "work", n, id=f"j{n}")
    with working(broker, registry_of(work), config(heartbeat=0.3)):
        for n in range(30):
            getattr(proxy, cut)(n % 3 + 1)
            eventually(lambda n=n: _scheduled(broker, 100 + n))
        eventually(lambda: len(ran) == 130)
        eventually(lambda: _nothing_left(broker))
    assert set(ran.values()) == {1}
    connection.close()


def _scheduled(broker: Broker, n: int) -> bool:
    try:
        put(broker, "work", n, id=f"j{n}")
    except QueueUnavailable:
        return False
    return True


def _nothing_left(broker: Broker) -> bool:
    try:
        return places(broker) == {}
    except QueueUnavailable:
        return False


def test_a_worker_that_is_started_without_redis_waits_for_it(redis_factory: Callable[..., Any]) -> None:
    box = redis_factory(aof="always")
    connection = connect(RedisConfig.parse(box.url))
    broker = Broker(connection)
    ran: list[int] = []

    def work() -> None:
        ran.append(1)

    put(broker, "work")
    box.kill()
    opener = threading.Timer(0.5, box.start)
    opener.start()
    run_dry(Broker(connect(RedisConfig.parse(box.url))), registry_of(work))
    opener.join()
    assert ran == [1]
    connection.close()


def test_a_loop_that_renews_leases_never_pauses_for_longer_than_between_two_renewals() -> None:
    """After an outage no lease is taken for the time of one, so it has to be back before."""

    class Failing:
        def run(self) -> float:
            raise QueueUnavailable("away")

    pauses = pauses_of(Loop("heartbeat", Failing(), RedisHealth(), longest=0.4), 50)
    assert len(pauses) == 50 and 0.2 < max(pauses) <= 0.4


def test_only_a_call_to_redis_ends_an_outage(broker: Broker) -> None:
    """A turn of a loop that sends no command says nothing about Redis."""
    health = RedisHealth()
    health.failed("fetch loop", QueueUnavailable("away"))
    turns: SimpleQueue[None] = SimpleQueue()

    class Empty:
        def __iter__(self) -> Iterator[Queue]:
            turns.put(None)
            return iter(())

    loop = Loop("epoch-cleanup", cleanup_of(broker, Empty()), health)
    loop.start()
    turns.get(timeout=DEADLINE)
    loop.ring()
    turns.get(timeout=DEADLINE)  # the first turn is over
    loop.close()
    assert health.lasting() > 0


def test_nothing_is_reaped_after_a_jump_of_redis_clock() -> None:
    now = time.time() * 1000
    queue = TickingQueue(
        [
            Tick(now, None, now, False, False),
            Tick(now + 60_000, None, now, True, False),
            Tick(now + 60_000, None, now, True, True),
        ]
    )
    patrol = poller_of([queue], reaper=reaper_of(registry_of(), runs_at_once=True))
    for _ in range(3):
        check_now(patrol)
    assert queue.holds == [False, False, True] and queue.reaped == 0


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (QueueUnavailable("x"), Fault.TRANSIENT),
        (QueueFull("x"), Fault.OVERLOAD),
        (Misconfigured("x"), Fault.CONFIG),
        (KeyError("x"), Fault.BUG),
    ],
)
def test_trouble_is_told_once(error: Exception, fault: Fault, caplog: pytest.LogCaptureFixture) -> None:
    health = RedisHealth()
    with caplog.at_level(logging.WARNING, "django_delayq.worker"):
        assert [health.failed("loop", error) for _ in range(5)] == [fault] * 5
    assert len(caplog.records) == 1


@pytest.mark.one_server("a cluster's nodes announce their own addresses")
def test_a_connection_that_ends_late_is_not_reported_as_an_outage(
    redis_box: Any, prefix: str, proxy_factory: Callable[[Any], Any], caplog: pytest.LogCaptureFixture
) -> None:
    """A read without a time limit may notice only by TCP's keepalive, after an outage, that its connection was lost."""
    proxy = proxy_factory(str(redis_box.socket_path))
    connection = connect(RedisConfig.parse(proxy.url))
    broker = Broker(connection, prefix=prefix)
    ran: SimpleQueue[int] = SimpleQueue()

    def work(number: int) -> None:
        ran.put(number)

    def listens() -> bool:
        with redis_box.client() as client:
            return any(one["cmd"] == "blpop" for one in client.client_list())

    with caplog.at_level(logging.WARNING), working(broker, registry_of(work)):
        eventually(listens, "the wake listener reads")
        proxy.reset_connections()
        put(broker, "work", 1)
        assert ran.get(timeout=DEADLINE) == 1
        eventually(listens, "it reads again")
    connection.close()
    assert [line for line in caplog.messages if "Redis" in line] == []

"""Pulls whose reply from Redis was lost, so that the reserve is sent again."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from django_delayq import Queue, connections
from django_delayq.core.broker import Broker
from django_delayq.core.job import NewJob
from django_delayq.core.redis.connection import RedisConfig, connect
from django_delayq.pull import HeldJob
from tests.support.processes import wait_until
from tests.support.redis_box import RedisBox
from tests.support.tcp_proxy import TcpProxy

PATIENCE = 20.0
#: name of the holder, by which its reserves are known on their way
HOLDER = "holder-of-this-test"


@pytest.fixture
def proxy(
    delayq: Broker, proxy_factory: Callable[[Any], TcpProxy], redis_box: RedisBox, settings: Any
) -> Iterator[TcpProxy]:
    """The way to Redis of this process. It sends nothing twice by itself, so each lost answer is the search's."""
    made = proxy_factory(str(redis_box.socket_path))
    before = settings.DELAYQ
    redis = {"URL": made.url, "RETRIES": 0}
    settings.DELAYQ = {**before, "REDIS": redis, "QUEUES": {"wide": {"kind": "pull", "shards": 2}}}
    connections.close_broker()
    connections.broker().queue("wide")
    assert Queue("wide").reserve(250, by=HOLDER) == []  # loads the script
    yield made
    settings.DELAYQ = before
    connections.close_broker()


@pytest.fixture
def beside(redis_box: RedisBox, prefix: str) -> Iterator[Callable[[int, int], None]]:
    """``beside(shard, count)``: another process puts jobs into a shard."""
    connection = connect(RedisConfig.parse(redis_box.url))
    queue = Broker(connection, prefix=prefix).queue("wide", shards=2, kind="pull")

    def put(shard: int, count: int) -> None:
        names = (f"job-{number}" for number in range(1000))
        for _ in range(count):
            new = next(name for name in names if queue.shard_of(name) == shard)
            while queue.schedule(NewJob(new, "raw", on_conflict="ignore")) != "created":
                new = next(name for name in names if queue.shard_of(name) == shard)

    yield put
    connection.close()


def shard_of(request: bytes) -> int | None:
    """The shard that a reserve of the holder asks; None = it is another call."""
    found = re.search(rb"\{wide:(\d+)\.(\d+)\}", request)
    return int(found[2]) if found and HOLDER.encode() in request else None


def reserve(most: int, ttr: float = 60) -> list[HeldJob]:
    return Queue("wide").reserve(most, wait=PATIENCE, ttr=ttr, by=HOLDER)


def test_no_more_jobs_are_handed_out_than_asked_for_when_a_lost_answer_is_fetched(
    proxy: TcpProxy, beside: Callable[[int, int], None]
) -> None:
    asked: list[int] = []

    def second_shard_is_asked(request: bytes) -> bool:
        shard = shard_of(request)
        if shard is not None and shard not in asked:
            asked.append(shard)
            if len(asked) == 2:  # the first one, found empty a moment ago, gets a job as well
                beside(asked[1], 2)
                beside(asked[0], 1)
                return True
        return False

    proxy.cut_after_request(when=second_shard_is_asked)
    jobs = reserve(2)
    assert len(asked) == 2
    assert len(jobs) == 2
    assert all(job.ack() for job in jobs)
    (other,) = reserve(2)
    assert other.ack()
    assert connections.broker().inspector.counts("wide").reserved == 0


@pytest.mark.parametrize(("applied", "retries"), [(True, 0), (False, 0), (True, 5)])
def test_after_an_outage_longer_than_the_lease_a_job_is_held_for_its_whole_lease(
    applied: bool, retries: int, proxy: TcpProxy, beside: Callable[[int, int], None], settings: Any
) -> None:
    """Redis had applied the reserve or never got it, and the search or the connection (``retries``) sends it again."""
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": {"URL": proxy.url, "RETRIES": retries}}
    connections.close_broker()
    beside(0, 1)
    assert Queue("wide").peek()
    outage = 2.0
    cut = proxy.cut_after_request if applied else proxy.cut_before_request
    cut(when=lambda request: shard_of(request) == 0, then_refuse=True)
    with ThreadPoolExecutor(1) as team:
        jobs = team.submit(reserve, 1, ttr=outage - 0.1)
        wait_until(lambda: proxy.cuts_done, what="the lost answer")
        time.sleep(outage)
        proxy.passing()
        (job,) = jobs.result(PATIENCE)
        assert job.seconds_left > 0
        assert job.touch(ttr=60)
        assert job.ack()


@pytest.mark.parametrize("by_id", [False, True], ids=["the first one", "by its id"])
def test_the_lease_of_a_job_whose_answer_was_long_on_its_way_is_counted_from_the_request(
    by_id: bool, proxy: TcpProxy, beside: Callable[[int, int], None]
) -> None:
    beside(0, 1)
    (ident,) = [view.id for view in Queue("wide").peek()]
    queue = Queue("wide")
    proxy.delay(0.3)  # in each direction
    job = queue.reserve_id(ident, ttr=60) if by_id else queue.reserve(ttr=60)[0]
    assert job is not None
    assert 58 < job.seconds_left < 59.5
    proxy.passing()
    assert job.touch() and job.seconds_left > 59.5


def test_while_redis_stands_still_a_lease_does_not_run(
    proxy: TcpProxy, beside: Callable[[int, int], None], redis_box: RedisBox
) -> None:
    beside(0, 1)
    outage, still = 0.6, threading.Event()

    def stands_still(request: bytes) -> bool:
        if shard_of(request) == 0 and not still.is_set():
            redis_box.pause()
            still.set()
        return False

    proxy.cut_after_request(when=stands_still)
    with ThreadPoolExecutor(1) as team:
        jobs = team.submit(reserve, 1, ttr=outage - 0.1)
        assert still.wait(PATIENCE)
        time.sleep(outage)
        redis_box.resume()
        (job,) = jobs.result(PATIENCE)
        assert job.seconds_left == 0, "the answer may have been late on its way as well"
        assert job.touch()
        assert job.seconds_left > 0
        assert job.ack()

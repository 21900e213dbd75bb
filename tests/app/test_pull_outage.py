"""Outages of Redis while jobs are pulled."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_delayq import (
    Queue,
    QueueUnavailable,
    connections,
)
from django_delayq.core.broker import Broker
from django_delayq.core.job import NewJob
from django_delayq.pull.coordinator import ReserveCall, coordinator_of
from django_delayq.pull.search import Holder, Search
from tests.support.redis_box import RedisBox
from tests.support.tcp_proxy import TcpProxy

from .pull_stage import PATIENCE, one, places, soon, waiting

pytestmark = pytest.mark.usefixtures("pull_queues")


@pytest.fixture
def proxied(proxy_factory: Callable[[Any], TcpProxy], redis_box: RedisBox, settings: Any) -> Iterator[TcpProxy]:
    """The same Redis behind a line that can be cut."""
    proxy = proxy_factory(str(redis_box.socket_path))
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": proxy.url}
    yield proxy
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": redis_box.url}


@pytest.mark.one_server("the line is that to one server")
@pytest.mark.usefixtures("redis_url")
class TestAnOutage:
    def test_is_told_at_once_or_at_the_end_of_the_wait(self, feed: Queue, proxied: TcpProxy) -> None:
        assert feed.reserve() == []
        proxied.refuse()
        with pytest.raises(QueueUnavailable):
            feed.reserve()
        began = time.monotonic()
        with pytest.raises(QueueUnavailable):
            feed.reserve(wait=1)
        assert time.monotonic() - began >= 1

    def test_before_the_first_call_is_no_other_thing(self, feed: Queue, proxied: TcpProxy) -> None:
        proxied.refuse()
        taken = soon(lambda: feed.reserve(wait=PATIENCE))
        proxied.passing()
        feed.put(b"x")
        assert [job.body for job in taken.result(PATIENCE)] == [b"x"]

    def test_is_sat_out_by_who_waits(self, feed: Queue, proxied: TcpProxy, delayq: Broker) -> None:
        taken = soon(lambda: feed.reserve(wait=PATIENCE))
        waiting()
        proxied.refuse()
        delayq.queue("feed", kind="pull").schedule(NewJob("a", "raw", b"x"))
        proxied.passing()
        assert [job.body for job in taken.result(PATIENCE)] == [b"x"]
        delayq.connection.close()

    def test_does_not_make_a_held_job_end_unheard(self, feed: Queue, proxied: TcpProxy) -> None:
        feed.put(b"x")
        job = one(feed)
        proxied.refuse()
        with pytest.raises(QueueUnavailable):
            job.ack()
        with pytest.raises(ZeroDivisionError), job:
            _ = 1 / 0
        proxied.passing()
        assert job.ack()
        assert places("feed") == {}

    def test_that_takes_the_answer_loses_no_job(self, feed: Queue, proxied: TcpProxy) -> None:
        feed.put(b"x")
        feed.put(b"y")
        assert one(feed).ack()  # loads the script
        proxied.cut_after_request(1, when=lambda said: b"EVALSHA" in said)
        assert [job.body for job in feed.reserve(wait=5)] == [b"y"]


@pytest.mark.parametrize("error", [QueueUnavailable("gone"), KeyboardInterrupt()], ids=["Redis", "the process"])
def test_what_is_in_hand_is_handed_out_if_redis_goes_away_and_goes_back_if_the_process_ends(
    error: BaseException,
) -> None:
    connections.queue("wide").schedule_many(NewJob(f"j{number}", "raw") for number in range(40))
    coordinator = coordinator_of()
    search = Search(coordinator, ("wide",), 250, Holder("w", 60_000))
    coordinator.open(("wide",))

    def calls() -> Iterator[ReserveCall]:
        yield coordinator.begin_reserve(coordinator.places(("wide",))[0])
        raise error

    if isinstance(error, KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            search._collect(calls())
        assert places("wide") == {"ready": 40}
    else:
        jobs = search._collect(calls())
        assert places("wide") == {"ready": 40 - len(jobs), "reserved": len(jobs)}

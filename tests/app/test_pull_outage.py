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
        with pytest.raises(QueueUnavailable):
            feed.reserve()
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


def interrupted(error: BaseException) -> tuple[Search, Iterator[ReserveCall]]:
    """A call that takes two jobs of a shard and meets ``error`` at the next one."""
    live = connections.queue("wide")
    live.schedule_many(NewJob(f"j{number}", "raw") for number in range(40))
    search = Search(coordinator_of(), ("wide",), 250, Holder("w", 60_000))

    def questions() -> Iterator[ReserveCall]:
        yield coordinator_of().begin_reserve(coordinator_of().places([live], 0)[0])
        raise error

    return search, questions()


def test_what_is_in_hand_when_redis_goes_away_is_handed_out() -> None:
    search, questions = interrupted(QueueUnavailable("gone"))
    jobs = search._collect(questions)
    assert places("wide") == {"ready": 40 - len(jobs), "reserved": len(jobs)}


def test_what_is_in_hand_when_the_process_ends_goes_back() -> None:
    search, questions = interrupted(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        search._collect(questions)
    assert places("wide") == {"ready": 40}

"""Reserves that wait: which job wakes whom, when, and for how many requests."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from django.utils import timezone

from django_delayq import Queue, connections
from django_delayq.core.job import NewJob
from django_delayq.core.records.keys import wake_key
from django_delayq.pull import coordinator
from django_delayq.worker import wake
from tests.support.processes import wait_until
from tests.support.redis_box import RedisBox
from tests.support.worker_stage import put_unheard

from .pull_stage import PATIENCE, listening, one, places, soon, waiting

pytestmark = pytest.mark.usefixtures("pull_queues")


def test_a_job_that_is_put_meanwhile_is_there_within_milliseconds(feed: Queue) -> None:
    late = []
    for _ in range(7):
        taken = soon(lambda: (one(feed, wait=PATIENCE), time.monotonic()))
        waiting()
        put_at = time.monotonic()
        feed.put(b"x")
        job, at = taken.result(PATIENCE)
        late.append(at - put_at)
        assert job.ack()
    assert sorted(late)[3] < 0.05


def test_a_delayed_job_is_taken_when_it_is_due(feed: Queue) -> None:
    feed.put(b"x", delay=0.3)
    taken = soon(lambda: (one(feed, wait=PATIENCE), timezone.now()))
    job, at = taken.result(PATIENCE)
    assert timedelta(0) <= at - job.due < timedelta(seconds=0.2)


def test_who_waits_hears_of_a_due_time_that_comes_before_the_one_he_knows(feed: Queue) -> None:
    feed.put(b"later", id="later", delay=3600)
    taken = soon(lambda: one(feed, wait=timedelta(seconds=PATIENCE)))
    waiting()
    feed.put(b"sooner", delay=0.1)
    assert taken.result(PATIENCE).body == b"sooner"


def test_a_wait_ends_in_time_with_nothing(feed: Queue) -> None:
    began = time.monotonic()
    assert feed.reserve(wait=0.3) == []
    assert 0.3 <= time.monotonic() - began < 1.5


def test_who_waits_for_ever_hears_of_every_one_of_his_queues() -> None:
    feed, both = Queue("feed"), Queue("wide", "feed")
    alone = soon(lambda: one(feed, wait=None))
    waiting()
    taken = soon(lambda: one(both, wait=None))  # of queues of which nobody heard so far
    waiting(2)
    Queue("wide").put(b"for both")
    assert taken.result(PATIENCE).body == b"for both"
    feed.put(b"for the one")
    assert alone.result(PATIENCE).body == b"for the one"


@pytest.mark.one_server("the line is that of a blocking list read")
def test_all_waiting_threads_of_a_process_share_one_blocking_connection(feed: Queue) -> None:
    client = connections.broker().client

    def blocked() -> set[str]:
        return {each["id"] for each in client.client_list() if each["cmd"] == "blpop"}

    before = blocked()  # a line of an earlier test may still be there
    taken = [soon(lambda: feed.reserve(wait=PATIENCE)) for _ in range(8)]
    waiting(8)
    wait_until(lambda: blocked() - before, PATIENCE, "a blocked connection")
    assert len(blocked() - before) == 1
    for number in range(8):
        feed.put(b"%d" % number)
    bodies = [job.body for future in taken for job in future.result(PATIENCE)]
    assert sorted(bodies) == [b"%d" % number for number in range(8)]


def test_t25_waiting_threads_get_jobs_in_the_order_in_which_they_came(feed: Queue) -> None:
    """20 consumers, jobs that come one at a time: an equal share for each, whoever is the fastest."""
    shares: Counter[int] = Counter()
    done = threading.Semaphore(0)

    def consume(name: int) -> None:
        while one(feed, wait=PATIENCE).body != b"end":
            shares[name] += 1
            done.release()

    with ThreadPoolExecutor(20) as pool:
        futures = [pool.submit(consume, name) for name in range(20)]
        for number in range(60):
            waiting(20)
            feed.put(b"%d" % number)
            assert done.acquire(timeout=PATIENCE)
        for _ in futures:
            feed.put(b"end")
        for future in futures:
            future.result(PATIENCE)
    assert shares == dict.fromkeys(range(20), 3)


@pytest.mark.parametrize("name", ["feed", "wide"])
def test_t25_twenty_consumers_of_ten_thousand_ready_jobs_never_get_an_empty_answer(name: str) -> None:
    """Each makes as many calls as the others; the shares are equal because no answer is short."""
    queue, calls, limit = Queue(name), 50, 10
    live = connections.queue(name)
    live.schedule_many(NewJob(f"j{number}", "raw") for number in range(10_000))

    def consume() -> list[str]:
        taken: list[str] = []
        for _ in range(calls):
            jobs = queue.reserve(limit)
            assert jobs, "an empty answer while jobs are ready"
            assert all(job.ack() for job in jobs)
            taken += [job.id for job in jobs]
        return taken

    with ThreadPoolExecutor(20) as pool:
        shares = [future.result() for future in [pool.submit(consume) for _ in range(20)]]
    assert [len(share) for share in shares] == [500] * 20
    assert len({ident for share in shares for ident in share}) == 10_000
    assert queue.reserve(limit) == []
    assert places(name) == {}


@pytest.mark.one_server("counts the requests of one server")
def test_waiting_costs_about_a_request_a_second_however_many_wait(redis_box: RedisBox) -> None:
    wide = Queue("wide", "feed")
    assert wide.reserve() == []
    requests: Counter[str] = Counter()
    with redis_box.client().monitor() as monitor:
        taken = [soon(lambda: wide.reserve(wait=14)) for _ in range(3)]
        waiting(3)
        since = time.time() + 2  # the start looks everywhere
        for future in taken:
            assert future.result(PATIENCE) == []
        redis_box.client().echo("the end")
        for said in monitor.listen():
            if said["command"].startswith("ECHO"):
                break
            if said["client_type"] != "lua" and since <= said["time"] <= since + 8:
                requests[said["command"].split()[0]] += 1
    # a look at a shard every 1.75 s; registry and limits every 5 s, of which the first may be read by two threads
    assert 3 <= requests["EVALSHA"] <= 5 and sum(requests.values()) <= 5 + 4 + 2, requests


@pytest.mark.one_server("a channel keeps no tokens")
def test_a_token_that_nobody_here_waits_for_any_more_is_left_to_other_processes(feed: Queue) -> None:
    broker = connections.broker()
    assert feed.reserve(wait=0.05) == []  # the blocking read is still outstanding now
    put_at = time.monotonic()
    feed.put(b"x")
    tokens: Callable[[], list[bytes]] = lambda: broker.client.lrange(wake_key(broker.prefix, "feed"), 0, -1)  # noqa: E731
    wait_until(lambda: tokens() == [b"0"], PATIENCE, "the token on the list")
    assert time.monotonic() - put_at < 5
    assert one(feed).ack()


def test_who_waits_when_nobody_has_waited_for_a_while_hears_of_a_job_at_once(
    feed: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "SAFETY_CHECK", 60.0)
    monkeypatch.setattr(wake, "BLOCK", 0.1)
    assert feed.reserve(wait=0.2) == []
    time.sleep(0.3)  # the blocking read is over, and the thread waits for somebody to read for
    taken = soon(lambda: feed.reserve(wait=PATIENCE))
    waiting()
    time.sleep(0.2)
    put_at = time.monotonic()
    feed.put(b"x")
    assert len(taken.result(PATIENCE)) == 1
    assert time.monotonic() - put_at < 5


def test_a_job_whose_wake_token_was_lost_is_found(feed: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "SAFETY_CHECK", 0.2)
    broker = connections.broker()
    assert Queue("wide").reserve() == []
    taken = soon(lambda: Queue("wide", "feed").reserve(wait=PATIENCE))
    waiting()
    listening("wide", "feed")  # what begins to listen later would hear of the other key
    put_unheard(broker, "raw", id="lost", queue="feed")
    (job,) = taken.result(PATIENCE)
    assert job.id == "lost"


@pytest.mark.one_server("a channel keeps no tokens")
def test_a_due_time_that_only_this_process_knows_is_told_to_others_when_it_stops_waiting(feed: Queue) -> None:
    broker = connections.broker()
    taken = soon(lambda: feed.reserve(wait=1.0))
    waiting()
    feed.put(b"x", delay=3600)
    assert taken.result(PATIENCE) == []
    wait_until(lambda: broker.client.lrange(wake_key(broker.prefix, "feed"), 0, -1) == [b"0"], PATIENCE, "the token")


def test_a_paused_queue_hands_nothing_out_until_it_is_resumed(feed: Queue) -> None:
    feed.put(b"x")
    feed.pause("out")
    assert feed.reserve(wait=0.1) == []
    taken = soon(lambda: feed.reserve(wait=PATIENCE))
    waiting()
    feed.resume()
    assert [job.body for job in taken.result(PATIENCE)] == [b"x"]


def test_shards_that_come_later_are_visited_and_waited_for(feed: Queue) -> None:
    feed.put(b"old", id="old")
    taken = soon(lambda: Queue("feed").reserve(250, wait=PATIENCE))
    assert [job.body for job in taken.result(PATIENCE)] == [b"old"]
    taken = soon(lambda: Queue("feed").reserve(250, wait=PATIENCE))
    waiting()
    connections.broker().reshard("feed", 3)
    feed.put(b"new", id="new")
    assert [job.body for job in taken.result(PATIENCE)] == [b"new"]

"""Consumers without the worker, as processes of their own. A dispatcher takes back what they hold for too long."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from django_delayq.core.job import NewJob

from .conftest import MakeMill
from .world import Mill, until

FEED = {"QUEUES": {"feed": {"kind": "pull", "shards": 3}}}
StartPuller = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def feed(make_mill: MakeMill) -> Mill:
    """A deployment with a pull queue of three shards."""
    mill = make_mill(**FEED)
    mill.broker.queue("feed", shards=3, kind="pull")
    return mill


@pytest.fixture
def pull(spawn: Callable[..., Any]) -> StartPuller:
    """``pull(mill, queues=["feed"], …)``: a consumer process; see mill/puller.py."""

    def start(mill: Mill, **plan: Any) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.acceptance.mill.puller", json.dumps({"queues": ["feed"], **plan})]
        process: subprocess.Popen[str] = spawn(*command, env=mill.env())
        return process

    return start


def put(mill: Mill, count: int, **options: Any) -> list[str]:
    jobs = [NewJob(f"j{number}", "raw", b"%d" % number, **options) for number in range(count)]
    mill.broker.queue("feed").schedule_many(jobs)
    return [job.id for job in jobs]


def got(mill: Mill) -> list[str]:
    return [ident for line in mill.lines("got") for ident in line["ids"]]


def test_t63_what_a_killed_consumer_held_comes_back_when_its_time_is_over(feed: Mill, pull: StartPuller) -> None:
    ids = put(feed, 6)
    dead = pull(feed, max=250, ttr=2, act="hold")
    until(lambda: got(feed), "the jobs in the dead one's hands")
    os.kill(dead.pid, signal.SIGKILL)
    feed.begin("--queues", "feed", command="delayq_dispatcher")
    killed_at = time.monotonic()
    pull(feed, max=250, wait=20, calls=6)
    until(lambda: feed.counts("feed").reserved + feed.counts("feed").ready == 0, "the end of all jobs")
    assert time.monotonic() - killed_at < 30
    lines = feed.lines("got")
    assert sorted(lines[0]["ids"]) == sorted(ids)
    again = {ident: attempt for line in lines[1:] for ident, attempt in zip(line["ids"], line["attempts"], strict=True)}
    assert again == dict.fromkeys(ids, 2), "being lost counts as a crash"
    assert all(line["counted"] for line in feed.lines("ended"))


def test_consumers_and_workers_share_a_queue_and_no_job_is_run_twice(make_mill: MakeMill, pull: StartPuller) -> None:
    mill = make_mill(lease=1.5)
    long = [mill.put("grind", 3.5) for _ in range(2)]
    mill.start("--threads", 4)
    for ident in long:
        mill.wait_starts(ident)
    consumer = pull(mill, queues=["default"], max=5, wait=5, calls=11)
    until(lambda: mill.broker.client.info("clients")["blocked_clients"] == 2, "a consumer that waits beside a worker")
    ids = mill.put_many("grind", 200, 0.01)
    mill.wait_empty()
    assert consumer.wait(60) == 0
    pulled, run = got(mill), Counter(mill.starts_by_id())
    assert pulled
    assert Counter(pulled) + run == Counter([*long, *ids])
    assert mill.counts().counters.get("late", 0) == 0, "who looks for lost leases takes none that is renewed"


def test_a_forked_child_waits_by_itself(feed: Mill, pull: StartPuller) -> None:
    consumer = pull(feed, fork=True, wait=20)
    until(lambda: feed.lines("parent"), "the parent's call")
    put(feed, 1)
    assert consumer.wait(30) == 0
    assert [line["pid"] == consumer.pid for line in feed.lines("got")] == [False]
    assert got(feed) == ["j0"]


def test_who_stops_waiting_leaves_what_he_alone_has_heard_to_the_others(feed: Mill, pull: StartPuller) -> None:
    """A token of a list is heard by one process; the due time that it announced must not be lost with its wait."""
    first = pull(feed, wait=3)
    client = feed.broker.client
    until(lambda: client.info("clients")["blocked_clients"] == 1, "a consumer that waits")
    second = pull(feed, wait=20)
    until(lambda: client.info("clients")["blocked_clients"] == 2, "another one")
    due = time.time() + 5
    feed.broker.queue("feed").schedule(NewJob("a", "raw", delay_ms=5_000))
    assert first.wait(20) == 0
    assert second.wait(20) == 0
    (line,) = [line for line in feed.lines("got") if line["ids"]]
    assert line["pid"] == second.pid
    assert line["at"] - due < 0.5

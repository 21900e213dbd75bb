"""The in-memory broker in the place of the real one: where it is used, for how long, and with which time."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import unittest
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
import time_machine
from asgiref.sync import async_to_sync
from django.core.exceptions import SynchronousOnlyOperation
from django.test import SimpleTestCase, TestCase, override_settings
from django.utils import timezone

from django_delayq import (
    InvalidJob,
    Queue,
    QueueUnavailable,
    aschedule,
    connections,
    schedule,
)
from django_delayq.core import fsck
from django_delayq.core.broker import Broker
from django_delayq.core.errors import QueueFull
from django_delayq.testing import DelayQTestCase, Fake, MemoryBroker, fake_queue

from .project import ROOT
from .works import note, tell

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


# -- in whose place --------------------------------------------------------------------------------------------------


def test_inside_the_block_it_is_the_broker_of_the_process_and_then_the_old_one_is(delayq: Broker) -> None:
    with fake_queue() as fake:
        assert connections.broker() is fake.broker
        schedule(note, "x")
    assert connections.broker() is delayq
    assert delayq.inspector.all_counts() == []


def test_blocks_inside_one_another() -> None:
    with fake_queue() as outer:
        schedule(note, "outer")
        with fake_queue() as inner:
            schedule(note, "inner")
            assert connections.broker() is inner.broker
            assert [job.args for job in inner.scheduled_jobs()] == [["inner"]]
        assert connections.broker() is outer.broker
        assert [job.args for job in outer.scheduled_jobs()] == [["outer"]]


def test_settings_may_change_in_between_and_count(delayq_fake: Fake, settings: Any) -> None:
    schedule(note, "x")
    with override_settings(DELAYQ={**settings.DELAYQ, "QUEUES": {"notes": {"max_length": 1}}}):
        assert isinstance(connections.broker(), MemoryBroker)
        with pytest.raises(QueueFull):
            schedule(note, "y")
    schedule(note, "z")
    assert [job.args for job in delayq_fake.scheduled_jobs()] == [["x"], ["z"]]


def test_in_a_coroutine() -> None:
    async def coroutine() -> int:
        with fake_queue() as fake:
            await aschedule(note, "x", delay=60)
            await fake.arun_due(until=60)
            return len(fake.scheduled_jobs())

    assert async_to_sync(coroutine)() == 0


def test_run_due_in_a_coroutine_says_what_to_do(delayq_fake: Fake) -> None:
    async def go() -> None:
        delayq_fake.run_due()

    with pytest.raises(SynchronousOnlyOperation, match=r"await fake\.arun_due"):
        asyncio.run(go())


def test_the_door_of_those_who_pull(delayq_fake: Fake) -> None:
    schedule(note, "x", id="1")
    (job,) = Queue("notes").reserve(ttr=30)
    with job:
        assert job.args == ["x"]
    assert Queue("notes").counts().counters["acked"] == 1


def test_it_has_what_a_real_redis_has(delayq_fake: Fake, done: list[Any]) -> None:
    broker = delayq_fake.broker
    for number in range(20):
        schedule(note, str(number), delay=1)
    broker.reshard("notes", 3)
    broker.client.set("mine", 1)
    assert (broker.queue("notes").shards, broker.client.get("mine")) == (3, b"1")
    assert broker.client.eval("return redis.call('INCRBY', KEYS[1], ARGV[1])", 1, "mine", 4) == 5
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        broker.client.eval("return redis.call('HLEN', KEYS[1])", 1, "mine")
    with pytest.raises(redis.ResponseError, match="Error running script"):
        broker.client.eval("return 1 + {}", 0)
    delayq_fake.run_due(until=1)
    assert sorted(done, key=int) == [str(number) for number in range(20)]
    fsck.assert_invariants(broker)


def test_a_wait_for_a_job_ends_when_one_is_scheduled(delayq_fake: Fake) -> None:
    found: list[str] = []

    def pull() -> None:
        found.extend(job.id for job in Queue("notes").reserve(ttr=30, wait=30))

    thread = threading.Thread(target=pull)
    thread.start()
    schedule(note, "x", id="1")
    thread.join(10)
    assert found == ["1"]


def test_without_its_packages_it_says_what_to_install() -> None:
    program = (
        "import os, sys; sys.modules['lupa'] = None; os.environ['DJANGO_SETTINGS_MODULE'] = 'tests.settings'\n"
        "import django; django.setup()\n"
        "from django_delayq.testing import fake_queue"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert answer.returncode == 1
    assert "ImportError: django_delayq.testing needs fakeredis" in answer.stderr
    assert answer.stderr.rstrip().endswith("pip install 'django-delayq[testing]'")


# -- time ------------------------------------------------------------------------------------------------------------


def test_the_clock_stands_still_and_moves_when_it_is_told(delayq_fake: Fake) -> None:
    assert delayq_fake.freeze(NOON) == delayq_fake.clock.now == NOON
    assert delayq_fake.travel(timedelta(hours=1)) == NOON + timedelta(hours=1)
    assert delayq_fake.travel(-1800) == NOON + timedelta(minutes=30)
    assert delayq_fake.freeze() == NOON + timedelta(minutes=30)
    assert delayq_fake.freeze(0) == datetime(1970, 1, 1, tzinfo=UTC)


def test_due_times_count_from_the_clock(delayq_fake: Fake) -> None:
    delayq_fake.freeze(NOON)
    schedule(note, "x", delay=60)
    assert [job.due for job in delayq_fake.scheduled_jobs()] == [NOON + timedelta(minutes=1)]
    schedule(note, "y", at=datetime(2020, 1, 1, tzinfo=UTC))
    assert delayq_fake.clock.now == NOON
    delayq_fake.run_due()
    assert [job.args for job in delayq_fake.scheduled_jobs()] == [["x"]]


def test_the_clock_may_be_set_back_a_little(delayq_fake: Fake, done: list[Any]) -> None:
    delayq_fake.freeze(NOON)
    schedule(note, "before", delay=60)
    delayq_fake.travel(-5)
    schedule(note, "after", delay=60)
    delayq_fake.assert_scheduled(note, args=["after"], delay=60, within=0)
    delayq_fake.run_due(until=60)
    assert done == ["after"]
    with delayq_fake.redis_down():
        delayq_fake.travel(-5)


@pytest.mark.delayq(at=NOON)
def test_the_marker_says_when_it_begins(delayq_fake: Fake) -> None:
    assert delayq_fake.clock.now == NOON


def test_inside_of_a_time_machine_of_the_project(done: list[Any]) -> None:
    with time_machine.travel(NOON, tick=False) as machine, fake_queue() as fake:
        assert fake.clock.now == NOON
        schedule(note, "x", at=timezone.now() + timedelta(minutes=30))
        machine.shift(1800)
        fake.travel(1800)
        assert timezone.now() == fake.clock.now
        fake.run_due()
    assert done == ["x"]


# -- trouble ---------------------------------------------------------------------------------------------------------


def test_errors_on_order(delayq_fake: Fake, done: list[Any]) -> None:
    for n in range(3):
        schedule(note, str(n))
    delayq_fake.fail_next("works.note", TimeoutError("slow"))
    delayq_fake.fail_next(note, ValueError)
    report = delayq_fake.run_due(raise_errors=False)
    assert [type(ran.error) for ran in report.runs] == [TimeoutError, ValueError, type(None)]
    assert done == ["2"]
    with pytest.raises(TypeError, match="takes an exception"):
        delayq_fake.fail_next(note, "no")  # type: ignore[arg-type]
    with pytest.raises(InvalidJob, match=r"no task is named 'works.nota'. Did you mean 'works.note'"):
        delayq_fake.fail_next("works.nota", ValueError)


@pytest.mark.django_db(transaction=True)
def test_redis_is_away_and_comes_back(delayq_fake: Fake) -> None:
    handle = schedule(note, "before")
    with delayq_fake.redis_down():
        verbs = (handle.cancel, handle.state, delayq_fake.run_due, Queue("notes").counts)
        for call in (lambda: schedule(note, "x"), *verbs):
            with pytest.raises(QueueUnavailable, match="simulates an outage"):
                call()
    assert [job.args for job in delayq_fake.scheduled_jobs()] == [["before"]]


# -- unittest --------------------------------------------------------------------------------------------------------


class DatabaseTests(DelayQTestCase, TestCase):
    delayq_options = {"at": NOON}  # noqa: RUF012

    @classmethod
    def setUpTestData(cls) -> None:
        assert isinstance(connections.broker(), MemoryBroker)
        schedule(note, "of the class")

    def setUp(self) -> None:
        with self.captureOnCommitCallbacks(execute=True):
            schedule(note, "of the test")

    def test_with_captured_callbacks(self) -> None:
        self.delayq.assert_scheduled(note, args=["of the test"], count=1, at=NOON)

    def test_without(self) -> None:
        schedule(tell)
        with self.assertRaisesRegex(AssertionError, "1 job waits for the commit"):
            self.delayq.assert_scheduled(tell)

    async def test_async(self) -> None:
        self.delayq.assert_scheduled(note)


def test_after_all_of_them_the_real_broker_is_back() -> None:
    assert not isinstance(connections.broker(), MemoryBroker)


def test_a_test_class_fails_like_any_other() -> None:
    class Failing(DelayQTestCase, SimpleTestCase):
        def runTest(self) -> None:
            self.delayq.assert_scheduled(note)

    result = unittest.TestResult()
    Failing().run(result)
    assert len(result.failures) == 1
    with pytest.raises(AssertionError):
        Failing().debug()
    assert not isinstance(connections.broker(), MemoryBroker)

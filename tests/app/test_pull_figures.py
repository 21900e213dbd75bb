"""Figures of pulled jobs, told by a timer of the process that ends them; and what fsck found, for those who watch."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command

from django_delayq import Queue, connections
from django_delayq.core.broker import Broker
from django_delayq.core.errors import QueueUnavailable
from django_delayq.core.figures import Figures
from tests.support.core_figures import set_pace
from tests.support.processes import wait_until

ROOT = Path(__file__).resolve().parent.parent.parent
PULLER = """
import django, sys
django.setup()
from django_delayq import Queue
for job in Queue("feed").reserve(max=5):
    job.ack()
assert Queue("feed").reserve() == []
"""


@pytest.fixture(autouse=True)
def _queues(delayq: Broker, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"feed": {"kind": "pull"}}}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The timer does not let a test wait for a second."""
    set_pace(monkeypatch, 0.01)


def runs(broker: Broker) -> dict[tuple[str, str], int]:
    return {name: found.count for name, found in broker.figures().run.items()}


@pytest.mark.usefixtures("quick")
def test_pulled_jobs_are_counted_when_they_end(delayq: Broker) -> None:
    feed = Queue("feed")
    for number in range(4):
        feed.put(b"%d" % number)
    acked, failed, released, buried = feed.reserve(max=4)
    acked.ack()
    failed.fail("no", delay=60)
    released.release(delay=60)
    buried.bury("never")
    acked.ack()
    wait_until(lambda: runs(delayq) == {("feed", "raw"): 3}, 10, "three attempts that ended")
    lateness = delayq.figures().lateness["feed"]
    assert lateness.count == 3
    assert 0 <= lateness.sum_ms < 10_000


@pytest.mark.usefixtures("quick")
def test_what_redis_could_not_be_told_is_told_later_by_the_same_timer(
    delayq: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, tries = delayq.tally._send, []

    def failing(told: Figures, request: bytes) -> None:
        tries.append(request)
        if len(tries) < 3:
            raise QueueUnavailable("gone")
        send(told, request)

    monkeypatch.setattr(delayq.tally, "_send", failing)
    delayq.tally.count("redis_error", "transient")
    wait_until(lambda: delayq.figures().counts == {("redis_error", "transient"): 1}, 10, "the count")
    assert len(tries) == 3
    assert len(set(tries)) == 1


def test_a_process_that_ends_before_its_timer_rings_tells_what_it_has(
    delayq: Broker, manage_env: dict[str, str], spawn: Callable[..., Any]
) -> None:
    Queue("feed").put(b"1")
    env = {**manage_env, "DJANGO_SETTINGS_MODULE": "tests.app.settings"}
    process = spawn(sys.executable, "-c", PULLER, env=env, cwd=ROOT, stderr=subprocess.PIPE)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert runs(delayq) == {("feed", "raw"): 1}


@pytest.mark.broken_on_purpose
def test_what_fsck_found_in_the_whole_deployment_is_kept(delayq: Broker) -> None:
    def check(*arguments: str) -> int | None:
        call_command("delayq_fsck", *arguments, stdout=StringIO())
        return delayq.figures().counts.get(("fsck", "violations"))

    queue = delayq.queue("feed")
    assert check("--queues", "feed") is None
    assert check() == 0
    delayq.client.hset(queue.shard(0).names["state"], "ghost", b"")
    assert check("--repair") == 1
    assert check() == 0


def couriers_at_work() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "delayq-counters"]


def test_what_a_broker_has_counted_is_told_when_it_is_closed(delayq: Broker, redis_url: str, prefix: str) -> None:
    feed = Queue("feed")
    feed.put(b"1")
    feed.reserve()[0].ack()
    connections.close_broker()
    assert runs(connections.broker()) == {("feed", "raw"): 1}


@pytest.mark.usefixtures("quick")
def test_a_closed_broker_leaves_nobody_behind_who_asks_for_redis(
    delayq: Broker, settings: Any, redis_factory: Callable[..., Any]
) -> None:
    box, before = redis_factory(), settings.DELAYQ
    settings.DELAYQ = {**before, "REDIS": box.url}
    connections.close_broker()
    feed = Queue("feed")
    feed.put(b"1")
    box.kill()
    connections.broker().tally.count("redis_error", "transient")
    wait_until(couriers_at_work, 10, "a timer that tries to tell it")
    connections.close_broker()
    settings.DELAYQ = before
    wait_until(lambda: not couriers_at_work(), 30, "the end of its last try")

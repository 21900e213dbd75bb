"""Delivery without faults: each job runs in its place, as often and at the time it should, by its handler's trace."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.support.redis_box import RedisBox

from .conftest import MakeMill
from .world import Mill, until


@pytest.fixture(scope="module")
def shared(redis_box: RedisBox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mill]:
    """One worker for the tests that only need one: a process with three threads, a short lease."""
    with Mill(redis_box.url, tmp_path_factory.mktemp("shared"), lease=1.5) as mill:
        mill.start("--threads", 3, queues="default,north.mill,south.mill")
        yield mill


@pytest.fixture
def running(shared: Mill) -> Iterator[Mill]:
    """The shared worker; it is the same process afterwards, with nothing in hand."""
    before = shared.nodes[0].children()
    yield shared
    shared.wait_empty()
    assert shared.nodes[0].children() == before, shared.nodes[0].said
    shared.check()


def test_t03_a_handler_that_runs_three_leases_long_is_started_once(mill: Mill) -> None:
    for _ in range(2):
        mill.start("--threads", 2)
    ids = [mill.put("grind", 4.5), mill.put("grind", 4.5), mill.put("sip", 4.5)]
    mill.wait_ended(ids)
    mill.wait_empty()
    assert mill.starts_by_id() == dict.fromkeys(ids, 1)


def test_t04_a_run_without_renewal_is_taken_over_and_its_own_end_changes_nothing(mill: Mill) -> None:
    first = mill.start("--threads", 2)
    ident = mill.put("wait_without_renewal", str(mill.gate()))
    mill.wait_starts(ident)
    first.process.send_signal(signal.SIGUSR1)  # so that it is another one that takes the job over
    second = mill.start("--threads", 2)

    one, other = mill.wait_starts(ident, 2)
    assert one["pid"] != other["pid"]
    assert other["token"] > one["token"]
    assert other["attempt"] == 2, "the run was known to have begun, so its lost lease counts"

    # Both wait for the same gate; the second holder stands still until the first one has come to its end.
    os.kill(other["pid"], signal.SIGSTOP)
    try:
        mill.gate().touch()
        until(lambda: "came too late" in first.said, "the refusal of the late acknowledgement")
        view = mill.view(ident)
        assert view is not None
        assert (view.state, view.job.token) == ("reserved", other["token"])
    finally:
        os.kill(other["pid"], signal.SIGCONT)
    mill.wait_empty()
    assert first.wait() == 0
    assert second.children() == [other["pid"]]
    assert mill.counts().counters["acked"] == 1


def test_t05_t18_two_workers_configured_alike_share_a_backlog_that_costs_no_attempt_and_no_second_run(
    mill: Mill,
) -> None:
    nodes = [mill.start("--threads", 1) for _ in range(2)]
    assert len({worker["name"] for worker in mill.broker.workers()}) == 2
    ids = mill.put_many("grind", 180, 0.04)
    mill.wait_ended(ids)
    starts = mill.starts()
    assert starts[-1]["at"] - starts[0]["at"] > 2 * 1.5, "the backlog was too short to show anything"
    assert mill.starts_by_id() == dict.fromkeys(ids, 1)
    assert {line["attempt"] for line in starts} == {1}
    assert {line["pid"] for line in starts} == {pid for node in nodes for pid in node.children()}


def test_t25_twenty_threads_share_the_work_evenly(make_mill: MakeMill) -> None:
    mill = make_mill()
    mill.start("--processes", 4, "--threads", 5)
    due = time.time() + 1.0
    ids = mill.put_many("grind", 1_000, 0.04, delay_ms=None, due_ms=int(due * 1000))
    mill.wait_ended(ids)
    mill.wait_empty()
    assert mill.starts_by_id() == dict.fromkeys(ids, 1)
    share = Counter((line["pid"], line["thread"]) for line in mill.starts())
    assert len(share) == 20
    assert all(40 <= jobs <= 60 for jobs in share.values()), sorted(share.values())


def test_t27_a_process_that_only_schedules_consumes_nothing(make_mill: MakeMill) -> None:
    mill = make_mill()
    program = """
import threading, django
django.setup()
from django_delayq import schedule
from django_delayq.connections import broker
from tests.acceptance.mill.tasks import grind
for number in range(20):
    schedule(grind, id=number)
commands = sorted({client["cmd"] for client in broker().client.client_list()})
print(threading.active_count(), *commands)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **mill.env()},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    threads, *commands = done.stdout.split()
    assert threads == "1"
    assert "blpop" not in commands
    assert mill.counts().ready == 20
    assert mill.counts().counters.get("reserved", 0) == 0
    assert mill.broker.workers() == []


def test_t29_a_job_from_elsewhere_that_is_due_sooner_than_all_others_starts_in_time(running: Mill) -> None:
    running.put("grind", id="in-an-hour", delay_ms=3_600_000)
    running.put("grind", id="in-ten-minutes", delay_ms=600_000)
    sooner = [running.put("grind", id=f"sooner-{n}", delay_ms=900 - 200 * n) for n in range(4)]
    running.wait_ended(sooner)
    late = [line["at"] - line["due"] for line in running.starts() if line["id"] in sooner]
    assert median(late) <= 0.05, late
    order = [line["id"] for line in running.starts() if line["id"] in sooner]
    assert order == sooner[::-1]
    queue = running.broker.queue("default")
    assert (queue.cancel("in-an-hour"), queue.cancel("in-ten-minutes")) == ("cancelled", "cancelled")


@pytest.mark.parametrize("attempts", [1, 2, 3])
def test_t30_max_attempts_is_the_exact_number_of_starts(running: Mill, attempts: int) -> None:
    ident = running.put("stumble", id=f"stumble-{attempts}", options=b'{"max_attempts":%d}' % attempts)
    view = running.buried(ident)
    assert [line["attempt"] for line in running.starts(ident)] == list(range(1, attempts + 1))
    assert (view.reason, view.job.failures) == ("exhausted", attempts)
    assert view.error["message"] == f"stumbled in attempt {attempts}"


@pytest.mark.parametrize("failures", [1, 2])
def test_t30_the_last_permitted_attempt_may_succeed(running: Mill, failures: int) -> None:
    ident = running.put("stumble", failures, id=f"recover-{failures}", options=b'{"max_attempts":%d}' % (failures + 1))
    running.wait_ended([ident])
    running.wait_empty()
    assert len(running.starts(ident)) == failures + 1
    assert running.view(ident) is None


def test_t57_names_that_differ_only_in_their_first_part_share_nothing(running: Mill) -> None:
    queues = ["north.mill", "south.mill"]
    for side in ("north", "south"):
        running.put(f"{side}.mill.greet", queue=f"{side}.mill", id="same-id")
    until(lambda: len(running.starts("same-id")) == 2, "both greetings")
    for queue in queues:
        running.wait_empty(queue)
    assert {(line["task"], line["queue"], line["who"]) for line in running.starts("same-id")} == {
        ("north.mill.greet", "north.mill", "north"),
        ("south.mill.greet", "south.mill", "south"),
    }
    keys: Callable[[str], set[Any]] = lambda name: set(running.broker.queue(name).shard(0).keys)  # noqa: E731
    assert not keys("north.mill") & keys("south.mill")
    counted = [running.counts(queue).counters["acked"] for queue in queues]
    assert counted == [1, 1]


def test_the_log_of_a_run_is_a_file_that_survives_its_writer(tmp_path: Path, redis_box: RedisBox) -> None:
    with Mill(redis_box.url, tmp_path) as mill:
        mill.log.write_bytes(b'{"event":"start","id":"a"}\n{"event":"sta')
        assert [line["id"] for line in mill.lines()] == ["a"]
        with mill.log.open("ab") as file:
            file.write(b'rt","id":"b"}\n')
        assert [line["id"] for line in mill.lines("start")] == ["a", "b"]

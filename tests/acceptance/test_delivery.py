"""Delivery without faults: each job runs in its place, as often and at the time it should, by its handler's trace."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import redis

from tests.support.core_calls import held_by
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


def test_t05_waiting_in_a_backlog_for_several_leases_costs_no_attempt_and_no_second_run(mill: Mill) -> None:
    ids = mill.put_many("grind", 240, 0.04)
    began = time.monotonic()
    mill.start("--threads", 2)
    mill.wait_ended(ids)
    assert time.monotonic() - began > 2 * 1.5, "the backlog was too short to show anything"
    assert mill.starts_by_id() == dict.fromkeys(ids, 1)
    assert {line["attempt"] for line in mill.starts()} == {1}


def test_t25_twenty_consumers_never_get_an_empty_answer_while_jobs_are_ready(mill: Mill) -> None:
    total, each = 10_000, 10
    mill.put_many("grind", total)
    queue = mill.broker.queue("default")
    taken: Counter[int] = Counter()
    empty_while_ready = []
    barrier = threading.Barrier(20)

    def consume(number: int) -> None:
        barrier.wait()
        while True:
            batch = queue.reserve(0, each, worker=f"consumer-{number}")
            if not batch.jobs:
                if sum(taken.values()) < total - 20 * each:
                    empty_while_ready.append(number)
                return
            taken[number] += len(batch.jobs)

    threads = [threading.Thread(target=consume, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(taken.values()) == total
    assert empty_while_ready == []
    queue_of_one = [held_by(queue, f"consumer-{number}") for number in range(20)]
    held = [job.id for jobs in queue_of_one for job in jobs]
    assert len(held) == len(set(held)) == total, "no job has two holders"


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


def test_t26_a_slow_worker_holds_no_more_than_its_free_threads(make_mill: MakeMill) -> None:
    mill = make_mill()
    slow = mill.start("--threads", 2, MILL_PACE="0.4")
    mill.start("--threads", 2)
    (slow_pid,) = slow.children()
    name = next(worker["name"] for worker in mill.broker.workers() if worker["pid"] == slow_pid)
    ids = mill.put_many("grind", 400, 0.01)
    held = []

    def all_ended() -> bool:
        held.append(sum(1 for _ in held_by(mill.broker.queue("default"), name)))
        return {line["id"] for line in mill.lines("end")} >= set(ids)

    until(all_ended, "the end of all jobs")
    by_slow = sum(line["pid"] == slow_pid for line in mill.starts())
    assert max(held) == 2
    assert 0 < by_slow < 40, f"the slow worker did {by_slow} of 400"
    assert mill.starts_by_id() == dict.fromkeys(ids, 1)


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


class Monitor:
    """Counts the requests that clients send, by connection; what scripts do inside the server is no request."""

    def __init__(self, client: redis.Redis) -> None:
        self.requests: Counter[str] = Counter()
        self._client = client
        self._listening = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self) -> Monitor:
        self._thread.start()
        assert self._listening.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._closing = True
        self._client.ping()  # something to hear, so that the listener sees the end
        self._thread.join(10)

    def _listen(self) -> None:
        with self._client.monitor() as monitor:
            self._listening.set()
            for heard in monitor.listen():
                if self._closing:
                    return
                if heard["client_type"] != "lua":
                    self.requests[heard["command"].split()[0].lower()] += 1


def test_t28_an_idle_worker_sends_less_than_a_request_a_second_and_still_starts_in_time(
    make_mill: MakeMill, redis_box: RedisBox
) -> None:
    mill = make_mill()
    mill.broker.queue("default", shards=5)
    nodes = [mill.start(), mill.start()]
    mill.wait_ended([mill.put("grind") for _ in range(20)])
    mill.wait_empty()
    seconds = 6.0
    quiet = threading.Event()
    for _ in range(4):
        with Monitor(redis_box.client(decode_responses=False)) as monitor:
            quiet.wait(seconds)  # the length of the measurement, not a way to wait for something
            requests = dict(monitor.requests)
        per_process = sum(requests.values()) / seconds / len(nodes)
        # On a busy machine the aftermath of the jobs reaches into the first window, and another one may have what is
        # sent once a minute: tests/worker/test_idle.py counts the commands of whole minutes.
        if per_process < 1.0:
            break
    assert per_process < 1.0, requests

    due = [mill.put("grind", id=f"in-time-{n}", delay_ms=700 + 100 * n) for n in range(9)]
    mill.wait_ended(due)
    late = [line["at"] - line["due"] for line in mill.starts() if line["id"].startswith("in-time")]
    assert min(late) >= 0
    assert median(late) <= 0.05, sorted(late)


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


def test_t18_two_workers_that_are_configured_alike_both_work(make_mill: MakeMill) -> None:
    mill = make_mill()
    nodes = [mill.start("--threads", 2) for _ in range(2)]
    assert len({worker["name"] for worker in mill.broker.workers()}) == 2
    ids = mill.put_many("grind", 60, 0.02)
    mill.wait_ended(ids)
    assert mill.starts_by_id() == dict.fromkeys(ids, 1)
    assert {line["pid"] for line in mill.starts()} == {pid for node in nodes for pid in node.children()}


def test_the_log_of_a_run_is_a_file_that_survives_its_writer(tmp_path: Path, redis_box: RedisBox) -> None:
    with Mill(redis_box.url, tmp_path) as mill:
        mill.log.write_bytes(b'{"event":"start","id":"a"}\n{"event":"sta')
        assert [line["id"] for line in mill.lines()] == ["a"]
        with mill.log.open("ab") as file:
            file.write(b'rt","id":"b"}\n')
        assert [line["id"] for line in mill.lines("start")] == ["a", "b"]

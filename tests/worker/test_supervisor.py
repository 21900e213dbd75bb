"""Processes that die, hang and are told to stop: the supervisor and its children for real."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from django_delayq.core import Broker
from tests.support.attempt_stage import make_job
from tests.support.supervisor_stage import ROOT, ChildSpec, Program, alive, decided, record_of, sent_to_child
from tests.support.worker_stage import Limits, config, eventually, places, put, registry_of


def failures(broker: Broker, ident: str) -> int:
    """Counted failures of a job that waits for its next attempt."""
    found = [view for view in broker.inspector.page("default", "failed").jobs if view.job.id == ident]
    return found[0].job.failures if found else 0


def test_a_killed_worker_is_replaced_and_its_job_runs_again_at_once(
    program: Callable[..., Program], broker: Broker
) -> None:
    put(broker, "wait", id="x")
    put(broker, "wait", id="y", delay_ms=86_400_000)
    running = program()
    (first,) = running.await_words("begun")
    begin = time.monotonic()
    os.kill(first[3], signal.SIGKILL)
    again = running.await_words("begun", 2)[1]
    assert time.monotonic() - begin < 5  # an idle machine needs less than one second
    assert (again[1], again[2]) == ("x", 2) and again[3] != first[3]
    running.client.rpush("release", 1)
    eventually(lambda: places(broker) == {"delayed": 1})
    running.signal(signal.SIGTERM)
    assert running.wait() == 0


def test_a_job_that_kills_its_process_is_tried_alone_and_then_buried_as_poison(
    program: Callable[..., Program], broker: Broker
) -> None:
    put(broker, "crash_once", id="once")
    running = program(processes=1)
    assert [entry[2] for entry in running.await_words("begun", 2)] == [1, 2]
    eventually(lambda: places(broker) == {})
    put(broker, "always_exit", id="poison")
    eventually(lambda: failures(broker, "poison"))
    queue = broker.queue("default")
    for expected in (2, 3):
        eventually(lambda: queue.run_now("poison") or places(broker) == {"morgue": 1})
        running.await_words("begun", expected + 2)
    eventually(lambda: places(broker) == {"morgue": 1})
    running.signal(signal.SIGTERM)
    assert running.wait() == 0


def test_stopping_in_the_middle_of_long_jobs_costs_no_attempt(program: Callable[..., Program], broker: Broker) -> None:
    put(broker, "wait", id="a")
    put(broker, "wait", id="b")
    running = program(grace=1.0)
    running.await_words("begun", 2)
    begin = time.monotonic()
    running.signal(signal.SIGTERM)
    assert running.wait() == 0
    assert time.monotonic() - begin < 2.5
    assert places(broker) == {"ready": 2}
    jobs = broker.queue("default").reserve(0, 10, worker="look").jobs
    assert [(job.failures, job.crashes, job.quarantined) for job in jobs] == [(0, 0, False)] * 2


def test_a_second_signal_ends_it_at_once(program: Callable[..., Program], broker: Broker) -> None:
    put(broker, "wait", id="a")
    running = program(grace=60.0, heartbeat=0.2)
    running.await_words("begun")
    running.signal(signal.SIGTERM)
    eventually(lambda: any(worker["stopping"] for worker in broker.workers()), "stopping")
    begin = time.monotonic()
    running.signal(signal.SIGTERM)
    assert running.wait() == 0 and time.monotonic() - begin < 3
    assert places(broker) == {"ready": 1}


def test_a_signal_to_all_processes_at_once_still_leaves_them_the_grace(
    program: Callable[..., Program], broker: Broker, tmp_path: Path
) -> None:
    """As systemd sends it to a whole control group: the child hears of it twice, from there and from its supervisor."""
    put(broker, "wait", id="a")
    output = tmp_path / "output"
    with output.open("wb") as file:
        running = program(grace=60.0, heartbeat=0.2, stderr=file)
    (entry,) = running.await_words("begun")
    os.kill(entry[3], signal.SIGTERM)
    eventually(lambda: any(worker["stopping"] for worker in broker.workers()), "stopping")
    running.signal(signal.SIGTERM)
    eventually(lambda: re.search("supervisor .* stops, 60 s for running jobs", output.read_text()), "the second signal")
    (told,) = broker.workers()
    eventually(lambda: broker.workers()[0]["seen_ms"] > told["seen_ms"] + 200, "a heartbeat after it")
    running.client.rpush("release", 1)
    assert running.wait() == 0
    assert [entry[0] for entry in running.trace()] == ["begun", "ended"]
    assert places(broker) == {}


def test_draining_finishes_what_has_begun_and_ends(program: Callable[..., Program], broker: Broker) -> None:
    put(broker, "wait", id="a")
    running = program(threads=1)
    running.await_words("begun")
    put(broker, "note", id="left")
    running.signal(signal.SIGUSR1)
    threading.Event().wait(0.3)
    running.client.rpush("release", 1)
    assert running.wait() == 0
    assert [entry[0] for entry in running.trace()] == ["begun", "ended"]
    assert places(broker) == {"ready": 1}


def test_a_draining_supervisor_sleeps_while_the_last_child_works(
    program: Callable[..., Program], broker: Broker
) -> None:
    put(broker, "wait", id="a")
    running = program(threads=1, processes=2, heartbeat=0.2)
    (busy,) = running.await_words("begun")
    eventually(lambda: len(broker.workers()) == 2)
    (idle,) = {int(worker["pid"]) for worker in broker.workers()} - {busy[3]}
    running.signal(signal.SIGUSR1)
    eventually(lambda: not alive(idle))
    before = cpu_seconds(running.process.pid)
    threading.Event().wait(0.5)
    assert cpu_seconds(running.process.pid) - before <= 0.05
    running.client.rpush("release", 1)
    assert running.wait() == 0


def cpu_seconds(pid: int) -> float:
    """Processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_children_end_when_their_supervisor_is_killed(program: Callable[..., Program], broker: Broker) -> None:
    put(broker, "note")
    running = program(grace=1.0)
    (entry,) = running.await_words("ran")
    running.signal(signal.SIGKILL)
    assert running.wait() == -signal.SIGKILL
    eventually(lambda: not alive(entry[3]))


def test_a_job_that_ignores_its_limit_is_the_only_one_to_pay(program: Callable[..., Program], broker: Broker) -> None:
    put(broker, "wait", id="neighbour")
    running = program(grace=1.5, patience=0.3)
    running.await_words("begun")
    put(broker, "stubborn", id="stubborn")
    again = running.await_words("begun", 3)[2]
    assert (again[1], again[2]) == ("neighbour", 1)
    running.client.rpush("release", 1, 1)
    eventually(lambda: places(broker) == {"morgue": 1})
    running.signal(signal.SIGTERM)
    assert running.wait() == 0


def test_a_child_that_shows_no_life_is_killed(program: Callable[..., Program], broker: Broker) -> None:
    put(broker, "hold", 30.0, id="hog")
    running = program(lease=3000, heartbeat=0.5)
    (entry,) = running.await_words("begun")
    begin = time.monotonic()
    eventually(lambda: failures(broker, "hog") or len(running.trace()) > 1)
    assert time.monotonic() - begin < 10 and not alive(entry[3])
    broker.queue("default").cancel("hog")
    running.signal(signal.SIGTERM)
    assert running.wait(30) == 0


def test_children_that_die_fast_are_not_started_in_a_hot_loop(
    spawn: Callable[..., Any], redis_url: str, prefix: str, tmp_path: Path
) -> None:
    births = tmp_path / "births"
    child = f"open({str(births)!r}, 'a').write('x'); raise SystemExit(3)"
    script = (
        "import sys; from tests.support.worker_program import *; "
        f"command = [sys.executable, '-c', {child!r}]; "
        "Supervisor(command, WorkerConfig(queues=('default',)), make_broker, registry()).run()"
    )
    environment = {"DQ_URL": redis_url, "DQ_PREFIX": prefix, "PYTHONPATH": str(ROOT)}
    process = spawn(sys.executable, "-c", script, env=environment, cwd=ROOT)
    eventually(lambda: births.exists() and len(births.read_text()) >= 2)
    threading.Event().wait(1.0)
    assert len(births.read_text()) <= 4
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGUSR1])
def test_a_child_that_is_ended_while_it_starts_is_no_death(
    spawn: Callable[..., Any], redis_url: str, prefix: str, tmp_path: Path, end: int
) -> None:
    births = tmp_path / "births"
    child = f"open({str(births)!r}, 'a').write('x'); import time; time.sleep(60)"
    script = (
        "import logging, signal, sys; from tests.support.worker_program import *; "
        f"logging.basicConfig(level='WARNING'); command = [sys.executable, '-c', {child!r}]; "
        "Supervisor(command, WorkerConfig(queues=('default',)), make_broker, registry(), "
        "reload_on=frozenset({signal.SIGHUP})).run()"
    )
    environment = {"DQ_URL": redis_url, "DQ_PREFIX": prefix, "PYTHONPATH": str(ROOT)}
    process = spawn(sys.executable, "-c", script, env=environment, cwd=ROOT, stderr=subprocess.PIPE)
    eventually(lambda: births.exists() and births.read_text() == "x", "a child")
    process.send_signal(signal.SIGHUP)
    eventually(lambda: births.read_text() == "xx", "the child after the reload")
    process.send_signal(end)
    _, told = process.communicate(timeout=20)
    assert (process.returncode, told) == (0, "")


def test_a_single_worker_without_supervisor_obeys_the_signals_too(
    program: Callable[..., Program], broker: Broker
) -> None:
    put(broker, "note")
    running = program("single")
    running.await_words("ran")
    running.signal(signal.SIGTTIN)
    running.signal(signal.SIGINT)
    assert running.wait() == 0
    assert broker.workers() == []


@pytest.mark.parametrize("role", ["supervise", "single"])
def test_sigttin_shows_what_every_thread_is_doing(
    program: Callable[..., Program], broker: Broker, tmp_path: Path, role: str
) -> None:
    put(broker, "wait")
    output = tmp_path / "output"
    with output.open("wb") as file:
        running = program(role, stderr=file)
    ((_, _, _, pid),) = running.await_words("begun")
    running.signal(signal.SIGTTIN)

    def stacks() -> str:
        return output.read_text().partition(f"stacks of process {pid}\n")[2]

    for words in ("thread MainThread:", "thread delayq-fetch:", "thread delayq-slot-0:"):
        eventually(lambda words=words: words in stacks(), words)
    eventually(lambda: re.search(r'program\.py", line \d+, in wait\n', stacks()), "the handler's own line")
    assert "(most recent call first)" in output.read_text(), "also where there is no log"
    running.client.rpush("release", 1)
    running.await_words("ended")
    running.signal(signal.SIGTERM)
    assert running.wait() == 0


def test_a_child_gets_the_whole_configuration_of_its_supervisor() -> None:
    limits = {"a": Limits(total=3), "b": Limits(local=1)}
    settings = config(queues=("a", "b"), awaited=frozenset({"b"}), weights={"a": 2.0}, limits=limits, max_rss=500)
    spec = ChildSpec("w.1", settings, board_fd=3, parent=os.getpid(), program="p")
    assert sent_to_child(spec) == spec and "DELAYQ_CHILD" not in os.environ


def test_what_a_dead_child_held_is_settled_by_what_it_was_doing() -> None:
    jobs = [make_job(id=name) for name in ("running", "waiting", "stuck", "other_token")]
    records = [record_of("running"), record_of("stuck", timed_out=True), record_of("other_token", token=6)]
    registry = registry_of(retry_in=lambda n: 5.0)
    crashed = decided(jobs, records, registry=registry)
    assert [(s.verb, s.outcome) for s in crashed] == [
        ("fail", "crashed"),
        ("release", "released"),
        ("fail", "timeout"),
        ("release", "released"),
    ]
    planned = decided(jobs, records, registry=registry, planned=True)
    assert [(s.verb, s.outcome) for s in planned] == [
        ("release", "released"),
        ("release", "released"),
        ("fail", "timeout"),
        ("release", "released"),
    ]
    assert crashed[0].run_ms == 8000


def test_a_run_that_had_ended_before_its_process_died_did_not_exceed_its_limit() -> None:
    (settlement,) = decided([make_job()], [record_of("job-1", limit_at=5.0, ended=True)])
    assert settlement.outcome == "crashed"

"""Processes that die, hang and are told to stop: the supervisor and its children for real."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis

from django_delayq.core import Broker
from django_delayq.worker.child import ENDED, RUNNING, TIMED_OUT, Scoreboard, place_of
from tests.support.attempt_stage import NEVER, make_attempt, make_job
from tests.support.supervisor_stage import ROOT, ChildSpec, Program, alive, decided, record_of, sent_to_child
from tests.support.worker_stage import Limits, config, eventually, places, put, put_payload, registry_of


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
    eventually(lambda: births.exists() and len(births.read_text()) == 4, "the first one, and three at once")
    threading.Event().wait(0.7)
    assert len(births.read_text()) == 4
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
    running.signal(signal.SIGINT)
    assert running.wait() == 0
    assert broker.workers() == []


def test_a_child_gets_the_whole_configuration_of_its_supervisor() -> None:
    limits = {"a": Limits(total=3), "b": Limits(local=1)}
    settings = config(queues=("a", "b"), awaited=frozenset({"b"}), weights={"a": 2.0}, limits=limits, max_rss=500)
    spec = ChildSpec(replace(settings, name="w.1", which="quarantined"), board_fd=3, parent=os.getpid())
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


# --- when the next child starts


def batches(client: redis.Redis) -> list[list[str]]:
    """Each call of the handler: ``id attempt`` of all that it got."""
    return [entry.decode().split(",") for entry in client.lrange("batches", 0, -1)]


def test_t11_ids_that_shared_a_call_with_a_deadly_payload_run_alone_and_are_done(
    program: Callable[..., Program],
    broker: Broker,
) -> None:
    for ident in ("a", "b", "deadly", "z"):
        put_payload(broker, "explode", ident, "boom" if ident == "deadly" else "fine")
    put(broker, "wait", id="neighbour", delay_ms=86_400_000)
    running = program(threads=1)
    eventually(lambda: places(broker) == {"delayed": 1, "morgue": 1})
    first, together, *alone = batches(running.client)
    assert first == ["a 1"], "the queue has plain tasks too, so the worker begins with as much as one of those takes"
    assert together == ["b 1", "deadly 1", "z 1"]
    assert sorted(alone) == [["b 2"], ["deadly 2"], ["z 2"]]
    (grave,) = broker.inspector.page("default", "morgue").jobs
    assert (grave.job.id, grave.reason, grave.job.crashes) == ("deadly", "poison", 2)
    running.signal(signal.SIGTERM)
    assert running.wait() == 0


# --- the board between a child and its supervisor


@pytest.fixture
def board() -> Iterator[Scoreboard]:
    made = Scoreboard.create(3)
    yield made
    os.close(made.fd)


def test_the_supervisor_reads_what_the_child_marks(board: Scoreboard) -> None:
    child = Scoreboard.open(os.dup(board.fd), 3)
    job = make_job(key=b"\0key of 16 bytes", token=1_795_230_051_941_001)
    child.mark(make_attempt(job, slot=1, started=12.5))
    (record,) = board.records()
    assert (record.flag, record.started, record.limit_at, record.places) == (RUNNING, 12.5, NEVER, {place_of(job)})
    child.slots[1].limit_at = 99.0
    child.mark_timed_out(1, "é" * 4000)
    (late,) = board.records()
    assert (late.flag, late.limit_at, late.stack.decode()) == (TIMED_OUT, 99.0, "é" * 1500)
    child.clear(1)
    assert [(one.flag, one.places) for one in board.records()] == [(ENDED, {place_of(job)})]
    assert record.flag == RUNNING, "it is a copy"
    os.close(child.fd)


def test_all_jobs_of_a_batch_are_on_the_board(board: Scoreboard) -> None:
    jobs = [make_job(id=f"order-{n}") for n in range(251)]
    board.mark(make_attempt(jobs[0], slot=1), [make_attempt(job) for job in jobs])
    board.mark(make_attempt(make_job(id="alone"), slot=0))
    alone, batch = board.records()
    assert batch.places == {place_of(job) for job in jobs}
    assert alone.places == {place_of(make_job(id="alone"))}
    board.mark(make_attempt(jobs[3], slot=1))
    assert board.records()[1].places == {place_of(jobs[3])}, "nothing is left of the batch before"


def test_signs_of_life(board: Scoreboard) -> None:
    assert (board.stamped, board.ready, board.leaving) == (0.0, 0.0, False)
    child = Scoreboard.open(os.dup(board.fd), 3)
    child.stamped, child.ready, child.leaving = 5.0, 6.0, True
    assert (board.stamped, board.ready, board.leaving) == (5.0, 6.0, True)
    os.close(child.fd)

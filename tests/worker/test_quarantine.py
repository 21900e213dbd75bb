"""A dead process stops no healthy work: what ran in it runs again in quarantine, and everything else goes on."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from django_delayq import current_job
from django_delayq.core import Broker, fail, release
from tests.support.attempt_stage import make_job
from tests.support.supervisor_stage import Program, Slot, alive, decided, record_of
from tests.support.worker_stage import DEADLINE, STARTED, config, eventually, places, put, registry_of, working

MakeProgram = Callable[..., Program]


def quarantine_workers(broker: Broker) -> list[dict[str, Any]]:
    return [worker for worker in broker.workers() if worker["quarantine"]]


def quarantined(broker: Broker, task: str, *args: Any, **options: Any) -> str:
    """Put a job in whose process died under it, as if a supervisor that is gone had settled it."""
    ident = put(broker, task, *args, **options)
    queue = broker.queue("default")
    (job,) = queue.reserve_id(ident, worker="dead").jobs
    assert queue.settle([fail(job, 0, 0, delay_ms=0, outcome="crashed", quarantine=True)]) == [True]
    return ident


def kill_the_process_of(begun: list[tuple[str, str, int, int]]) -> int:
    """SIGKILL for the one process in which these jobs run."""
    (pid,) = {entry[3] for entry in begun}
    os.kill(pid, signal.SIGKILL)
    return pid


def test_twenty_short_jobs_behind_five_suspects_do_not_wait(program: MakeProgram, broker: Broker) -> None:
    for number in range(5):
        put(broker, "wait", id=f"suspect-{number}")
    running = program(threads=5)
    dead = kill_the_process_of(running.await_words("begun", 5))
    again = running.await_words("begun", 7)[5:]
    for number in range(20):
        put(broker, "note", id=f"short-{number}")
    short = running.await_words("ran", 20)
    assert {entry[2] for entry in short} == {1}
    assert {entry[3] for entry in short}.isdisjoint({dead, *(entry[3] for entry in again)}), "quarantine runs suspects"
    running.client.rpush("release", *range(5))
    eventually(lambda: places(broker) == {})
    ended = [entry for entry in running.trace() if entry[0] == "ended"]
    assert sorted(entry[1:3] for entry in ended) == [(f"suspect-{number}", 2) for number in range(5)]
    running.signal(signal.SIGTERM)
    assert running.wait() == 0


def test_six_jobs_of_a_killed_child_run_again_each_in_a_process_of_its_own_as_many_at_once_as_allowed(
    program: MakeProgram,
    broker: Broker,
) -> None:
    for number in range(6):
        put(broker, "wait", id=f"long-{number}")
    running = program(threads=6, quarantine=3, heartbeat=0.2)
    kill_the_process_of(running.await_words("begun", 6))
    again = running.await_words("begun", 9)[6:]
    assert len({entry[3] for entry in again}) == 3
    (counts,) = [counts for counts in broker.inspector.all_counts() if counts.queue == "default"]
    assert (counts.quarantine, counts.reserved) == (3, 3)
    shown = eventually(lambda: len(found := [w for w in quarantine_workers(broker) if w["jobs"]]) == 3 and found)
    assert sorted(worker["jobs"][0]["id"] for worker in shown) == sorted(entry[1] for entry in again)
    assert {(worker["threads"], worker["dispatcher"]) for worker in shown} == {(1, False)}
    running.client.rpush("release", *range(6))
    eventually(lambda: places(broker) == {})
    assert sorted((ident, attempt) for word, ident, attempt, _ in running.trace() if word == "ended") == [
        (f"long-{number}", 2) for number in range(6)
    ]
    running.signal(signal.SIGTERM)
    assert running.wait() == 0


def test_a_job_that_died_with_its_process_alone_is_in_quarantine_too_so_that_it_kills_no_other(
    program: MakeProgram,
    broker: Broker,
) -> None:
    put(broker, "wait", id="alone")
    running = program(threads=3)
    kill_the_process_of(running.await_words("begun"))
    (again,) = running.await_words("begun", 2)[1:]
    put(broker, "note")
    (other,) = running.await_words("ran")
    assert again[3] != other[3]
    (job,) = [job for job in broker.queue("default").leases(0) if job.id == "alone"]
    assert (job.quarantined, job.own_crashes, job.failures) == (True, 1, 1)
    running.client.rpush("release", 1)
    running.signal(signal.SIGTERM)
    assert running.wait() == 0


def test_the_loss_of_a_host_is_counted_and_quarantines_nothing(program: MakeProgram, broker: Broker) -> None:
    for number in range(3):
        put(broker, "wait", id=f"held-{number}")
    gone = program(threads=3, lease=1500, heartbeat=0.2)
    begun = gone.await_words("begun", 3)
    eventually(lambda: all(job.flags & STARTED for job in broker.queue("default").leases(0)), "known starts")
    gone.signal(signal.SIGKILL)
    kill_the_process_of(begun)
    gone.wait()
    stays = program(threads=3, lease=1500, heartbeat=0.2)
    again = stays.await_words("begun", 6)[3:]
    assert len({entry[3] for entry in again}) == 1, "all at the same time in one ordinary process"
    assert {entry[2] for entry in again} == {2}
    jobs = broker.queue("default").leases(0)
    assert {(job.quarantined, job.failures, job.crashes, job.own_crashes) for job in jobs} == {(False, 1, 1, 0)}
    assert quarantine_workers(broker) == []
    stays.client.rpush("release", *range(3))
    eventually(lambda: places(broker) == {})
    stays.signal(signal.SIGTERM)
    assert stays.wait() == 0


def test_jobs_that_wait_for_quarantine_are_found_by_a_supervisor_that_did_not_put_them_there(
    program: MakeProgram,
    broker: Broker,
) -> None:
    quarantined(broker, "note", id="left behind")
    running = program()
    put(broker, "note", id="other")
    (left,) = [entry for entry in running.await_words("ran", 2) if entry[1] == "left behind"]
    (other,) = [entry for entry in running.trace() if entry[1] == "other"]
    assert left[2:] != other[2:] and left[3] != other[3]
    running.signal(signal.SIGTERM)
    assert running.wait() == 0


def test_a_quarantine_process_takes_the_next_job_and_ends_when_none_comes(program: MakeProgram, broker: Broker) -> None:
    quarantined(broker, "note", id="first")
    running = program(quarantine_idle=3.0)
    (first,) = running.await_words("ran")
    put(broker, "wait", id="second")
    kill_the_process_of(running.await_words("begun"))
    again = running.await_words("begun", 2)[1]
    assert again[3] == first[3], "it was called"
    running.client.rpush("release", 1)
    eventually(lambda: not alive(first[3]), "the end of the quarantine process")
    assert quarantine_workers(broker) == [] and places(broker) == {}
    running.signal(signal.SIGTERM)
    assert running.wait() == 0


def test_a_stop_during_quarantine_costs_no_attempt_and_does_not_end_the_suspicion(
    program: MakeProgram,
    broker: Broker,
) -> None:
    quarantined(broker, "wait", id="suspect")
    running = program(grace=0.5)
    running.await_words("begun")
    running.signal(signal.SIGTERM)
    assert running.wait() == 0
    (job,) = broker.queue("default").reserve(0, 1, worker="look", which="quarantined").jobs
    assert (job.failures, job.crashes, job.own_crashes) == (1, 1, 0)


def test_draining_finishes_the_run_in_quarantine_and_leaves_the_other_suspects(
    program: MakeProgram,
    broker: Broker,
) -> None:
    for ident in ("a", "b"):
        quarantined(broker, "wait", id=ident)
    running = program(quarantine=1)
    running.await_words("begun")
    running.signal(signal.SIGUSR1)
    threading.Event().wait(0.3)
    running.client.rpush("release", 1)
    assert running.wait() == 0
    assert [entry[0] for entry in running.trace()] == ["begun", "ended"]
    assert places(broker) == {"ready": 1, "failed": 1}


def test_a_job_in_quarantine_that_ignores_its_time_limit_pays_for_it_and_the_next_one_runs(
    program: MakeProgram,
    broker: Broker,
) -> None:
    quarantined(broker, "stubborn", id="stubborn", options=b'{"max_attempts":2}')
    quarantined(broker, "note", id="next")
    running = program(grace=0.5, patience=0.3, quarantine=1)
    running.await_words("ran")
    eventually(lambda: places(broker) == {"morgue": 1})
    (grave,) = broker.inspector.page("default", "morgue").jobs
    assert (grave.id, grave.reason, grave.job.crashes) == ("stubborn", "exhausted", 1)
    running.signal(signal.SIGTERM)
    assert running.wait() == 0


# --- without a supervisor


def test_a_worker_without_a_supervisor_runs_suspects_like_all_others(broker: Broker) -> None:
    gate, begun = threading.Event(), threading.Barrier(3)

    def work() -> None:
        begun.wait(DEADLINE)
        gate.wait(DEADLINE)

    quarantined(broker, "work", id="suspect")
    put(broker, "work", id="other")
    with working(broker, registry_of(work)):
        begun.wait(DEADLINE)  # both at the same time
        gate.set()
        eventually(lambda: places(broker) == {})


def test_the_start_of_a_job_that_was_lost_unclearly_is_recorded_before_it_happens(broker: Broker) -> None:
    queue = broker.queue("default")
    put(broker, "work", id="unclear")
    queue.settle([release(queue.reserve(0, 1, worker="dead").jobs[0], unclear=True)])
    known: list[bool] = []

    def work() -> None:
        job = current_job()
        assert job is not None
        known.append(all(job.flags & STARTED for job in queue.leases(0)))

    with working(broker, registry_of(work), config(heartbeat=60.0)):
        eventually(lambda: places(broker) == {})
    assert known == [True]


# --- what a supervisor decides


@pytest.mark.parametrize(
    ("records", "own"),
    [
        ([record_of("a")], True),
        ([record_of("a"), record_of("b")], False),
        ([record_of("a"), record_of("b", ended=True)], False),
        ([record_of("a"), record_of("gone", ended=True)], True),
        ([record_of("a", ended=True)], True),
        ([record_of("a"), record_of("acked early")], False),
        ([record_of("a", beside=["another"])], False),
    ],
)
def test_a_crash_is_surely_a_jobs_own_only_if_nothing_else_can_have_caused_it(records: list[Slot], own: bool) -> None:
    """``gone`` ended and was acked; ``acked early`` runs and is in Redis no more."""
    jobs = [make_job(id="a"), make_job(id="b")]
    settlements = decided(jobs, records)
    (first, *_) = settlements
    assert (first.outcome, first.own_crash, first.quarantine) == ("crashed", own, True)


def test_nobody_is_suspected_when_a_process_ends_on_purpose() -> None:
    jobs = [make_job(id="a"), make_job(id="b", quarantined=True), make_job(id="waiting")]
    settlements = decided(jobs, [record_of("a"), record_of("b")], planned=True)
    assert [(one.outcome, one.quarantine) for one in settlements] == [
        ("released", False),
        ("released", True),
        ("released", False),
    ]

"""The board between a child and its supervisor."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from django_delayq.worker.child import ENDED, RUNNING, TIMED_OUT, Scoreboard, place_of
from tests.support.attempt_stage import NEVER, make_attempt, make_job


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


def test_a_mark_costs_about_a_microsecond(board: Scoreboard) -> None:
    attempt = make_attempt(make_job(id="0123456789abcdef"))
    times = []
    for _ in range(20):
        begin = time.perf_counter()
        for _ in range(1000):
            board.mark(attempt)
            board.clear(0)
        times.append((time.perf_counter() - begin) / 1000)
    assert min(times) < 10e-6  # generous: the machine may be busy or slow

"""The board between a child and its supervisor."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from django_delayq.worker.scoreboard import Scoreboard, SlotRecord, place_of
from tests.support.attempt_stage import NEVER, make_attempt, make_job


@pytest.fixture
def board() -> Iterator[Scoreboard]:
    made = Scoreboard.create(3)
    yield made
    made.close()


def test_the_supervisor_reads_what_the_child_marks(board: Scoreboard) -> None:
    child = Scoreboard(os.dup(board.fd), 3)
    attempt = make_attempt(
        make_job(queue="orders", shard=4, id="order-ü", token=1_795_230_051_941_001), slot=1, started=12.5
    )
    child.mark(attempt)
    expected = SlotRecord("orders", 4, "order-ü", 1_795_230_051_941_001, 12.5, NEVER, timed_out=False)
    assert board.records() == [expected]
    child.limit(1, 99.0)
    child.mark_timed_out(1)
    assert [(record.limit_at, record.timed_out) for record in board.records()] == [(99.0, True)]
    child.clear(1)
    assert [(record.id, record.timed_out) for record in board.records()] == [("order-ü", False)]
    child.close()


def test_all_ids_of_a_batch_are_on_the_board(board: Scoreboard) -> None:
    jobs = [make_job(id=f"order-{n}" + "x" * 240, queue="q" * 64) for n in range(251)]
    board.mark(make_attempt(jobs[0], slot=1), [make_attempt(job) for job in jobs])
    board.mark(make_attempt(make_job(id="alone"), slot=0))
    alone, batch = board.records()
    assert set(batch.places) == {place_of(job) for job in jobs}
    assert set(alone.places) == {place_of(make_job(id="alone"))}
    board.mark(make_attempt(jobs[3], slot=1))
    assert set(board.records()[1].places) == {place_of(jobs[3])}, "nothing is left of the batch before"


def test_the_longest_names_fit(board: Scoreboard) -> None:
    board.mark(make_attempt(make_job(queue="q" * 64, id="i" * 255), slot=2))
    assert [(record.queue, record.id) for record in board.records()] == [("q" * 64, "i" * 255)]


def test_signs_of_life(board: Scoreboard) -> None:
    assert (board.stamped, board.ready, board.leaving) == (0.0, 0.0, False)
    board.stamp(5.0)
    board.set_ready(6.0)
    board.set_leaving()
    assert (board.stamped, board.ready, board.leaving) == (5.0, 6.0, True)


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

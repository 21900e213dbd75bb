"""Threads of one worker that meet at the worst moment: each test pre-empts one of them in turn at each of its steps."""

from __future__ import annotations

import fcntl
import os
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from django_delayq.core import Broker, Registry
from django_delayq.worker.attempt import Attempt
from django_delayq.worker.early import ack_early
from django_delayq.worker.ending import Ending
from django_delayq.worker.heartbeat import Heartbeat
from django_delayq.worker.policy import policy_of
from django_delayq.worker.shutdown import Signals
from django_delayq.worker.supervisor import Supervisor
from django_delayq.worker.workload import Workload

from ..support.preemption import each_line
from .support import config, make_attempt, make_process
from .test_heartbeat import beat, hold


def test_an_early_ack_in_the_middle_of_a_heartbeat_stays_one(broker: Broker) -> None:
    """Else its end would not be recorded, and the job be reported as crashed when the worker is gone."""

    def ack(attempt: Attempt) -> None:
        assert ack_early(attempt, policy_of(None, attempt.job))

    for line in each_line(Heartbeat._touch):
        (attempt,) = hold(broker, 1, f"q{line.number}")
        with line.preempted(partial(ack, attempt)):
            beat(broker, [attempt])
        assert attempt.acked is line.reached
        assert not attempt.lost and not attempt.should_stop


class Overrunning:
    """Stuck attempt; when it is counted, the time limit of another one ends."""

    ended = 0.0
    settlement = None

    def __init__(self, workload: Workload) -> None:
        self._workload = workload

    @property
    def parts(self) -> tuple[Any, ...]:
        self._workload.add_stuck(make_attempt())
        return (self,)


def test_the_fetch_loop_survives_that_another_attempt_gets_stuck_while_it_counts_them() -> None:
    """An error there would end its thread, and with it the process."""
    nothing: Any = SimpleNamespace()
    slots: Any = SimpleNamespace(running=[])
    workload = Workload(make_process(), slots, nothing, nothing, nothing)
    stuck: Any = Overrunning(workload)
    slots.running.append(stuck)
    workload._stuck[stuck] = stuck.ended
    assert workload.holds_only_stuck


@pytest.mark.parametrize("verb", ["finish", "stop", "drain"])
def test_the_end_of_a_worker_survives_that_its_main_thread_is_gone(verb: str) -> None:
    """An error there would turn a clean end into that of a process with a dead thread."""
    for line in each_line(Ending.end_by_command, Ending._end_soon, Ending._poke):
        ending = Ending(make_process(), None, lambda: None)
        ending.consumer = SimpleNamespace(stop=lambda **_: None, held=set())  # type: ignore[assignment]
        ending.signals = SimpleNamespace(poke=lambda: None)  # type: ignore[assignment]
        with line.preempted(partial(setattr, ending, "signals", None)):
            ending.finish() if verb == "finish" else ending.end_by_command(verb)
        ending.finish()
        ending.cancel_warning()


def test_a_job_that_is_settled_at_the_end_of_the_supervisor_wakes_nobody() -> None:
    for line in each_line(Supervisor._expect):
        supervisor = Supervisor([], config(), lambda: None, Registry())  # type: ignore[arg-type, return-value]
        supervisor._signals = SimpleNamespace(poke=lambda: None)  # type: ignore[assignment]
        with line.preempted(partial(setattr, supervisor, "_signals", None)):
            supervisor._expect(0.0)


def test_a_late_poke_writes_into_no_file_that_has_the_number_of_the_pipe_by_now(tmp_path: Path) -> None:
    with Signals() as signals:
        number = signals._write
    with (tmp_path / "other").open("wb") as file:
        assert fcntl.fcntl(file.fileno(), fcntl.F_DUPFD, number) == number
        signals.poke()
        os.close(number)
    assert (tmp_path / "other").read_bytes() == b""

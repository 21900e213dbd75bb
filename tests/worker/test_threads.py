"""Threads of one worker that meet at the worst moment: each test pre-empts one of them in turn at each of its steps."""

from __future__ import annotations

import os
import signal
from functools import partial
from threading import Thread, Timer
from types import SimpleNamespace as Namespace
from typing import Any

from django_delayq.core import Broker
from django_delayq.worker.shutdown import Signals
from tests.support.attempt_stage import NEVER, Attempt, EventLoop, Pace, acks_early
from tests.support.duty_stage import RENEWAL, beat, hold
from tests.support.waiting_stage import ShardSelector, Source

from ..support.preemption import each_line


def test_an_early_ack_in_the_middle_of_a_heartbeat_stays_one(broker: Broker) -> None:
    """Else its end would not be recorded, and the job be reported as crashed when the worker is gone."""

    def ack(attempt: Attempt) -> None:
        assert acks_early(attempt)

    for line in each_line(RENEWAL):
        (attempt,) = hold(broker, 1, f"q{line.number}")
        with line.preempted(partial(ack, attempt)):
            beat(broker, [attempt])
        assert attempt.acked is line.reached
        assert not attempt.lost and not attempt.should_stop


def test_a_token_that_arrives_while_a_worker_stops_is_left_to_others() -> None:
    """Else the job that it announces waits until a process looks at the shard by itself."""

    def stop_waiting(selector: ShardSelector, passed_on: list[tuple[str, int]]) -> None:
        passed_on += selector.stop_waiting()

    def begin(thread: Thread) -> None:
        thread.start()
        thread.join(0.05)  # it may wait for the lock

    for line in each_line(ShardSelector.tokens):
        shard = Source(Namespace(name="q", numbers=(0,)), 0, Pace())
        selector, passed_on = ShardSelector([shard]), list[tuple[str, int]]()
        shard.due_at, selector.waiting = NEVER, frozenset({"q"})
        stop = Thread(target=stop_waiting, args=(selector, passed_on), daemon=True)
        with line.preempted(partial(begin, stop)):
            unused = selector.tokens([("q", 0)])
        if not line.reached:
            begin(stop)
        stop.join(10)
        assert [*unused, *passed_on] == [("q", 0)]


def test_signals_end_a_wait_and_so_does_a_poke() -> None:
    seen: list[str] = []
    handlers = {signal.SIGTERM: lambda: seen.append("term"), signal.SIGUSR1: lambda: seen.append("usr1")}
    with Signals(handlers, ignore=frozenset({signal.SIGINT})) as signals:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGUSR1)
        signals.wait(60)
        assert seen == ["term", "usr1"]
        Timer(0.05, signals.poke).start()
        signals.wait(60)
        Timer(0.05, partial(os.kill, os.getpid(), signal.SIGTERM)).start()
        signals.wait(None)
        signals.wait(0.01)
        signals.wait(0)
        assert seen == ["term", "usr1", "term"]


class CancelledAtOnce:
    """Attempt whose time limit ends at the moment at which it can be cancelled."""

    frames: Any = None

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "cancel":
            value()


def test_a_coroutine_that_is_cancelled_before_it_is_scheduled_holds_no_thread() -> None:
    async def work() -> str:
        return "done"

    loop, answers = EventLoop(), list[Any]()
    attempt: Any = CancelledAtOnce()
    slot = Thread(target=lambda: answers.append(loop.run(work(), attempt)), daemon=True)
    slot.start()
    slot.join(10)
    assert answers == ["done"]

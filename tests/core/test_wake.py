"""Wake-ups: when a token is pushed, who hears it, and what does not push one."""

from __future__ import annotations

import threading
import time

from django_delayq.core.broker import Broker
from django_delayq.core.job import NewJob
from django_delayq.core.wake import Waker

from .stage import Stage


def drain(stage: Stage) -> int:
    """How many tokens lay in the wake list; it is empty then."""
    found = len(stage.wake_list())
    stage.broker.client.delete(f"{stage.broker.prefix}:wake:q")
    return found


def test_a_job_that_becomes_the_first_of_its_shard_wakes_a_consumer(stage: Stage) -> None:
    stage.put("a", at=1000)
    assert drain(stage) == 1
    stage.put("b", at=2000)
    assert drain(stage) == 0
    stage.put("c", at=500)
    assert drain(stage) == 1
    stage.put("b", at=100)
    assert drain(stage) == 1
    stage.queue.run_now("a")
    assert drain(stage) == 1


def test_tokens_do_not_pile_up(clocked: Broker) -> None:
    stage = Stage(clocked, shards=2)
    for number in range(20):
        stage.put(f"j{number}", at=1000 - number)
    assert sorted(stage.wake_list()) == [b"0", b"1"]


def test_what_comes_back_earlier_than_the_rest_wakes_a_consumer(stage: Stage) -> None:
    stage.put("later", at=5000)
    for end in ("fail", "release", "bury", "ack"):
        stage.put("a")
        job = stage.take_one()
        stage.put("a", at=0) if end in ("bury", "ack") else None
        drain(stage)
        if end == "fail":
            stage.failed(job, 10)
        elif end == "release":
            stage.released(job)
        elif end == "bury":
            stage.buried(job)
        else:
            stage.done(job)
        assert drain(stage) == 1, end
        stage.queue.cancel("a")
    stage.in_morgue("a")
    drain(stage)
    stage.queue.kick("a")
    assert drain(stage) == 1


def test_a_reserve_that_leaves_due_work_behind_wakes_the_next_consumer(stage: Stage) -> None:
    for ident in "abc":
        stage.put(ident)
    drain(stage)
    stage.take(2)
    assert drain(stage) == 1


def test_a_reserve_that_leaves_nothing_due_takes_the_token_away(stage: Stage) -> None:
    for ident in "abc":
        stage.put(ident)
    stage.put("later", at=5)
    stage.take()
    assert drain(stage) == 0


def test_a_tick_wakes_a_consumer_for_due_work_whose_token_was_lost(stage: Stage) -> None:
    stage.put("a", at=5)
    drain(stage)
    stage.queue.tick(0)
    assert drain(stage) == 0
    stage.wait(5)
    stage.queue.tick(0)
    assert drain(stage) == 1


def waiting(waker: Waker, timeout: float) -> tuple[threading.Thread, list[object]]:
    heard: list[object] = []
    thread = threading.Thread(target=lambda: heard.append(waker.wait(timeout)))
    thread.start()
    return thread, heard


def blocked(broker: Broker) -> bool:
    return int(broker.client.info("clients")["blocked_clients"]) > 0


def until(condition: object) -> None:
    deadline = time.monotonic() + 10
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        threading.Event().wait(0.005)


def test_a_waiter_hears_of_the_queue_and_shard_that_are_worth_a_look(broker: Broker) -> None:
    for name in ("q1", "q2"):
        broker.queue(name, shards=4)
    waker = broker.waker(["q1", "q2"])
    thread, heard = waiting(waker, 10)
    until(lambda: blocked(broker))
    queue = broker.queue("q2")
    queue.schedule(NewJob("a", "work"))
    thread.join(10)
    assert heard == [[("q2", queue.shard_of("a"))]]
    waker.close()


def test_nobody_hears_anything_of_another_queue(broker: Broker) -> None:
    waker = broker.waker(["quiet"])
    broker.queue("q").schedule(NewJob("a", "work"))
    assert waker.wait(0.05) == []
    waker.close()


def test_a_waiter_that_is_closed_from_another_thread_returns_at_once(broker: Broker) -> None:
    waker = broker.waker(["q"])
    thread, heard = waiting(waker, 30)
    until(lambda: blocked(broker))
    started = time.monotonic()
    waker.close()
    thread.join(10)
    assert heard == [[]]
    assert time.monotonic() - started < 5
    assert waker.wait(30) == []

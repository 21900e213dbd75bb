"""Wake-ups: when a token is pushed, and which clients receive it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from django_delayq.core import Broker, NewJob
from django_delayq.core.wake import Waker, wake
from tests.support.core_stored import wake_key

from .stage import Stage

Drain = Callable[[], int]


@pytest.fixture
def drain(stage: Stage) -> Iterator[Drain]:
    """Return a function for the number of tokens pushed since its last call; on a list, for its length."""
    client, where = stage.broker.client, wake_key(stage.broker.prefix, "q")
    if not stage.broker.connection.cluster:

        def taken() -> int:
            found = len(stage.wake_list())
            client.delete(where)
            return found

        yield taken
        return
    # At the shard's own node a token is delivered while the script runs, so the mark comes behind all of them.
    node = client.get_redis_connection(client.get_node_from_key(stage.key("meta")))
    ear = node.pubsub(ignore_subscribe_messages=True)
    ear.subscribe(where)
    ear.get_message(timeout=5)

    def read() -> int:
        client.publish(where, "mark")
        found = 0
        while (message := ear.get_message(timeout=5)) is None or message["data"] != b"mark":
            found += message is not None
        return found

    yield read
    ear.close()


def test_a_job_that_becomes_the_first_of_its_shard_wakes_a_consumer(stage: Stage, drain: Drain) -> None:
    stage.put("a", at=1000)
    assert drain() == 1
    stage.put("b", at=2000)
    assert drain() == 0
    stage.put("c", at=500)
    assert drain() == 1
    stage.put("b", at=100)
    assert drain() == 1
    stage.queue.run_now("a")
    assert drain() == 1


@pytest.mark.one_server("a channel keeps no tokens")
def test_tokens_do_not_pile_up(clocked: Broker) -> None:
    stage = Stage(clocked, shards=2)
    for number in range(20):
        stage.put(f"j{number}", at=1000 - number)
    assert sorted(stage.wake_list()) == [b"0", b"1"]


def test_what_comes_back_earlier_than_the_rest_wakes_a_consumer(stage: Stage, drain: Drain) -> None:
    stage.put("later", at=5000)
    for end in ("fail", "release", "bury", "ack"):
        stage.put("a")
        job = stage.take_one()
        stage.put("a", at=0) if end in ("bury", "ack") else None
        drain()
        if end == "fail":
            stage.failed(job, 10)
        elif end == "release":
            stage.released(job)
        elif end == "bury":
            stage.buried(job)
        else:
            stage.done(job)
        assert drain() == 1, end
        stage.queue.cancel("a")
    stage.in_morgue("a")
    drain()
    stage.queue.kick("a")
    assert drain() == 1


def test_a_reserve_that_leaves_due_work_behind_wakes_the_next_consumer(stage: Stage, drain: Drain) -> None:
    for ident in "abc":
        stage.put(ident)
    drain()
    stage.take(2)
    assert drain() == 1


@pytest.mark.one_server("a channel keeps no tokens")
def test_a_reserve_that_leaves_nothing_due_takes_the_token_away(stage: Stage, drain: Drain) -> None:
    for ident in "abc":
        stage.put(ident)
    stage.put("later", at=5)
    stage.take()
    assert drain() == 0


def test_a_tick_wakes_a_consumer_for_due_work_whose_token_was_lost(stage: Stage, drain: Drain) -> None:
    stage.put("a", at=5)
    drain()
    stage.queue.tick(0)
    assert drain() == 0
    stage.wait(5)
    stage.queue.tick(0)
    assert drain() == 1


def waiting(waker: Waker, timeout: float) -> tuple[threading.Thread, list[object]]:
    heard: list[object] = []
    thread = threading.Thread(target=lambda: heard.append(waker.wait(timeout)))
    thread.start()
    return thread, heard


def blocked(broker: Broker, queue: str) -> bool:
    """Return True if any client waits for tokens of this queue."""
    if broker.connection.cluster:
        channel = wake_key(broker.prefix, queue)
        found = broker.client.pubsub_numsub(channel, target_nodes="all")
        return any(n for _, n in found)
    return int(broker.client.info("clients")["blocked_clients"]) > 0


def until(condition: object) -> None:
    deadline = time.monotonic() + 10
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        threading.Event().wait(0.005)


@pytest.mark.server
def test_a_waiter_hears_of_the_queue_and_shard_that_are_worth_a_look(broker: Broker) -> None:
    for name in ("q1", "q2"):
        broker.queue(name, shards=4)
    waker = broker.waker(["q1", "q2"])
    thread, heard = waiting(waker, 10)
    until(lambda: blocked(broker, "q2"))
    queue = broker.queue("q2")
    queue.schedule(NewJob("a", "work"))
    thread.join(10)
    assert heard == [[("q2", queue.shard_of("a"))]]
    waker.close()


@pytest.mark.one_server("a channel keeps no tokens")
def test_a_queue_with_many_tokens_hides_none_of_another(broker: Broker) -> None:
    for name, shards in (("a", 3), ("b", 1)):
        for number in broker.queue(name, shards=shards).numbers:
            broker.client.rpush(wake_key(broker.prefix, name), number)
    waker = broker.waker(["a", "b"])
    names = [waker.wait(1)[0][0] for _ in range(2)]
    assert sorted(names) == ["a", "b"]
    assert waker.wait(0.05, frozenset("b")) == []
    assert waker.wait(1, frozenset("a")) != []
    waker.close()


@pytest.mark.server
def test_a_wait_can_be_interrupted_and_repeated(broker: Broker) -> None:
    waker = broker.waker(["q"])
    thread, heard = waiting(waker, 2)
    until(lambda: blocked(broker, "q"))
    waker.interrupt()
    thread.join(10)
    assert heard == [[]]
    queue = broker.queue("q")
    queue.schedule(NewJob("a", "work"))
    if not broker.connection.cluster:
        assert waker.wait(5) == [("q", 0)]
    waker.close()


@pytest.mark.one_server("a channel keeps no tokens")
def test_a_token_that_is_given_back_lies_in_its_list_once(broker: Broker) -> None:
    for _ in range(3):
        wake(broker, [("q", 0), ("q", 2)])
    assert broker.client.lrange(wake_key(broker.prefix, "q"), 0, -1) == [b"0", b"2"]


def test_nobody_hears_anything_of_another_queue(broker: Broker) -> None:
    waker = broker.waker(["quiet"])
    broker.queue("q").schedule(NewJob("a", "work"))
    assert waker.wait(0.05) == []
    waker.close()


@pytest.mark.server
def test_a_waiter_that_is_closed_from_another_thread_returns_at_once(broker: Broker) -> None:
    waker = broker.waker(["q"])
    thread, heard = waiting(waker, 30)
    until(lambda: blocked(broker, "q"))
    started = time.monotonic()
    waker.close()
    thread.join(10)
    assert heard == [[]]
    assert time.monotonic() - started < 5
    assert waker.wait(30) == []


def test_a_job_under_an_id_of_its_own_wakes_a_consumer_when_it_is_the_next(stage: Stage, drain: Drain) -> None:
    stage.put("a", at=1000)
    drain()
    for ident, at, tokens in (("later", 2000, 0), ("sooner", 500, 1)):
        stage.put(ident, at=at, fresh=True)
        assert drain() == tokens

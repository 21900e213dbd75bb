"""Connection pool: its bound holds for all callers, and waiting callers are served in order."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest import mock

import pytest
import redis
from redis.connection import AbstractConnection

from django_delayq.core import Broker, Connection, NewJob, QueueUnavailable
from tests.support.core_calls import Fault, begin_stats, classify, in_use, lock_of

from ..support.cluster_box import ClusterBox
from ..support.forks import holds_in_a_child
from ..support.processes import wait_until
from ..support.redis_box import RedisBox

Factory = Callable[..., RedisBox]
Opener = Callable[..., Connection]


def at_once(count: int, act: Callable[[int], object], meanwhile: Callable[[], object] | None = None) -> list[Any]:
    """Run ``act(0)``, ``act(1)`` … in separate threads and ``meanwhile()`` in this one; return the exceptions."""
    raised: list[Any] = []

    def run(number: int) -> None:
        try:
            act(number)
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    if meanwhile is not None:
        meanwhile()
    for thread in threads:
        thread.join(60)
    return raised


def schedule(connection: Connection, prefix: str, shards: int = 1) -> Callable[[int], str]:
    queue = Broker(connection, prefix=prefix).queue("orders", shards=shards)
    return lambda number: queue.schedule(NewJob(f"job-{number}", "work"))


def connections_to(box: RedisBox) -> int:
    """Return the number of connections to the server, without the one of this call."""
    return len(box.client().client_list()) - 1


# --- the bound


@pytest.mark.parametrize("warm", [False, True], ids=["in a new process", "after a call"])
def test_130_threads_that_schedule_while_redis_stands_still_for_a_second_all_succeed(
    warm: bool, redis_factory: Factory, opened: Opener
) -> None:
    box = redis_factory()
    connection = opened(box.url)
    act = schedule(connection, "still")
    if warm:
        act(130)

    def stand_still() -> None:
        time.sleep(1)
        box.resume()

    box.pause()
    assert at_once(130, act, stand_still) == []
    assert connection.client.ping(), "plain commands work as before"
    assert connections_to(box) <= 100


def test_packed_calls_and_plain_commands_share_the_bound(redis_factory: Factory, opened: Opener) -> None:
    box = redis_factory()
    connection = opened(box.url, MAX_CONNECTIONS=3)
    act = schedule(connection, "mixed")
    most: list[int] = []

    def work(number: int) -> None:
        for turn in range(20):
            act(1000 * number + turn)
            most.append(len(connection.client.client_list()))

    assert at_once(10, work) == []
    assert max(most) <= 3


@pytest.mark.one_server("has a test of its own")
def test_on_a_cluster_the_bound_is_that_of_each_node(cluster_box: ClusterBox, opened: Opener) -> None:
    cluster_box.flush()
    connection = opened(cluster_box.setting, MAX_CONNECTIONS=2)
    others = {box.port: connections_to(box) for box in cluster_box.boxes}
    act = schedule(connection, "bound", shards=6)
    ids: Any = iter(range(10_000))
    assert at_once(8, lambda _number: [act(next(ids)) for _ in range(20)]) == []
    assert all(connections_to(box) <= others[box.port] + 2 for box in cluster_box.boxes)


@pytest.mark.parametrize("most", [1, 2])
def test_senders_that_hold_several_connections_do_not_wait_for_each_other_in_a_circle(
    most: int, redis_url: str, prefix: str, opened: Opener
) -> None:
    broker = Broker(opened(redis_url, MAX_CONNECTIONS=most), prefix=prefix)
    queue = broker.queue("orders", shards=4)
    began = time.monotonic()
    assert at_once(6, lambda n: queue.schedule_many(NewJob(f"{n}-{m}", "work") for m in range(1200))) == []
    assert time.monotonic() - began < 10
    assert broker.inspector.counts("orders").ready == 6 * 1200


def test_a_thread_that_calls_without_a_rest_does_not_starve_another(redis_url: str, opened: Opener) -> None:
    client = opened(redis_url, MAX_CONNECTIONS=1).client
    calls, over = [0], threading.Event()

    def greedy() -> None:
        while not over.is_set():
            client.ping()
            calls[0] += 1

    thread = threading.Thread(target=greedy)
    thread.start()
    try:
        client.ping()
        before = calls[0]
        for _ in range(50):
            client.ping()
        assert calls[0] - before <= 100, "they take turns"
    finally:
        over.set()
        thread.join(10)


def test_a_call_that_was_begun_and_forgotten_does_not_keep_its_connection(
    redis_url: str, prefix: str, opened: Opener
) -> None:
    connection = opened(redis_url, MAX_CONNECTIONS=2, RETRIES=0)
    broker = Broker(connection, prefix=prefix)
    queue = broker.queue("orders")
    for _ in range(5):
        begin_stats(queue, 0)
    with connection.client.client() as one, connection.client.client() as two:  # type: ignore[union-attr]
        assert one.client_id() != two.client_id()


def test_a_thread_that_waited_in_vain_is_told_that_it_is_its_own_process(redis_url: str, opened: Opener) -> None:
    connection = opened(redis_url, MAX_CONNECTIONS=1, SOCKET_TIMEOUT=0.1, RETRIES=0)
    act = schedule(connection, "vain")
    client = connection.client
    assert isinstance(client, redis.Redis)
    with client.client():
        with pytest.raises(redis.ConnectionError, match="raise MAX_CONNECTIONS") as caught:
            client.ping()
        assert classify(caught.value) is Fault.SATURATION
        with pytest.raises(QueueUnavailable, match="raise MAX_CONNECTIONS") as refused:
            act(1)
        assert classify(refused.value) is Fault.SATURATION
    assert client.ping()
    assert act(1) == "created"


def test_a_connection_that_is_lost_while_idle_is_made_anew(redis_factory: Factory, opened: Opener) -> None:
    box = redis_factory()
    connection = opened(box.url, RETRIES=1)
    act = schedule(connection, "lost")
    for number, use in enumerate((lambda: act(1), connection.client.ping, lambda: act(2))):
        use()
        box.client().client_kill_filter(_type="normal", skipme=True)
        assert use(), number


@pytest.mark.one_server("the server is stopped")
@pytest.mark.parametrize("n", [1, 600], ids=["one", "many"])
def test_a_call_that_was_interrupted_leaves_its_reply_to_nobody(redis_factory: Factory, opened: Opener, n: int) -> None:
    box = redis_factory()
    connection = opened(box.url, MAX_CONNECTIONS=1)
    act, queue = schedule(connection, "cut"), Broker(connection, prefix="cut").queue("orders")
    assert act(1) == "created"
    timers = []

    def later(seconds: float, do: Callable[[], object]) -> None:
        timers.append(threading.Timer(seconds, do))
        timers[-1].start()

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        box.pause()
        later(0.3, partial(signal.pthread_kill, threading.get_ident(), signal.SIGUSR1))
        with pytest.raises(Interrupted):
            act(2) if n == 1 else queue.schedule_many(NewJob(f"many-{number}", "work") for number in range(n))
        later(0.3, box.resume)
        assert act(1) == "replaced", "not the reply to the call before"
    finally:
        for timer in timers:
            timer.join()
        box.resume()
        signal.signal(signal.SIGUSR1, before)


def test_a_call_that_was_interrupted_before_it_read_its_reply_leaves_it_to_nobody(
    redis_url: str, opened: Opener
) -> None:
    """A timeout is raised in the thread of a handler at any moment."""
    act = schedule(opened(redis_url, MAX_CONNECTIONS=1), "cut")
    assert act(1) == "created"
    with mock.patch.object(AbstractConnection, "read_response", side_effect=Interrupted), pytest.raises(Interrupted):
        act(2)
    assert act(1) == "replaced", "not the reply to the call before"


def test_jobs_whose_iterable_fails_leave_the_replies_of_those_before_to_nobody(
    redis_url: str, prefix: str, opened: Opener
) -> None:
    connection = opened(redis_url, MAX_CONNECTIONS=2)
    queue = Broker(connection, prefix=prefix).queue("orders")
    act = schedule(connection, prefix)

    def news() -> Iterator[NewJob]:
        yield from (NewJob(f"job-{number}", "work") for number in range(300))
        raise ZeroDivisionError

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            queue.schedule_many(news())
        assert in_use(connection.pool(b"any")) == 0
    assert [act(number) for number in (249, 1000)] == ["replaced", "created"]


class Interrupted(BaseException):
    """Raised by a handler of a signal."""


def interrupt(*_: object) -> None:
    raise Interrupted


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_after_a_fork_has_connections_of_its_own(redis_url: str, prefix: str, opened: Opener) -> None:
    connection = opened(redis_url)
    act, client = schedule(connection, prefix), connection.client
    act(0)
    mine = client.client_id()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            assert act(1) == "created"
            os.write(writer, str(client.client_id()).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    theirs = int(os.read(reader, 100))
    os.close(reader)
    assert theirs != mine
    assert act(2) == "created"
    assert client.client_id() == mine


# --- the end


@pytest.mark.parametrize("packed", [False, True], ids=["a plain command", "a packed call"])
def test_closing_lets_the_calls_of_other_threads_end_and_then_closes_their_connections(
    redis_factory: Factory, opened: Opener, prefix: str, packed: bool
) -> None:
    box = redis_factory()
    connection = opened(box.url)
    act = schedule(connection, prefix)
    act(0)
    before = connections_to(box)
    assert before == 1

    def close_in_between() -> None:
        pool = connection.pool(b"any")
        wait_until(lambda: in_use(pool) == 1, what="the call")
        connection.close()
        box.resume()

    box.pause()
    assert at_once(1, act if packed else lambda _number: connection.client.ping(), close_in_between) == []
    wait_until(lambda: connections_to(box) == 0, what="the end of the connections")
    assert act(7) == "created"


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_can_close_although_a_thread_of_its_parent_used_the_pool_at_the_fork(
    redis_url: str, prefix: str, opened: Opener
) -> None:
    connection = opened(redis_url)
    schedule(connection, prefix)(0)
    pool = connection.pool(b"any")

    def close() -> bool:
        connection.close()
        return True

    assert holds_in_a_child(lock_of(pool), close)
    assert connection.client.ping(), "the parent's connection is not the child's to close"

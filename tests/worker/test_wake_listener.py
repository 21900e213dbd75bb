"""Tests of the waiting engine of workers and pulling callers: states of shards, and the thread that receives tokens."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from django_delayq.worker.wake import WakeListener
from tests.support.attempt_stage import NEVER
from tests.support.duty_stage import RedisHealth
from tests.support.processes import wait_until
from tests.support.waiting_stage import ShardSelector, ShardState, Source, listener_threads, stalest

NOTHING: Any = SimpleNamespace(name="q")


# --- the state of a shard


def test_a_shard_is_due_at_first_and_not_while_it_is_asked() -> None:
    state = ShardState(NOTHING, 0)
    assert state.due_at == 0.0
    number = state.begin_reserve(10.0)
    assert (state.due_at, state.sent_at) == (NEVER, 10.0)
    assert state.apply_reply(number, 11.0, 500.0, 0)
    assert state.due_at == 11.5


def test_an_answer_that_is_older_than_a_token_or_another_answer_changes_nothing() -> None:
    state = ShardState(NOTHING, 0)
    first, second = state.begin_reserve(1.0), state.begin_reserve(2.0)
    assert state.apply_reply(second, 3.0, 7000.0, 0)
    assert not state.apply_reply(first, 4.0, None, 0)
    assert state.due_at == 10.0
    third = state.begin_reserve(5.0)
    state.wake()
    assert not state.apply_reply(third, 6.0, None, 0)
    assert state.due_at == 0.0
    assert state.apply_reply(state.begin_reserve(7.0), 8.0, None, 0)


def test_expected_work_only_brings_the_due_time_forward() -> None:
    state = ShardState(NOTHING, 0)
    state.begin_reserve(1.0)
    state.expect(9.0)
    state.expect(12.0)
    assert state.due_at == 9.0


def test_the_shard_that_was_not_asked_for_longest_is_checked_next() -> None:
    states = [ShardState(NOTHING, number) for number in range(3)]
    for state, at in zip(states, (3.0, 1.0, 2.0), strict=True):
        state.begin_reserve(at)
    assert stalest(states) is states[1]
    assert stalest([]) is None


# --- the wake listener


class Reader:
    """A waker whose tokens the test hands out."""

    forgetful = False

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.tokens: queue.Queue[Any] = queue.Queue()
        self.closed = False
        self.reads = 0
        self.reading = frozenset[str]()

    def wait(self, timeout: float, names: frozenset[str]) -> Any:
        self.reads += 1
        self.reading = names
        if self.closed:
            return []
        found = self.tokens.get(timeout=30)
        self.reading = frozenset()
        if isinstance(found, Exception):
            raise found
        return found

    def is_old(self) -> bool:
        return False

    def interrupt(self) -> None:
        self.tokens.put([])

    def close(self) -> None:
        self.closed = True
        self.tokens.put([])


class Station:
    """A broker that keeps its readers, a selector with the queues ``a`` and ``b``, and their listener."""

    def __init__(self) -> None:
        self.readers: list[Reader] = []
        self.returned: list[tuple[Any, ...]] = []
        self.prefix = "p"
        self.connection = SimpleNamespace(cluster=False)
        push = SimpleNamespace(
            lrem=lambda *_: None, rpush=lambda *arguments: self.returned.append(arguments), execute=list
        )
        self.client = SimpleNamespace(pipeline=lambda: push)
        self.selector = ShardSelector([source("a"), source("b")])
        self.listener = WakeListener(self, self.selector, RedisHealth(), self.selector.lock)  # type: ignore[arg-type]

    def wake_key(self, queue: str) -> str:
        return f"{self.prefix}:wake:{queue}"

    def waker(self, names: list[str]) -> Reader:
        self.readers.append(Reader(names))
        return self.readers[-1]

    def listen(self) -> Reader:
        """Be waiting until the listener reads. Return its reader."""
        self.selector.waiting = self.selector.names

        def heard() -> bool:
            self.listener.call(self.selector.names)
            return self.listener.listens_to(self.selector.names)

        wait_until(heard, 10, "the listener to listen")
        return self.readers[-1]


def source(name: str, shard: int = 0) -> Source:
    return Source(SimpleNamespace(name=name), shard, SimpleNamespace())  # type: ignore[arg-type]


@pytest.fixture
def station() -> Iterator[Station]:
    before = set(listener_threads())
    station = Station()
    yield station
    station.listener.close()
    assert set(listener_threads()) <= before


def test_without_a_hungry_consumer_nothing_is_read(station: Station) -> None:
    station.listener.call(frozenset("a"))
    assert station.readers == []
    reader = station.listen()
    assert reader.names == ["a", "b"]
    first = station.selector.by_place["a", 0]
    first.begin_reserve(1.0)
    reader.tokens.put([("a", 0)])
    wait_until(lambda: first.due_at == 0.0, 10, "the token")
    assert not station.selector.waiting, "no token more until it has looked"
    assert reader.reads == 1


def test_who_becomes_hungry_again_is_heard_at_once_by_the_same_reader(station: Station) -> None:
    reader = station.listen()
    reader.tokens.put([("a", 0)])
    wait_until(lambda: not station.selector.waiting, 10, "the token")
    wait_until(lambda: not station.listener.listens_to(frozenset("a")), 10, "the end of the read")
    assert station.listen() is reader
    wait_until(lambda: reader.reads == 2, 10, "another read")
    assert not reader.closed


def test_a_token_of_a_queue_that_is_not_served_any_more_goes_to_others(station: Station) -> None:
    reader = station.listen()
    station.selector.serve([SimpleNamespace(name="a", numbers=(0,))])  # type: ignore[list-item]
    reader.tokens.put([("b", 0)])
    wait_until(lambda: station.returned == [(station.wake_key("b"), 0)], 10, "the token to be put back")
    station.selector.waiting = station.selector.names
    station.listener.call(station.selector.names)
    wait_until(lambda: len(station.readers) == 2, 10, "another reader")
    assert station.readers[1].names == ["a"]


def test_a_token_that_comes_when_no_slot_is_free_any_more_goes_to_others(station: Station) -> None:
    reader = station.listen()
    station.selector.waiting = frozenset()
    reader.tokens.put([("b", 0)])
    wait_until(lambda: station.returned == [(station.wake_key("b"), 0)], 10, "the token to be put back")
    assert reader.reads == 1


def test_a_read_of_fewer_queues_ends_when_more_are_awaited(station: Station) -> None:
    reader = station.listen()
    station.selector.waiting = frozenset("a")
    reader.tokens.put([("b", 0)])
    wait_until(lambda: station.returned and reader.reading == frozenset(), 10, "the token to be put back")
    station.selector.waiting = frozenset("a")
    station.listener.call(frozenset("a"))
    wait_until(lambda: reader.reading == frozenset("a"), 10, "a read of fewer queues")
    assert station.listen() is reader
    wait_until(lambda: reader.reading == frozenset("ab"), 10, "a read of all queues")
    assert not reader.closed


def test_a_reader_that_was_closed_for_more_queues_is_not_used_again(station: Station) -> None:
    reader = station.listen()
    station.listener.call(frozenset("abc"))
    wait_until(lambda: len(station.readers) == 2, 10, "another reader")
    assert reader.closed
    assert reader.reads <= 2
    assert not station.readers[1].closed


def test_after_an_error_every_shard_is_checked(station: Station) -> None:
    reader = station.listen()
    for state in station.selector.sources:
        state.begin_reserve(1.0)
    reader.tokens.put(ConnectionError("gone"))
    wait_until(lambda: all(state.due_at == 0.0 for state in station.selector.sources), 10, "the checks")
    assert reader.closed
    assert station.listen() is not reader

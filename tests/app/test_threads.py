"""Threads of a site that meet at the worst moment: each test pre-empts one of them in turn at each of its steps."""

from __future__ import annotations

import asyncio
import ssl
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import pytest

from django_delayq import connections, transactions
from django_delayq.api import waiting
from django_delayq.client.transport import AsyncTransport
from django_delayq.core.broker import Broker
from django_delayq.core.job import NewJob
from django_delayq.outbox import durability, producer
from django_delayq.outbox.breaker import Breaker
from django_delayq.outbox.producer import Clock, producer_state
from django_delayq.pull.coordinator import PullCoordinator
from django_delayq.scheduling import middleware
from django_delayq.settings import conf, context_links

from ..support.forks import holds_in_a_child
from ..support.preemption import preempted

EVERY_LINE = pytest.mark.parametrize("line", range(1, 13))
NOW_MS = 1.7e12


def forget_settings() -> None:
    """Act as a thread that changes the settings in a test, up to the first receiver of the signal."""
    conf._forget(setting="DELAYQ")


# -- what the process shares -----------------------------------------------------------------------------------------


@EVERY_LINE
def test_the_settings_and_the_broker_are_there_although_another_thread_changes_the_settings(
    delayq: Broker, line: int
) -> None:
    with preempted(conf.conf, line, forget_settings):
        assert isinstance(conf.conf(), conf.Conf)
    connections.broker()
    with preempted(connections.broker, line, connections.close_broker):
        assert isinstance(connections.broker(), Broker)


@EVERY_LINE
def test_a_broker_with_a_short_patience_is_there_although_another_thread_ends_its_test(
    delayq: Broker, line: int
) -> None:
    substitute: Any = SimpleNamespace()
    connections.stand_in(substitute)
    try:
        with preempted(connections.hurried_broker, line, lambda: connections.stand_in(None)):
            assert connections.hurried_broker() is not None
    finally:
        connections.stand_in(None)
        connections.close_broker()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_has_a_broker_although_a_thread_of_its_parent_made_one_at_the_fork(delayq: Broker) -> None:
    assert holds_in_a_child(connections._lock, lambda: connections.hurried_broker(1.5) is not None)
    assert holds_in_a_child(producer._lock, lambda: not producer_state(delayq).breaker.open)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_finds_a_breaker_that_a_thread_of_its_parent_used_at_the_fork() -> None:
    breaker = Breaker()
    breaker.failed()
    assert holds_in_a_child(breaker._lock, lambda: not breaker.allows())


def with_tenant(next: Any) -> Any:
    return next


def with_user(next: Any) -> Any:
    return lambda scheduling: "user"


@EVERY_LINE
def test_a_call_gets_the_middleware_of_its_own_settings(line: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for_tenant, for_user = (
        conf.Conf(schedule_middleware=(f"{__name__}.{name}",), context={}) for name in ("with_tenant", "with_user")
    )
    monkeypatch.setattr(middleware, "_known", None)
    current = [for_user]
    monkeypatch.setattr(middleware, "conf", lambda: current[0])

    def change() -> None:
        current[0] = for_tenant
        middleware.chain()

    with preempted(middleware.chain, line, change):
        chain = middleware.chain()
    assert chain is not None
    ended: Any = SimpleNamespace(end=lambda scheduling: "tenant")
    assert chain(ended) == ("tenant" if line == 1 else "user")


trace: ContextVar[str] = ContextVar("trace")
tenant: ContextVar[str] = ContextVar("tenant")


@EVERY_LINE
def test_a_call_gets_the_context_of_its_own_settings(line: int, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, others = (conf.Conf(context={name: f"{__name__}.{name}"}) for name in ("trace", "tenant"))
    monkeypatch.setattr(context_links, "_known", None)
    with preempted(context_links.links, line, lambda: context_links.links(others)):
        assert context_links.links(mine) == {"trace": trace}


# -- the outbox ------------------------------------------------------------------------------------------------------


@EVERY_LINE
def test_redis_clock_is_read_as_a_whole(line: int) -> None:
    """A thread that saw half of it would give its calls a deadline of 1970, and the jobs be left to the relay."""
    clock, broker = Clock(), SimpleNamespace(now_ms=lambda: NOW_MS)
    seen: list[float] = []

    def look() -> None:
        seen.append(clock.at(0.0, broker))  # type: ignore[arg-type]

    with preempted(Clock.at, line, look):
        look()
    assert min(seen) > NOW_MS / 2


@EVERY_LINE
def test_queues_with_durable_jobs_are_noted_by_all_threads(line: int, settings: Any) -> None:
    """A queue that is missing would let a cancellation forget the row, and the relay send the job."""
    settings.DELAYQ = {name: value for name, value in settings.DELAYQ.items() if name != "OUTBOX"}
    before = durability.set_queues_seen({})
    try:
        durability.make_durable(NewJob("x", "work"), "first")
        with preempted(durability.make_durable, line, lambda: durability.make_durable(NewJob("x", "work"), "second")):
            durability.make_durable(NewJob("x", "work"), "third")
        durability.make_durable(NewJob("x", "work"), "fourth")
        noted = {name for name in ("first", "second", "third", "fourth") if is_noted(name)}
        assert noted >= {"first", "third", "fourth"} | ({"second"} if line <= 3 else set())
    finally:
        durability.set_queues_seen(before)


def is_noted(queue: str) -> bool:
    return durability.is_expected("default", queue, None)


# -- loops and connections of other threads --------------------------------------------------------------------------


@EVERY_LINE
@pytest.mark.parametrize("container", [WeakSet, WeakKeyDictionary])
def test_a_coroutine_looks_for_its_transaction_while_other_threads_open_connections(
    container: Any, line: int, delayq: Broker
) -> None:
    kept = [SimpleConnection() for _ in range(5)]
    for one in kept[:4]:
        transactions._note_opened(one)  # type: ignore[arg-type]

    async def look() -> bool:
        with preempted(container.__iter__, line, lambda: transactions._note_opened(kept[4])):  # type: ignore[arg-type]
            return transactions.in_transaction_of_coroutine(None)

    assert asyncio.run(look()) is False


class SimpleConnection:
    """Connection of another thread, outside of transactions."""

    alias = "default"
    in_atomic_block = False


class Loop:
    """Event loop of another thread, which ends, or at whose check others begin."""

    def __init__(self, by_loop: Any = None, *, ended: bool = False) -> None:
        self._by_loop = by_loop
        self._ended = ended

    def is_closed(self) -> bool:
        if self._ended:
            self._by_loop.pop(self, None)
        elif self._by_loop is not None:
            self._by_loop[Loop()] = None
        return self._ended


@pytest.mark.parametrize("ended", [False, True])
def test_an_asynchronous_client_begins_while_another_thread_begins_or_removes_one(ended: bool) -> None:
    transport = AsyncTransport(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    by_loop: Any = transport._by_loop
    for _ in range(2):
        by_loop[Loop(by_loop, ended=ended)] = None

    async def begin() -> None:
        transport._http()
        await transport.close()

    asyncio.run(begin())


@EVERY_LINE
def test_waits_are_ended_although_another_loop_begins_one(line: int) -> None:
    loops = [asyncio.new_event_loop() for _ in range(4)]
    try:
        for loop in loops[:3]:
            waiting._by_loop[loop] = waiting.Waits()
        with preempted(WeakKeyDictionary.items, line, lambda: waiting._by_loop.setdefault(loops[3], waiting.Waits())):
            waiting.end_waits()
    finally:
        for loop in loops:
            waiting._by_loop.pop(loop, None)
            loop.close()


# -- pulling ---------------------------------------------------------------------------------------------------------


def test_a_search_survives_that_another_thread_deletes_its_queue(delayq: Broker) -> None:
    coordinator = PullCoordinator(delayq)
    delayq.queue("q", shards=2)
    queues = coordinator.open(("q",))
    delayq.delete_queue("q")
    assert coordinator.places(queues, 0) == []

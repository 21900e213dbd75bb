"""Threads of a site that meet at the worst moment: each test pre-empts one of them in turn at each of its steps."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from django_delayq import connections
from django_delayq.api import waiting
from django_delayq.core.broker import Broker
from django_delayq.outbox.producer import Breaker
from django_delayq.pull.coordinator import PullCoordinator
from django_delayq.scheduling import build
from django_delayq.settings import conf

from ..support.forks import holds_in_a_child
from ..support.preemption import each_line


def forget_settings() -> None:
    """Act as a thread that changes the settings in a test: the receiver of the signal forgets them."""
    conf._conf = None


# -- what the process shares -----------------------------------------------------------------------------------------


def test_the_settings_and_the_broker_are_there_although_another_thread_changes_the_settings(delayq: Broker) -> None:
    for line in each_line(conf.conf):
        with line.preempted(forget_settings):
            assert isinstance(conf.conf(), conf.Conf)
    for line in each_line(connections.broker):
        connections.broker()
        with line.preempted(connections.close_broker):
            assert isinstance(connections.broker(), Broker)


def test_a_broker_with_a_short_patience_is_there_although_another_thread_ends_its_test(delayq: Broker) -> None:
    substitute: Any = SimpleNamespace()
    try:
        for line in each_line(connections.broker):
            connections.stand_in(substitute)
            with line.preempted(lambda: connections.stand_in(None)):
                assert connections.hurried_broker() is not None
    finally:
        connections.stand_in(None)
        connections.close_broker()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_has_a_broker_although_a_thread_of_its_parent_made_one_at_the_fork(delayq: Broker) -> None:
    assert holds_in_a_child(connections._lock, lambda: connections.broker(1.5) is not None)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_finds_a_breaker_that_a_thread_of_its_parent_used_at_the_fork() -> None:
    breaker = Breaker()
    breaker.failed()
    assert holds_in_a_child(breaker._lock, lambda: not breaker.allows())


def with_tenant(next: Any) -> Any:
    return next


def with_user(next: Any) -> Any:
    return lambda scheduling: "user"


def test_a_call_gets_the_middleware_of_its_own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for_tenant, for_user = (
        conf.Conf(schedule_middleware=(f"{__name__}.{name}",), context={}) for name in ("with_tenant", "with_user")
    )
    current = [for_user]
    monkeypatch.setattr(build, "conf", lambda: current[0])

    def change() -> None:
        current[0] = for_tenant
        build.chain()

    for line in each_line(build.chain):
        build._chain_of.cache_clear()
        current[0] = for_user
        with line.preempted(change):
            chain = build.chain()
        assert chain is not None
        ended: Any = SimpleNamespace(end=lambda scheduling: "tenant")
        assert chain(ended) == ("tenant" if line.number == 1 else "user")


# -- loops of other threads --------------------------------------------------------------------------


def test_waits_are_ended_although_another_loop_begins_one() -> None:
    loops = [asyncio.new_event_loop() for _ in range(4)]
    try:
        for line in each_line(waiting.end_waits, WeakKeyDictionary.items):
            waiting._by_loop.pop(loops[3], None)
            for loop in loops[:3]:
                waiting._by_loop[loop] = waiting.Waits()
            with line.preempted(lambda: waiting._by_loop.setdefault(loops[3], waiting.Waits())):
                waiting.end_waits()
    finally:
        for loop in loops:
            waiting._by_loop.pop(loop, None)
            loop.close()


# -- pulling ---------------------------------------------------------------------------------------------------------


def test_a_search_survives_that_another_thread_deletes_its_queue(delayq: Broker) -> None:
    coordinator = PullCoordinator(delayq)
    delayq.queue("q", shards=2)
    coordinator.open(("q",))
    delayq.delete_queue("q")
    assert coordinator.places(("q",)) == []

"""Commands of an idle process, counted while its duties run through simulated minutes."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from django_delayq.core import Broker, Connection, Tick
from tests.core.stage import T0
from tests.support.attempt_stage import NEVER
from tests.support.duty_stage import TickingQueue, poller_of
from tests.support.waiting_stage import BLOCKING_READS, Clock, IdleProcess, Pace, ShardSelector, Source, park_one
from tests.support.worker_stage import put


@pytest.fixture
def clocked(connection: Connection, prefix: str) -> Broker:
    broker = Broker(connection, prefix=prefix, test_clock=True)
    broker.queue("default", shards=5)
    return broker


@pytest.fixture
def start(clocked: Broker, clock: Clock) -> Callable[..., IdleProcess]:
    return partial(IdleProcess, clocked, clock)


@pytest.mark.one_server("counts the commands of one server")
def test_an_idle_process_sends_less_than_a_command_a_second_with_the_samples(start: Callable[..., IdleProcess]) -> None:
    process = start()
    first, *minutes = process.commands_of_minutes(5)
    for minute in minutes:
        assert minute["depth"] == minute["stats"] == 1, "a sample of all queues"
        assert minute["reserve"] == 0, "the dispatcher checks the shards"
        assert minute.total() + BLOCKING_READS < 50, minute
    assert first.total() + BLOCKING_READS < 60, first


@pytest.mark.one_server("counts the commands of one server")
def test_without_a_dispatcher_an_idle_process_checks_its_shards_in_rotation(start: Callable[..., IdleProcess]) -> None:
    process = start(dispatcher=False)
    _, minute = process.commands_of_minutes(2)
    assert minute["reserve"] == 60 / process.safety_check


@pytest.mark.one_server("counts the commands of one server")
def test_jobs_that_are_due_later_cost_nothing(start: Callable[..., IdleProcess], clocked: Broker) -> None:
    process = start()
    process.pass_seconds()
    for number in range(20):
        put(clocked, "work", id=str(number), delay_ms=3_600_000)
    process.pass_seconds()
    (minute,) = process.commands_of_minutes(1)
    assert minute["reserve"] == 0
    assert minute.total() + BLOCKING_READS < 50, minute


@pytest.mark.parametrize(("set_aside", "soon"), [(True, True), (False, False)])
def test_a_check_by_the_dispatcher_makes_the_consumer_look_for_overdue_jobs_in_quarantine(
    set_aside: bool, soon: bool
) -> None:
    queue: Any = TickingQueue([Tick(T0, T0 + 60_000, None, False, False, set_aside=set_aside)])
    source = Source(queue, 0, Pace())
    source.due_at = NEVER
    poller_of([queue], selector=ShardSelector([source])).run()
    assert (source.due_at <= time.monotonic()) == soon


@pytest.mark.one_server("counts the commands of one server")
def test_jobs_behind_a_limit_cost_no_reserve_until_their_block_ends(
    start: Callable[..., IdleProcess], clocked: Broker
) -> None:
    process = start()
    process.pass_seconds()
    for number in range(20):
        put(clocked, "work", id=str(number))
        park_one(clocked, str(number), ms=3_600_000)
    process.pass_seconds()
    (minute,) = process.commands_of_minutes(1)
    assert minute["reserve"] == 0


@pytest.mark.parametrize("dispatcher", [True, False])
@pytest.mark.parametrize("parked", [True, False])
def test_a_job_whose_wake_token_was_lost_is_found_within_a_rotation(
    start: Callable[..., IdleProcess], clocked: Broker, dispatcher: bool, parked: bool
) -> None:
    """The simulated process never reads its tokens."""
    process = start(dispatcher=dispatcher)
    put_at: dict[str, float] = {}
    for number in range(12):
        process.pass_seconds(11.0)
        ident = str(number)
        put(clocked, "work", id=ident)
        if parked:
            park_one(clocked, ident)
        put_at[ident] = process.now
    process.pass_seconds(60.0)
    assert process.found_at.keys() == put_at.keys()
    shards = 6
    assert max(process.found_at[ident] - put_at[ident] for ident in put_at) <= process.safety_check * shards

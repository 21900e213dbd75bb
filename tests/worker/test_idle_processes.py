"""A process with free slots listens, and no due job waits beside one: by example, and in random orders of events."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack

import pytest

from django_delayq.core import Broker, Connection, ack
from tests.support.waiting_stage import Clock, Member, UnreachableLimiter, WaitingWorld, play
from tests.support.worker_stage import (
    DEADLINE,
    Limits,
    config,
    eventually,
    is_idle,
    put,
    registry_of,
    working,
)

EXAMPLES = int(os.environ.get("DELAYQ_WAITING_EXAMPLES", "10"))
QUEUES = {"a": 1, "b": 2, "c": 1}
LIMITS: dict[str, Mapping[str, Limits]] = {
    "no limits": {},
    "a queue, over all workers": {"a": Limits(total=2)},
    "a queue, in each process": {"a": Limits(local=1)},
    "a task, over all workers": {"limited": Limits(total=2)},
    "a task, in each process": {"limited": Limits(local=1)},
    "all of them": {
        "a": Limits(total=3),
        "b": Limits(total=2, local=1),
        "limited": Limits(total=4, local=2),
    },
}


def explore(connection: Connection, prefix: str, clock: Clock, limits: str, examples: int) -> None:
    for seed in range(examples):
        broker = Broker(connection, prefix=f"{prefix}{seed}", test_clock=True)
        world = WaitingWorld(broker, clock, random.Random(f"{limits} {seed}"), QUEUES, LIMITS[limits])
        try:
            play(world, 80)
        except AssertionError as error:
            error.add_note(f"limits: {limits}, seed {seed}")
            raise


@pytest.mark.one_server("its twin for channels is below")
@pytest.mark.parametrize("limits", LIMITS)
def test_no_due_job_waits_beside_a_free_slot(connection: Connection, prefix: str, clock: Clock, limits: str) -> None:
    explore(connection, prefix, clock, limits, EXAMPLES)


@pytest.mark.parametrize("limits", ["no limits", "all of them"])
def test_no_due_job_waits_beside_a_free_slot_where_tokens_are_sent_by_channels(
    cluster_connection: Connection, prefix: str, clock: Clock, limits: str
) -> None:
    explore(cluster_connection, prefix, clock, limits, max(1, EXAMPLES // 4))


# --- by example


def test_jobs_behind_a_limit_of_one_process_reach_another_that_did_not_listen_just_then(
    connection: Connection, prefix: str, clock: Clock
) -> None:
    broker = Broker(connection, prefix=prefix, test_clock=True)
    limits = {"limited": Limits(local=1)}
    world = WaitingWorld(broker, clock, random.Random(1), {"a": 1}, limits)
    full, other = (Member(world, name, 3, ["a"]) for name in ("full", "other"))
    world.members.append(full)
    world.put("a", "limited", 0.0)
    world.settle_down()
    world.members.append(other)
    world.settle_down()
    other.listener.reading_names = None  # its thread is late
    world.put("a", "limited", 0.0)
    while full.listener.step() or full.turn():
        pass
    assert (full.holds(), other.holds()) == (1, 0)
    world.settle_down()
    assert other.holds() == 1


def test_a_shard_that_was_removed_takes_no_turn_from_one_that_waits_for_the_same_limit(
    connection: Connection, prefix: str, clock: Clock
) -> None:
    broker = Broker(connection, prefix=prefix, test_clock=True)
    limits = {"limited": Limits(local=1)}
    world = WaitingWorld(broker, clock, random.Random(1), {"a": 1, "b": 1}, limits)
    member = Member(world, "w", 3, ["a", "b"])
    world.members.append(member)
    world.put("b", "limited", 0.0)
    world.settle_down()
    world.put("a", "limited", 0.0)
    world.settle_down()
    (elsewhere,) = broker.queue("a").reserve(0, 1, worker="other").jobs  # it had waited for the limit of this process
    broker.queue("a").settle([ack(elsewhere, 1, 2)])
    world.ended.add(elsewhere.id)
    broker.reshard("a", 2)
    world.advance(200.0)
    broker.epochs.retire("a")
    member.refresh()
    assert not member.serves("a", 0)
    world.put("a", "limited", 0.0)
    world.settle_down()
    assert member.holds() == 1
    member.end_one()
    world.settle_down()
    world.check()
    assert member.holds("a") == 1


def test_other_jobs_wait_for_a_limiter_that_is_gone_no_more_than_half_of_the_time(clock: Clock) -> None:
    """Its node may take a second to fail, for which the fetch loop waits."""
    limits = UnreachableLimiter(clock, seconds=1.0)
    began = clock.now
    while clock.now < began + 20:
        limits.turn()
        clock.now += 0.05
    assert limits.calls <= 10


def test_due_jobs_reach_the_idle_process_beside_a_full_one_although_another_queue_has_a_limit(broker: Broker) -> None:
    release, began, ran = threading.Event(), [], []

    def long() -> None:
        began.append(1)
        release.wait(DEADLINE)

    def short() -> None:
        ran.append(time.monotonic())

    settings = config(queues=("partner", "long", "other"), threads=5, limits={"partner": Limits(total=4)})
    with ExitStack() as stack:
        workers = [stack.enter_context(working(broker, registry_of(long, short), settings)) for _ in range(2)]
        eventually(lambda: all(is_idle(worker) for worker in workers))
        stack.callback(release.set)
        for _ in range(5):
            put(broker, "long", queue="long")
        eventually(lambda: len(began) == 5)
        for number in range(10):
            scheduled_at = time.monotonic()
            put(broker, "short", queue="other")
            eventually(lambda number=number: len(ran) > number, "the job to run")  # type: ignore[misc]
            assert ran[-1] - scheduled_at < 2.0


def test_a_backlog_of_one_queue_does_not_hide_the_jobs_of_another(broker: Broker) -> None:
    ran: list[str] = []

    def work(name: str) -> None:
        ran.append(name)
        time.sleep(0.02)

    with working(broker, registry_of(work), config(queues=("many", "few"), threads=2)):
        for _ in range(200):
            put(broker, "work", "many", queue="many")
        eventually(lambda: len(ran) > 10)
        put(broker, "work", "few", queue="few")
        eventually(lambda: "few" in ran)
        assert len(ran) < 100


@pytest.mark.one_server("on channels every process gets every token")
def test_a_process_that_stops_leaves_what_it_knows_of_later_work_to_others(broker: Broker) -> None:
    ran = threading.Event()

    def work() -> None:
        ran.set()

    alone = config(dispatcher=False)
    with ExitStack() as stack:
        first = stack.enter_context(working(broker, registry_of(work), alone))  # it waits longest, so it gets the token
        eventually(lambda: blocked(broker) == 1)
        stack.enter_context(working(broker, registry_of(work), alone))
        eventually(lambda: blocked(broker) == 2)
        put(broker, "work", delay_ms=1500)
        eventually(lambda: blocked(broker) == 1)
        eventually(lambda: blocked(broker) == 2)
        first.stop(2.0)
        assert ran.wait(3.5)


def blocked(broker: Broker) -> int:
    """Return the number of processes that wait for a token."""
    return int(broker.client.info("clients")["blocked_clients"])

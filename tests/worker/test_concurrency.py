"""Limits of concurrency: never exceeded, reached under load, and nobody else waits because of them."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from django_delayq import RateLimited
from django_delayq.core import Broker, InvalidJob, Registry, Task, TaskOptions
from tests.support.core_figures import Limiter, ask_permits, highest_level, taken_permits, watch_grants
from tests.support.supervisor_stage import Program
from tests.support.worker_stage import (
    Gate,
    Limits,
    config,
    drain,
    eventually,
    held_by,
    put,
    registry_named,
    registry_of,
    run_dry,
    working,
)


class Running:
    """Handler that notes how many of its attempts run at the same time."""

    def __init__(self, seconds: float = 0.005) -> None:
        self.seconds = seconds
        self.now = self.most = self.ended = 0
        self.lock = threading.Lock()

    def __call__(self) -> None:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(self.seconds)
        with self.lock:
            self.now -= 1
            self.ended += 1


def registry_with(handler: Callable[..., Any], **options: Any) -> Registry:
    registry = Registry()

    def limited() -> None:
        handler()

    registry.add(Task(limited, name="limited", options=TaskOptions(**options)))
    return registry


@pytest.mark.parametrize("limited", ["task", "queue"])
@pytest.mark.parametrize("limit", [{"total": 2}, {"local": 2}, {"total": 3, "local": 2}], ids=str)
def test_limits_of_a_task_and_of_a_queue_hold_in_each_process_and_over_all(
    broker: Broker, limited: str, limit: dict[str, int]
) -> None:
    broker.queue("default", shards=3)
    one, two, both = Running(), Running(), Running(0)
    for _ in range(40):
        put(broker, "limited")

    def counted(running: Running) -> Callable[[], None]:
        def handler() -> None:
            with both.lock:
                both.now += 1
                both.most = max(both.most, both.now)
            running()
            with both.lock:
                both.now -= 1

        return handler

    of_task = {"concurrency": limit} if limited == "task" else {}
    settings = config(threads=4, limits={} if of_task else {"default": Limits(**limit)})
    with ExitStack() as stack:
        for running in (one, two):
            stack.enter_context(working(broker, registry_with(counted(running), **of_task), settings))
        eventually(lambda: one.ended + two.ended == 40, seconds=60)  # a slow Redis is let alone for 15 s
        name = "task:limited" if of_task else "queue:default"
        eventually(lambda: taken_permits(broker, name) == 0, "all permits are returned")
    assert max(one.most, two.most) <= limit.get("local", 4) and both.most <= limit.get("total", 8)
    if "local" in limit and "total" not in limit:
        assert one.most == two.most == 2
    else:
        assert both.most == limit["total"]


def test_jobs_behind_a_limit_hold_up_no_other_task(broker: Broker) -> None:
    gate, free = Gate(), Running(0)

    def other() -> None:
        free()

    registry = registry_of(other)
    registry.add(Task(gate.work, name="limited", options=TaskOptions(concurrency=1)))
    for _ in range(2000):
        put(broker, "limited", priority=0)
    with working(broker, registry, config(threads=3)) as worker:
        gate.wait_begun()
        for _ in range(50):
            put(broker, "other")
        eventually(lambda: free.ended == 50)
        eventually(lambda: held_by(worker) == 1, "the others are settled")
        counts = broker.inspector.counts("default")
        assert (counts.parked, counts.ready, counts.reserved) == (1999, 1999, 1)
        gate.open()
        drain(worker)


def test_permits_of_a_dead_holder_run_out_and_its_successor_gets_them(broker: Broker) -> None:
    assert ask_permits(broker, {"task:limited": 1}, 1, ms=700).blocks == [None]
    running = Running()
    put(broker, "limited")
    began = time.monotonic()
    with working(broker, registry_with(running, concurrency=1)):
        eventually(lambda: running.ended == 1)
    assert time.monotonic() - began >= 0.5


def test_a_worker_that_stops_while_it_returns_a_permit_leaves_the_place_to_another(broker: Broker) -> None:
    """The reply names its own shard, which may ask again: that must not end with the worker."""
    starts: list[str] = []
    own = Broker(broker.connection, prefix=broker.prefix)
    for _ in range(2):
        put(broker, "limited")
    with working(own, registry_with(lambda: starts.append("one"), concurrency=1), config(threads=2)) as worker:
        own.observe(lambda verb, seconds, failed: drain(worker) if verb == "limit" and starts else None)
        assert worker.done.wait(10)
    assert starts == ["one"]
    with working(broker, registry_with(lambda: starts.append("other"), concurrency=1)):
        eventually(lambda: starts == ["one", "other"], seconds=3)


def test_a_worker_without_the_limit_takes_what_was_parked(broker: Broker) -> None:
    registry = registry_with(lambda: time.sleep(0.2), concurrency=1)
    for _ in range(6):
        put(broker, "limited")
    with working(broker, registry):
        eventually(lambda: broker.inspector.counts("default").parked)
    running = Running()
    with working(broker, registry_with(running)):
        eventually(lambda: broker.inspector.counts("default").live == 0)


def calls_of_limiter_beside(broker: Broker, registry: Registry, wait: Callable[[], object]) -> int:
    """Let four workers run 100 jobs of three shards until ``wait`` returns; return their calls of the limiter."""
    broker.queue("default", shards=3)
    for _ in range(100):
        put(broker, "limited")
    calls: list[str] = []
    with ExitStack() as stack:
        for _ in range(4):
            own = Broker(broker.connection, prefix=broker.prefix)
            own.observe(lambda verb, seconds, failed: calls.append(verb))
            stack.enter_context(working(own, registry, config()))
        wait()
        return calls.count("limit")


def test_who_waits_for_a_permit_does_not_poll(broker: Broker) -> None:
    gate = Gate()

    def wait() -> None:
        gate.wait_begun()
        time.sleep(1.5)
        gate.open()

    assert calls_of_limiter_beside(broker, registry_with(gate.work, concurrency=1), wait) <= 4 * 3 + 1


def test_who_waits_for_a_rate_asks_no_more_than_once_for_each_start(broker: Broker) -> None:
    starts: list[float] = []
    registry = registry_with(lambda: starts.append(time.monotonic()), rate="4/s", burst=1)
    asked = calls_of_limiter_beside(broker, registry, lambda: eventually(lambda: len(starts) == 12))
    assert asked <= 12 * (4 * 3 + 1), "each process for each shard, and the return of starts that were not used"


def test_a_worker_that_runs_dry_runs_what_waits_behind_its_own_limits(broker: Broker) -> None:
    running = Running()
    for _ in range(30):
        put(broker, "limited")
    run_dry(broker, registry_with(running, concurrency={"total": 2, "local": 1}))
    assert (running.ended, running.most) == (30, 1)


def test_jobs_that_are_given_back_give_their_slots_back(broker: Broker) -> None:
    """More jobs are reserved than slots run them, and the worker stops: the rest of them holds nothing."""
    running = Running(0.02)
    for _ in range(200):
        put(broker, "limited")
    with working(broker, registry_with(running, concurrency=50), config(threads=2, prefetch_ms=500.0)):
        eventually(lambda: running.ended >= 10)
    assert taken_permits(broker, "task:limited") == 0
    assert broker.inspector.counts("default").reserved == 0


def test_jobs_behind_a_limit_are_not_held_ahead_of_time(broker: Broker) -> None:
    """Others may be held for as much work as the worker likes: their places would be lost to other processes."""
    running = Running(0.02)
    for _ in range(200):
        put(broker, "limited")
    held = []
    with working(broker, registry_with(running, concurrency=50), config(threads=2, prefetch_ms=500.0)):

        def all_have_ended() -> bool:
            held.append(broker.inspector.counts("default").reserved)
            return running.ended == 200

        eventually(all_have_ended)
    assert max(held) <= 4, "two that run, and two whose ends are on their way"


# -- rates


@pytest.mark.parametrize("shards", [1, 3])
def test_a_rate_over_all_workers_is_kept_and_used(broker: Broker, shards: int) -> None:
    """Kept and used by the grants, on Redis's clock: a start may be later than its grant."""
    broker.queue("default", shards=shards)
    running = Running(0)
    for _ in range(40):
        put(broker, "limited")
    with ExitStack() as stack:
        granted = stack.enter_context(watch_grants())
        for _ in range(2):
            stack.enter_context(working(broker, registry_with(running, rate=20, burst=4), config(threads=4)))
        eventually(lambda: running.ended == 40)
        eventually(lambda: len(granted) == 40, "what was not used is given back")
    moments = sorted(granted.values())
    assert highest_level(moments, 1e6 / 20) <= 4 + 1e-4
    assert 1.8e6 - 1 <= moments[-1] - moments[0] < 3.0e6


def test_a_rate_of_a_queue_holds_for_all_its_tasks(broker: Broker) -> None:
    running = Running(0)
    for number in range(12):
        put(broker, f"task-{number % 2}")
    registry = Registry()
    for number in range(2):
        registry.add(Task(lambda: running(), name=f"task-{number}", options=TaskOptions()))
    limits = {"default": TaskOptions(rate="10/s", burst=2).limits}
    with watch_grants() as granted, working(broker, registry, config(limits=limits)):
        eventually(lambda: running.ended == len(granted) == 12)
    assert highest_level(granted.values(), 1e6 / 10) <= 2 + 1e-4


@pytest.mark.parametrize(
    ("value", "interval_us", "burst"),
    [
        (5, 200_000, 1),
        (0.5, 2_000_000, 1),
        ("1000/m", 60_000, 1),
        ("100 / s", 10_000, 10),
        ("5/h", 720e6, 1),
        ("1/d", 86_400e6, 1),
    ],
)
def test_a_rate_is_a_number_per_second_or_a_text(value: Any, interval_us: float, burst: int) -> None:
    limits = TaskOptions(rate=value).limits
    assert limits is not None
    assert (round(limits.interval_us or 0, 3), limits.burst) == (interval_us, burst)


@pytest.mark.parametrize(
    "wrong", [{"rate": "fast"}, {"rate": 0}, {"rate": "5/y"}, {"rate": "0/s"}, {"rate": True}, {"burst": 3}]
)
def test_a_wrong_rate_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidJob, match="rate"):
        TaskOptions(**wrong)


# -- groups


@pytest.mark.parametrize("shards", [1, 3])
def test_a_group_keeps_to_its_limit_and_others_run_beside_it(broker: Broker, shards: int) -> None:
    broker.queue("default", shards=shards)
    running: dict[str, Running] = {name: Running(0.01) for name in ("a", "b", "")}

    def work(group: str) -> None:
        running[group]()

    for number in range(30):
        put(broker, "work", "a", group="a", options=b'{"group_limits":[1,0,0]}', id=f"a{number}")
        put(broker, "work", "b", group="b", options=b'{"group_limits":[2,0,0]}', id=f"b{number}")
        put(broker, "work", "", id=f"c{number}")
    with ExitStack() as stack:
        for _ in range(2):
            stage = working(broker, registry_of(work), config(threads=4))
            stack.enter_context(stage)
        eventually(lambda: all(one.ended == 30 for one in running.values()))
        eventually(lambda: taken_permits(broker, "group:default:a") == 0)
    assert (running["a"].most, running["b"].most) == (1, 2)
    assert running[""].most > 2


def test_one_job_of_a_small_group_does_not_wait_for_a_large_one(broker: Broker) -> None:
    order: list[str] = []

    def work(group: str) -> None:
        order.append(group)

    for number in range(100):
        put(broker, "work", "large", group="large", id=f"large-{number}")
    put(broker, "work", "small", group="small", id="small")
    with working(broker, registry_of(work), config(threads=1)):
        eventually(lambda: len(order) == 101)
    assert order.index("small") < 10


def test_a_rate_of_a_group_is_its_own(broker: Broker) -> None:
    running = Running(0)

    def work(group: str) -> None:
        running()

    for group in "ab":
        for number in range(8):
            put(broker, "work", group, group=group, options=b'{"group_limits":[0,100000,1]}', id=f"{group}{number}")
    with watch_grants() as granted, working(broker, registry_of(work), config(threads=4)):
        eventually(lambda: running.ended == len(granted) == 16)
    for group in (b":a", b":b"):
        moments = [at_us for permit, at_us in granted.items() if permit.endswith(group)]
        assert len(moments) == 8
        assert highest_level(moments, 1e5) <= 1 + 1e-4
        assert max(moments) - min(moments) < 2e6


# -- limits that are set at run time


@pytest.mark.parametrize("name", ["task:limited", "queue:default"])
def test_a_limit_that_is_set_at_run_time_holds_for_those_that_had_none(broker: Broker, name: str) -> None:
    broker.queue("default", shards=2)
    limiter, running = Limiter(broker.registry), Running(0.02)
    limiter.set(name, Limits(total=1))
    for _ in range(20):
        put(broker, "limited")
    with working(broker, registry_with(running), config(threads=4, heartbeat=0.2)) as worker:
        eventually(lambda: running.ended == 20)
        assert running.most == 1
        limiter.set(name, None)
        eventually(lambda: name not in broker.worker_registry.own_limits)
        for _ in range(40):
            put(broker, "limited")
        eventually(lambda: running.ended == 60)
        assert running.most > 1
        drain(worker)


def test_a_raised_limit_lets_those_who_wait_start_at_once(broker: Broker) -> None:
    starts: list[float] = []
    for number in range(3):
        put(broker, "work", group="a", options=b'{"group_limits":[0,60000000,1]}', id=f"a{number}")
    limiter = Limiter(broker.registry)
    with working(broker, registry_named("work", lambda: starts.append(time.monotonic()))):
        eventually(lambda: len(starts) == 1)
        time.sleep(0.3)
        assert len(starts) == 1
        limiter.set("group:default:a", Limits(interval_us=1000.0, burst=100))
        eventually(lambda: len(starts) == 3, seconds=3)
    assert limiter.get("group:default:a") == Limits(interval_us=1000.0, burst=100)


# -- refusals of other systems


@pytest.mark.parametrize("scope", [None, "group", "task", "queue"])
def test_a_refusal_lets_its_scope_wait_and_counts_no_attempt(broker: Broker, scope: str | None) -> None:
    broker.queue("default", shards=2)
    runs: list[tuple[str, float]] = []
    refused: list[str] = []

    def work(group: str) -> None:
        if group == "a" and not refused:
            refused.append(group)
            raise RateLimited("not now", retry_after=0.6, scope=scope)
        runs.append((group, time.monotonic()))

    registry = registry_of(work, rate="1000/s")
    for number in range(4):
        put(broker, "work", "a", group="a", id=f"a{number}")
    began = time.monotonic()
    with working(broker, registry, config(threads=1, limits={"default": Limits(total=100)})):
        eventually(lambda: refused)
        for number in range(4):
            put(broker, "work", "b", group="b", id=f"b{number}")
        eventually(lambda: len(runs) == 8)
        failed = broker.inspector.counts("default").counters.get("failed", 0)
    first = {group: min(at - began for name, at in runs if name == group) for group in "ab"}
    last_a = max(at - began for group, at in runs if group == "a")
    assert last_a >= 0.6
    assert (first["b"] < 0.5) is (scope in (None, "group"))
    assert failed == 0


def test_a_refusal_without_a_limit_lets_only_its_job_wait(broker: Broker) -> None:
    runs: list[str] = []

    def work(name: str) -> None:
        runs.append(name)
        if runs == ["a"]:
            raise RateLimited(retry_after=0.4)

    for name in ("a", "b", "c"):
        put(broker, "work", name, id=name)
    with working(broker, registry_of(work), config(threads=1)):
        eventually(lambda: len(runs) == 4)
    assert runs == ["a", "b", "c", "a"]


def test_a_wrong_scope_is_refused_where_it_is_raised() -> None:
    with pytest.raises(TypeError, match="scope"):
        RateLimited(retry_after=1, scope="world")


# --- in real processes


MakeProgram = Callable[..., Program]


def numbers_running(trace: list[tuple[str, str, int, int]]) -> list[int]:
    """Return how many attempts ran at each moment; those of a killed process end with it."""
    running: dict[tuple[str, int], int] = {}
    numbers = []
    for word, ident, attempt, pid in trace:
        if word == "begun":
            running[ident, attempt] = pid
        elif word == "ended":
            running.pop((ident, attempt), None)
        elif word == "killed":
            running = {name: one for name, one in running.items() if one != pid}
        numbers.append(len(running))
    return numbers


def test_a_limit_of_three_over_two_processes_is_reached_never_exceeded_and_survives_a_kill(
    program: MakeProgram,
    broker: Broker,
) -> None:
    broker.queue("default", shards=2)
    for _ in range(60):
        put(broker, "few", 0.05)
    running = program(processes=2, threads=4, lease=3000, heartbeat=0.5)
    running.await_words("ended", 20)
    holders = eventually(lambda: [one for one in running.trace() if one[0] == "begun"][-1:])
    victim = holders[0][3]
    os.kill(victim, signal.SIGKILL)
    running.client.rpush("trace", f"killed:-:0:{victim}")
    eventually(lambda: broker.inspector.counts("default").live == 0, "every job runs")
    numbers = numbers_running(running.trace())
    assert max(numbers) == 3, numbers
    eventually(lambda: taken_permits(broker, "task:few") == 0, "the permits of the dead process ran out")
    running.signal(signal.SIGTERM)
    assert running.wait() == 0


def test_a_limit_holds_over_the_nodes_of_a_cluster(cluster_broker: Broker) -> None:
    cluster_broker.queue("default", shards=6)
    running = Running()
    for _ in range(60):
        put(cluster_broker, "limited")
    with (
        working(cluster_broker, registry_with(running, concurrency=2), config(threads=4)),
        working(cluster_broker, registry_with(running, concurrency=2), config(threads=4)),
    ):
        eventually(lambda: running.ended == 60)
    assert running.most == 2

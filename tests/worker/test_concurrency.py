"""Limits of concurrency: never exceeded, reached under load, and nobody else waits because of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from django_delayq import RateLimited
from django_delayq.core import Broker, InvalidJob, Registry, Task, TaskOptions
from tests.support.core_figures import Limiter, ask_permits, highest_level, taken_permits, watch_grants
from tests.support.worker_stage import (
    DEADLINE,
    Limits,
    assert_invariants,
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


@pytest.mark.parametrize("shards", [1, 4])
def test_a_limit_over_all_workers_is_reached_and_never_exceeded(broker: Broker, shards: int) -> None:
    queue = broker.queue("default", shards=shards)
    running = Running()
    for _ in range(150):
        put(broker, "limited")
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(working(broker, registry_with(running, concurrency=3), config(threads=4)))
        eventually(lambda: running.ended == 150)
        eventually(lambda: taken_permits(broker, "task:limited") == 0, "all permits are returned")
    assert running.most == 3
    assert sum(len(queue.leases(number)) for number in queue.numbers) == 0
    assert_invariants(broker)


def test_a_limit_of_each_process_lets_every_process_run_as_many(broker: Broker) -> None:
    one, two = Running(), Running()
    for _ in range(60):
        put(broker, "limited")
    with (
        working(broker, registry_with(one, concurrency={"local": 2}), config(threads=4)),
        working(broker, registry_with(two, concurrency={"local": 2}), config(threads=4)),
    ):
        eventually(lambda: one.ended + two.ended == 60)
    assert one.most == two.most == 2


def test_both_limits_hold_together(broker: Broker) -> None:
    one, two, both = Running(), Running(), Running(0)
    for _ in range(60):
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

    limit = {"total": 3, "local": 2}
    with (
        working(broker, registry_with(counted(one), concurrency=limit), config(threads=4)),
        working(broker, registry_with(counted(two), concurrency=limit), config(threads=4)),
    ):
        eventually(lambda: one.ended + two.ended == 60)
    assert max(one.most, two.most) <= 2
    assert both.most <= 3


@pytest.mark.parametrize("limit", [Limits(total=2), Limits(local=2), Limits(total=2, local=1)])
def test_a_limited_queue_runs_no_more_jobs_than_its_limit(broker: Broker, limit: Limits) -> None:
    broker.queue("default", shards=3)
    running = Running()
    for _ in range(60):
        put(broker, "limited")
    settings = config(threads=4, limits={"default": limit})
    with working(broker, registry_with(running), settings):
        eventually(lambda: running.ended == 60)
        eventually(lambda: taken_permits(broker, "queue:default") == 0, "all permits are returned")
    assert running.most == (limit.local or limit.total)


def test_jobs_behind_a_limit_hold_up_no_other_task(broker: Broker) -> None:
    began, release = threading.Event(), threading.Event()

    def limited() -> None:
        began.set()
        release.wait(DEADLINE)

    free = Running(0)

    def other() -> None:
        free()

    registry = registry_of(other)
    registry.add(Task(limited, name="limited", options=TaskOptions(concurrency=1)))
    for _ in range(2000):
        put(broker, "limited", priority=0)
    with working(broker, registry, config(threads=3)) as worker:
        assert began.wait(DEADLINE)
        for _ in range(50):
            put(broker, "other")
        eventually(lambda: free.ended == 50)
        eventually(lambda: held_by(worker) == 1, "the others are settled")
        counts = broker.inspector.counts("default")
        assert (counts.parked, counts.ready, counts.reserved) == (1999, 1999, 1)
        release.set()
        drain(worker)


def test_permits_of_a_dead_holder_run_out_and_its_successor_gets_them(broker: Broker) -> None:
    assert ask_permits(broker, {"task:limited": 1}, 1, ms=700).blocks == [None]
    running = Running()
    put(broker, "limited")
    began = time.monotonic()
    with working(broker, registry_with(running, concurrency=1)):
        eventually(lambda: running.ended == 1)
    assert time.monotonic() - began >= 0.5


def test_a_worker_that_stops_returns_its_permits(broker: Broker) -> None:
    running = Running(0.05)
    for _ in range(50):
        put(broker, "limited")
    with working(broker, registry_with(running, concurrency=2)):
        eventually(lambda: running.ended >= 2)
    assert taken_permits(broker, "task:limited") == 0
    assert_invariants(broker)


def test_a_worker_without_the_limit_takes_what_was_parked(broker: Broker) -> None:
    registry = registry_with(lambda: time.sleep(0.2), concurrency=1)
    for _ in range(6):
        put(broker, "limited")
    with working(broker, registry):
        eventually(lambda: broker.inspector.counts("default").parked)
    running = Running()
    with working(broker, registry_with(running)):
        eventually(lambda: broker.inspector.counts("default").live == 0)


def test_an_idle_worker_costs_no_more_with_parked_jobs(broker: Broker) -> None:
    assert ask_permits(broker, {"task:limited": 1}, 1, ms=600_000).blocks == [None]
    calls: list[str] = []
    for _ in range(1000):
        put(broker, "limited")
    with working(broker, registry_with(Running(), concurrency=1), config(dispatcher=True)):
        eventually(lambda: broker.inspector.counts("default").parked == 1000)
        time.sleep(0.5)
        broker.observe(lambda verb, seconds, failed: calls.append(verb))
        time.sleep(3.0)
        broker.observe(None)
    assert len(calls) <= 6, calls


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
    began, release = threading.Event(), threading.Event()

    def handler() -> None:
        began.set()
        release.wait(DEADLINE)

    def wait() -> None:
        assert began.wait(DEADLINE)
        time.sleep(3.0)
        release.set()

    assert calls_of_limiter_beside(broker, registry_with(handler, concurrency=1), wait) <= 4 * 3 + 2


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
    assert_invariants(broker)


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

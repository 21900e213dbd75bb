"""Queue policies set by operators: pauses, limits, weights. They are stored in Redis and outlive all processes."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from django_delayq.core import Broker, InvalidJob, NewJob, Queue, layouts
from tests.support.core_calls import ScriptCall, before_layout_change, broker_clock, watch_calls
from tests.support.core_stored import new_layout, queue_policy, rules_of_layout, shard_key, stored_rules
from tests.support.core_values import QueuePaused

from .bulk_stage import kill_failed
from .epochs_stage import adopt_layout, other, reshard
from .stage import LEASE, T0, Stage


def rules_of(queue: Queue) -> list[dict[str, Any]]:
    """Return the rules stored in every shard, as the scripts read them; no pause of these tests has an end."""
    return [stored_rules(queue, number) for number in queue.numbers]


@pytest.mark.parametrize(
    ("act", "problem"),
    [
        (lambda broker: broker.pause("nowhere"), "no queue 'nowhere'"),
        (lambda broker: broker.resume("nowhere"), "no queue 'nowhere'"),
        (lambda broker: broker.limit("nowhere", max_length=1), "no queue 'nowhere'"),
        (lambda broker: broker.pause("q", "sideways"), "in, out, both"),
        (lambda broker: broker.resume("q", "sideways"), "in, out, both"),
        (lambda broker: broker.pause("q", seconds=0), "more than 0"),
        (lambda broker: broker.pause("q", seconds=-1), "negative"),
        (lambda broker: broker.pause("q", seconds="10m"), "number of seconds"),
        (lambda broker: broker.limit("q", max_length=-1), "max_length must be 0 or more"),
        (lambda broker: broker.limit("q", starve_after=-1), "starve_after must be 0 or more"),
        (lambda broker: broker.limit("q", max_lenght=5), "unknown limit 'max_lenght'"),
        (lambda broker: broker.limit("q", priorities="5"), "priorities must be one of strict, weighted"),
        *(
            (lambda broker, wrong=wrong: broker.limit("q", morgue_ttl=wrong), "morgue_ttl must be")
            for wrong in (float("nan"), float("inf"), True, "5")
        ),
    ],
)
def test_what_cannot_be_a_rule_is_refused(stage: Stage, act: Callable[[Broker], object], problem: str) -> None:
    with pytest.raises(InvalidJob, match=problem):
        act(stage.broker)
    assert rules_of(stage.queue) == [{}]


# --- pause, resume


def test_t62_a_resumed_queue_wakes_its_consumers_at_once(broker: Broker) -> None:
    queue = broker.queue("q", shards=2)
    broker.pause("q", "out")
    queue.schedule_many(NewJob(f"j{n}", "work") for n in range(20))
    waker = broker.waker(["q"])
    try:
        while waker.wait(0.2):
            pass  # what woke while it was paused
        threading.Timer(0.1, broker.resume, ("q",)).start()
        found, first = 0, 0.0
        while found < 20:
            hints = waker.wait(10.0)
            assert hints
            first = first or time.monotonic()
            found += sum(len(queue.reserve(number, 20, worker="w").jobs) for _, number in hints)
        assert time.monotonic() - first < 1.0
    finally:
        waker.close()


def test_t62_the_shards_of_a_new_epoch_are_paused_and_limited_as_the_old_ones(broker: Broker) -> None:
    queue = broker.queue("q", shards=2)
    broker.pause("q", "in")
    broker.limit("q", max_length=10, morgue_max=7, morgue_ttl=5, priorities="weighted", starve_after=90)
    broker.reshard("q", 5)
    limits = {"max_length": 10, "morgue_max": 2, "morgue_ttl_ms": 5000, "weighted": True, "starve_after_ms": 90_000}
    assert rules_of(queue)[-5:] == [{**limits, "paused_in": 0}] * 5
    broker.resume("q")
    assert rules_of(queue)[-5:] == [limits] * 5
    assert {one["weighted"] for one in rules_of(queue)} == {True}


def test_limits_in_seconds_are_rules_in_whole_ms() -> None:
    for ms in range(1000, 20_000, 7):
        layout = layouts.limited(new_layout(1, "python"), {"morgue_ttl": ms / 1000, "starve_after": ms / 1000})
        in_force = layouts.limits_in_force(layouts.decode(layouts.encode(layout)))
        assert (in_force["morgue_ttl"], in_force["starve_after"]) == (ms / 1000, ms / 1000)
        assert rules_of_layout(layout, 1) == {"morgue_ttl_ms": ms, "starve_after_ms": ms}
    shortest = layouts.limited(new_layout(1, "python"), {"morgue_ttl": 1e-6})
    assert rules_of_layout(shortest, 1) == {"morgue_ttl_ms": 1}, "0 would delete every record"


def test_orders_that_a_shard_lost_come_back_with_the_next_look_of_a_dispatcher(wide: Stage) -> None:
    wide.broker.pause("wide", "out")
    wide.broker.limit("wide", max_length=9)
    wide.broker.client.delete(wide.key("meta", 1))
    wide.wait(0)
    assert rules_of(wide.queue)[1] == {}
    for number in wide.queue.numbers:
        wide.queue.tick(number)
    assert rules_of(wide.queue) == [{"paused_out": 0, "max_length": 9}] * 3
    # A process that missed the end of the pause does not bring it back.
    late = Broker(wide.broker.connection, prefix=wide.broker.prefix, lease_ms=LEASE, test_clock=True).queue("wide")
    wide.broker.resume("wide")
    late.tick(0)
    assert rules_of(wide.queue) == [{"max_length": 9}] * 3


def test_orders_of_many_at_once_end_in_what_the_registry_says(broker: Broker) -> None:
    broker.queue("q", shards=4)
    others = [Broker(broker.connection, prefix=broker.prefix) for _ in range(4)]

    def order(one: Broker, place: int) -> None:
        for turn in range(10):
            (one.pause if (turn + place) % 2 else one.resume)("q", ("in", "out")[turn % 2])
            one.limit("q", max_length=turn + place)

    threads = [threading.Thread(target=order, args=(one, place)) for place, one in enumerate(others)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    queue = broker.known_queue("q")
    assert queue is not None
    assert rules_of(queue) == [rules_of_layout(queue.layout, 4)] * 4


def test_an_old_layout_that_another_thread_adopts_late_does_not_become_the_rules(wide: Stage) -> None:
    """A thread has read the layout before the pause ended, and adopts it while the rules are being written."""
    wide.broker.pause("wide", "in")
    _, old = wide.broker.read_layout("wide")
    assert old is not None
    adopted: list[str] = []

    def adopt_first(call: ScriptCall) -> None:
        if call.name == "rule":
            adopted.append(call.name)
            adopt_layout(wide.broker, "wide", old)

    with watch_calls(wide.broker, before=adopt_first):
        wide.broker.resume("wide", "in")
    assert adopted
    assert rules_of(wide.queue) == [{}] * 3


# --- limits


def test_a_limit_in_force_is_not_written_again_and_none_and_zero_remove_it(stage: Stage) -> None:
    limit = stage.broker.limit
    limit("q", max_length=5, morgue_ttl=1.5, priorities="weighted", starve_after=2)
    with watch_calls(stage.broker) as calls:
        limit("q", max_length=5)
        limit("q", max_length=5, morgue_max=0, morgue_ttl=1.5, priorities="weighted")
        limit("q")
    assert calls == []
    limit("q", max_length=None, morgue_ttl=0, priorities="strict")
    assert layouts.queue_policy(stage.queue.layout)["limits"] == {"starve_after": 2}
    assert rules_of(stage.queue) == [{"starve_after_ms": 2000}]


# --- the morgue's limits


def test_t48_a_morgue_that_is_full_loses_its_oldest_at_each_burial(stage: Stage) -> None:
    for number in range(6):
        stage.in_morgue(f"old {number}")
    stage.broker.limit("q", morgue_max=3)
    stage.in_morgue("new 1")
    assert [name.split(" buried")[0] for name in stage.picture()["morgue"]] == [
        "old 2",
        "old 3",
        "old 4",
        "old 5",
        "new 1",
    ]
    stage.in_morgue("new 2")
    stage.in_morgue("new 3")
    assert stage.picture()["morgue"] == ["new 1 buried", "new 2 buried", "new 3 buried"]
    assert stage.counters()["trimmed"] == 6
    stage.in_morgue("new 4")
    assert stage.counters()["trimmed"] == 7
    for ident in ("killed 1", "killed 2"):
        stage.put(ident)
        stage.failed(stage.take_one(), 60_000)
    assert kill_failed(stage.queue) == {"killed": 2}
    assert stage.picture()["morgue"] == ["new 4 buried", "killed 1 buried", "killed 2 buried"]


def test_t48_a_look_of_the_dispatcher_trims_a_morgue_piece_by_piece(stage: Stage) -> None:
    stage.queue.schedule_many(NewJob(f"j{number}", "work") for number in range(600))
    bulk_bury(stage)
    stage.broker.limit("q", morgue_max=100)
    left = []
    for _ in range(4):
        stage.queue.tick(0)
        left.append(stage.broker.inspector.counts("q").morgue)
    assert left == [350, 100, 100, 100]
    assert stage.counters()["trimmed"] == 500


def test_t48_what_lies_in_the_morgue_for_too_long_goes(stage: Stage) -> None:
    stage.broker.limit("q", morgue_ttl=1)
    for ident in ("a", "b", "c"):
        stage.in_morgue(ident)
        stage.wait(400)
    stage.queue.tick(0)
    assert stage.picture() == {"morgue": ["b buried", "c buried"]}
    stage.wait(200)
    stage.in_morgue("d")
    assert stage.picture() == {"morgue": ["c buried", "d buried"]}
    stage.wait(5000)
    stage.queue.tick(0)
    assert stage.shard_is_empty()
    assert stage.counters()["trimmed"] == 4


def bulk_bury(stage: Stage) -> None:
    while jobs := stage.take(250):
        for job in jobs:
            assert stage.buried(job)


# --- priorities


def test_t52_weighted_classes_starve_nobody_and_keep_their_shares(stage: Stage) -> None:
    stage.broker.limit("q", priorities="weighted")
    classes, rounds, names, found = (0, 4, 7), 700, count(), Counter[int]()
    for turn in range(rounds):
        if turn % 5 == 0:  # every class has more due work than one round takes
            news = (NewJob(f"{one} {next(names)}", "work", priority=one) for one in classes for _ in range(5))
            stage.queue.schedule_many(news)
        found[stage.take(1)[0].priority] += 1
        stage.wait(0.137)
    for place, priority in enumerate(classes):
        share = 2 ** (2 - place) / 7
        # Four times the deviation of a binomial distribution: one of 16,000 fair draws is outside.
        tolerance = 4 * (rounds * share * (1 - share)) ** 0.5
        assert found[priority] == pytest.approx(rounds * share, abs=tolerance), found


def test_t52_weights_keep_nobody_waiting_when_only_one_class_has_work(stage: Stage) -> None:
    stage.broker.limit("q", priorities="weighted")
    for priority in (0, 7):
        stage.put(f"first of {priority}", priority=priority)
    stage.done(*stage.take())
    for number in range(100):
        stage.put(f"j{number}", priority=7)
        assert stage.take_one().priority == 7


# -- pauses that end by themselves, on Redis's clock -------------------------------------------------------------------


@pytest.fixture
def timed(clocked: Broker) -> Iterator[Stage]:
    """Return a queue of three shards whose broker reads the clock of the test."""
    stage = Stage(clocked, shards=3)
    with broker_clock(clocked, lambda: stage.us / 1000):
        yield stage


def outcomes_now(stage: Stage, n: int = 12) -> set[Any]:
    return set(stage.queue.schedule_many(NewJob(f"{stage.us}-{number}", "work") for number in range(n)))


def taken(stage: Stage) -> int:
    return sum(len(stage.queue.reserve(number, 250, worker="w").jobs) for number in stage.queue.numbers)


def test_a_pause_for_a_time_ends_without_any_process(timed: Stage) -> None:
    assert outcomes_now(timed) == {"created"}
    timed.broker.pause("q", seconds=600)
    timed.wait(599_999)
    assert (outcomes_now(timed), taken(timed)) == ({"paused"}, 0)
    with pytest.raises(QueuePaused, match="'q' is paused for new jobs"):
        timed.put("one")
    timed.wait(1)
    assert (outcomes_now(timed), taken(timed)) == ({"created"}, 24)


def test_each_direction_has_its_own_end_and_a_new_pause_replaces_it(timed: Stage) -> None:
    broker = timed.broker

    def shown() -> Any:
        orders = queue_policy(timed.queue.layout, broker.now_ms())
        return orders["paused"], orders["paused_until"]

    broker.pause("q", "in", seconds=60)
    broker.pause("q", "out", seconds=30)
    assert shown() == ("both", {"in": T0 + 60_000, "out": T0 + 30_000})
    timed.wait(30_000)
    assert shown() == ("in", {"in": T0 + 60_000})
    broker.pause("q", "in", seconds=10)
    assert shown() == ("in", {"in": T0 + 40_000})
    broker.pause("q", "in")
    assert shown() == ("in", {})
    broker.resume("q")
    assert (shown(), timed.queue.layout.get("until")) == (("", {}), None)
    broker.pause("q", "in", seconds=10)
    reshard(timed, 4)
    assert outcomes_now(timed) == {"paused"}, "new shards keep the end of a pause"
    timed.wait(10_000)
    assert outcomes_now(timed) == {"created"}


def test_the_next_look_of_a_dispatcher_removes_a_pause_that_has_ended(timed: Stage) -> None:
    timed.broker.pause("q", "both", seconds=5)
    timed.broker.pause("q", "out", seconds=50)
    timed.wait(5_000)
    timed.queue.tick(timed.queue.numbers[0])
    assert timed.queue.layout["paused"] == {"out": T0 + 50_000}
    timed.wait(45_000)
    timed.queue.tick(timed.queue.numbers[0])
    assert "paused" not in timed.queue.layout and "until" not in timed.queue.layout
    metas = [shard_key(timed.queue, "meta", number) for number in timed.queue.numbers]
    assert [timed.broker.client.hget(meta, "rules") for meta in metas] == [None] * 3


# -- no new jobs in the whole deployment: one switch for all producers -------------------------------------------------


def outcomes(broker: Broker, name: str, n: int = 9) -> set[Any]:
    return set(broker.queue(name).schedule_many(NewJob(f"{name}{number}", "work") for number in range(n)))


def test_while_producers_are_paused_no_queue_takes_new_jobs_and_stored_ones_run(clocked: Broker) -> None:
    stage, wide = Stage(clocked), Stage(clocked, shards=3, name="wide")
    stage.put("running")
    stage.put("failing")
    clocked.pause_producers()
    assert clocked.producers_paused_since() is not None
    assert outcomes(clocked, "wide") == {"paused"}
    with pytest.raises(QueuePaused, match=r"all producers are paused; end it by .* resume-producers"):
        stage.put("new", fresh=True)
    running, failing = stage.take(2)
    assert stage.done(running) == [True]
    assert stage.failed(failing, 1000)
    stage.wait(1000)
    assert stage.take_one().failures == 1, "a retry is no new job"
    clocked.resume_producers()
    assert clocked.producers_paused_since() is None
    assert outcomes(clocked, "wide") == {"created"}
    assert stage.put("new", fresh=True) == "created"
    assert len(wide.queue.present) == 3


def test_a_queue_that_is_created_while_producers_are_paused_takes_no_jobs_either(broker: Broker) -> None:
    broker.queue("q")
    broker.pause_producers()
    late = other(broker).queue("late", shards=2)
    assert set(late.schedule_many(NewJob(f"j{number}", "work") for number in range(9))) == {"paused"}
    assert sorted(broker.queue_names()) == ["late", "q"]
    broker.resume_producers()
    assert outcomes(broker, "late") == {"created"}


def test_a_queue_that_is_being_created_at_that_moment_obeys(broker: Broker) -> None:
    operator = other(broker)

    def order(layout: dict[str, Any]) -> None:
        if not operator.registry.producers_paused:
            operator.pause_producers()

    with before_layout_change(broker, order):
        assert outcomes(broker, "late") == {"paused"}


def test_new_shards_obey_also_when_the_order_comes_between_the_steps(broker: Broker) -> None:
    queue, operator = broker.queue("q", shards=2), other(broker)

    def order(layout: dict[str, Any]) -> None:
        if layout["epoch"] == 1 and not operator.registry.producers_paused:
            operator.pause_producers()

    with before_layout_change(broker, order):
        broker.reshard("q", 3)
    assert (queue.shards, outcomes(broker, "q")) == (3, {"paused"})


def test_a_shard_that_does_not_know_yet_learns_it_at_the_next_look_of_a_dispatcher(broker: Broker) -> None:
    queue = broker.queue("q", shards=2)
    broker.pause_producers()
    for number in queue.numbers:
        broker.client.hdel(shard_key(queue, "meta", number), "rules")
        broker.client.hdel(shard_key(queue, "task", number), "\2")
    dispatcher = other(broker)
    dispatcher.queues()[0].tick(0)
    assert outcomes(broker, "q") == {"paused"}
    broker.client.hdel(broker.queues_key, "-producers")
    dispatcher.queues()[0].tick(0)
    assert outcomes(broker, "q") == {"created"}

"""Queue policies set by operators: pauses, limits, weights. They are stored in Redis and outlive all processes."""

from __future__ import annotations

import threading
import time
from collections import Counter
from itertools import count
from typing import Any

import pytest

from django_delayq.core import Broker, InvalidJob, NewJob, Queue, QueueFull, QueueUnavailable, ack, layouts, release
from tests.support.core_calls import ScriptCall, watch_calls
from tests.support.core_stored import new_layout, rules_of_layout, stored_rules
from tests.support.core_values import QueuePaused

from .bulk_stage import kill_failed
from .epochs_stage import adopt_layout
from .stage import LEASE, Stage
from .world import read_world, unchanged


@pytest.fixture
def wide(clocked: Broker) -> Stage:
    """Return a queue of three shards."""
    return Stage(clocked, shards=3, name="wide")


def rules_of(queue: Queue) -> list[dict[str, Any]]:
    """Return the rules stored in every shard, as the scripts read them; no pause of these tests has an end."""
    return [stored_rules(queue, number) for number in queue.numbers]


# --- pause, resume


def test_t62_a_queue_that_is_paused_for_new_jobs_refuses_them_and_works_on(stage: Stage) -> None:
    stage.put("waiting", at=1000)
    stage.put("running")
    job = stage.take_one()
    stage.broker.pause("q", "in")
    with unchanged(stage.broker):
        for options in ({}, {"fresh": True}, {"priority": 0}):
            with pytest.raises(QueuePaused, match="resume it"):
                stage.put("new", **options)
        with pytest.raises(QueuePaused):
            stage.add("m", b"p")
        with pytest.raises(QueueUnavailable):  # so that callers who only know that one do the right thing
            stage.put("waiting", at=5)
        assert stage.queue.schedule_many([NewJob("n1", "work"), NewJob("n2", "work")]) == ["paused"] * 2
        assert stage.queue.count_many([NewJob("n1", "work")]) == {"paused": 1}
    assert stage.counters()["refused"] == 8
    assert stage.done(job) == [True]
    stage.wait(1000)
    assert stage.take_one().id == "waiting"
    stage.broker.resume("q")
    assert stage.put("new") == "created"
    assert stage.put("fresh", fresh=True) == "created"


def test_t62_a_queue_that_is_paused_for_reserving_hands_nothing_out_and_keeps_its_leases(stage: Stage) -> None:
    for ident in ("a", "b", "c"):
        stage.put(ident)
    jobs = stage.take(2)
    stage.broker.pause("q", "out")
    assert stage.put("d") == "created"
    batch = stage.batch()
    assert (batch.jobs, batch.next_due_ms) == ([], None)
    assert stage.queue.reserve_id("c", worker="w").jobs == []
    assert stage.queue.reserve_id("c", worker="w", early=True).jobs == []
    assert stage.queue.touch(jobs) == ["held", "held"]
    assert stage.queue.tick(0).next_due_ms is None
    counted, batch = stage.queue.settle_reserve(0, [ack(jobs[0], 1, 2)], 10, worker="w")
    assert (counted, batch.jobs) == ([True], [])
    stage.wait(LEASE)
    assert stage.queue.tick(0).expired
    assert stage.settle(release(*stage.take_lost())) == [True]
    assert stage.picture() == {"waiting": ["b +0", "c +0", "d +0"]}
    stage.broker.resume("q", "out")
    assert [job.id for job in stage.take()] == ["b", "c", "d"]


def test_t62_directions_add_up_and_are_taken_away_one_by_one(wide: Stage) -> None:
    def paused() -> str:
        seen: str = layouts.queue_policy(
            Broker(wide.broker.connection, prefix=wide.broker.prefix).queue("wide").layout
        )["paused"]
        return seen

    assert paused() == ""
    wide.broker.pause("wide", "in")
    assert (paused(), rules_of(wide.queue)) == ("in", [{"paused_in": 0}] * 3)
    wide.broker.pause("wide", "out")
    assert (paused(), rules_of(wide.queue)) == ("both", [{"paused_in": 0, "paused_out": 0}] * 3)
    wide.broker.resume("wide", "in")
    assert (paused(), rules_of(wide.queue)) == ("out", [{"paused_out": 0}] * 3)
    wide.broker.resume("wide")
    assert (paused(), rules_of(wide.queue)) == ("", [{}] * 3)
    assert not [
        field
        for number in wide.queue.numbers
        for field in wide.broker.client.hkeys(wide.key("task", number))
        if field == b"\2"
    ]


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
    broker.limit("q", max_length=10, morgue_max=7, morgue_ttl=5, priorities="weighted")
    broker.reshard("q", 5)
    limits = {"max_length": 10, "morgue_max": 2, "morgue_ttl_ms": 5000, "weighted": True}
    assert rules_of(queue)[-5:] == [{**limits, "paused_in": 0}] * 5
    broker.resume("q")
    assert rules_of(queue)[-5:] == [limits] * 5
    assert {one["weighted"] for one in rules_of(queue)} == {True}


def test_a_pause_needs_a_queue_and_a_direction(stage: Stage) -> None:
    for act in (stage.broker.pause, stage.broker.resume):
        with pytest.raises(InvalidJob, match="no queue 'nowhere'"):
            act("nowhere")
        with pytest.raises(InvalidJob, match="in, out, both"):
            act("q", "sideways")
    with pytest.raises(InvalidJob, match="no queue 'nowhere'"):
        stage.broker.limit("nowhere", max_length=1)
    with pytest.raises(InvalidJob, match="max_length must be 0 or more"):
        stage.broker.limit("q", max_length=-1)


def test_a_mistyped_limit_is_refused(stage: Stage) -> None:
    with pytest.raises(InvalidJob, match="unknown limit 'max_lenght'"):
        stage.broker.limit("q", max_lenght=5)  # type: ignore[call-arg]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), True, "5"])
def test_a_limit_that_is_no_number_is_refused(stage: Stage, value: Any) -> None:
    with pytest.raises(InvalidJob, match="morgue_ttl must be"):
        stage.broker.limit("q", morgue_ttl=value)
    with pytest.raises(InvalidJob, match="priorities must be one of strict, weighted"):
        stage.broker.limit("q", priorities=value)
    assert layouts.queue_policy(stage.queue.layout)["limits"] == {}


def test_limits_in_seconds_are_rules_in_whole_ms() -> None:
    for ms in range(1000, 20_000):
        layout = layouts.limited(new_layout(1, "python"), {"morgue_ttl": ms / 1000, "starve_after": ms / 1000})
        in_force = layouts.limits_in_force(layouts.decode(layouts.encode(layout)))
        assert (in_force["morgue_ttl"], in_force["starve_after"]) == (ms / 1000, ms / 1000)
        assert rules_of_layout(layout, 1) == {"morgue_ttl_ms": ms, "starve_after_ms": ms}
    shortest = layouts.limited(new_layout(1, "python"), {"morgue_ttl": 1e-6})
    assert rules_of_layout(shortest, 1) == {"morgue_ttl_ms": 1}, "0 would delete every record"


def test_none_and_zero_remove_a_limit(stage: Stage) -> None:
    stage.broker.limit("q", max_length=5, morgue_ttl=1.5, priorities="weighted", starve_after=2)
    stage.broker.limit("q", max_length=None, morgue_ttl=0, priorities="strict")
    assert layouts.queue_policy(stage.queue.layout)["limits"] == {"starve_after": 2}
    assert rules_of(stage.queue) == [{"starve_after_ms": 2000}]


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


def test_a_full_queue_refuses_new_ids_and_takes_what_belongs_to_live_ones(stage: Stage) -> None:
    stage.broker.limit("q", max_length=3)
    stage.put("running")
    job = stage.take_one()
    stage.put("plain", at=1000)
    stage.add("merged", b"p", at=1000)
    with unchanged(stage.broker):
        for options in ({}, {"fresh": True, "at": 5000}):
            with pytest.raises(QueueFull, match="max_length"):
                stage.put("new", **options)
        with pytest.raises(QueueFull):
            stage.add("new", b"p")
        assert stage.queue.schedule_many([NewJob("n", "work")]) == ["full"]
    assert stage.put("plain", at=2000) == "replaced"
    assert stage.add("merged", b"q") == "merged"
    assert stage.put("running", at=7) == "gated"
    assert stage.counters()["refused"] == 4
    stage.done(job)
    with pytest.raises(QueueFull):
        stage.put("new")
    stage.queue.cancel("running")
    assert stage.put("new") == "created"
    stage.broker.limit("q", max_length=0)
    assert stage.put("newer", fresh=True) == "created"


def test_a_limit_holds_for_all_shards_together_and_refuses_only_what_is_too_much(wide: Stage) -> None:
    wide.broker.limit("wide", max_length=100)
    outcomes = wide.queue.count_many(NewJob(f"j{n}", "work") for n in range(1000))
    assert outcomes == {"created": 100, "full": 900}
    assert sum(len(read_world(wide.queue, number)["lives"]) for number in wide.queue.numbers) == 100


def test_a_limit_that_is_in_force_is_not_written_again(stage: Stage) -> None:
    stage.broker.limit("q", max_length=5, morgue_max=6, priorities="strict")
    assert layouts.queue_policy(stage.queue.layout)["limits"] == {"max_length": 5, "morgue_max": 6}
    with watch_calls(stage.broker) as calls:
        stage.broker.limit("q", max_length=5)
        stage.broker.limit("q", max_length=5, morgue_max=6, morgue_ttl=0, priorities="strict")
        stage.broker.limit("q")
    assert calls == []


def test_a_limit_below_what_is_there_takes_nothing_away(stage: Stage) -> None:
    stage.broker.full_seconds = 0.0  # look for room at once
    for number in range(5):
        stage.put(f"j{number}")
    stage.broker.limit("q", max_length=2)
    assert len(stage.picture()["waiting"]) == 5
    with pytest.raises(QueueFull):
        stage.put("new")
    stage.done(*stage.take(3))
    with pytest.raises(QueueFull):
        stage.put("new")
    stage.done(*stage.take(1))
    assert stage.put("new") == "created"


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


def test_t48_killed_jobs_are_trimmed_like_others(stage: Stage) -> None:
    stage.broker.limit("q", morgue_max=2)
    for ident in "abcd":
        stage.put(ident)
        stage.failed(stage.take_one(), 60_000)
    assert kill_failed(stage.queue) == {"killed": 4}
    assert stage.picture() == {"morgue": ["c buried", "d buried"]}
    assert stage.counters()["trimmed"] == 2


def bulk_bury(stage: Stage) -> None:
    while jobs := stage.take(250):
        for job in jobs:
            assert stage.buried(job)


# --- priorities


def refill(stage: Stage, classes: tuple[int, ...], names: Any) -> None:
    """Schedule so many jobs that every class has more due work than one round takes."""
    stage.queue.schedule_many(
        NewJob(f"{priority} {next(names)}", "work", priority=priority) for priority in classes for _ in range(5)
    )


def served(stage: Stage, classes: tuple[int, ...], rounds: int, seed: int) -> Counter[int]:
    """Return how often each class was served in ``rounds`` reserves of one job, with all classes loaded throughout."""
    names, found = count(), Counter[int]()
    stage.wait(seed)
    for turn in range(rounds):
        if turn % 5 == 0:
            refill(stage, classes, names)
        job = stage.take(1)[0]
        found[job.priority] += 1
        stage.done(job)
        stage.wait(0.137)
    return found


@pytest.mark.parametrize("busy", [0, 7])
def test_t52_strict_classes_serve_the_most_urgent_first_whichever_is_busy(stage: Stage, busy: int) -> None:
    stage.put("single", at=-1000, priority=7 - busy)
    found = served(stage, (busy,), 200, seed=1)
    # One urgent job goes before everything that waits; one that is not waits for as long as there is urgent work.
    assert found == ({7: 199, 0: 1} if busy == 7 else {0: 200})
    left = stage.take(250)
    assert left[-1].priority == 7
    assert [job.id for job in left if job.priority != busy] == (["single"] if busy == 0 else [])


@pytest.mark.parametrize("seed", [0, 12_345, 987_654])
def test_t52_weighted_classes_starve_nobody_and_keep_their_shares(stage: Stage, seed: int) -> None:
    stage.broker.limit("q", priorities="weighted")
    classes, rounds = (0, 4, 7), 700
    found = served(stage, classes, rounds, seed)
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


def test_t52_a_queue_may_change_between_strict_and_weighted(stage: Stage) -> None:
    assert set(served(stage, (0, 7), 60, seed=1)) == {0}
    stage.broker.limit("q", priorities="weighted")
    assert set(served(stage, (0, 7), 60, seed=2)) == {0, 7}
    stage.broker.limit("q", priorities="strict")
    assert set(served(stage, (0, 7), 60, seed=3)) == {0}

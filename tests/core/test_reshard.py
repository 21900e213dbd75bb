"""Change of the number of shards during operation, by epochs (T34)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from django_delayq.core import Broker, IdTaken, Inspector, InvalidJob, NewJob, Payload, Queue, ack, bury
from tests.support.cluster_box import ClusterBox
from tests.support.core_calls import ScriptCall, before_layout_change, call_stats, watch_calls
from tests.support.core_stored import (
    HEAD_START,
    MAX_SHARDS,
    assert_invariants,
    check_stored,
    is_pending,
    last_tick,
    number_of,
)
from tests.support.core_values import QueuePaused, new_key
from tests.support.duty_stage import cleanup_of

from .bulk_stage import discard_many, kick_many
from .epochs_stage import Killed, clocks, dies_after, epoch_of, next_id, other, reshard, take_all
from .stage import Stage
from .world import unchanged

pytestmark = pytest.mark.usefixtures("impatient")

# -- T34: the change itself ------------------------------------------------------------------------------------------


def test_t34_a_change_moves_nothing_and_loses_nothing(full: Stage) -> None:
    before, counts = full.picture(), full.broker.inspector.counts("q")
    reshard(full, 5)
    assert full.queue.shards == 5
    assert full.queue.epochs == ((0, 3), (1, 5))
    assert full.picture() == before
    after = full.broker.inspector.counts("q")
    assert (after.ready, after.delayed, after.reserved, after.gated, after.failed, after.morgue) == (
        counts.ready,
        counts.delayed,
        counts.reserved,
        counts.gated,
        counts.failed,
        counts.morgue,
    )
    view = full.broker.inspector.get("q", "failing")
    assert view is not None
    assert view.job.failures == 2


def test_t34_what_lives_is_changed_where_it_lives_and_what_is_new_goes_to_the_new_shards(full: Stage) -> None:
    reshard(full, 5)
    assert full.put("ready", args=b"[2]") == "replaced"
    assert full.put("held") == "gated"
    assert full.add("merged", b"three", "3") == "merged"
    assert full.put("ready", on_conflict="ignore") == "ignored"
    with pytest.raises(IdTaken):
        full.put("delayed", on_conflict="error")
    with pytest.raises(IdTaken):
        full.put("delayed", task="other")
    assert full.put("new") == "created"
    assert full.put("made", fresh=True) == "created"
    assert {ident: epoch_of(full.queue, ident) for ident in ("ready", "held", "merged", "delayed", "new", "made")} == {
        "ready": 0,
        "held": 0,
        "merged": 0,
        "delayed": 0,
        "new": 1,
        "made": 1,
    }


def test_t34_an_id_moves_to_the_new_shards_when_its_run_is_over(stage: Stage) -> None:
    stage.put("a")
    (first,) = take_all(stage.queue)
    reshard(stage, 4)
    assert stage.put("a") == "gated"
    assert stage.done(first) == [True]
    assert epoch_of(stage.queue, "a") == 0, "what was gated is live where its run was"
    (second,) = take_all(stage.queue)
    assert stage.done(second) == [True]
    assert stage.put("a") == "created"
    (third,) = take_all(stage.queue)
    assert third.shard // MAX_SHARDS == 1
    assert first.token < second.token < third.token


def test_the_fencing_tokens_go_on_from_the_largest_of_the_old_shards(clocked: Broker) -> None:
    stage = Stage(clocked, shards=3)
    for number in stage.queue.numbers:
        clocked.client.hset(stage.key("meta", number), "token", (number + 1) * 10**15)
    reshard(stage, 2)
    stage.put("a")
    (job,) = take_all(stage.queue)
    assert job.token == 3 * 10**15 + HEAD_START + 1


def test_t34_many_jobs_at_once_find_their_shards(clocked: Broker) -> None:
    stage = Stage(clocked, shards=3)
    stage.queue.schedule_many(NewJob(f"j{n}", "work") for n in range(0, 1000, 2))
    stale = other(clocked).queue("q")
    reshard(stage, 7)
    for queue in (stale, stage.queue):
        news = (NewJob(f"j{n}", "work") for n in range(1000))
        assert queue.schedule_many(news) == (["replaced", "created"] * 500 if queue is stale else ["replaced"] * 1000)
    assert [epoch_of(stale, f"j{n}") for n in range(6)] == [0, 1, 0, 1, 0, 1]
    assert stale.count_many(NewJob(f"k{n}", "work", fresh=True) for n in range(600)) == {"created": 600}
    assert clocked.inspector.count_shards(stale, [number_of(1, place) for place in range(7)]).ready == 500 + 600


def test_payloads_of_one_call_keep_their_order_when_their_shard_sends_them_on(stage: Stage) -> None:
    stale = other(stage.broker).queue("q")
    reshard(stage, 3)
    news = [NewJob("a", "sync", payload=Payload(b"%d" % n, "0", new_key()), on_conflict="merge") for n in range(600)]
    assert stale.schedule_many(news) == ["created"] + ["merged"] * 599
    taken = []
    while jobs := take_all(stage.queue):
        taken += [payload.data for payload in jobs[0].payloads]
        stage.done(jobs[0])
    assert taken == [b"%d" % n for n in range(600)]


def test_everything_that_is_asked_by_id_finds_it_in_either_epoch(full: Stage) -> None:
    queue = full.queue
    reshard(full, 5)
    full.put("new", at=900_000)
    for ident in ("delayed", "new"):
        assert queue.reschedule(ident, delay_ms=5)
        assert queue.run_now(ident)
        assert [job.id for job in queue.reserve_id(ident, worker="w").jobs] == [ident]
        assert queue.cancel(ident) == "stopping"
    assert queue.reserve_id("nobody", worker="w").jobs == []
    assert queue.cancel("ready") == "cancelled"
    assert queue.cancel("nobody") == ""
    assert not queue.reschedule("nobody", delay_ms=5)
    assert not queue.run_now("held"), "it runs, and nothing waits behind it"
    with pytest.raises(IdTaken):
        queue.cancel("held", task="other")
    full.in_morgue("fresh dead")
    assert full.broker.inspector.get("q", "dead").state == "morgue"  # type: ignore[union-attr]
    assert queue.discard("dead")
    assert queue.discard("fresh dead")
    assert not queue.discard("dead")


def test_t34_twice_in_a_row(full: Stage) -> None:
    before = full.picture()
    reshard(full, 5)
    full.put("second", at=600_000)
    reshard(full, 2)
    assert full.queue.epochs == ((0, 3), (1, 5), (2, 2))
    before["waiting"].append("second +600000")
    picture = full.picture()
    assert {place: sorted(lines) for place, lines in picture.items()} == {
        place: sorted(lines) for place, lines in before.items()
    }
    assert full.put("second") == "replaced"
    assert full.put("third") == "created"
    assert [epoch_of(full.queue, ident) for ident in ("delayed", "second", "third")] == [0, 1, 2]


def test_the_same_number_again_changes_nothing_and_a_wrong_one_is_refused(full: Stage) -> None:
    with unchanged(full.broker):
        assert full.broker.reshard("q", 3)["epoch"] == 0
        for shards in (0, -1, MAX_SHARDS + 1, True, 2.0):
            with pytest.raises(InvalidJob, match="1 to 1024"):
                full.broker.reshard("q", shards)  # type: ignore[arg-type]
        with pytest.raises(InvalidJob, match="no queue 'other'"):
            full.broker.reshard("other", 5)


# -- rules -----------------------------------------------------------------------------------------------------------


def test_new_shards_are_under_the_orders_of_the_queue(clocked: Broker) -> None:
    stage = Stage(clocked, shards=2)
    clocked.pause("q", "in")
    clocked.limit("q", max_length=10)
    reshard(stage, 5)
    with pytest.raises(QueuePaused):
        stage.put("a")
    clocked.resume("q", "in")
    limits = [call_stats(stage.queue, n) for n in stage.queue.numbers]
    assert len(limits) == 7
    outcomes = stage.queue.schedule_many(NewJob(f"j{n}", "work") for n in range(40))
    assert (outcomes.count("created"), outcomes.count("full")) == (10, 30)


def test_a_pause_that_is_ordered_between_the_steps_reaches_the_new_shards(clocked: Broker) -> None:
    stage, operator = Stage(clocked, shards=2), other(clocked)

    def order(layout: dict[str, Any]) -> None:
        if layout["epoch"] == 1 and "paused" not in layout:
            operator.pause("q", "in")

    with before_layout_change(clocked, order):
        reshard(stage, 3)
    assert stage.queue.layout["paused"] == {"in": 0}
    with pytest.raises(QueuePaused):
        stage.put("a")


def test_a_changer_that_wakes_up_too_late_spoils_nothing(broker: Broker) -> None:
    queue, fast = broker.queue("q", shards=2), other(broker)
    slept = []

    def sleep(call: ScriptCall) -> None:
        if call.name == "open" and not slept:
            slept.append(True)
            fast.epochs.finish("q")
            fast.reshard("q", 4)
            fast.pause("q", "out")

    with watch_calls(broker, before=sleep):
        broker.reshard("q", 3)
    assert queue.epochs == ((0, 2), (1, 3), (2, 4), (3, 3)), "it wanted three, and did not see that there were three"
    assert queue.schedule(NewJob("a", "work")) == "created"
    assert take_all(queue) == [], "the pause is in force"
    for number in queue.numbers[:-3]:
        assert queue.schedule(NewJob(next_id(queue, number), "work")) == "created"
    assert broker.inspector.count_shards(queue, queue.numbers[-3:]).ready == 10, "older shards are closed"


def test_a_closed_shard_that_forgot_it_is_closed_again_by_the_next_look_of_a_dispatcher(clocked: Broker) -> None:
    stage = Stage(clocked, shards=2)
    reshard(stage, 3)
    for number in range(2):
        clocked.client.hdel(stage.key("meta", number), "rules")
    for number in stage.queue.numbers:
        stage.queue.tick(number)
    stage.put("a")
    assert epoch_of(stage.queue, "a") == 1


# -- killed in between -----------------------------------------------------------------------------------------------


def test_t34_whoever_comes_by_finishes_a_change_that_was_killed_after_any_step(broker: Broker) -> None:
    steps, finished = 0, False
    while not finished:
        name = f"q{steps}"
        caller = other(broker)
        stale = caller.queue(name, shards=3)
        for ident in ("old", "held"):
            stale.schedule(NewJob(ident, "work"))
        (held,) = stale.reserve_id("held", worker="w").jobs
        changer = other(broker)
        changer.queue(name)
        with contextlib.suppress(Killed), dies_after(changer, steps):
            changer.reshard(name, 4)
            finished = True
        assert stale.schedule_many([NewJob(f"j{n}", "work") for n in range(30)]) == ["created"] * 30
        assert stale.schedule(NewJob("old", "work")) == "replaced"
        assert stale.schedule(NewJob("made", "work", fresh=True)) == "created"
        assert stale.settle([ack(held, 0, 0)]) == [True]
        assert stale.schedule(NewJob("held", "work")) == "created"
        assert stale.shards == (4 if steps > 1 else 3), "before any shard is closed nobody waits for it"
        assert len(take_all(stale)) == 33
        cleanup_of(caller, [stale]).run()
        assert not is_pending(stale.layout)
        steps += 1
    assert steps > 3 + 4 + 2


def test_a_change_that_was_killed_is_finished_by_the_next_one(broker: Broker) -> None:
    queue = broker.queue("q", shards=2)
    changer = other(broker)
    with pytest.raises(Killed), dies_after(changer, 2):
        changer.reshard("q", 3)
    assert broker.reshard("q", 5)["shards"] == 5
    assert queue.epochs == ((0, 2), (1, 3), (2, 5))


# -- who has not heard of it -----------------------------------------------------------------------------------------

STALE: dict[str, tuple[Callable[[Queue], object], object]] = {
    "schedule": (lambda q: q.schedule(NewJob("x", "work")), "replaced"),
    "schedule many": (lambda q: q.schedule_many([NewJob("x", "work", on_conflict="ignore")]), ["ignored"]),
    "schedule another": (lambda q: q.schedule(NewJob("y", "work")), "created"),
    "schedule made": (lambda q: q.schedule(NewJob("z", "work", fresh=True)), "created"),
    "cancel": (lambda q: q.cancel("x"), "cancelled"),
    "reschedule": (lambda q: q.reschedule("x", delay_ms=5), True),
    "run now": (lambda q: q.run_now("x"), True),
    "reserve": (lambda q: [job.id for job in q.reserve_id("x", worker="w", early=True).jobs], ["x"]),
    "kick": (lambda q: q.kick("dead"), "kicked"),
    "discard": (lambda q: q.discard("dead"), True),
    "kick many": (lambda q: kick_many(q, ["dead", "nobody"]), {"kicked": 1, "gone": 1}),
    "discard many": (lambda q: discard_many(q, ["dead", "nobody"]), {"discarded": 1, "gone": 1}),
    "get": (lambda q: Inspector(q.registry).get("q", "x").state, "delayed"),  # type: ignore[union-attr]
    "page": (lambda q: [view.id for view in Inspector(q.registry).page("q", "morgue").jobs], ["dead"]),
    "counts": (lambda q: Inspector(q.registry).counts("q").delayed, 1),
    "tick": (lambda q: q.schedule_tick(NewJob("t", "work"), 1000), "fired"),
}


@pytest.mark.parametrize("retired", [False, True])
@pytest.mark.parametrize("verb", STALE)
def test_t34_a_caller_with_an_old_layout_is_sent_on(clocked: Broker, verb: str, retired: bool) -> None:
    stage = Stage(clocked, shards=3)
    stale = other(clocked).queue("q")
    reshard(stage, 5)
    if retired:
        stage.wait(130_000)
        assert clocked.epochs.retire("q") == [0]
        clocks(stage, 0, 3)
    stage.put("x", at=900_000)
    stage.in_morgue("dead")
    stage.queue.schedule_tick(NewJob("t", "work"), 2000)
    stage.queue.cancel("t")
    act, expected = STALE[verb]
    assert stale.epochs == ((0, 3),)
    assert act(stale) == expected


def test_a_queue_whose_registry_is_older_than_its_shards_goes_on_in_a_new_epoch(broker: Broker) -> None:
    queue = broker.queue("q", shards=2)
    stored = broker.read_layout("q")[0]
    broker.reshard("q", 3)
    broker.client.hset(broker.queues_key, "q", stored)
    late = other(broker).queue("q")
    assert late.schedule(NewJob("a", "work")) == "created"
    assert queue.schedule(NewJob("a", "work")) == "replaced"
    assert late.epochs == ((0, 2), (1, 3), (2, 2)), "the forgotten epoch is among the old ones"
    assert [job.id for job in take_all(queue)] == ["a"]


def test_who_knows_a_later_epoch_than_the_registry_puts_it_back(broker: Broker) -> None:
    queue = broker.queue("q", shards=2)
    stored = broker.read_layout("q")[0]
    broker.reshard("q", 3)
    broker.client.hset(broker.queues_key, "q", stored)
    assert broker.inspector.counts("q").ready == 0
    assert other(broker).queue("q").epochs == queue.epochs == ((0, 2), (1, 3))


@pytest.mark.parametrize(
    "read", [lambda broker: broker.queues(), lambda broker: broker.served(["q"])], ids=["queues", "served"]
)
def test_a_process_that_reads_all_queues_puts_a_lost_epoch_back_too(
    broker: Broker, read: Callable[[Broker], list[Queue]]
) -> None:
    queue = broker.queue("q", shards=2)
    stored = broker.read_layout("q")[0]
    broker.reshard("q", 3)
    broker.client.hset(broker.queues_key, "q", stored)
    assert read(broker) == [queue]
    assert other(broker).queue("q").epochs == queue.epochs == ((0, 2), (1, 3))


# -- recurring -------------------------------------------------------------------------------------------------------


def test_a_tick_that_was_fired_in_an_old_epoch_is_not_fired_again(stage: Stage) -> None:
    queue = stage.queue
    since = queue.first_sight("tick", "every 1s")
    assert queue.schedule_tick(NewJob("tick", "work"), since + 1000) == "created"
    (job,) = take_all(queue)
    reshard(stage, 3)
    assert queue.schedule_tick(NewJob("tick", "work"), since + 1000) == "fired"
    assert last_tick(queue, "tick") == since + 1000
    assert queue.schedule_tick(NewJob("tick", "work"), since + 2000) == "gated"
    stage.done(job)
    stage.done(*take_all(queue))
    assert queue.schedule_tick(NewJob("tick", "work"), since + 2000) == "fired", "the old shard knows"
    stage.wait(130_000)
    assert stage.broker.epochs.retire("q") == [0]
    assert last_tick(queue, "tick") == since + 2000, "and told it to the new one"
    assert queue.first_sight("tick", "every 1s") == since + 2000
    assert queue.schedule_tick(NewJob("tick", "work"), since + 2000) == "fired"
    assert queue.schedule_tick(NewJob("tick", "work"), since + 3000) == "created"


# -- the check -------------------------------------------------------------------------------------------------------


@pytest.mark.broken_on_purpose
def test_an_id_that_lives_in_two_epochs_is_found(stage: Stage) -> None:
    stage.put("a")
    reshard(stage, 3)
    assert check_stored(stage.broker).violations == []
    stage.broker.client.hdel(stage.key("meta"), "rules")
    ident = next(f"i{n}" for n in range(100) if stage.put(f"i{n}") and epoch_of(stage.queue, f"i{n}") == 0)
    stage.queue.rule(0, {"closing": True})
    clone = stage.queue.shard(stage.queue.shard_of(ident))
    body = stage.broker.client.hget(stage.key("body"), ident)
    stage.broker.client.hset(clone.names["body"], ident, body)
    stage.broker.client.zadd(clone.names["due.4"], {ident: stage.us})
    found = [line for line in check_stored(stage.broker).violations if "two epochs" in line]
    assert found == [f"q[{clone.number}] '{ident}': live in two epochs"]


# -- on a cluster ----------------------------------------------------------------------------------------------------


def test_t34_on_a_cluster(cluster_broker: Broker, cluster_box: ClusterBox) -> None:
    queue, stale = cluster_broker.queue("q", shards=3), other(cluster_broker).queue("q")
    assert queue.schedule_many(NewJob(f"j{n}", "work") for n in range(60)) == ["created"] * 60
    dead, *rest = take_all(queue)
    queue.settle([bury(dead, 0, 0, reason="why"), *(ack(job, 0, 0) for job in rest[:30])])
    cluster_broker.reshard("q", 8)
    assert {cluster_box.node_of(queue.shard(n).keys[0]).port for n in queue.numbers} == {
        node.port for node in cluster_box.nodes
    }
    outcomes = stale.schedule_many(NewJob(f"j{n}", "work") for n in range(60))
    assert (outcomes.count("created"), outcomes.count("gated")) == (31, 29)
    assert stale.kick(dead.id) == "live"
    assert queue.kick(dead.id, replace=True) == "kicked"
    assert stale.settle([ack(job, 0, 0) for job in rest[30:]]) == [True] * 29
    assert len(take_all(queue)) == 60
    assert cluster_broker.delete_queue("q", force=True)
    assert stale.schedule(NewJob("a", "work")) == "created"
    assert_invariants(cluster_broker)

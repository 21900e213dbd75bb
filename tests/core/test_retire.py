"""End of an epoch or a queue (T44), and recovery after the loss of Redis."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import pytest

from django_delayq.core import Broker, NewJob, Settlement, ack, fail
from tests.support.core_calls import ScriptCall, before_layout_change, watch_calls
from tests.support.core_stored import MAX_SHARDS, SHARD_KEYS
from tests.support.core_values import QueueNotEmpty

from .epochs_stage import Killed, clocks, dies_after, epoch_of, forget_calls, next_id, other, reshard, take_all
from .stage import Stage
from .world import raw, unchanged

pytestmark = pytest.mark.usefixtures("impatient")


def test_an_old_epoch_ends_when_nothing_lies_in_it_and_no_call_may_come_again(full: Stage) -> None:
    retire = full.broker.epochs.retire
    reshard(full, 5)
    assert retire("q") == [], "there are jobs"
    full.wait(600_000)
    full.put("new", at=900_000)
    for job in (job for number in full.queue.numbers for job in full.queue.leases(number)):
        full.done(job)
    while jobs := take_all(full.queue):
        full.done(*jobs)
    assert retire("q") == [], "there is a grave"
    assert full.queue.discard("dead")
    assert retire("q") == [], "the last calls may be sent again"
    full.wait(121_000)
    assert retire("q") == [0]
    assert full.queue.epochs == ((1, 5),)
    for place in range(3):
        events = full.broker.shard("q", place).names["event"]
        assert 0 < full.broker.client.ttl(events) <= 86_400 or not full.broker.client.exists(events)
        full.broker.client.delete(events)
    left = {key.partition("{")[2] for key in raw(full.broker) if "0." in key}
    assert left == set()
    for place in range(3):
        shard = full.broker.shard("q", place)
        assert {key for key in shard.keys if full.broker.client.exists(key)} <= {
            shard.names["meta"],
            *shard.keys[len(SHARD_KEYS) :],
        }
    assert retire("q") == []


def test_counters_outlive_epochs_and_are_handed_on_once_although_who_did_it_was_killed_at_any_step(
    broker: Broker,
) -> None:
    for step in itertools.count():
        queue = broker.queue(f"q{step}")
        queue.schedule_many(NewJob(f"j{number}", "work") for number in range(20))
        assert all(queue.settle([ack(job, 0, 0) for job in take_all(queue)]))
        broker.reshard(queue.name, 2)
        before = broker.inspector.counts(queue.name).counters
        assert (before["created"], before["acked"]) == (20, 20)
        forget_calls(queue)
        finished = False
        with contextlib.suppress(Killed), dies_after(broker, step):
            broker.epochs.retire(queue.name)
            finished = True
        other(broker).epochs.retire(queue.name)
        assert broker.epochs.retire(queue.name) == []
        assert broker.inspector.counts(queue.name).counters == before
        assert not broker.client.exists(broker.shard(queue.name, 0).names["count"])
        if finished:
            break
    assert step > 3


def test_nothing_is_ever_written_to_a_tombstone(stage: Stage) -> None:
    stale = other(stage.broker).queue("q")
    stage.put("a")
    (lost,) = stage.take()
    reshard(stage, 2)
    stage.done(lost)
    stage.wait(130_000)
    assert stage.broker.epochs.retire("q") == [0]
    shard = stage.broker.shard("q", 0)

    def there() -> list[bytes]:
        return [key for key in shard.keys[: len(SHARD_KEYS)] if stage.broker.client.exists(key)]

    clocks(stage, 0, 1)
    assert there() == [shard.names["event"], shard.names["meta"]]
    stage.broker.client.delete(shard.names["event"])  # a day later
    assert stale.settle([ack(lost, 0, 0), fail(lost, 0, 0, delay_ms=0)]) == [False, False]
    assert stale.settle([Settlement(lost, verb="record")]) == [True], "its end is told to nobody any more"
    assert stale.touch([lost]) == ["lost"]
    assert stale.reserve(0, 10, worker="w").jobs == []
    stale.tick(0)
    assert stale.schedule_many([NewJob("x", "work"), NewJob("y", "other")]) == ["created"] * 2
    assert there() == [shard.names["meta"]]


# -- T44: deleting a queue -------------------------------------------------------------------------------------------


def test_t44_a_queue_with_jobs_or_graves_is_not_deleted_unless_forced(full: Stage) -> None:
    with unchanged(full.broker), pytest.raises(QueueNotEmpty, match="6 jobs and 1 morgue records"):
        full.broker.delete_queue("q")
    assert full.broker.queue_names() == ["q"]
    assert full.broker.delete_queue("q", force=True)
    assert full.broker.queue_names() == []
    assert not full.broker.delete_queue("q")
    assert [key for key in raw(full.broker) if ":q:" in key or "{q:" in key] == []


@pytest.mark.parametrize("force", [False, True])
def test_t44_of_a_deleted_queue_every_key_goes_but_the_tombstones_of_its_shards(broker: Broker, force: bool) -> None:
    stage = Stage(broker, clock=False)
    stage.put("a")
    job = stage.take_one()
    assert stage.settle(Settlement(job, verb="ack_early", event=False)) == [True]
    if not force:
        with (
            unchanged(broker),
            pytest.raises(QueueNotEmpty, match="1 running attempts of jobs that were acked before they began"),
        ):
            broker.delete_queue("q")
        assert stage.settle(Settlement(job, verb="record")) == [True]
    assert broker.delete_queue("q", force=force)
    left = {key for key in broker.client.scan_iter(f"{broker.prefix}:*") if b"{q:" in key or b":q" in key}
    assert left == {stage.key("meta")}


def test_an_epoch_with_an_open_run_of_an_acked_job_does_not_end(stage: Stage) -> None:
    stage.put("a")
    job = stage.take_one()
    assert stage.settle(Settlement(job, verb="ack_early", event=False)) == [True]
    assert stage.broker.inspector.counts("q").begun == 1
    reshard(stage, 2)
    stage.wait(130_000)
    assert stage.broker.epochs.retire("q") == []
    assert stage.settle(Settlement(job, verb="record")) == [True]
    stage.wait(130_000)
    assert stage.broker.epochs.retire("q") == [0]


def test_t44_a_producer_that_knew_the_queue_brings_it_back_where_all_can_see_it(broker: Broker) -> None:
    producers = [other(broker).queue("q", shards=2) for _ in range(4)]
    for queue in producers:
        queue.schedule(NewJob("before", "work"))
    watcher = other(broker)
    assert watcher.delete_queue("q", force=True)
    assert watcher.queue_names() == []
    assert producers[0].cancel("before") == ""
    assert not producers[0].run_now("before")
    assert producers[0].kick("before") == ""
    assert watcher.queue_names() == [], "asking for a job brings nothing into being"
    assert producers[0].schedule(NewJob("a", "work")) == "created"
    assert producers[1].schedule(NewJob("a", "work")) == "replaced"
    assert producers[2].schedule_many([NewJob("b", "work", fresh=True)]) == ["created"]
    assert producers[3].schedule(NewJob("c", "work", fresh=True)) == "created"
    assert watcher.queue_names() == ["q"]
    assert watcher.queue("q").epochs == ((1, 2),)
    assert {job.id for job in take_all(watcher.queue("q"))} == {"a", "b", "c"}


def test_t44_who_holds_a_job_of_a_deleted_queue_learns_that_it_lost_it(broker: Broker) -> None:
    queue = broker.queue("q")
    for ident in ("a", "b"):
        queue.schedule(NewJob(ident, "work"))
    a, b = take_all(queue)
    other(broker).delete_queue("q", force=True)
    assert queue.touch([a, b]) == ["lost", "lost"]
    assert queue.settle([ack(a, 0, 0), fail(b, 0, 0, delay_ms=5)]) == [False, False]
    assert queue.settle_reserve(0, [ack(a, 0, 0)], 5, worker="w")[0] == [False]
    assert queue.schedule(NewJob("a", "work")) == "created"
    (again,) = take_all(queue)
    assert again.shard == MAX_SHARDS


def test_t44_a_deletion_that_was_killed_after_any_step_is_finished_by_whoever_comes_by(broker: Broker) -> None:
    steps, finished = 0, False
    while not finished:
        name = f"q{steps}"
        producer = other(broker).queue(name, shards=2)
        producer.schedule(NewJob("before", "work"))
        killer = other(broker)
        killer.queue(name)
        with contextlib.suppress(Killed), dies_after(killer, steps):
            finished = killer.delete_queue(name, force=True)
        ident = next_id(producer, 0)  # whose shard is closed first
        assert producer.schedule(NewJob(ident, "work")) == "created"
        left = {job.id for job in take_all(producer)}
        assert left == ({ident, "before"} if steps < 2 else {ident}), "before any shard is closed nobody notices"
        steps += 1
    assert steps > 5


def test_t44_a_job_that_comes_while_an_empty_queue_is_deleted_is_not_lost(broker: Broker) -> None:
    producer = other(broker).queue("q", shards=2)

    def schedule(layout: dict[str, Any]) -> None:
        if layout.get("leaving"):
            producer.schedule(NewJob("a", "work"))

    with pytest.raises(QueueNotEmpty), before_layout_change(broker, schedule):
        broker.delete_queue("q")
    assert producer.schedule(NewJob("b", "work")) == "created"
    assert {job.id for job in take_all(producer)} == {"a", "b"}


# -- lost with Redis -------------------------------------------------------------------------------------------------


def test_what_was_lost_with_redis_is_put_back_with_its_tombstones(clocked: Broker) -> None:
    stage, stale = Stage(clocked, shards=2), other(clocked).queue("q")
    reshard(stage, 3)
    stage.wait(130_000)
    assert clocked.epochs.retire("q") == [0]
    clocked.announce("w", {})
    seen = clocked.worker_registry.changes
    if clocked.connection.cluster:
        clocked.client.flushall(target_nodes="primaries")
    else:
        clocked.client.flushall()
    clocks(stage, 0, 2)
    clocks(stage, 1, 3)
    assert stale.schedule(NewJob("a", "work")) == "created", "into a shard that nobody else knows"
    clocked.announce("w", {})
    assert clocked.worker_registry.changes != seen
    (queue,) = clocked.served(["q"])
    assert queue.epochs == ((0, 2), (1, 3))
    assert stale.schedule(NewJob("b", "work")) == "created"
    assert {epoch_of(queue, ident) for ident in "ab"} == {0, 1}
    assert {job.id for job in take_all(queue)} == {"a", "b"}


def test_counters_are_handed_on_once_although_who_did_it_was_killed_right_after_it(stage: Stage) -> None:
    stage.put("a")
    stage.done(stage.take_one())
    reshard(stage, 2)
    before = stage.broker.inspector.counts("q").counters
    stage.wait(130_000)

    def die(call: ScriptCall) -> None:
        if call.name == "carry" and any(isinstance(word, bytes) and word.startswith(b"count:") for word in call.args):
            raise Killed

    with pytest.raises(Killed), watch_calls(stage.broker, after=die):
        stage.broker.epochs.retire("q")
    assert other(stage.broker).epochs.retire("q") == [0]
    assert stage.broker.inspector.counts("q").counters == before

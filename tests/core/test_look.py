"""Snapshot of a shard by the dispatcher's tick, for components that keep records outside Redis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from django_delayq.core import Broker, Inspector, NewJob, RedisConfig, connect
from tests.support.core_calls import before_layout_change
from tests.support.core_values import QueueNotEmpty
from tests.support.processes import wait_until
from tests.support.redis_box import RedisBox

from .bulk_stage import discard_all
from .epochs_stage import clocks, reshard
from .stage import Stage
from .world import unchanged


def test_a_look_tells_how_much_failed_and_was_buried_and_when_last(stage: Stage) -> None:
    tick = stage.queue.tick(0)
    assert (tick.marks, tick.failed, tick.morgue) == (0, (0, 0), (0, 0))
    stage.durable = True
    for ident in ("a", "b", "c"):
        stage.put(ident)
    a, b, c = stage.take()
    stage.failed(a, 60_000)
    stage.wait(50)
    stage.failed(b, 60_000)
    stage.buried(c)
    tick = stage.queue.tick(0)
    assert tick.marks == 1
    assert [(n, us // 1000 - stage.us // 1000) for n, us in (tick.failed, tick.morgue)] == [(2, 0), (1, 0)]
    discard_all(stage.queue)
    stage.taken_marks()
    after = stage.queue.tick(0)
    assert (after.marks, after.failed, after.morgue) == (0, tick.failed, (0, 0))


def test_a_shard_that_lost_its_data_has_another_birth(stage: Stage) -> None:
    stage.put("a")
    born = stage.queue.tick(0).born
    stage.wait(1000)
    assert len(born) == 16
    assert stage.queue.tick(0).born == born
    stage.broker.client.flushdb()
    stage.wait(0)
    assert stage.queue.tick(0).born not in (born, b"")


def test_jobs_of_a_shard_that_lost_its_meta_alone_are_found_by_the_next_look(stage: Stage) -> None:
    for ident, priority in (("a", 0), ("b", 4), ("c", 7)):
        stage.put(ident, priority=priority)
    stage.broker.client.delete(stage.key("meta"))
    stage.wait(0)
    assert stage.take() == []
    assert stage.queue.tick(0).next_due_ms is not None
    assert [job.id for job in stage.take()] == ["a", "b", "c"]


def test_a_server_that_got_the_data_of_another_one_counts_as_another_run(
    redis_factory: Callable[..., RedisBox],
) -> None:
    """Both changed their roles twice: the server is the same, and what it got from the other one is older."""
    box, second = (redis_factory(tcp=True, repl_diskless_sync_delay=0) for _ in range(2))
    connection = connect(RedisConfig.parse(box.url))
    queue = Broker(connection).queue("q")
    second.client().replicaof(*box.address)
    wait_until(lambda: second.client().info("replication")["master_link_status"] == "up", 30, "the first copy")
    before = queue.tick(0)
    run_id = box.client().info("server")["run_id"]
    assert before.run_id == run_id + box.client().info("replication")["master_replid"]
    box.client().set("mark", 1)
    assert box.client().wait(1, 10_000) == 1
    second.client().replicaof("NO", "ONE")
    queue.schedule(NewJob("lost", "work"))
    box.client().replicaof(*second.address)
    wait_until(lambda: box.client().info("replication")["master_link_status"] == "up", 30, "the second copy")
    box.client().replicaof("NO", "ONE")
    after = queue.tick(0)
    assert Inspector(queue.registry).get("q", "lost") is None
    assert after.born == before.born
    assert after.run_id != before.run_id
    assert after.run_id.startswith(run_id)
    assert after.held_back
    connection.close()


def test_a_look_at_a_tombstone_tells_nothing_and_leaves_nothing(stage: Stage) -> None:
    stage.queue.tick(0)
    reshard(stage, 2)
    stage.wait(200_000)
    assert stage.broker.epochs.retire("q") == [0]
    with unchanged(stage.broker):
        tick = stage.queue.tick(0)
    assert (tick.born, tick.marks, tick.failed, tick.morgue) == (b"", 0, (0, 0), (0, 0))
    assert not stage.broker.client.hexists(stage.broker.shard("q", 0).names["meta"], "born")


def test_what_a_look_trims_out_of_the_morgue_is_marked(stage: Stage) -> None:
    stage.durable = True
    for ident in ("a", "b"):
        stage.in_morgue(ident)
    stage.taken_marks()
    stage.queue.rule(0, {"morgue_max": 1})
    assert stage.queue.tick(0).marks == 1
    assert list(stage.taken_marks().values()) == ["done"]


@pytest.mark.usefixtures("impatient")
def test_a_queue_is_not_deleted_as_long_as_somebody_waits_for_the_end_of_a_job(stage: Stage) -> None:
    """Otherwise its row would never be deleted, and the job would be sent again into a re-created queue."""
    stage.durable = True
    stage.put("a")
    stage.done(stage.take_one())
    assert stage.broker.inspector.counts("q").marks == 1
    with unchanged(stage.broker), pytest.raises(QueueNotEmpty, match="marks of 1 durable jobs"):
        stage.broker.delete_queue("q")
    clocks(stage, 1, 1)  # of the epoch in which the queue goes on
    stage.taken_marks()

    def end_a_job(layout: dict[str, Any]) -> None:
        if layout.get("leaving") and layout["epoch"] == 0:
            stage.put("b")
            stage.done(stage.take_one())

    with pytest.raises(QueueNotEmpty, match="marks of 1 durable jobs"), before_layout_change(stage.broker, end_a_job):
        stage.broker.delete_queue("q")  # the job ends between check and closing
    stage.taken_marks()
    assert stage.broker.delete_queue("q")

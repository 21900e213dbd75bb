"""Verbs of the dispatcher on what the model has not: other runs of Redis, lost data, completions, many leases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from django_delayq.core import Broker, Inspector, NewJob, RedisConfig, connect
from tests.support.core_calls import before_layout_change
from tests.support.core_values import QueueNotEmpty
from tests.support.redis_box import RedisBox

from .bulk_stage import discard_all
from .epochs_stage import clocks
from .stage import LEASE, Stage
from .world import unchanged


def test_only_the_runs_that_are_known_to_have_started_are_marked(stage: Stage) -> None:
    stage.put("a")
    stage.put("b")
    a, b = stage.take()
    stage.queue.touch([a, b], {(a.id, a.token), (b.id, b.token + 1)})
    assert stage.picture() == {"reserved": [f"a by w until +{LEASE} started", f"b by w until +{LEASE}"]}


@pytest.mark.parametrize("fresh", [True, False])
def test_a_delay_counts_from_the_time_that_stands_still_after_a_small_step_back(stage: Stage, fresh: bool) -> None:
    """Also for a job whose id was just generated and that is not the shard's next."""
    stage.put("first", at=-60_000)
    stage.wait(-10_000)
    stage.put("second", delay_ms=5000, fresh=fresh)
    assert [job.id for job in stage.take()] == ["first"]
    stage.wait(10_000 + 4999)
    assert [job.id for job in stage.take()] == []
    stage.wait(1)
    assert [job.id for job in stage.take()] == ["second"]


def test_during_a_reaper_hold_nothing_is_taken_from_its_holder(stage: Stage) -> None:
    stage.put("a")
    stage.take()
    stage.wait(LEASE)
    found = stage.queue.expired(0)
    assert stage.queue.tick(0, hold=True).held_back
    assert stage.queue.expired(0) == []
    with unchanged(stage.broker):
        assert stage.queue.take_over(found, "heir") == []
    stage.wait(LEASE - 1)
    assert stage.queue.tick(0).held_back
    stage.wait(1)
    assert not stage.queue.tick(0).held_back
    assert [job.id for job in stage.queue.expired(0)] == ["a"]


def test_another_run_of_redis_arms_the_hold(stage: Stage) -> None:
    assert not stage.queue.tick(0).held_back
    stage.broker.client.hset(stage.key("meta"), "run_id", "of another life")
    assert stage.queue.tick(0).held_back
    stage.wait(LEASE)
    assert not stage.queue.tick(0).held_back


# -- snapshot of a shard by the dispatcher's tick, for components that keep records outside Redis ----------------------


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
    second.follow(box)
    before = queue.tick(0)
    run_id = box.client().info("server")["run_id"]
    assert before.run_id == run_id + box.client().info("replication")["master_replid"]
    box.client().set("mark", 1)
    assert box.client().wait(1, 10_000) == 1
    second.client().replicaof("NO", "ONE")
    queue.schedule(NewJob("lost", "work"))
    box.follow(second)
    box.client().replicaof("NO", "ONE")
    after = queue.tick(0)
    assert Inspector(queue.registry).get("q", "lost") is None
    assert after.born == before.born
    assert after.run_id != before.run_id
    assert after.run_id.startswith(run_id)
    assert after.held_back
    connection.close()


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

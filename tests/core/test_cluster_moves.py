"""Slots that move between the masters of a Redis Cluster in use, and masters that change or die.

What can be promised: a failover in good order (CLUSTER FAILOVER) loses nothing, and neither does the restart of a
killed master that writes every command to its append-only file (``tests/chaos``). A killed master whose replica takes
over loses what the replica had not got yet, because Redis answers first and replicates then: there only what a WAIT has
confirmed is sure.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from django_delayq.core import Broker, Inspector, NewJob, Queue, QueueUnavailable, RedisConfig, ack, connect, new_id
from tests.support.cluster_box import ClusterBox, Move, refusals
from tests.support.core_stored import assert_invariants, shard_key
from tests.support.processes import wait_until
from tests.support.redis_box import RedisBox

from .cluster_load import QUEUE, Producer, at_work


@pytest.fixture(scope="module")
def cluster(redis_box: RedisBox) -> Iterator[ClusterBox]:
    """Provide three masters for this module only, because its tests move slots."""
    with ClusterBox(binary=redis_box.binary) as box:
        yield box


@pytest.fixture
def broker(cluster: ClusterBox, prefix: str) -> Iterator[Broker]:
    cluster.flush()
    connection = connect(RedisConfig.parse(cluster.setting))
    made = Broker(connection, prefix=prefix)
    yield made
    assert_invariants(made)
    connection.close()


@pytest.fixture
def queue(broker: Broker) -> Queue:
    """Return a queue of one shard with a job due much later, a due job and a held job."""
    queue = broker.queue("q")
    assert queue.schedule(NewJob("held", "work")) == "created"
    queue.reserve(0, 1, worker="w")
    assert queue.schedule(NewJob("far", "work", delay_ms=3_600_000)) == "created"
    assert queue.schedule(NewJob("due", "work")) == "created"
    return queue


def key_of(queue: Queue, number: int = 0) -> bytes:
    return shard_key(queue, "meta", number)


def other_master(cluster: ClusterBox, queue: Queue) -> RedisBox:
    return next(node for node in cluster.nodes if node is not cluster.node_of(key_of(queue)))


@contextmanager
def half_moved(cluster: ClusterBox, queue: Queue, *, keys: int = 2) -> Iterator[Move]:
    """Move some of the shard's keys to another master; complete the move after the block."""
    move = cluster.move(cluster.slot_of(key_of(queue)), other_master(cluster, queue))
    for _ in range(keys):
        assert move.carry() == 1
    try:
        yield move
    finally:
        move.finish()


def settle_held(queue: Queue) -> Any:
    (held,) = [job for job in queue.leases(0) if job.id == "held"]
    return queue.settle([ack(held, 1, 2)])


def schedule_fresh(queue: Queue) -> Any:
    return queue.schedule(NewJob(new_id(), "work", delay_ms=7_200_000, fresh=True))


VERBS: dict[str, tuple[Callable[[Queue], Any], Any]] = {
    "schedule": (lambda queue: queue.schedule(NewJob("a", "work")), "created"),
    "schedule_many": (lambda queue: queue.schedule_many([NewJob("a", "work"), NewJob("b", "work")]), ["created"] * 2),
    "settle": (settle_held, [True]),
    "counts": (lambda queue: Inspector(queue.registry).counts("q").reserved, 1),
    "page": (lambda queue: [job.id for job in Inspector(queue.registry).page("q", "waiting").jobs], ["due", "far"]),
}


@pytest.mark.parametrize("verb", VERBS)
def test_t36_a_verb_waits_for_the_end_of_its_slots_move(cluster: ClusterBox, queue: Queue, verb: str) -> None:
    call, expected = VERBS[verb]
    answers: list[Any] = []
    before = refusals(*cluster.nodes)
    with half_moved(cluster, queue):
        thread = threading.Thread(target=lambda: answers.append(call(queue)))
        thread.start()
        wait_until(lambda: refusals(*cluster.nodes) > before + 20, 10, "a call that was sent away again and again")
        assert answers == []
    thread.join(10)
    assert answers == [expected]


def test_t36_a_fresh_job_is_taken_in_wherever_all_of_its_keys_are(cluster: ClusterBox, queue: Queue) -> None:
    """Most schedule() calls use a script with few keys, which all exist, so it does not wait for the others."""
    with half_moved(cluster, queue, keys=0) as move:
        assert [schedule_fresh(queue) for _ in range(5)] == ["created"] * 5
        while move.carry(10):
            pass
        assert [schedule_fresh(queue) for _ in range(5)] == ["created"] * 5
    assert Inspector(queue.registry).counts("q").delayed == 11


def test_t36_a_move_that_does_not_end_is_a_clear_error(cluster: ClusterBox, queue: Queue) -> None:
    queue.deployment.connection.moving_seconds = 0.1
    with half_moved(cluster, queue):
        with pytest.raises(QueueUnavailable, match="try again"):
            queue.schedule(NewJob("a", "work"))
        with pytest.raises(QueueUnavailable, match="try again"):
            queue.schedule_many([NewJob("a", "work")])
    assert queue.schedule(NewJob("a", "work")) == "created"


def test_t36_slots_that_move_under_load_lose_nothing_and_double_nothing(cluster: ClusterBox, tmp_path: Path) -> None:
    moves = 0
    with at_work(cluster, tmp_path) as mill:
        slots = mill.slots(cluster)
        with Producer(mill) as producer:
            producer.wait_for(50)
            for target in cluster.nodes:
                for slot in (*slots, cluster.slot_of(f"{{{mill.prefix}}}:queues")):
                    if cluster.owner(slot) is not target:
                        move = cluster.move(slot, target)
                        if slot in slots and move.carry(2):
                            wait_until(move.was_refused, 10, "somebody who wants that shard")
                        move.finish()
                        moves += 1
            producer.wait_for(50)
        mill.wait_ended(producer.accepted)
        mill.wait_empty(QUEUE)
        assert producer.refused == []
        assert mill.unexplained(producer.accepted) == {}
        assert set(mill.starts_by_id()) == set(producer.accepted)
        assert mill.counts(QUEUE).morgue == 0
    print(f"{len(producer.accepted)} jobs, {moves} moves, longest schedule() {producer.longest:.3f} s")


def test_t36_a_slot_moves_to_a_node_that_nobody_knew(cluster: ClusterBox, queue: Queue) -> None:
    added = cluster.add_master()
    answers: list[str] = []
    before = refusals(*cluster.nodes)
    move = cluster.move(cluster.slot_of(key_of(queue)), added)
    while move.carry(10):
        pass
    assert schedule_fresh(queue) == "created", "all its keys are there already"
    thread = threading.Thread(target=lambda: answers.append(queue.schedule(NewJob("b", "work"))))
    thread.start()
    wait_until(lambda: refusals(*cluster.nodes) > before + 20, 10, "a call that was sent to the new node")
    assert answers == []
    move.finish()
    thread.join(10)
    assert answers == ["created"]
    assert cluster.node_of(key_of(queue)) is added
    assert [job.id for job in queue.reserve(0, 5, worker="w").jobs] == ["due", "b"]


# -- masters of a Redis Cluster that change or die while producers and a worker process use them -----------------------


@pytest.fixture(scope="module")
def replicated(redis_box: RedisBox) -> Iterator[ClusterBox]:
    """Provide three masters, each with a replica."""
    with ClusterBox(replicas=True, binary=redis_box.binary) as box:
        yield box


def test_t36_a_failover_in_good_order_under_load_loses_nothing(replicated: ClusterBox, tmp_path: Path) -> None:
    with at_work(replicated, tmp_path) as mill:
        with Producer(mill) as producer:
            for number in range(2):
                producer.wait_for(50)
                replicated.fail_over(number, crash=False)
            producer.wait_for(50)
        mill.wait_ended(producer.accepted)
        assert producer.refused == []
        assert mill.unexplained(producer.accepted) == {}
    print(f"{len(producer.accepted)} jobs, longest schedule() {producer.longest:.3f} s")


@pytest.mark.slow
def test_t36_when_a_replica_takes_over_from_a_killed_master_what_it_had_is_not_lost(
    replicated: ClusterBox, tmp_path: Path
) -> None:
    with at_work(replicated, tmp_path) as mill:
        confirmed = mill.put_many("grind", 200, queue=QUEUE, delay_ms=2_000)
        for node in replicated.nodes:
            node.client().set(replicated.a_key_of(node), 1)  # WAIT waits for what its own connection wrote last
            assert node.client().wait(1, 5_000) == 1
        old = replicated.nodes[0]
        its_shards = {number for number, slot in enumerate(mill.slots(replicated)) if replicated.owner(slot) is old}
        with Producer(mill) as producer:
            producer.wait_for(50)
            replicated.fail_over(0, crash=True)
            before = len(producer.accepted)
            producer.wait_for(50)
        old.start()  # as a replica of its successor
        mill.wait_ended([*confirmed, *producer.accepted[before:]])
        mill.wait_empty(QUEUE)
        lost = set(producer.accepted) - set(mill.starts_by_id())
        shard_of = mill.broker.queue(QUEUE).shard_of
        assert {shard_of(ident) for ident in lost} <= its_shards, "the other masters lose nothing"
    print(f"{len(producer.accepted)} jobs, {len(producer.refused)} refused during the change, {len(lost)} lost")

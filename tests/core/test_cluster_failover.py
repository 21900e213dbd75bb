"""Masters of a Redis Cluster that change or die while producers and a worker process use them.

What can be promised: a failover in good order (CLUSTER FAILOVER) loses nothing, and neither does the restart of a
killed master that writes every command to its append-only file. A killed master whose replica takes over loses what the
replica had not got yet, because Redis answers first and replicates then: there only what a WAIT has confirmed is sure.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster_box import ClusterBox
from tests.support.redis_box import RedisBox

from .cluster_load import QUEUE, Producer, at_work


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


def test_t36_a_killed_master_that_keeps_its_file_comes_back_with_everything(
    redis_box: RedisBox, tmp_path: Path
) -> None:
    with ClusterBox(aof="always", binary=redis_box.binary) as cluster, at_work(cluster, tmp_path) as mill:
        with Producer(mill) as producer:
            producer.wait_for(50)
            dead = cluster.nodes[1]
            living = {number for number, slot in enumerate(mill.slots(cluster)) if cluster.owner(slot) is not dead}
            dead.kill()
            elsewhere = mill.put_at_shards(living, 20)
            mill.wait_ended(elsewhere)  # the shards of the others go on
            dead.start()
            producer.wait_for(50)
        mill.wait_ended(producer.accepted)
        assert mill.unexplained([*producer.accepted, *elsewhere]) == {}
    print(f"{len(producer.accepted)} jobs, {len(producer.refused)} refused meanwhile, longest {producer.longest:.3f} s")

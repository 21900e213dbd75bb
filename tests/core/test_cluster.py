"""Every verb on a Redis Cluster of three masters: one slot for each call, and a hot queue is on every node."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from django_delayq.core import Broker, NewJob, QueueUnavailable, ack, new_id
from tests.support.cluster_box import ClusterBox
from tests.support.core_calls import (
    ChannelWaker,
    Waker,
    begin_stats,
    call_stats,
    port_of,
    script_names,
    scripts_used,
    silence_is_checked_after,
)
from tests.support.core_stored import shard_key
from tests.support.worker_stage import put, registry_of, working

from .deployment_stage import Deployment

SHARDS = 6


def test_t35_every_verb_works_over_all_nodes(cluster_broker: Broker, cluster_box: ClusterBox) -> None:
    called = scripts_used(cluster_broker)
    deployment = Deployment(cluster_broker, shards=SHARDS)
    homes = {cluster_box.node_of(shard_key(deployment.queue, "meta", number)).port for number in range(SHARDS)}
    assert homes == {node.port for node in cluster_box.nodes}
    deployment.use_every_verb()
    assert called == set(script_names()), "each script was run at least once"


def test_t35_one_hot_queue_lies_on_all_masters_which_share_its_work(
    cluster_broker: Broker, cluster_box: ClusterBox
) -> None:
    def calls() -> list[int]:
        told = [node.client().info("commandstats") for node in cluster_box.nodes]
        return [stats.get("cmdstat_evalsha", {}).get("calls", 0) for stats in told]

    queue = cluster_broker.queue("hot", shards=16)
    lie = Counter(cluster_box.node_of(shard_key(queue, "meta", number)).port for number in range(16))
    assert len(lie) == 3
    assert min(lie.values()) >= 3
    before = calls()
    assert queue.schedule_many(NewJob(new_id(), "work") for _ in range(4000)) == ["created"] * 4000
    done = 0
    for number in range(16):
        while jobs := queue.reserve(number, 50, worker="w").jobs:
            done += queue.settle([ack(job, 1, 2) for job in jobs]).count(True)
    assert done == 4000
    shares = [after - at_first for after, at_first in zip(calls(), before, strict=True)]
    assert min(shares) > sum(shares) / 16 * 2, shares


def test_t35_chunks_for_several_nodes_are_on_the_way_at_the_same_time(
    cluster_broker: Broker, cluster_box: ClusterBox
) -> None:
    """A producer does not wait for a slow node while it has jobs for other nodes."""
    queue = cluster_broker.queue("q", shards=SHARDS)
    homes = {number: cluster_box.node_of(shard_key(queue, "meta", number)) for number in range(SHARDS)}
    shard, slow = next(iter(homes.items()))
    quick = next(number for number, node in homes.items() if node is not slow)
    queue.schedule_many(NewJob(f"j{n}", "work", delay_ms=1000) for n in range(100))  # scripts loaded, lines open
    slow.pause()
    try:
        wait = begin_stats(queue, shard)
        assert call_stats(queue, quick)
    finally:
        slow.resume()
    assert wait()


def test_a_waiter_hears_of_what_happens_before_its_first_look(cluster_broker: Broker) -> None:
    queue = cluster_broker.queue("q", shards=SHARDS)
    waker = cluster_broker.waker(["q"])
    assert waker.forgetful, "of what came before it was made nobody will tell it"
    queue.schedule(NewJob("a", "work"))
    assert waker.wait(10) == [("q", queue.shard_of("a"))]
    waker.close()


def test_a_worker_misses_nothing_that_happens_while_it_begins_to_listen(
    cluster_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = threading.Event()
    listen = cluster_broker.waker

    def too_late(queues: list[str]) -> Waker:
        put(cluster_broker, "work")  # the fetch loop has just seen that there is nothing
        return listen(queues)

    def work() -> None:
        ran.set()

    monkeypatch.setattr(cluster_broker, "waker", too_late)
    with working(cluster_broker, registry_of(work)):
        assert ran.wait(2), "the next look without a reason comes after three seconds"


# -- A node of a cluster that keeps its connections open but does not answer any more ----------------------------------


@pytest.mark.one_server("it stops a master")
def test_a_wait_for_wake_ups_ends_with_an_error_when_its_node_falls_silent(
    cluster_box: ClusterBox, cluster_broker: Broker
) -> None:
    cluster_broker.queue("q")
    waker = ChannelWaker(cluster_broker.connection, cluster_broker.prefix, ["q"])
    port = port_of(waker)
    node = next(node for node in cluster_box.nodes if node.port == port)
    node.pause()
    try:
        with silence_is_checked_after(0.5), pytest.raises(QueueUnavailable, match="does not answer"):
            waker.wait(30.0)
    finally:
        node.resume()
        waker.close()


def test_a_wait_for_wake_ups_lasts_as_long_as_its_node_answers(cluster_broker: Broker) -> None:
    cluster_broker.queue("q")
    waker = ChannelWaker(cluster_broker.connection, cluster_broker.prefix, ["q"])

    with silence_is_checked_after(0.5):
        assert waker.wait(3.0) == [], "longer than the silence and the wait for an answer"

    waker.close()

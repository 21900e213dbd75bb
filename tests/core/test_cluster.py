"""Every verb on a Redis Cluster of three masters: one slot for each call, and a hot queue lies on every node."""

from __future__ import annotations

import threading

from django_delayq.core import events, fsck
from django_delayq.core.broker import Broker
from django_delayq.core.job import NewJob, ack, bury, fail, new_id, release
from django_delayq.core.wake import ChannelWaker
from tests.support.cluster_box import ClusterBox

from .stage import Stage

SHARDS = 6


def test_every_verb_works_over_all_nodes(cluster_broker: Broker, cluster_box: ClusterBox) -> None:
    stage = Stage(cluster_broker, shards=SHARDS, clock=False)
    queue = stage.queue
    assert {cluster_box.node_of(queue.shard(n).keys[0]).port for n in range(SHARDS)} == {
        node.port for node in cluster_box.nodes}  # fmt: skip
    jobs = [NewJob(f"j{n}", "work") for n in range(60)]
    assert queue.schedule_many(jobs) == ["created"] * 60
    assert [queue.schedule(NewJob(new_id(), "work", delay_ms=60_000, fresh=True)) for _ in range(30)] == [
        "created"
    ] * 30
    assert stage.add("merged", b"p") == "created"
    assert stage.add("merged", b"q") == "merged"
    held = [job for number in range(SHARDS) for job in queue.reserve(number, 50, worker="w").jobs]
    assert len(held) == 61
    plain = [job for job in held if not job.merged]
    assert queue.touch(held, {(job.id, job.token) for job in held}) == ["held"] * 61
    assert queue.schedule(NewJob(plain[0].id, "work", args=b"new")) == "gated"
    assert queue.cancel(plain[1].id) == "stopping"
    makers = (lambda job: ack(job, 1, 2), lambda job: fail(job, 1, 2, delay_ms=0), release,
              lambda job: bury(job, 1, 2, reason="why"))  # fmt: skip
    assert queue.settle([makers[place % 4](job) for place, job in enumerate(held)]) == [True] * 61
    assert queue.settle([ack(job, 1, 2) for job in held]) == [False] * 61
    buried = [job.id for place, job in enumerate(held) if place % 4 == 3]
    assert [queue.kick(ident, delay_ms=60_000) for ident in buried[:5]] == ["kicked"] * 5
    assert all(queue.discard(ident) for ident in buried[5:])
    assert queue.reschedule(buried[0], delay_ms=120_000)
    assert queue.run_now(buried[0])
    assert queue.cancel(buried[1]) == "cancelled"
    for number in range(SHARDS):
        tick = queue.tick(number)
        assert not tick.expired
        assert queue.expired(number) == []
        batch = queue.reserve(number, 1, worker="w")
        counted, _ = queue.settle_reserve(number, [ack(job, 1, 2) for job in batch.jobs], 5, worker="w")
        assert all(counted)
    assert len(list(queue.held_by("w"))) > 5
    inspector = cluster_broker.inspector
    counts = inspector.counts("q")
    assert counts.delayed >= 30
    assert inspector.all_counts()[0].reserved == counts.reserved
    found, cursor = [], ""
    while True:
        page = inspector.page("q", "waiting", cursor=cursor, limit=7)
        found += [view.id for view in page.jobs]
        if not (cursor := page.cursor):
            break
    assert len(found) == len(set(found)) == counts.delayed + counts.ready
    assert inspector.get("q", found[0]) is not None
    assert sum(len(events.read(cluster_broker, "q", number)) for number in range(SHARDS)) > 40
    assert cluster_broker.announce("w:1", {"threads": 1})
    assert [worker["name"] for worker in cluster_broker.workers()] == ["w:1"]
    assert cluster_broker.queue_names() == ["q"]
    assert cluster_broker.now_ms() > 0
    fsck.assert_invariants(cluster_broker)


def test_the_scripts_are_loaded_again_on_the_node_that_lost_them(
    cluster_broker: Broker, cluster_box: ClusterBox
) -> None:
    queue = cluster_broker.queue("q", shards=SHARDS)
    for round_ in range(3):
        for node in cluster_box.nodes:
            node.client().script_flush()
        assert queue.schedule_many(NewJob(f"j{round_}-{n}", "work") for n in range(30)) == ["created"] * 30
        assert sum(len(queue.reserve(number, 50, worker="w").jobs) for number in range(SHARDS)) == 30


def test_a_consumer_on_any_node_hears_of_work_on_every_other(cluster_broker: Broker) -> None:
    queue = cluster_broker.queue("q", shards=SHARDS)
    waker = cluster_broker.waker(["q"])
    assert isinstance(waker, ChannelWaker)
    assert waker.wait(0.05) == []  # subscribed from here on
    for number in range(SHARDS):
        ident = next(ident for ident in map(str, range(1000)) if queue.shard_of(ident) == number)
        queue.schedule(NewJob(ident, "work"))
        assert waker.wait(10) == [("q", number)]
    waker.close()


def test_a_waiter_that_is_closed_from_another_thread_returns(cluster_broker: Broker) -> None:
    waker = cluster_broker.waker(["q"])
    waker.wait(0.01)
    heard: list[object] = []
    thread = threading.Thread(target=lambda: heard.append(waker.wait(30)))
    thread.start()
    waker.close()
    thread.join(10)
    assert heard == [[]]

"""Every verb on a Redis Cluster of three masters: one slot for each call, and a hot queue is on every node."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from django_delayq.core import Broker, NewJob, Payload, Queue, Registry, Settlement, ack, bury, fail, new_id, release
from tests.support.cluster_box import ClusterBox
from tests.support.core_calls import (
    ChannelWaker,
    Waker,
    begin_stats,
    call_stats,
    held_by,
    locate,
    script_names,
    scripts_used,
)
from tests.support.core_figures import (
    DepthPoint,
    Figures,
    ResultRecord,
    Results,
    ask_permits,
    read_depths,
    read_limits,
    record_depths,
    taken_permits,
)
from tests.support.core_stored import assert_invariants, digest, last_tick, shard_key
from tests.support.core_values import Generation, new_key
from tests.support.worker_stage import put, registry_of, working

from .bulk_loads_stage import BulkLoadLimits, BulkLoadWriter, close_load, counted, open_load, write_all
from .bulk_stage import (
    Part,
    act_in_shard,
    cancel_all,
    cancel_selected,
    delete_failed,
    discard_all,
    discard_many,
    kick_all,
    kick_many,
    kill_failed,
    read_jobs,
    reschedule_selected,
    retry_failed,
    run_all_now,
)
from .events_stage import read_events
from .stage import Stage

SHARDS = 6


def test_t35_every_verb_works_over_all_nodes(cluster_broker: Broker, cluster_box: ClusterBox) -> None:
    called = scripts_used(cluster_broker)
    stage = Stage(cluster_broker, shards=SHARDS, clock=False)
    queue = stage.queue
    assert {cluster_box.node_of(queue.shard(n).keys[0]).port for n in range(SHARDS)} == {
        node.port for node in cluster_box.nodes
    }
    jobs = [NewJob(f"j{n}", "work") for n in range(60)]
    assert queue.schedule_many(jobs) == ["created"] * 60
    assert [queue.schedule(NewJob(new_id(), "work", delay_ms=60_000, fresh=True)) for _ in range(30)] == [
        "created"
    ] * 30
    assert stage.add("merged", b"p") == "created"
    assert stage.add("merged", b"q") == "merged"
    assert [payload.data for payload in cluster_broker.inspector.payloads("q", "merged")] == [b"p", b"q"]
    held = [job for number in range(SHARDS) for job in queue.reserve(number, 50, worker="w").jobs]
    assert len(held) == 61
    plain = [job for job in held if not job.merged]
    assert queue.touch(held, {(job.id, job.token) for job in held}) == ["held"] * 61
    assert queue.schedule(NewJob(plain[0].id, "work", args=b"new")) == "gated"
    assert queue.cancel(plain[1].id) == "stopping"
    makers = (
        lambda job: ack(job, 1, 2),
        lambda job: fail(job, 1, 2, delay_ms=0),
        release,
        lambda job: bury(job, 1, 2, reason="why"),
    )
    assert queue.settle([makers[place % 4](job) for place, job in enumerate(held)]) == [True] * 61
    assert queue.settle([ack(job, 1, 2) for job in held]) == [False] * 61
    buried = [job.id for place, job in enumerate(held) if place % 4 == 3]
    assert [queue.kick(ident, delay_ms=60_000) for ident in buried[:5]] == ["kicked"] * 5
    (again,) = queue.reserve_id(buried[5], worker="w", buried=True).jobs
    assert queue.settle([ack(again, 1, 2)]) == [True]
    assert all(queue.discard(ident) for ident in buried[6:])
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
    assert len(list(held_by(queue, "w"))) > 5
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
    parts = [Part("q", number, "waiting") for number in range(SHARDS)]
    read = [ident for part in parts for some in read_jobs(cluster_broker, part) for ident in some["id"]]
    assert sorted(read) == sorted(found)
    assert inspector.get("q", found[0]) is not None
    assert sum(len(read_events(cluster_broker, "q", number)) for number in range(SHARDS)) > 40
    assert cluster_broker.announce("w:1", {"threads": 1})
    assert [worker["name"] for worker in cluster_broker.workers()] == ["w:1"]
    assert cluster_broker.tell_worker("w:1", "dump")
    assert list(cluster_broker.announce("w:1", {"threads": 1}).commands) == ["dump"]
    cluster_broker.note_figures(Figures(counts={("redis_error", "transient"): 2}))
    assert cluster_broker.figures().counts == {("redis_error", "transient"): 2}
    (grant,) = ask_permits(cluster_broker, {"task:work": 1}, 2).grants
    assert grant is not None and grant.jobs == 1
    assert taken_permits(cluster_broker, "task:work") == 1
    assert [page.due for page in read_limits([queue], lambda _: None, Registry())] == [0]
    now_ms = cluster_broker.now_ms()
    record_depths(cluster_broker, {"q": DepthPoint(ready=3)}, now_ms)
    assert [point.ready for point in read_depths(cluster_broker, ["q"], now_ms)["q"]] == [3]
    assert cluster_broker.queue_names() == ["q"]
    cluster_broker.pause_producers()
    assert set(queue.schedule_many(NewJob(f"paused{number}", "work") for number in range(40))) == {"paused"}
    cluster_broker.resume_producers()
    assert cluster_broker.now_ms() > 0
    assert_invariants(cluster_broker)
    for_operators(cluster_broker, queue)
    for_recurring_tasks(queue)
    for_those_who_wait(queue)
    for_those_who_ask(cluster_broker)
    for_bulk_writes(cluster_broker)
    reshard(cluster_broker, queue)
    assert_invariants(cluster_broker)
    assert called == set(script_names()), "each script was run at least once"


def for_operators(broker: Broker, queue: Queue) -> None:
    """Call the operators' verbs: bulk operations, pauses, limits."""
    idents = [f"many-{n}" for n in range(30)]

    def into(verb: str) -> None:
        queue.schedule_many(NewJob(ident, "work") for ident in idents)
        for ident in idents:
            (job,) = queue.reserve_id(ident, worker="w", early=True).jobs
            settlement = bury(job, 1, 2, reason="why") if verb == "bury" else fail(job, 1, 2, delay_ms=60_000)
            assert queue.settle([settlement]) == [True]

    discard_all(queue)
    into("bury")
    assert kick_many(queue, idents[:10], delay_ms=60_000) == {"kicked": 10}
    assert discard_many(queue, idents[10:20]) == {"discarded": 10}
    (view,) = [broker.inspector.get("q", ident) for ident in idents[:1]]
    assert view is not None and locate(queue, view.id, Generation((view.job.key,))) == "live"
    assert kick_all(queue, delay_ms=60_000) == {"kicked": 10}
    assert run_all_now(queue)["moved"] >= 20
    assert cancel_all(queue)["cancelled"] >= 20
    into("fail")
    for view in broker.inspector.page("q", "failed", limit=5, reverse=True).jobs:
        assert act_in_shard(queue, view.job.shard, [(view.id, view.job.key)], retry_failed(90_000)) == ["retried"]
    for view in broker.inspector.page("q", "failed", limit=5, reverse=True).jobs:
        wanted = [(view.id, view.job.key)]
        assert act_in_shard(queue, view.job.shard, wanted, reschedule_selected(delay_ms=80_000)) == ["moved"]
        assert act_in_shard(queue, view.job.shard, wanted, cancel_selected()) == ["cancelled"]
    assert kill_failed(queue) == {"killed": 25}
    into("fail")
    assert delete_failed(queue) == {"deleted": 30}
    broker.pause("q", "out")
    queue.schedule_many(NewJob(ident, "work") for ident in idents)
    assert [queue.reserve(number, 5, worker="w").jobs for number in queue.numbers] == [[]] * SHARDS
    broker.resume("q", "out")
    broker.limit("q", max_length=10_000, morgue_max=10_000)
    jobs = [job for number in queue.numbers for job in queue.reserve(number, 50, worker="w").jobs]
    assert sorted(job.id for job in jobs) == sorted(idents)
    assert queue.take_over(jobs[:1], "heir") == []
    assert all(queue.settle([Settlement(job, verb="ack_early", event=False) for job in jobs[:9]]))
    assert sum(len(queue.begun(number)) for number in queue.numbers) == 9
    assert all(queue.settle([Settlement(job, 1, 2, verb="record") for job in jobs[:9]]))
    assert all(queue.settle([Settlement(job, verb="expire", outcome="expired") for job in jobs[9:]]))


def for_recurring_tasks(queue: Queue) -> None:
    new = NewJob("tick", "work", delay_ms=60_000)
    assert queue.first_sight("tick", "every minute") > 0
    assert queue.schedule_tick(new, 1000) == "created"
    assert queue.schedule_tick(new, 1000) == "fired"
    assert last_tick(queue, "tick") == 1000
    assert queue.cancel("tick") == "cancelled"


def for_those_who_ask(broker: Broker) -> None:
    """Create and read records of results, each on its own node."""
    records = Results(broker)
    for ident in ("a", "b", "c", "d", "e"):
        records.write(ident, "create", 60_000, {"head": "{}"})
        assert records.read(ident) == ResultRecord("{}", workers=[], errors=[])


def for_bulk_writes(broker: Broker) -> None:
    """Write a bulk load over all shards twice."""
    run = open_load(broker, "nightly", "q")
    news = [NewJob(f"bulk-{n}", "work", due_ms=4_000_000_000_000, delay_ms=None) for n in range(60)]
    for _ in range(2):
        assert write_all(BulkLoadWriter(broker, run, BulkLoadLimits(per_second=1e6)), news) == {"created": 60}
    assert counted(broker, close_load(broker, run)) == {"created": 60}
    assert open_load(broker, "nightly", "q").closed
    assert cancel_all(broker.queue("q"))["cancelled"] >= 60


def for_those_who_wait(queue: Queue) -> None:
    """Send durable jobs, plain and merged, to every shard twice, end them, and collect their completions."""
    keys = {f"durable-{n}": new_key(durable=True) for n in range(30)}
    news = [
        NewJob(ident, "work", key=key) if n % 2 else NewJob(ident, "sync", payload=Payload(b"p", "1", key))
        for n, (ident, key) in enumerate(keys.items())
    ]
    late = queue.deployment.now_ms() - 60_000
    assert queue.schedule_many(news, not_after_ms=late) == ["late"] * 30
    assert queue.schedule_many(news, not_after_ms=late + 120_000) == ["created"] * 30
    assert queue.schedule_many(news) == ["known"] * 30
    generations = [(ident, key, digest(b"p")) for ident, key in keys.items()]
    assert queue.knows(generations) == [True] * 30
    held = [job for number in range(SHARDS) for job in queue.reserve(number, 50, worker="w").jobs]
    ends = {job.id: "buried" if place % 2 else "done" for place, job in enumerate(held)}
    makers = (lambda job: ack(job, 1, 2), lambda job: bury(job, 1, 2, reason="why"))
    assert all(queue.settle([makers[place % 2](job) for place, job in enumerate(held)]))
    heard = {}
    for number in range(SHARDS):
        marks = queue.marks(number)
        assert queue.tick(number).marks == len(marks)
        heard |= {mark.key: mark.end for mark in marks}
        assert queue.marks(number, marks) == []
    assert heard == {keys[ident]: end for ident, end in ends.items()}
    assert [known for known in queue.knows(generations) if known] == [True] * 15, "those in the morgue"
    discard_all(queue)
    for number in range(SHARDS):
        queue.marks(number, queue.marks(number), 0)


def reshard(broker: Broker, queue: Queue) -> None:
    """Reshard; the morgue stays in the old epoch, and a job kicked from there goes to the new one."""
    queue.schedule(NewJob("old", "work"))
    (job,) = queue.reserve_id("old", worker="w").jobs
    assert queue.settle([bury(job, 1, 2, reason="why")]) == [True]
    queue.schedule(NewJob("stays", "work", delay_ms=60_000))
    assert broker.reshard("q", 2)["shards"] == 2
    assert queue.schedule(NewJob("new", "work", delay_ms=60_000)) == "created"
    assert queue.kick("old", delay_ms=60_000) == "kicked"
    assert kick_many(queue, ["old"]) == {"gone": 1}
    assert_invariants(broker)
    assert [queue.cancel(ident) for ident in ("old", "stays", "new")] == ["cancelled"] * 3
    broker.epochs.retire("q")
    assert broker.delete_queue("q", force=True)


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


def test_a_waiter_that_is_closed_from_another_thread_returns(cluster_broker: Broker) -> None:
    waker = cluster_broker.waker(["q"])
    waker.wait(0.01)
    heard: list[object] = []
    thread = threading.Thread(target=lambda: heard.append(waker.wait(30)))
    thread.start()
    waker.close()
    thread.join(10)
    assert heard == [[]]

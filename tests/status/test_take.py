"""One look at a deployment: what it finds, and what it costs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from django_delayq.core.broker import Broker
from django_delayq.core.figures import BUCKETS_MS, Figures, Histogram
from django_delayq.core.job import NewJob
from django_delayq.core.layouts import encode, new_layout
from django_delayq.core.outcomes import ack, bury, fail
from django_delayq.core.queue import Queue
from django_delayq.status import QueueStatus, RunningJob, Snapshot, WorkerStatus, take
from django_delayq.status.json_form import as_json
from django_delayq.status.snapshot import redis_status, worker_status
from django_delayq.testing.redis import MemoryBroker
from tests.support.round_trips import round_trips

from .conftest import T0


def lengths(*ms: int) -> Histogram:
    """A histogram of these, each of them a bound."""
    counts = [0] * (len(BUCKETS_MS) + 1)
    for one in ms:
        counts[BUCKETS_MS.index(one)] += 1
    return Histogram(tuple(counts), sum(ms))


def totals(**values: float) -> SimpleNamespace:
    """Return totals, of which those that are not given are 0."""
    return SimpleNamespace(**{**vars(Snapshot(T0).totals), **values})


def opened(broker: Broker, name: str, **options: Any) -> Queue:
    """A queue whose clock stands at T0."""
    queue = broker.queue(name, **options)
    for number in queue.numbers if not isinstance(broker, MemoryBroker) else ():
        broker.client.hset(queue.shard(number).names["meta"], "test_clock", T0 * 1000)
    return queue


@pytest.fixture
def seeded(any_broker: Broker) -> Broker:
    """Two queues and two workers."""
    orders = opened(any_broker, "orders")
    orders.schedule_many(NewJob(f"j{n}", "work", due_ms=T0 - 1500, delay_ms=None) for n in range(5))
    a, b, c, _ = orders.reserve(0, 4, worker="w").jobs
    orders.settle([ack(a, T0, 5), fail(b, T0, 5, delay_ms=60_000), bury(c, T0, 5, reason="no")])
    mails = opened(any_broker, "mails", kind="pull", shards=2)
    mails.schedule_many(NewJob(f"m{n}", "", delay_ms=n * 1000) for n in range(1, 4))
    any_broker.pause("mails", "in")
    any_broker.limit("mails", max_length=7)
    jobs = [{"slot": 1, "queue": "orders", "id": "j3", "task": "work", "started_ms": T0 - 90, "ids": 2}]
    worker = {"host": "host", "pid": 7, "queues": ["orders"], "threads": 4, "running": 1, "rss_mib": 50}
    flags = {"dispatcher": True, "stopping": False, "started": T0 - 5000}
    any_broker.announce("host:2", {**worker, **flags, "jobs": jobs})
    any_broker.announce("host:1", {})
    any_broker.note_figures(Figures({"orders": lengths(5, 10)}, {("orders", "work"): lengths(100)}))
    return any_broker


def test_a_look_finds_everything(seeded: Broker) -> None:
    found = take(seeded, horizon=[2000], outbox=False)
    mails, orders = found.queues
    assert (mails.name, mails.kind, mails.shards, mails.epoch, mails.draining) == ("mails", "pull", 2, 0, False)
    assert (mails.paused, dict(mails.limits)) == ("in", {"max_length": 7})
    assert mails.counts.backlog == (0, 2, 1)
    assert (orders.lag_seconds, found.counters(orders)) == (1.5, {"scheduled": 5, "done": 1, "failing": 2})
    assert found.now_ms == T0
    assert found.backlog == (1, 2, 2)
    places = {"delayed": 4, "ready": 1, "reserved": 1, "failed": 1, "morgue": 1}
    assert found.totals == totals(**places, lag_seconds=1.5, busy=1, threads=4, done=1, failing=2, scheduled=8)
    assert found.figures.lateness == {"orders": lengths(5, 10)}
    assert (found.outbox, found.recurring) == (None, ())


def test_workers_are_told_with_what_their_threads_run(seeded: Broker) -> None:
    silent, busy = take(seeded, outbox=False).workers
    assert busy.jobs == (RunningJob(1, "orders", "j3", "work", T0 - 90, 2),)
    assert (busy.name, busy.host, busy.pid, busy.queues) == ("host:2", "host", 7, ("orders",))
    assert (busy.threads, busy.running, busy.rss_mib, busy.started_ms) == (4, 1, 50, T0 - 5000)
    assert (busy.dispatcher, busy.stopping) == (True, False)
    assert (silent.name, silent.threads, silent.jobs, silent.pid) == ("host:1", 0, (), None)
    assert not silent.quarantine and worker_status({"name": "q", "seen_ms": T0, "quarantine": True}, T0).quarantine


def test_a_worker_is_lost_after_half_a_minute_of_silence() -> None:
    payload = {"name": "w", "seen_ms": T0, "running": 3, "threads": 4}
    there, gone = worker_status(payload, T0 + 30_000), worker_status(payload, T0 + 30_001)
    assert (there.lost, gone.lost) == (False, True)
    assert Snapshot(T0, workers=(there, gone)).totals == totals(busy=3, threads=4)


@pytest.mark.parametrize(
    "payload",
    [
        {"queues": "all", "jobs": "none", "threads": "many", "rss_mib": None},
        {"queues": None, "jobs": [3, {"slot": None}], "running": None, "pid": "x"},
        {"threads": float("inf"), "running": 10**400, "rss_mib": float("-inf"), "pid": float("nan")},
    ],
)
def test_a_worker_of_another_release_may_say_what_it_likes(payload: dict[str, Any]) -> None:
    worker = worker_status({**payload, "name": "w", "seen_ms": T0 + 5}, T0)
    assert isinstance(worker, WorkerStatus)
    assert (worker.seconds_ago, worker.threads, worker.running, worker.rss_mib, worker.pid) == (0.0, 0, 0, None, None)


def test_the_masters_of_a_cluster_are_told_together() -> None:
    master = {
        "redis_version": "7.4.1",
        "redis_mode": "cluster",
        "role": "master",
        "used_memory": 100,
        "used_memory_peak": 150,
        "maxmemory": 0,
        "maxmemory_policy": "noeviction",
        "aof_enabled": 1,
        "connected_clients": 3,
        "uptime_in_seconds": 50,
        "rdb_last_save_time": T0 // 1000 - 60,
        "loading": 0,
        "rdb_last_bgsave_status": "ok",
        "instantaneous_ops_per_sec": 10,
        "connected_slaves": 1,
    }
    worse = {
        **master,
        "used_memory": 11,
        "aof_enabled": 0,
        "uptime_in_seconds": 7,
        "rdb_last_bgsave_status": "err",
        "rdb_last_save_time": T0 // 1000 - 90,
        "loading": 1,
    }
    found = redis_status([{**master, "role": "slave", "used_memory": 10**9}, master, worse], T0)
    assert (found.nodes, found.version, found.role) == (2, "7.4.1", "master")
    assert (found.used_memory, found.used_memory_peak, found.clients) == (111, 300, 6)
    assert (found.uptime_seconds, found.aof, found.aof_ok, found.rdb_ok, found.loading) == (7, False, True, False, True)
    assert (found.rdb_last_save_seconds, found.ops_per_sec, found.replicas, found.evicted_keys) == (90.0, 20, 2, None)


@pytest.mark.one_server("has its own cluster")
def test_a_cluster_is_looked_at_as_one(cluster_broker: Broker) -> None:
    queue = cluster_broker.queue("q", shards=6)
    queue.schedule_many(NewJob(f"j{n}", "work") for n in range(30))
    queue.schedule_tick(NewJob("tick", "work", delay_ms=60_000), 1000)
    found = take(cluster_broker, outbox=False)
    assert (found.redis.nodes, found.redis.mode, found.totals.ready) == (3, "cluster", 30)
    assert cluster_broker.inspector.last_ticks([(queue, "tick"), (queue, "never")]) == [1000, None]


def test_json_has_it_all(seeded: Broker) -> None:
    payload = as_json(take(seeded, horizon=[2000], outbox=False))
    orders = payload["queues"][1]
    assert orders["lateness_so_far"] == {"count": 2, "mean_ms": 7.5, "p50_ms": 5.0, "p99_ms": 9.9}
    assert (orders["run_so_far"]["count"], payload["totals"]["run_so_far"]["count"]) == (1, 1)
    names = ("name", "ready", "lag_seconds", "paused", "limits", "done")
    assert [orders[name] for name in names] == ["orders", 1, 1.5, "", {}, 1]
    assert orders["counters"]["created"] == 5
    assert payload["queues"][0]["backlog"] == [0, 2, 1]
    assert payload["totals"]["delayed"] == 4
    assert payload["workers"][1]["jobs"] == [
        {"slot": 1, "queue": "orders", "id": "j3", "task": "work", "started_ms": T0 - 90, "ids": 2}
    ]
    assert {"seen_seconds_ago", "seen_ms", "rss_mib", "lost"} <= payload["workers"][1].keys()
    assert payload["now"] == "2023-11-14T22:13:20.000Z"
    assert "outbox" not in payload
    names = "version mode uptime_seconds used_memory used_memory_human maxmemory maxmemory_policy aof clients"
    assert {*names.split()} <= payload["redis"].keys()


def test_nothing_at_all_is_a_status_too(any_broker: Broker) -> None:
    found = take(any_broker, horizon=[1], outbox=False)
    assert (found.queues, found.workers, found.totals, found.backlog) == ((), (), totals(), ())
    assert found.now_ms > T0 - 1
    assert as_json(found)["queues"] == []


@pytest.mark.one_server("counts round trips")
def test_a_look_is_six_round_trips_whatever_the_number_of_queues(broker: Broker) -> None:
    for _ in range(2):
        take(broker, recurring=True, outbox=False)  # the scripts and the connections are there from here on
        broker.queue("q0")
    layout = encode(new_layout(3, "python"))
    for queues in (1, 300):
        broker.client.hset(broker.queues_key, mapping={f"q{number}": layout for number in range(queues)})
        with round_trips() as sent:
            found = take(broker, horizon=[1000], recurring=True, outbox=False)
        assert (len(found.queues), len(sent) <= 6) == (queues, True)
    broker.client.delete(broker.queues_key)


def test_a_queue_that_changes_its_shards_is_draining(broker: Broker) -> None:
    queue = broker.queue("q")
    queue.schedule(NewJob("a", "work", delay_ms=60_000))
    broker.reshard("q", 3)
    (found,) = take(broker, outbox=False).queues
    assert isinstance(found, QueueStatus)
    assert (found.shards, found.epoch, found.draining, found.counts.delayed) == (3, 1, True, 1)

"""The dispatcher takes expired leases away, but not after an outage in which nobody could renew them."""

from __future__ import annotations

from typing import Any

import pytest

from django_delayq.core import Broker, Connection, QueueUnavailable, Registry, Settlement
from django_delayq.worker.dead import SILENT_MS, UNKNOWN_TASK_MS
from tests.support.attempt_stage import UNCLEAR
from tests.support.core_stored import backdate_begun, shard_key
from tests.support.duty_stage import RedisHealth, poller_of, reap, reaper_of
from tests.support.worker_stage import eventually, put, registry_of

LEASE = 0.03
HEARTBEAT = 0.01


@pytest.fixture
def broker(connection: Connection, prefix: str) -> Broker:
    return Broker(connection, prefix=prefix, lease_ms=int(LEASE * 1000))


@pytest.fixture
def forgotten(broker: Broker) -> str:
    """A reserved job whose lease ran out."""
    ident = put(broker, "work")
    broker.queue("default").reserve(0, 1, worker="gone")
    (lease,) = broker.queue("default").leases(0)
    eventually(lambda: broker.now_ms() > lease.deadline_ms, "the end of the lease")
    return ident


def state(broker: Broker, ident: str) -> str:
    view = broker.inspector.get("default", ident)
    assert view is not None
    return view.state


def work() -> None: ...


def patrol(broker: Broker, health: RedisHealth, registry: Registry | None = None) -> Any:
    reaper = reaper_of(registry_of(work) if registry is None else registry, runs_at_once=True)
    return poller_of([broker.queue("default")], lease=LEASE, heartbeat=HEARTBEAT, health=health, reaper=reaper)


def test_an_expired_lease_is_taken_away(broker: Broker, forgotten: str) -> None:
    guard = patrol(broker, RedisHealth())
    # Not by the first look alone: an answer that takes a tenth of so short a lease means a hold for one lease.
    eventually(lambda: guard.run() >= 0 and state(broker, forgotten) == "ready", "the end of the lost lease")


def test_the_first_call_that_comes_through_after_an_outage_takes_nothing_away(broker: Broker, forgotten: str) -> None:
    health = RedisHealth()
    guard = patrol(broker, health)
    health.failed("test", QueueUnavailable("cut"))
    eventually(lambda: health.lasting() > HEARTBEAT, "an outage that is long enough")
    guard.run()
    assert state(broker, forgotten) == "reserved"
    health.recovered()
    assert health.lasting() == 0
    eventually(lambda: guard.run() and state(broker, forgotten) == "ready", "the end of the hold")


def test_a_lease_of_a_task_that_a_dispatcher_does_not_know_is_left_to_one_that_does(broker: Broker) -> None:
    queue, idents = broker.queue("default"), [put(broker, name) for name in ("new", "work", "new")]
    queue.reserve(0, 3, worker="gone", started=True)
    eventually(lambda: len(queue.expired(0)) == 3, "the end of the leases")
    old = patrol(broker, RedisHealth())
    eventually(lambda: old.run() >= 0 and state(broker, idents[1]) == "ready", "the job of the known task")
    for _ in range(3):
        old.run()
    assert [state(broker, ident) for ident in idents] == ["reserved", "ready", "reserved"]
    newer = patrol(broker, RedisHealth(), registry_of(new, crash_limit=1))
    eventually(lambda: newer.run() >= 0 and not queue.leases(0), "the jobs of the task that it knows")
    assert broker.inspector.counts("default").morgue == 2, "by the policy of their own task"


def new() -> None: ...


def test_an_early_run_of_a_worker_that_lives_is_left_alone(broker: Broker) -> None:
    queue = broker.queue("default")
    for name in ("here", "gone"):
        put(broker, "work", id=name)
        (job,) = queue.reserve(0, 1, worker=name).jobs
        assert queue.settle([Settlement(job, verb="ack_early", event=False)]) == [True]
    broker.announce("here", {})
    reap(reaper_of(registry_of(work)), queue, broker.now_ms())
    assert len(queue.begun(0)) == 2, "a worker that began a moment ago may not have announced itself"
    backdate_begun(queue, broker.now_ms() - SILENT_MS - 1)
    reap(reaper_of(registry_of(work)), queue, broker.now_ms())
    assert [job.id for job in queue.begun(0)] == ["here"]


def test_runs_of_living_workers_do_not_hide_those_of_dead_ones(broker: Broker) -> None:
    queue, gone = broker.queue("default"), {f"gone-{number}" for number in range(40)}
    for ident in [*map(str, range(300)), *gone]:
        put(broker, "work", id=ident)
    for name, limit in (("here", 250), ("here", 50), ("gone", 40)):
        jobs = queue.reserve(0, limit, worker=name).jobs
        assert all(queue.settle([Settlement(job, verb="ack_early", event=False) for job in jobs]))
    put(broker, "work", id="young")
    young = queue.reserve(0, 1, worker="young").jobs
    queue.settle([Settlement(young[0], verb="ack_early", event=False)])
    broker.announce("here", {})
    backdate_begun(queue, broker.now_ms() - SILENT_MS - 1, "young")
    reaper = reaper_of(registry_of(work))
    reap(reaper, queue, broker.now_ms())
    left = broker.client.hkeys(shard_key(queue, "begun"))
    assert {field[8:].decode() for field in left} == {*map(str, range(300)), "young"}


def test_a_lease_of_a_task_that_no_dispatcher_knows_comes_back_uncounted_in_the_end(broker: Broker) -> None:
    queue, ident = broker.queue("default"), put(broker, "removed")
    queue.reserve(0, 1, worker="gone", started=True)
    eventually(lambda: queue.expired(0), "the end of the lease")
    (lease,) = queue.leases(0)
    reaper = reaper_of(registry_of(work))
    reap(reaper, queue, lease.deadline_ms + UNKNOWN_TASK_MS - 1)
    assert state(broker, ident) == "reserved"
    reap(reaper, queue, lease.deadline_ms + UNKNOWN_TASK_MS)
    view = broker.inspector.get("default", ident)
    assert view is not None and (view.state, view.job.failures, view.job.flags) == ("ready", 0, UNCLEAR)

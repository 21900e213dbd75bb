"""A shard, queue or worker that fails costs the others nothing, whichever duty meets it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from django_delayq.core import Broker, Connection, Queue, QueueUnavailable
from django_delayq.worker.loop import Parts
from tests.support.duty_stage import cleanup_of, poller_of, reaper_of, sampler_of
from tests.support.worker_stage import Hooks, depths_of, eventually, put, registry_of

from .test_scope import forget_calls

LEASE = 0.03


@pytest.fixture
def broker(connection: Connection, prefix: str) -> Broker:
    return Broker(connection, prefix=prefix, lease_ms=int(LEASE * 1000))


#: keys of another type are no state that the invariants know, also after they are back
pytestmark = pytest.mark.broken_on_purpose


def work() -> None: ...


@contextmanager
def damaged(queue: Queue, name: str = "lease", number: int | None = None) -> Iterator[None]:
    """Replace a key of a shard by one of another type."""
    key = queue.shard(queue.numbers[0] if number is None else number).names[name]
    client, there = queue.deployment.client, queue.deployment.client.exists(key)
    if there:
        client.rename(key, f"{key}:aside")
    client.set(key, "of another type")
    try:
        yield
    finally:
        client.delete(key)
        if there:
            client.rename(f"{key}:aside", key)


def forgotten(broker: Broker, *queues: str) -> list[Queue]:
    """Queues with a job whose lease ran out."""
    found = [broker.queue(name) for name in queues]
    for queue in found:
        put(broker, "work", queue=queue.name)
        assert queue.reserve(0, 1, worker="gone", started=True).jobs
    for queue in found:
        eventually(lambda queue=queue: queue.expired(0), "the end of the lease")  # type: ignore[misc]
    return found


def test_a_shard_that_cannot_be_checked_keeps_no_other_from_being_reaped(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = forgotten(broker, "first", "second")
    poller = poller_of(
        [first, second], lease=LEASE, heartbeat=0.01, reaper=reaper_of(registry_of(work), runs_at_once=True)
    )
    with damaged(first):
        eventually(lambda: poller.run() >= 0 and not second.leases(0), "the end of the lost lease")
        assert (
            caplog.messages.count("shard-poller: shard 0 of queue first failed and is retried; the rest goes on") == 1
        )
    eventually(lambda: poller.run() >= 0 and not first.leases(0), "the end of the lost lease of the mended shard")
    assert "shard-poller: shard 0 of queue first works again" in caplog.messages


def test_a_shard_that_fails_is_tried_more_and_more_seldom(broker: Broker) -> None:
    (queue,) = forgotten(broker, "first")
    poller = poller_of([queue], lease=LEASE, heartbeat=0.01, reaper=reaper_of(registry_of(work), runs_at_once=True))
    with damaged(queue):
        assert eventually(lambda: poller.run() > 0.3, "a rest longer than the poller ever takes in so short a lease")


def test_ends_that_somebody_listens_to_are_settled_beside_a_shard_that_fails(broker: Broker) -> None:
    queues, told = forgotten(broker, "first", "second"), list[str]()
    hooks = Hooks(wants=lambda event, task: True, notify=lambda event, **details: told.append(details["job"].queue))
    registry = registry_of(work, max_attempts=1)
    reaper = reaper_of(registry, hooks, name="dispatcher")
    for queue in queues:
        reaper.reap(queue, 0, queue.tick(0))
    with damaged(queues[0]):
        reaper.run()
    assert told == ["second"]


def test_an_epoch_that_cannot_be_retired_stays_alone(broker: Broker) -> None:
    for name in ("first", "second"):
        broker.queue(name, shards=1)
        broker.reshard(name, 2)
        forget_calls(broker, name)
    first, second = (broker.queue(name) for name in ("first", "second"))
    cleanup = cleanup_of(broker, [first, second])
    with damaged(first, "lease", number=0):
        for _ in range(3):
            cleanup.run()
    assert [len(queue.epochs) for queue in broker.queues()] == [2, 1]


def test_the_sample_of_all_queues_leaves_out_one_that_cannot_be_read(broker: Broker) -> None:
    for name in ("first", "second"):
        put(broker, "work", queue=name)
    sampler = sampler_of(broker)
    sampler.run()
    with damaged(broker.queue("first"), "due.4"):
        sampler.run()
    points = depths_of(broker, ["first", "second", ""])
    assert [bool(points.get(name)) for name in ("first", "second", "")] == [False, True, True]


def test_an_unreachable_redis_is_an_error_of_all_shards_but_on_a_cluster_of_those_of_its_node(broker: Broker) -> None:
    queue = broker.queue("default", shards=12)
    parts, tried = Parts("duty", broker), list[int]()

    def fail() -> None:
        raise QueueUnavailable("away")

    if not broker.connection.cluster:
        with pytest.raises(QueueUnavailable):
            parts.attempt(("default", 0), fail)
        assert parts.attempt(("default", 0), lambda: None), "the loop rests, not the shard"
        return
    assert not parts.attempt(("default", 0), fail)
    for number in queue.numbers:
        parts.attempt(("default", number), lambda number=number: tried.append(number))  # type: ignore[misc]
    node = {number: broker.scripts.node(queue.shard(number).keys) for number in queue.numbers}
    assert tried == [number for number in queue.numbers if node[number] != node[0]]
    assert 0 < len(tried) < 11


def test_an_error_that_concerns_all_parts_is_raised(broker: Broker) -> None:
    parts = Parts("duty", broker, shared=(LookupError,))
    with pytest.raises(KeyError):
        parts.attempt("one", lambda: {}["missing"])

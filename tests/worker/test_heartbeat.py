"""The heartbeat renews what the process holds, for as long as it may, and promises no more than Redis has granted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from redis.exceptions import ResponseError

from django_delayq.core import Broker, NewJob
from django_delayq.core.records.keys import workers_key
from django_delayq.worker.attempt import Attempt, trusted
from django_delayq.worker.commands import WorkerCommands
from django_delayq.worker.heartbeat import Heartbeat
from django_delayq.worker.pace import Pace
from django_delayq.worker.policy import Policy
from django_delayq.worker.shard_selector import Source

from .support import config, make_process

#: seconds by which a lease was shorter before it was renewed
AGE = 5.0


def hold(broker: Broker, count: int, name: str = "default") -> list[Attempt]:
    """Runs of so many jobs, reserved under leases that are partly over."""
    queue = broker.queue(name, shards=1)
    queue.schedule_many(NewJob(f"j{number}", "work") for number in range(count))
    source, attempts, now = Source(queue, 0, Pace()), [], time.monotonic()
    while batch := queue.reserve(0, 250, worker="w", ttr_ms=int((broker.lease_ms / 1000 - AGE) * 1000)).jobs:
        attempts += [Attempt(job, source, now, now + AGE, time.time() * 1000 - now * 1000) for job in batch]
    assert len(attempts) == count
    return attempts


def beat(
    broker: Broker, attempts: list[Attempt], *, rest: float = 5.0, renew: Callable[[], None] = lambda: None
) -> float:
    """One turn of the heartbeat of a process that holds these runs; returns the seconds until the next one."""
    consumer: Any = SimpleNamespace(held=attempts, tasks=None, limits=SimpleNamespace(renew=renew))
    words = WorkerCommands(broker, "w", lambda word: None)
    process = make_process(broker, settings=config(heartbeat=rest))
    return Heartbeat(process, dict, consumer, None, lambda reply: None, words).run()


def slow(call: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    """The same call; its answer comes so much later."""

    def answered_late(*args: Any, **options: Any) -> Any:
        answer = call(*args, **options)
        time.sleep(seconds)
        return answer

    return answered_late


def seconds_left(broker: Broker) -> list[float]:
    ends = [
        end for _, end in broker.client.zrange(broker.queue("default").shard(0).names["lease"], 0, -1, withscores=True)
    ]
    return [(end - broker.now_ms()) / 1000 for end in ends]


def test_every_lease_is_renewed_however_many_there_are(broker: Broker) -> None:
    attempts = hold(broker, 600)
    beat(broker, attempts)
    left = seconds_left(broker)
    assert len(left) == 600
    assert min(left) > broker.lease_ms / 1000 - 2


def test_a_lease_is_trusted_from_the_moment_at_which_its_renewal_was_asked_for(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It began when Redis heard of it, not when the answer came, which may have been much later."""
    (attempt,) = hold(broker, 1)
    monkeypatch.setattr(type(attempt.queue), "touch", slow(type(attempt.queue).touch, 0.3))
    sent_at = time.monotonic()
    beat(broker, [attempt])
    assert attempt.deadline <= sent_at + trusted(broker.lease_ms / 1000) + 0.1


def test_a_slow_turn_does_not_put_the_next_one_off(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "announce", slow(broker.announce, 0.3))
    assert beat(broker, [], rest=1.0) <= 0.7
    assert beat(broker, [], rest=0.1) == 0.0


@pytest.mark.parametrize(
    ("received", "started", "ended", "is_renewed"),
    [(100, 0, 0, True), (100, 5, 0, True), (100, 20, 0, False), (100, 20, 1, True)],
    ids=["waits for a slot", "runs for 5 s", "runs for 20 s", "ran for 19 s and waits to be settled"],
)
def test_max_lease_counts_from_the_start_of_the_run_to_its_end(
    broker: Broker, received: float, started: float, ended: float, is_renewed: bool
) -> None:
    (attempt,) = hold(broker, 1)
    now = time.monotonic()
    attempt.policy, attempt.received = Policy(max_lease=10.0), now - received
    attempt.started, attempt.ended = (now - started if started else 0.0), (now - ended if ended else 0.0)
    beat(broker, [attempt])
    (left,) = seconds_left(broker)
    assert (left > broker.lease_ms / 1000 - 2) is is_renewed
    assert attempt.should_stop is not is_renewed


@pytest.fixture
def broken(broker: Broker) -> Iterator[list[Attempt]]:
    """An attempt whose lease cannot be renewed, because a key of its shard is no sorted set."""
    attempts = hold(broker, 1, "broken")
    lease = broker.queue("broken").shard(0).names["lease"]
    broker.client.rename(lease, f"{lease}:aside")
    broker.client.set(lease, "no sorted set")
    yield attempts
    broker.client.rename(f"{lease}:aside", lease)


def test_a_shard_that_is_broken_costs_no_lease_of_another(broker: Broker, broken: list[Attempt]) -> None:
    beat(broker, [*broken, *hold(broker, 1)])
    (left,) = seconds_left(broker)
    assert left > broker.lease_ms / 1000 - 2


def test_a_shard_that_is_broken_does_not_make_its_worker_look_dead(
    broker: Broker, broken: list[Attempt], caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        beat(broker, broken)
    assert [worker["name"] for worker in broker.workers()] == ["w"]
    assert caplog.messages[0] == "heartbeat: shard 0 of queue broken failed and is retried; the rest goes on"


def test_permits_that_cannot_be_renewed_cost_neither_leases_nor_the_announcement(broker: Broker) -> None:
    attempts = hold(broker, 1)

    def fail() -> None:
        raise ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value")

    beat(broker, attempts, renew=fail)
    assert min(seconds_left(broker)) > broker.lease_ms / 1000 - 2
    assert broker.workers()


def test_a_registry_that_cannot_be_written_costs_no_lease(broker: Broker) -> None:
    attempts, key = hold(broker, 1), workers_key(broker.prefix)
    broker.client.set(key, "no hash")
    try:
        assert beat(broker, attempts) > 0
    finally:
        broker.client.delete(key)
    assert min(seconds_left(broker)) > broker.lease_ms / 1000 - 2

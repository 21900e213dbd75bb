"""The heartbeat renews what the process holds, for as long as it may, and promises no more than Redis has granted."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from redis.exceptions import ResponseError

from django_delayq.core import Broker, TaskOptions
from tests.support.attempt_stage import Attempt
from tests.support.core_calls import watch_calls
from tests.support.duty_stage import beat, hold, trusted, unwritable_workers
from tests.support.worker_stage import takes_longer


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
    broker: Broker,
) -> None:
    """It began when Redis heard of it, not when the answer came, which may have been much later."""
    (attempt,) = hold(broker, 1)
    sent_at = time.monotonic()
    with watch_calls(broker, after=takes_longer("touch", 0.3)) as calls:
        beat(broker, [attempt])
    assert "touch" in {call.name for call in calls}
    assert attempt.deadline <= sent_at + trusted(broker.lease_ms / 1000) + 0.1


def test_a_slow_turn_does_not_put_the_next_one_off(broker: Broker) -> None:
    with watch_calls(broker, after=takes_longer("announce", 0.3)):
        assert beat(broker, [], rest=1.0) <= 0.7
        assert beat(broker, [], rest=0.1) == 0.0


@pytest.mark.parametrize(
    ("received", "started", "ended", "is_renewed"),
    [(100, 0, 0, True), (100, 5, 0, True), (100, 20, 0, False), (100, 20, 1, True), (100, 40, 20, False)],
    ids=[
        "waits for a slot",
        "runs for 5 s",
        "runs for 20 s",
        "ran for 19 s and waits to be settled",
        "a listener of its end hangs for 20 s",
    ],
)
def test_max_lease_counts_from_the_start_of_the_run_to_its_end(
    broker: Broker, received: float, started: float, ended: float, is_renewed: bool
) -> None:
    (attempt,) = hold(broker, 1)
    now = time.monotonic()
    attempt.policy, attempt.received = TaskOptions(max_lease=10.0), now - received
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
    attempts = hold(broker, 1)
    with unwritable_workers(broker):
        assert beat(broker, attempts) > 0
    assert min(seconds_left(broker)) > broker.lease_ms / 1000 - 2

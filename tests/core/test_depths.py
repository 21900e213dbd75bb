"""Depth of queues over time: a sample a minute for a day."""

from __future__ import annotations

import pytest

from django_delayq.core import Broker, NewJob, figures
from django_delayq.core.figures import MINUTES, DepthPoint
from tests.support.core_stored import depth_key

MINUTE = 60_000
NOON = 1_700_000_000_000 // MINUTE * MINUTE


def put(broker: Broker, minute: float, **values: float | None) -> None:
    figures.record_depths(broker, {"orders": DepthPoint(**values)}, NOON + minute * MINUTE + 1_234)  # type: ignore[arg-type]


def read(broker: Broker, minute: int, minutes: int = 60) -> list[DepthPoint]:
    return figures.read_depths(broker, ["orders"], NOON + minute * MINUTE + 30_000, minutes)["orders"]


def test_points_have_the_counts_of_their_minute_and_rates_since_the_one_before(broker: Broker) -> None:
    put(broker, 0, ready=5, scheduled=100, done=10)
    put(
        broker, 1, ready=3, reserved=1, failed=1, morgue=2, lag_seconds=1.5, scheduled=160, done=40, failing=6, p99_ms=8
    )
    first, second = read(broker, 1)
    assert first == DepthPoint(NOON, 0, 5, 0, 0, 0, 0.0, None, None, None, None, None)
    assert second == DepthPoint(NOON + MINUTE, 0, 3, 1, 1, 2, 1.5, 1.0, 0.5, 0.1, None, 8.0)


def test_only_the_requested_minutes_are_read_and_the_first_has_a_rate(broker: Broker) -> None:
    for minute in range(5):
        put(broker, minute, done=60 * minute)
    assert [(point.at_ms, point.done) for point in read(broker, 4, 2)] == [
        (NOON + 3 * MINUTE, 1.0),
        (NOON + 4 * MINUTE, 1.0),
    ]


def test_two_samples_of_one_minute_are_one(broker: Broker) -> None:
    put(broker, 0, ready=1)
    put(broker, 0.5, ready=2)
    assert [point.ready for point in read(broker, 0)] == [2]


def test_a_minute_without_a_sample_has_no_point_and_the_next_rate_covers_it(broker: Broker) -> None:
    put(broker, 0, done=0)
    put(broker, 3, done=180)
    assert [(point.at_ms, point.done) for point in read(broker, 3)] == [(NOON, None), (NOON + 3 * MINUTE, 1.0)]


def test_a_series_has_a_day_and_never_grows_beyond_it(broker: Broker) -> None:
    for minute in range(0, 3 * MINUTES, 7):
        put(broker, minute, ready=minute)
    last = range(0, 3 * MINUTES, 7)[-1]
    assert [point.ready for point in read(broker, last, MINUTES)] == [
        minute for minute in range(0, 3 * MINUTES, 7) if minute > last - MINUTES
    ][-MINUTES // 7 :]
    assert broker.client.xlen(depth_key(broker.prefix, "orders")) <= MINUTES / 7 + 1
    assert all(len(fields[b"sample"]) < 64 for _, fields in broker.client.xrange(depth_key(broker.prefix, "orders")))
    assert 0 < broker.client.ttl(depth_key(broker.prefix, "orders")) <= 86_400


def test_a_counter_that_was_lost_has_no_rate_below_zero(broker: Broker) -> None:
    put(broker, 0, done=2**32 - 30, failing=500)
    put(broker, 1, done=2**32 + 30, failing=0)
    assert [(point.done, point.failing) for point in read(broker, 1)][1] == (1.0, 0.0)


def test_a_series_that_ends_in_the_future_is_kept_until_it_expires(broker: Broker) -> None:
    """The clock was wrong, and has been put back."""
    put(broker, 60, ready=1)
    ends = broker.client.pttl(depth_key(broker.prefix, "orders"))
    put(broker, 0, ready=2)
    assert [point.ready for point in read(broker, 60)] == [1]
    assert broker.client.pttl(depth_key(broker.prefix, "orders")) <= ends


def test_several_queues_are_read_together_and_unknown_ones_are_empty(broker: Broker) -> None:
    figures.record_depths(broker, {"": DepthPoint(ready=3), "orders": DepthPoint(ready=1)}, NOON)
    found = figures.read_depths(broker, ["", "orders", "none"], NOON)
    assert {name: [point.ready for point in points] for name, points in found.items()} == {
        "": [3],
        "orders": [1],
        "none": [],
    }
    assert figures.read_depths(broker, [], NOON) == {}


def test_one_worker_takes_the_samples_of_a_minute(broker: Broker) -> None:
    assert figures.claim_depths(broker, "w1")
    assert not figures.claim_depths(broker, "w2")


def test_the_depths_of_a_queue_are_deleted_with_it(broker: Broker) -> None:
    broker.queue("orders").schedule(NewJob("1", "task"))
    put(broker, 0, ready=1)
    assert broker.delete_queue("orders", force=True)
    assert read(broker, 0) == []


@pytest.mark.parametrize("value", [None, 0.0, 1e9])
def test_lateness_is_kept_as_it_is(broker: Broker, value: float | None) -> None:
    put(broker, 0, p50_ms=value)
    (point,) = read(broker, 0)
    assert point.p50_ms == value

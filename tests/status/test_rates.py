"""Rates of a snapshot: growth since a sample of the dispatcher."""

from __future__ import annotations

import pytest

from django_delayq.core.broker import Broker
from django_delayq.core.counts import Counts
from django_delayq.core.figures import TOTAL, DepthPoint, record_depths
from django_delayq.core.job import NewJob
from django_delayq.status import QueueStatus, Rates, Snapshot, UnreachablePart, take
from django_delayq.status.json_form import as_json

from .conftest import T0

COUNTERS = {"created": 30, "changed": 2, "acked": 13, "failed": 1, "timeout": 1, "crashed": 2}


def queue(name: str, **counters: int) -> QueueStatus:
    return QueueStatus(name, "python", Counts(name, T0, counters=counters), 1, 0)


def sample(ago: float = 20.0, scheduled: int = 10, done: int = 3, failing: int = 1) -> DepthPoint:
    point = DepthPoint(int(T0 - ago * 1000), scheduled=scheduled, done=done, failing=failing)
    return DepthPoint(**{**{name: getattr(point, name) for name in point.__slots__}, "p50_ms": 5.0, "p99_ms": 980.0})


def test_rates_are_the_growth_of_counters_since_a_sample() -> None:
    snapshot = Snapshot(T0, (queue("a", **COUNTERS), queue("new", acked=4)), samples={"a": sample(), TOTAL: sample(10)})
    a, new = snapshot.queues
    assert snapshot.rates(a) == Rates(1.1, 0.5, 0.15, 5.0, 980.0)
    assert snapshot.rates(new) == Rates()
    assert snapshot.rates() == Rates(2.2, 1.4, 0.3, 5.0, 980.0)


def test_counters_that_went_back_are_no_rate() -> None:
    snapshot = Snapshot(T0, (queue("a", acked=1),), samples={"a": sample()})
    assert snapshot.rates(snapshot.queues[0]) == Rates(0.0, 0.0, 0.0, 5.0, 980.0)


def test_rates_are_unknown_while_a_part_is_missing() -> None:
    found = Snapshot(T0, (queue("a", **COUNTERS),), unreachable=(UnreachablePart("0-5460"),), samples={"a": sample()})
    assert found.rates(found.queues[0]) == Rates()


def test_rates_in_json_have_one_decimal() -> None:
    snapshot = Snapshot(T0, (queue("a", **COUNTERS), queue("new")), samples={"a": sample(7), TOTAL: sample(7)})
    shown = as_json(snapshot)
    assert shown["totals"]["rates"] == {"scheduled": 3.1, "done": 1.4, "failing": 0.4, "p50_ms": 5.0, "p99_ms": 980.0}
    assert [one["rates"]["done"] for one in shown["queues"]] == [1.4, None]
    assert "rates" not in as_json(Snapshot(T0))["totals"]


@pytest.mark.parametrize("asks", [True, False])
def test_a_snapshot_reads_samples_that_are_old_enough(broker: Broker, asks: bool) -> None:
    broker.queue("a").schedule(NewJob("j", "work"))
    now_ms = broker.now_ms()
    for ago in (60_000, 20_000, 1_000):
        record_depths(broker, {"a": sample(), TOTAL: sample()}, now_ms - ago)
    found = take(broker, outbox=False, rates=asks)
    assert set(found.samples) == ({"a", TOTAL} if asks else set())
    assert {now_ms - one.at_ms >= 10_000 for one in found.samples.values()} <= {True}

"""Row 26: priorities that starve are seen in status, dashboard, API and metrics."""

from __future__ import annotations

import pytest

from django_delayq.core.broker import Broker
from django_delayq.core.counts import Counts, starving_of
from django_delayq.core.job import NewJob
from django_delayq.metrics import definitions
from django_delayq.metrics.definitions import read
from django_delayq.status import QueueStatus, RedisStatus, Snapshot, take, warnings_of
from django_delayq.status.json_form import as_json
from django_delayq.status.report import report
from django_delayq.testing.redis import MemoryBroker

from .conftest import T0

URGENT, PATIENT = 0, 7


def counts_of(**lags: float | None) -> Counts:
    """Return counts of a queue by the lag of each priority; p0=None: no due job."""
    due = {int(name[1:]): None if lag is None else T0 - lag * 1000 for name, lag in lags.items()}
    counts = Counts("orders", T0, oldest_due_ms_of=due)
    counts.starving = starving_of(counts.lag_by_priority)
    return counts


def snapshot_of(counts: Counts, **queue: object) -> Snapshot:
    """Return a snapshot of one queue."""
    status = QueueStatus("orders", "python", counts, 1, 0, **queue)
    return Snapshot(T0, (status,), redis=RedisStatus(aof=True, maxmemory_policy="noeviction"))


@pytest.fixture
def loaded(any_broker: Broker) -> Broker:
    """Two shards; a job of priority 7 has waited for 700 s, urgent ones for one second; another is delayed."""
    queue = any_broker.queue("orders", shards=2)
    for number in queue.numbers if not isinstance(any_broker, MemoryBroker) else ():
        any_broker.client.hset(queue.shard(number).names["meta"], "test_clock", T0 * 1000)
    for n in range(6):
        queue.schedule(NewJob(f"urgent-{n}", "work", priority=URGENT, due_ms=T0 - 1000, delay_ms=None))
        queue.schedule(NewJob(f"patient-{n}", "work", priority=PATIENT, due_ms=T0 - 700_000 + n, delay_ms=None))
    queue.schedule(NewJob("later", "work", delay_ms=60_000))
    return any_broker


def test_the_lag_of_each_priority_is_counted_over_all_shards(loaded: Broker) -> None:
    counts = loaded.inspector.counts("orders")
    assert counts.lag_by_priority == {0: 1.0, 4: 0.0, 7: 700.0}
    assert counts.lag_seconds == 700.0
    assert counts.starving == (7, 700.0)
    queue = loaded.queue("orders")
    for number in queue.numbers:
        queue.reserve(number, 100, worker="w")
    assert loaded.inspector.counts("orders").lag_by_priority == {0: 0.0, 4: 0.0, 7: 0.0}


def test_a_priority_that_is_late_in_one_shard_does_not_starve_behind_jobs_of_another(any_broker: Broker) -> None:
    queue = any_broker.queue("orders", shards=2)
    for number in queue.numbers if not isinstance(any_broker, MemoryBroker) else ():
        any_broker.client.hset(queue.shard(number).names["meta"], "test_clock", T0 * 1000)
    of_shard: dict[int, str] = {}
    for n in range(50):
        of_shard.setdefault(queue.shard_of(f"job-{n}"), f"job-{n}")
    one, other = of_shard.values()
    queue.schedule(NewJob(one, "work", priority=URGENT, due_ms=T0 - 1000, delay_ms=None))
    queue.schedule(NewJob(other, "work", priority=PATIENT, due_ms=T0 - 700_000, delay_ms=None))
    counts = any_broker.inspector.counts("orders")
    assert counts.lag_by_priority == {0: 1.0, 7: 700.0}
    assert counts.starving is None  # nobody serves the shard: that is lag


def test_t52_a_priority_that_starves_is_shown_wherever_operators_look(loaded: Broker) -> None:
    snapshot = take(loaded, outbox=False)
    (queue,) = as_json(snapshot)["queues"]
    assert (queue["lag_by_priority"], queue["starving"]) == ({"0": 1.0, "4": 0.0, "7": 700.0}, 7)
    text = (
        "Jobs of priority 7 of orders have waited 11 min 40 s for more urgent ones: add workers, or set starve_after."
    )
    assert text in [one.text for one in warnings_of(snapshot)]
    assert f"WARN  starving: {text}" in report(snapshot)
    lags = read(snapshot)[definitions.priority_lag_seconds]
    assert lags == {("orders", "0"): 1.0, ("orders", "4"): 0.0, ("orders", "7"): 700.0}


@pytest.mark.parametrize(
    ("lags", "starving"),
    [
        ({"p0": 1, "p7": 700}, 7),
        ({"p0": 1, "p4": 900, "p7": 700}, 4),  # the one that waits longest
        ({"p0": 650, "p4": 5, "p7": 700}, 7),
        ({"p0": 700, "p7": 700}, None),  # all are late: workers are missing
        ({"p0": 900, "p7": 700}, None),
        ({"p0": None, "p7": 700}, None),  # nothing urgent is due: that is lag
        ({"p0": 1, "p7": 60}, None),
        ({"p7": 700}, None),
        ({}, None),
    ],
)
def test_only_jobs_behind_more_urgent_ones_starve(lags: dict[str, float | None], starving: int | None) -> None:
    snapshot = snapshot_of(counts_of(**lags))
    (queue,) = as_json(snapshot)["queues"]
    assert queue["starving"] == starving
    assert any("starving:" in line for line in report(snapshot)) == (starving is not None)


def test_what_the_queue_allows_is_no_starving() -> None:
    counts = counts_of(p0=1, p7=700)
    assert snapshot_of(counts, limits={"starve_after": 641}).queues[0].starving is None
    assert snapshot_of(counts, limits={"starve_after": 639}).queues[0].starving == (7, 700)


def test_in_a_queue_that_is_paused_nothing_starves() -> None:
    counts = counts_of(p0=1, p7=700)
    assert snapshot_of(counts, paused="out").queues[0].starving is None
    assert snapshot_of(counts, paused="in").queues[0].starving == (7, 700)


def test_a_queue_with_one_priority_has_no_series_of_its_own() -> None:
    assert definitions.priority_lag_seconds not in read(snapshot_of(counts_of(p4=700)))

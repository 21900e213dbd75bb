"""Brokers on both servers that run the scripts: a real Redis, and the memory of the testing kit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from django_delayq.core.broker import Broker
from django_delayq.core.operations import fsck
from django_delayq.core.redis.connection import Connection
from django_delayq.testing.broker import MemoryBroker
from django_delayq.testing.times import Clock

from .stand import LEASE, T0, Make, Stand


@pytest.fixture(params=["redis", "memory"])
def any_broker(request: pytest.FixtureRequest, connection: Connection, prefix: str) -> Iterator[Broker]:
    """Each test runs on both."""
    made: Broker = (
        MemoryBroker(Clock(T0 / 1000), prefix=prefix, lease_ms=LEASE)
        if request.param == "memory"
        else Broker(connection, prefix=prefix, lease_ms=LEASE, test_clock=True)
    )
    yield made
    fsck.assert_invariants(made)


@pytest.fixture
def make_stand(any_broker: Broker) -> Make:
    return lambda **options: Stand(any_broker, **options)


@pytest.fixture
def stand(make_stand: Make) -> Stand:
    """One queue with one shard, at T0."""
    return make_stand()

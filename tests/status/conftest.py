"""Deployments to be looked at: a real one, and that of the testing kit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from django_delayq.core import fsck
from django_delayq.core.broker import Broker
from django_delayq.core.redis.connection import Connection
from django_delayq.testing.clock import Clock
from django_delayq.testing.redis import MemoryBroker

T0 = 1_700_000_000_000  # Unix ms; the real one's clock stands there too


@pytest.fixture(params=["redis", "memory"])
def any_broker(request: pytest.FixtureRequest, connection: Connection, prefix: str) -> Iterator[Broker]:
    """Each test runs on both."""
    made: Broker = (
        MemoryBroker(Clock(T0 / 1000), prefix=prefix)
        if request.param == "memory"
        else Broker(connection, prefix=prefix, test_clock=True)
    )
    yield made
    fsck.assert_invariants(made)

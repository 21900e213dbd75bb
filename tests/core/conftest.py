"""The stage of the tests of the core: see ``stage.py``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from django_delayq.core import fsck
from django_delayq.core.broker import Broker
from django_delayq.core.connection import Connection

from .stage import LEASE, Stage


@pytest.fixture
def clocked(connection: Connection, prefix: str, request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A broker whose time stands still until the test moves it. Afterwards the invariants are asserted."""
    made = Broker(connection, prefix=prefix, lease_ms=LEASE, test_clock=True)
    yield made
    if request.node.get_closest_marker("broken_on_purpose") is None:
        fsck.assert_invariants(made)


@pytest.fixture
def stage(clocked: Broker) -> Stage:
    """One queue with one shard, at the moment T0."""
    return Stage(clocked)

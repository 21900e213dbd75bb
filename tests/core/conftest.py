"""The stage of the tests of the core: see ``stage.py``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_delayq.core import Broker, Connection, RedisConfig, connect
from tests.support.core_calls import ScriptCall, watch_calls
from tests.support.core_stored import assert_invariants

from .epochs_stage import take_all
from .stage import LEASE, Stage


@pytest.fixture
def clocked(connection: Connection, prefix: str, request: pytest.FixtureRequest) -> Iterator[Broker]:
    """Return a broker with a clock that only the test moves; assert the invariants afterwards."""
    made = Broker(connection, prefix=prefix, lease_ms=LEASE, test_clock=True)
    yield made
    if request.node.get_closest_marker("broken_on_purpose") is None:
        assert_invariants(made)


@pytest.fixture
def stage(clocked: Broker) -> Stage:
    """Return one queue with one shard, at the moment T0."""
    return Stage(clocked)


@pytest.fixture
def impatient(request: pytest.FixtureRequest) -> None:
    """Make callers complete the interrupted reshard of another process almost at once."""
    for name in {"broker", "clocked", "cluster_broker"} & set(request.fixturenames):
        request.getfixturevalue(name).takeover_seconds = 0.01


@pytest.fixture
def full(clocked: Broker) -> Stage:
    """Return three shards with a job in every state."""
    stage = Stage(clocked, shards=3)
    stage.put("failing")
    (job,) = take_all(stage.queue)
    stage.failed(job, 1000)
    stage.wait(1000)
    (job,) = take_all(stage.queue)
    stage.failed(job, 60_000)
    for ident in ("held", "gated"):
        stage.put(ident)
    take_all(stage.queue)
    stage.put("gated", at=70_000)
    stage.in_morgue("dead", args=b"[9]")
    stage.add("merged", b"one", "1")
    stage.add("merged", b"two", "2")
    stage.put("ready")
    stage.put("delayed", at=500_000)
    return stage


@pytest.fixture
def opened() -> Iterator[Callable[..., Connection]]:
    """Return a function that opens a connection and closes it after the test."""
    with contextlib.ExitStack() as stack:

        def make(value: object, **options: Any) -> Connection:
            if options:
                value = {**(value if isinstance(value, dict) else {"URL": value}), **options}
            connection = value if isinstance(value, Connection) else connect(RedisConfig.parse(value))
            stack.callback(connection.close)
            return connection

        yield make


@pytest.fixture
def wide(clocked: Broker) -> Stage:
    """Return a queue of three shards."""
    return Stage(clocked, shards=3, name="wide")


@pytest.fixture
def most(broker: Broker) -> Iterator[list[int]]:
    """Return a list that gets for each call of a script how many were under way."""
    under_way: list[ScriptCall] = []
    most: list[int] = []

    def note(call: ScriptCall) -> None:
        under_way.append(call)
        most.append(len(under_way))

    with watch_calls(broker, before=note, after=under_way.remove):
        yield most

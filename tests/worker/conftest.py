"""Fixtures for tests of workers.

program    ``program("supervise", grace=1)``: a supervisor or a worker in a process of its own
tower      a stage with dispatchers for one recurring task
clock      the clock of all parts of a worker, which the test moves
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import IO, Any

import pytest
import redis

from django_delayq.core import Broker, Connection
from tests.support.duty_stage import Tower
from tests.support.supervisor_stage import ROOT, Program
from tests.support.waiting_stage import Clock
from tests.support.worker_stage import assert_invariants


@pytest.fixture
def program(
    spawn: Callable[..., Any], redis_url: str, prefix: str, redis_client: redis.Redis
) -> Callable[..., Program]:
    """``program(role, grace=1, …)``: started."""

    def start(
        role: str = "supervise",
        *,
        patience: float = 5,
        lease: int = 15_000,
        listen: str = "",
        stderr: IO[bytes] | None = None,
        **config: Any,
    ) -> Program:
        environment = {
            "DQ_URL": redis_url,
            "DQ_PREFIX": prefix,
            "DQ_CONFIG": json.dumps(config),
            "DQ_PATIENCE": str(patience),
            "DQ_LEASE": str(lease),
            "DQ_LISTEN": listen,
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
        }
        process = spawn(
            sys.executable, "-m", "tests.support.worker_program", role, env=environment, cwd=ROOT, stderr=stderr
        )
        return Program(process, redis_client)

    return start


@pytest.fixture
def tower(connection: Connection, prefix: str) -> Iterator[Tower]:
    broker = Broker(connection, prefix=prefix, lease_ms=3_600_000, test_clock=True)
    yield Tower(broker)
    assert_invariants(broker)


@pytest.fixture
def clock() -> Iterator[Clock]:
    with Clock().running() as clock:
        yield clock

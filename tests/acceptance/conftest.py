"""Deployments for the acceptance tests: see :mod:`.world`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from django_delayq.core import fsck
from django_delayq.core.broker import Broker
from django_delayq.core.redis.connection import Connection
from tests.core.stage import LEASE, Stage
from tests.support.redis_box import RedisBox

from .world import Mill

MakeMill = Callable[..., Mill]


@pytest.fixture
def make_mill(redis_box: RedisBox, tmp_path: Path, redis_factory: object, proxy_factory: object) -> Iterator[MakeMill]:
    """``make_mill(lease=1.5)``: a deployment on the run's Redis (or ``url=``); checked and closed after the test.

    The factories are only named so that their servers outlive the check.
    """
    made = []
    with contextlib.ExitStack() as stack:

        def make(url: str = "", **options: Any) -> Mill:
            folder = tmp_path / f"mill-{len(made)}"
            folder.mkdir()
            mill = stack.enter_context(Mill(url or redis_box.url, folder, **options))
            made.append(mill)
            return mill

        yield make
        for mill in made:
            mill.check()


@pytest.fixture
def mill(make_mill: MakeMill) -> Mill:
    """A deployment with a short lease, so that what depends on it takes seconds."""
    return make_mill(lease=1.5)


@pytest.fixture
def stage(connection: Connection, prefix: str) -> Iterator[Stage]:
    """One queue at the moment T0; the invariants are asserted afterwards."""
    broker = Broker(connection, prefix=prefix, lease_ms=LEASE, test_clock=True)
    yield Stage(broker)
    fsck.assert_invariants(broker)

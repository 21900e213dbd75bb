"""Fixtures for tests of the HTTP API.

five         jobs a … e in queue errands, and two that are due
stock        jobs of two customers in queue errands, in every place
three        jobs c, a and b in its morgue
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

#: modules and folders whose tests are about rows, or about database connections
OF_TABLES = {
    "test_door",
    "test_produce",
    "test_jobs",
    "test_job_verbs",
    "test_health",
    "test_long_poll",
    "test_sent_again",
}


@pytest.fixture
def five(delayq: Any) -> Any:
    """Jobs a … e, due 100 s to 500 s from now; and two that are due."""
    from .errands import carry, greet, put

    for place, ident in enumerate("abcde"):
        put(delayq, carry, place, id=ident, delay=100 * (place + 1))
    put(delayq, greet, "x", id="now1")
    put(delayq, greet, "y", id="now2")
    return delayq


@pytest.fixture
def stock(delayq: Any) -> Any:
    """Jobs of two customers that wait; three failed, one runs, two are buried."""
    from .errands import FIRST, bury, carry, fail, greet, put, reserve

    for ident, hours in (("north-1", 0), ("north-2", 1), ("south-1", 2)):
        put(delayq, carry, f"to {ident}", id=ident, at=FIRST.timestamp() + hours * 3600)
    put(delayq, greet, "Ada", kwargs={"password": "letmein"}, id="greet-1", at=FIRST.timestamp() + 4 * 3600)
    for ident, times in (("failed-1", 1), ("failed-2", 2), ("failed-3", 3)):
        put(delayq, carry, id=ident)
        fail(delayq, ident, times=times)
    put(delayq, carry, "running", id="north-running")
    reserve(delayq, "north-running")
    for ident in ("north-dead", "south-dead"):
        put(delayq, carry, f"to {ident}", id=ident)
        bury(delayq, ident)
    return delayq


@pytest.fixture
def three(delayq: Any) -> Any:
    """c, a and b were buried in this order."""
    from .errands import bury, greet, put

    for ident in "cab":
        put(delayq, greet, ident, id=ident)
        bury(delayq, ident)
    return delayq


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ.get("DELAYQ_TEST_DB", "sqlite").startswith("sqlite"):
        return
    here = Path(__file__).parent
    left_out = [item for item in items if here in item.path.parents and item.path.stem not in OF_TABLES]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in set(left_out)]

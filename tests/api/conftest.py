"""Fixtures for tests of the HTTP API.

five         jobs a … e in queue errands, and two that are due
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
    "test_produce_rules",
    "test_morgue",
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


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ.get("DELAYQ_TEST_DB", "sqlite").startswith("sqlite"):
        return
    here = Path(__file__).parent
    left_out = [item for item in items if here in item.path.parents and item.path.stem not in OF_TABLES]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in set(left_out)]

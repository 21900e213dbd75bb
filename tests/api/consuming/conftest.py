"""Fixtures for tests of consumers over HTTP.

delayq      the process's broker, with the pull queues "feed", and "wide" in four shards
consumer    a caller who may only reserve jobs
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from django_delayq import connections
from django_delayq.core.broker import Broker
from tests.support.api_caller import Caller


@pytest.fixture
def delayq(delayq: Broker, settings: Any) -> Broker:
    """The process's broker, with "feed" for raw bytes and "wide" in four shards; both are there."""
    kinds = {"feed": {"kind": "pull"}, "wide": {"kind": "pull", "shards": 4}}
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": kinds}
    for name in kinds:
        connections.broker().queue(name)
    return connections.broker()


@pytest.fixture
def consumer(caller: Callable[..., Caller]) -> Caller:
    """User who may only reserve jobs."""
    return caller("consume")

"""Queues of the tests of ``django_delayq.Queue``, and the stage of the outbox."""

from __future__ import annotations

from typing import Any

import pytest

from django_delayq import Queue
from django_delayq.connections import DjangoBroker
from django_delayq.core.broker import Broker

from .outbox_stage import Stage


@pytest.fixture
def pull_queues(delayq: Broker, settings: Any) -> None:
    """Give the test a Redis of its own, "feed" for raw bytes and "wide" in four shards."""
    kinds = {"feed": {"kind": "pull"}, "wide": {"kind": "pull", "shards": 4}}
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": kinds}


@pytest.fixture
def feed(pull_queues: None) -> Queue:
    """Return the queue for raw bytes."""
    return Queue("feed")


@pytest.fixture
def stage(delayq: DjangoBroker) -> Stage:
    """Return the outbox of the default database."""
    return Stage(delayq)

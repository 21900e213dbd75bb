"""Thousands of queues cost a call nothing (T51)."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import redis.connection

from django_delayq.core.broker import Broker
from django_delayq.core.job import NewJob

from .epochs_stage import other

pytestmark = pytest.mark.usefixtures("impatient")


@pytest.fixture
def commands(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One element for each time that something is sent."""
    sent: list[int] = []
    original = redis.connection.AbstractConnection.send_packed_command

    def counted(self: Any, command: Any, check_health: bool = True) -> None:
        sent.append(1)
        original(self, command, check_health=check_health)

    monkeypatch.setattr(redis.connection.AbstractConnection, "send_packed_command", counted)
    return sent


@pytest.mark.one_server("counts round trips")
def test_t51_the_price_of_a_call_does_not_know_the_number_of_queues(broker: Broker, commands: list[int]) -> None:
    def price() -> dict[str, int]:
        process = other(broker)
        prices = {}

        def pay(what: str, act: Callable[[], object]) -> None:
            act()  # the scripts are known from here on
            commands.clear()
            act()
            prices[what] = len(commands)

        pay("open", lambda: setattr(process, "_queues", {}) or process.queue("q7"))
        queue = process.queue("q7")
        pay("schedule", lambda: queue.schedule(NewJob("a", "work")))
        pay("schedule made", lambda: queue.schedule(NewJob(f"m{random.random()}", "work", fresh=True, delay_ms=9**9)))
        pay("reserve", lambda: queue.reserve(0, 10, worker="w"))
        pay("cancel", lambda: queue.cancel("nobody"))
        pay("get", lambda: process.inspector.get("q7", "a"))
        pay("served", lambda: process.served(["q7"]))
        pay("announce", lambda: process.announce("w", {}))
        return prices

    broker.queue("q7")
    few = price()
    for number in range(5_000):
        broker.queue(f"q{number}")
    assert price() == few
    assert max(few.values()) <= 2
    commands.clear()
    counts = broker.inspector.all_counts()
    assert len(counts) == 5_000
    assert len(commands) <= 3
    broker.client.delete(broker.queues_key)  # the check of 5,000 queues afterwards would take long

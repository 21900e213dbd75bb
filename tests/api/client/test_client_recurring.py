"""Recurring tasks in both clients."""

from __future__ import annotations

from typing import Any

import pytest

from django_delayq import task
from django_delayq.client import NotFound
from django_delayq.core.task import registry

pytestmark = pytest.mark.django_db(transaction=True)


def test_recurring_tasks_are_listed_paused_resumed_and_run(client: Any) -> None:
    made = task(name="shop.nightly", every=3600, queue="reports")(lambda: None)
    try:
        (found,) = [one for one in client.recurring() if one.task == "shop.nightly"]
        assert (found.queue, found.schedule, found.last_tick, found.paused) == ("reports", "every 1h", None, None)
        assert found.next_tick is not None
        paused = client.pause_recurring("shop.nightly")
        assert (paused.next_tick, paused.paused is None) == (None, False)
        assert client.resume_recurring("shop.nightly").paused is None
        assert client.run_recurring_now("shop.nightly") == "created"
    finally:
        registry.remove(made)
    with pytest.raises(NotFound, match="no recurring task"):
        client.run_recurring_now("shop.nightly")

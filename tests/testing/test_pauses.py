"""Pauses for a time and paused producers in the testing kit."""

from __future__ import annotations

from typing import Any

import pytest

from django_delayq import QueuePaused, schedule
from tests.app.deeds import note


def test_run_due_waits_for_the_end_of_a_pause(delayq_fake: Any) -> None:
    schedule(note, "1")
    delayq_fake.broker.pause("default", "out", seconds=600)
    assert not delayq_fake.run_due(until=0).runs
    delayq_fake.travel(599)
    assert not delayq_fake.run_due(until=0).runs
    delayq_fake.travel(1)
    assert len(delayq_fake.run_due(until=0).runs) == 1


def test_paused_producers_are_refused(delayq_fake: Any) -> None:
    delayq_fake.broker.pause_producers()
    with pytest.raises(QueuePaused, match="all producers"):
        schedule(note, "1")
    delayq_fake.broker.resume_producers()
    assert schedule(note, "1").outcome == "created"

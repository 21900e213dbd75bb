"""The kit has no replicas: ``wait_for_confirmation=`` is accepted and ignored."""

from __future__ import annotations

from typing import Any

import pytest

from django_delayq import schedule, schedule_many
from django_delayq.testing import Fake

from .works import note


@pytest.mark.parametrize("redis", ["redis://nowhere/0", {"URL": "redis://nowhere/0", "WAIT_REPLICAS": 1}])
def test_confirmed_jobs_are_stored_without_a_wait(delayq_fake: Fake, settings: Any, redis: object) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": redis}
    assert schedule(note, "x", wait_for_confirmation=True).outcome == "created"
    assert schedule_many(note, [{"args": ["x"]}], wait_for_confirmation=True) == {"created": 1}
    assert len(delayq_fake.scheduled_jobs()) == 2

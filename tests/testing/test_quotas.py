"""The limit of a queue with several shards in the testing kit."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import override_settings

from django_delayq import QueueFull, cancel, schedule, schedule_many
from django_delayq.testing import Fake
from tests.testing.works import note


def test_the_limit_holds_for_all_shards_together(delayq_fake: Fake, settings: Any) -> None:
    with override_settings(DELAYQ={**settings.DELAYQ, "QUEUES": {"notes": {"shards": 3, "max_length": 7}}}):
        for number in range(5):
            schedule(note, "x", id=str(number))
        assert schedule_many(note, [{"args": ["x"]} for _ in range(5)])["created"] == 2
        with pytest.raises(QueueFull):
            schedule(note, "y")
        assert cancel(note, id="3") == "cancelled"
        schedule(note, "z")
        with pytest.raises(QueueFull):
            schedule(note, "y")

"""Stored hours: their files, and their deletion."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from django_delayq.history import rows
from django_delayq.history.rows import forget_hours
from django_delayq.models.history import HourlyStat, PipelineRun

from .past import hour_of, seed

pytestmark = pytest.mark.django_db


def run_of(ago: timedelta, state: str = "finished", silent: timedelta = timedelta()) -> PipelineRun:
    now = timezone.now()
    return PipelineRun.objects.create(
        run_id=f"{state}", kind="history", state=state, started_at=now - ago, seen_at=now - silent
    )


def test_what_is_old_is_forgotten_but_for_runs_that_go_on(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    settings.TIME_ZONE = "Pacific/Kiritimati"
    monkeypatch.setattr(rows, "DELETED_AT_ONCE", 2)
    now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    old, young = now - timedelta(days=10, hours=1), now - timedelta(days=9, hours=22)
    seed(*(hour_of(old, task=f"t{number}") for number in range(5)), hour_of(young))
    kept = [run_of(timedelta(days=9)), run_of(timedelta(days=20), "running")]
    run_of(timedelta(days=11))
    run_of(timedelta(days=11), "running", timedelta(hours=1))
    gone = forget_hours(10)
    assert (gone.hours, gone.runs) == (5, 2)
    assert HourlyStat.objects.count() == 1
    assert set(PipelineRun.objects.all()) == set(kept)
    assert forget_hours(10) == rows.Forgotten(0, 0)
    assert forget_hours(999_999) == rows.Forgotten(0, 0)


@pytest.mark.parametrize("days", [0, -1, float("nan"), float("inf")])
def test_to_forget_everything_by_mistake_is_refused(days: float) -> None:
    seed(hour_of())
    with pytest.raises(ValueError, match="days must be above 0"):
        forget_hours(days)
    assert HourlyStat.objects.count() == 1

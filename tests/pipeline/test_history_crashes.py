"""A pipeline run that dies at any step leaves the same history as one that does not."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from django_delayq.pipeline.history import read

from .history_stage import DAY, Database, Inbox, at, event, figures, history

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STEPS: Final = (
    "events: files written",
    "batch written",
    "days noted",
    "batch landed",
    "landed",
    "attempts: files written",
    "attempts: replaced",
    "quarantine: files written",
    "quarantine: replaced",
    "hours: files written",
    "hours: replaced",
    "hours published",
    "days settled",
)
#: one of each kind
SOME: Final = ("batch written", "batch landed", "attempts: files written", "attempts: replaced", "hours published")


class Died(BaseException):
    """Simulated death of the process; the package does not catch it."""


def dies_at(step: str) -> Callable[[str], None]:
    def tell(name: str) -> None:
        if name == step:
            raise Died(step)

    return tell


@pytest.mark.parametrize(
    "steps", [pytest.param(SOME, id="some"), pytest.param(STEPS, id="all", marks=pytest.mark.slow)]
)
def test_a_history_that_died_at_every_step_equals_one_that_did_not(
    spark: SparkSession, tmp_path: Path, steps: tuple[str, ...]
) -> None:
    inbox, database = Inbox(tmp_path / "inbox"), Database()
    days = {step: DAY + timedelta(days=number) for number, step in enumerate(steps)}
    # Of two hours, of which the run that dies touches one.
    for hour in (3, 10):
        inbox.add(
            *(event(ts=at(day, hour)) for day in days.values()),
            *(event(ts=at(day, hour), id=None) for day in days.values()),
        )
    history(spark, tmp_path / "root", inbox).run(database)

    for step, day in days.items():
        inbox.add(event("failed", ts=at(day)), event(ts=at(day), id=None))
        with pytest.raises(Died, match=step):
            history(spark, tmp_path / "root", inbox, dies_at(step)).run(database)
    history(spark, tmp_path / "root", inbox).run(database)

    good = [row for row in inbox.events if row["id"]]
    assert database.rows == figures(good)
    bad = [row for row in inbox.events if not row["id"]]
    for table, rows in (("events", inbox.events), ("attempts", good), ("quarantine", bad)):
        found = read(spark, f"{tmp_path}/root/{table}").select("stream_id").collect()
        assert sorted(row.stream_id for row in found) == sorted(row["stream_id"] for row in rows), table
    assert list((tmp_path / "root").glob("_pending_days/*")) == []
    assert history(spark, tmp_path / "root", inbox).status().pending == ()

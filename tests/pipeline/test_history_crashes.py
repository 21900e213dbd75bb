"""A pipeline run that dies at any step leaves the same history as one that does not."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from django_delayq.pipeline.history import read

from .history_stage import DAY, Database, Inbox, Row, at, event, figures, history

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STEPS: Final = ("files written", "batch landed", "hours published")


class Died(BaseException):
    """Simulated death of the process; the package does not catch it."""


def dies_at(step: str) -> Callable[[str], None]:
    def tell(name: str) -> None:
        if name == step:
            raise Died(step)

    return tell


def stream_ids(spark: SparkSession, root: Path) -> list[str]:
    return sorted(row.stream_id for row in read(spark, f"{root}/events").select("stream_id").collect())


def test_a_history_that_died_at_every_step_equals_one_that_did_not(spark: SparkSession, tmp_path: Path) -> None:
    inbox, database, root = Inbox(tmp_path / "inbox"), Database(), tmp_path / "root"
    days = {step: DAY + timedelta(days=number) for number, step in enumerate(STEPS)}
    # Of two hours, of which the run that dies touches one.
    for hour in (3, 10):
        inbox.add(*(event(ts=at(day, hour)) for day in days.values()))
    history(spark, root, inbox, database).run()

    for step, day in days.items():
        inbox.add(event("failed", ts=at(day)))
        with pytest.raises(Died, match=step):
            history(spark, root, inbox, database, dies_at(step)).run()
    history(spark, root, inbox, database).run()

    assert database.rows == figures(inbox.events)
    assert stream_ids(spark, root) == sorted(row["stream_id"] for row in inbox.events)
    assert history(spark, root, inbox, database).pending() == []


def test_what_comes_bit_by_bit_is_the_same_as_what_comes_at_once(
    spark: SparkSession, root: Path, inbox: Inbox, database: Database
) -> None:
    """Late events through hours and days in no order, with deaths and compactions between."""
    dice = random.Random(11)
    days = [DAY - timedelta(days=number) for number in range(3)]
    for number in range(6):
        fresh: list[Row] = []
        for _ in range(dice.randrange(1, 9)):
            ts = at(dice.choice(days), dice.choice([0, 1, 12, 23]), dice.randrange(60))
            outcome, task = dice.choice(["succeeded", "failed", "buried"]), dice.choice(["shop.a", "shop.b"])
            fresh.append(event(outcome, ts, task=task, lateness_ms=dice.randrange(100_000)))
        inbox.add(*fresh)
        if number % 2:
            with pytest.raises(Died):
                history(spark, root, inbox, database, dies_at(dice.choice(STEPS))).run()
        if number == 3:
            kept = history(spark, root, inbox, database)
            pending = {file.day for file in kept.pending()}
            assert pending.isdisjoint(kept.compact())
        history(spark, root, inbox, database).run()
        if number == 4:
            assert history(spark, root, inbox, database).compact()
        assert database.rows == figures(inbox.events)
        assert stream_ids(spark, root) == sorted(row["stream_id"] for row in inbox.events)

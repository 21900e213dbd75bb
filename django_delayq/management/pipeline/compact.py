"""Subcommand ``delayq_pipeline compact``: merge the many small files of a day into few."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Mapping
from typing import Any, Final

from . import common, keeping
from .day_bar import following_days

HELP: Final = "make the many small files of each past day one; once a day is enough"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    keeping.days_option(parser, "--older-than", 2.0, "only days that ended so many days ago (2)")
    common.add_spark(parser)


def run(command: common.Desk, options: Mapping[str, Any]) -> None:
    """Compact days, and print which ones."""
    run_id = keeping.new_run("compact")
    with (
        common.recorded(command, "compact", run_id, detail=keeping.asked(options)) as kept,
        common.session(command, options, f"delayq {run_id}") as spark,
    ):
        with following_days(command, "compact", kept) as told_days:
            done = keeping.driver(spark, options).compact(options["older_than"], on_days=told_days)
        days = [str(day) for day in done]
        kept.progress(detail={"days": days})
    common.finish(command, {"run_id": run_id, "state": "finished", "days": days})

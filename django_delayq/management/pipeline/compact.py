"""``delayq_pipeline compact``: makes the many small files of a day few."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Mapping
from typing import Any, Final

from . import common, keeping

HELP: Final = "make the many small files of each past day one; once a day is enough"


def add_arguments(parser: ArgumentParser) -> None:
    """The command line."""
    keeping.days_option(parser, "--older-than", 2.0, "only days that ended so many days ago (2)")
    common.add_spark(parser)


def run(command: common.Desk, options: Mapping[str, Any]) -> None:
    """Compact, and say which days."""
    run_id = keeping.new_run("compact")
    with (
        common.recorded(command, "compact", run_id, detail=keeping.asked(options)) as kept,
        common.session(command, options, f"delayq {run_id}") as spark,
    ):
        days = [str(day) for day in keeping.driver(spark, options).compact(options["older_than"])]
        kept.progress(rows=len(days), detail={"days": days})
    common.finish(command, {"run_id": run_id, "state": "finished", "days": days})

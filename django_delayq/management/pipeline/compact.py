"""Subcommand ``delayq_pipeline compact``: merge the many small files of a day into few."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Mapping
from typing import Any, Final

from . import common, history_runs

HELP: Final = "merge the small files of each past day into one; run it once a day"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    history_runs.add_days_option(
        parser, "--older-than", 2.0, "only days that ended at least this long ago (default: 2)"
    )
    common.add_spark(parser)


def run(command: common.PipelineCommand, options: Mapping[str, Any]) -> None:
    """Compact days, and print which ones."""
    run_id = history_runs.new_run_id("compact")
    with (
        common.record_run(command, "compact", run_id, detail=history_runs.run_detail(options)) as record,
        common.session(command, options, f"delayq {run_id}") as spark,
    ):
        with history_runs.follow_days(command, "compact", record) as on_days:
            compacted = history_runs.driver(spark, options).compact(options["older_than"], on_days=on_days)
        days = [str(day) for day in compacted]
        record.progress(detail={"days": days})
    command.print_result({"run_id": run_id, "state": "finished", "days": days})

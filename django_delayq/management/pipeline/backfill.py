"""Subcommand ``delayq_pipeline backfill``: recompute days from the stored events."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Mapping
from typing import Any, Final

from django.core.management.base import CommandError

from . import common, history_runs

HELP: Final = "compute the attempts and metrics of days again from their events, e.g. after a change of the SLA"
EXAMPLES: Final = ("delayq_pipeline backfill --from 2026-11-01 --to 2026-11-21",)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    for name, dest, text in (("--from", "first", "first day, in UTC"), ("--to", "last", "last day")):
        parser.add_argument(
            name, dest=dest, type=common.day, required=True, metavar="DAY", help=f"{text}, like 2026-11-21"
        )
    common.add_spark(parser)


def run(command: common.PipelineCommand, options: Mapping[str, Any]) -> None:
    """Compute and write the days."""
    first, last = options["first"], options["last"]
    if last < first:
        raise CommandError(f"--to {last} is before --from {first}: exchange them", returncode=2)
    run_id = history_runs.new_run_id("backfill")
    with (
        common.record_run(command, "backfill", run_id, detail=history_runs.run_detail(options)) as record,
        common.session(command, options, f"delayq {run_id}", patient=True) as spark,
    ):
        with history_runs.follow_days(command, "backfill", record) as on_days:
            summary = history_runs.driver(spark, options).backfill(
                first, last, history_runs.write_hours, stop=command.stop_request, on_days=on_days
            )
        history_runs.finish(command, run_id, record, summary)

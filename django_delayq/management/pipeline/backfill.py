"""Subcommand ``delayq_pipeline backfill``: recompute days from the stored events."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Mapping
from typing import Any, Final

from django.core.management.base import CommandError

from . import common, keeping
from .day_bar import following_days
from .stopping import Stopped

HELP: Final = "compute the attempts and figures of some days anew from their events, e.g. after a change of the SLA"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    for name, dest, text in (("--from", "first", "the first day, of UTC"), ("--to", "last", "the last day")):
        parser.add_argument(name, dest=dest, type=common.day, required=True, metavar="DAY", help=f"{text}: 2026-11-21")
    common.add_spark(parser)


def run(command: common.Desk, options: Mapping[str, Any]) -> None:
    """Compute and write the days."""
    first, last = options["first"], options["last"]
    if last < first:
        raise CommandError(f"--to {last} lies before --from {first}", returncode=2)
    run_id = keeping.new_run("backfill")
    with (
        common.recorded(command, "backfill", run_id, detail=keeping.asked(options)) as kept,
        common.session(command, options, f"delayq {run_id}", patient=True) as spark,
    ):
        with following_days(command, "backfill", kept) as told_days:
            summary = keeping.driver(spark, options).backfill(
                first, last, keeping.write_hours, stop=command.stopping, on_days=told_days
            )
        told = keeping.told(summary)
        kept.progress(rows=summary.rows, bad=summary.bad, detail=told)
        common.finish(command, {"run_id": run_id, "state": "stopped" if summary.stopped else "finished", **told})
        if summary.stopped:
            raise Stopped(command.stopping.sentence)

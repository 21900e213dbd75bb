"""Subcommand ``delayq_pipeline run``: add the events since the last run to the history, and end."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Mapping
from typing import Any, Final

from ..progress import follow
from . import common, history_runs

HELP: Final = "read the events since the last run into the history, and end; for cron"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    history_runs.add_read_options(parser)
    common.add_spark(parser)


def run(command: common.PipelineCommand, options: Mapping[str, Any]) -> None:
    """Read, compute and write, then print the result."""
    run_id, total = history_runs.new_run_id("history"), history_runs.unread_events(options["queues"])
    with (
        common.record_run(command, "history", run_id, total=total, detail=history_runs.run_detail(options)) as record,
        common.session(command, options, f"delayq {run_id}", patient=True) as spark,
    ):
        history = history_runs.driver(spark, options)
        with command.progress("history", unit="events") as progress:
            with follow(progress, history_runs.event_counter(spark, total)):
                summary = history.run(history_runs.write_hours, stop=command.stop_request)
            progress.update(summary.rows)
        history_runs.finish(command, run_id, record, summary, offsets=summary.offsets)

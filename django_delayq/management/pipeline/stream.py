"""Subcommand ``delayq_pipeline stream``: keep the history up to date until it is stopped."""

from __future__ import annotations

from argparse import ArgumentParser
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from ...status.formatting import duration
from ..base import positive
from . import common, history_runs

if TYPE_CHECKING:
    from ...pipeline.history import Summary

HELP: Final = "keep the history up to date until SIGTERM or Ctrl-C; a second signal ends it at once"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    parser.add_argument(
        "--interval",
        type=positive(float, "a number of seconds"),
        default=60.0,
        metavar="SECONDS",
        help="pause between two reads (default: 60)",
    )
    history_runs.add_read_options(parser)
    common.add_spark(parser)


def run(command: common.PipelineCommand, options: Mapping[str, Any]) -> None:
    """Read at regular intervals. A stop request is a normal end."""
    run_id = history_runs.new_run_id("history")
    counts: Counter[str] = Counter(rows=0, bad=0, batches=0)
    with (
        common.record_run(command, "history", run_id, endless=True, detail=history_runs.run_detail(options)) as record,
        common.session(command, options, f"delayq {run_id}", patient=True) as spark,
    ):

        def on_summary(summary: Summary) -> None:
            counts.update(rows=summary.rows, bad=summary.bad, batches=summary.batches)
            detail = {**history_runs.summary_values(summary), "offsets": summary.offsets}
            record.progress(rows=counts["rows"], bad=counts["bad"], detail=detail)
            if summary.rows:
                command.print_note(f"history: {summary.rows} events in {duration(summary.seconds)}")

        command.print_note(f"history: reads every {options['interval']:g} s; SIGTERM or Ctrl-C ends it")
        runs = history_runs.driver(spark, options).stream(
            options["interval"], history_runs.write_hours, command.stop_request, on_summary=on_summary
        )
    command.print_result({"run_id": run_id, "state": "stopped", "runs": runs, **counts})

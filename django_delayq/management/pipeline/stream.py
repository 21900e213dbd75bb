"""``delayq_pipeline stream``: keeps the history up to date until somebody wants an end."""

from __future__ import annotations

from argparse import ArgumentParser
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from ...status.formatting import duration
from ..base import positive
from . import common, keeping

if TYPE_CHECKING:
    from ...pipeline.history import Summary

HELP: Final = "keep the history up to date until SIGTERM or Ctrl-C, which end it in order (the second one at once)"


def add_arguments(parser: ArgumentParser) -> None:
    """The command line."""
    parser.add_argument(
        "--interval",
        type=positive(float, "a number of seconds"),
        default=60.0,
        metavar="SECONDS",
        help="read so often (60)",
    )
    keeping.add_reading(parser)
    common.add_spark(parser)


def run(command: common.Desk, options: Mapping[str, Any]) -> None:
    """Read every so often; an end that is wanted is a good end."""
    run_id = keeping.new_run("history")
    counts: Counter[str] = Counter(rows=0, bad=0, batches=0)
    with (
        common.recorded(command, "history", run_id, endless=True, detail=keeping.asked(options)) as kept,
        common.session(command, options, f"delayq {run_id}", patient=True) as spark,
    ):

        def heard(summary: Summary) -> None:
            counts.update(rows=summary.rows, bad=summary.bad, batches=summary.batches)
            told = {**keeping.told(summary), "offsets": summary.offsets}
            kept.progress(rows=counts["rows"], bad=counts["bad"], detail=told)
            if summary.rows:
                common.say(command, f"history: {summary.rows} events in {duration(summary.seconds)}", options)

        common.say(command, f"history: reads every {options['interval']:g} s; SIGTERM or Ctrl-C ends it", options)
        runs = keeping.driver(spark, options).stream(
            options["interval"], keeping.write_hours, command.stopping, on_summary=heard
        )
    common.finish(command, {"run_id": run_id, "state": "stopped", "runs": runs, **counts})

"""Subcommand ``delayq_pipeline run``: read the events since the last run, and end."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Mapping
from typing import Any, Final

from ..progress import following
from . import common, keeping
from .stopping import Stopped

HELP: Final = "read the events since the last time into the history, and end; for cron"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    keeping.add_reading(parser)
    common.add_spark(parser)


def run(command: common.Desk, options: Mapping[str, Any]) -> None:
    """Read, compute and write, then print the result."""
    run_id, total = keeping.new_run("history"), keeping.unread(options["queues"])
    with (
        common.recorded(command, "history", run_id, total=total, detail=keeping.asked(options)) as kept,
        common.session(command, options, f"delayq {run_id}", patient=True) as spark,
    ):
        history = keeping.driver(spark, options)
        with command.progress("history", unit="events") as shown:
            with following(shown, keeping.counter(spark, total)):
                summary = history.run(keeping.write_hours, stop=command.stopping)
            shown.update(summary.rows)
        told = keeping.told(summary)
        kept.progress(rows=summary.rows, bad=summary.bad, detail={**told, "offsets": summary.offsets})
        common.finish(command, {"run_id": run_id, "state": "stopped" if summary.stopped else "finished", **told})
        if summary.stopped:
            raise Stopped(command.stopping.sentence)

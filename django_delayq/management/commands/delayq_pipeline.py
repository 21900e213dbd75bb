"""Command ``manage.py delayq_pipeline``: the data pipeline on Spark."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from typing import Any, Final

from django.core.management.base import CommandError

from ...pipeline.errors import SparkMissing, plain_errors
from ...pipeline.session import check, check_java, running
from ..base import share_options, with_examples
from ..pipeline import bulk, doctor, history, jobs
from ..pipeline.common import MISSING, PipelineCommand, Subcommand

SUBCOMMANDS: Final[dict[str, Subcommand]] = {
    **history.SUBCOMMANDS,
    "doctor": doctor.SUBCOMMAND,
    "bulk": bulk.SUBCOMMAND,
    "jobs": jobs.SUBCOMMAND,
}


class Command(PipelineCommand):
    """Command that runs the subcommands of the data pipeline."""

    help = (
        "Runs the data pipeline on Spark: the history of jobs (run, stream, status, backfill, compact, purge), bulk "
        "scheduling (bulk) and repair by SQL (jobs). Start with "
        "`doctor`, which lists what has to be installed. Exit codes: 0 done, 1 failed, 2 wrong use, 3 something is not "
        "installed or not available, 4 stopped by a signal."
    )
    examples = (
        "delayq_pipeline doctor",
        "delayq_pipeline run",
        "delayq_pipeline status",
        "delayq_pipeline bulk --help",
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the arguments of all subcommands."""
        subcommands = parser.add_subparsers(dest="subcommand", required=True, metavar="SUBCOMMAND")
        for name, subcommand in SUBCOMMANDS.items():
            description = f"{subcommand.help[0].upper()}{subcommand.help[1:]}."
            more = {"description": description, **with_examples(*subcommand.examples)}
            subcommand.add_arguments(subcommands.add_parser(name, help=subcommand.help, **more))
        share_options(parser, subcommands.choices.values())

    def run(self, **options: Any) -> None:
        """Run the chosen subcommand. A result other than 0 is the exit code."""
        subcommand = SUBCOMMANDS[options["subcommand"]]
        try:
            with self.listening(), plain_errors("\n--traceback shows Spark's full error."):
                if subcommand.needs != "nothing":
                    check()
                if subcommand.needs == "java" and running() is None:
                    check_java()
                code = subcommand.run(self, options)
        except SparkMissing as error:
            text = f"{error}\n`manage.py delayq_pipeline doctor` lists everything that is missing."
            raise CommandError(text, returncode=MISSING) from error
        except OSError as error:
            raise CommandError(str(error)) from error
        if code:
            sys.exit(code)

"""Command ``manage.py delayq_pipeline``: the data pipeline on Spark."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from importlib import import_module
from types import ModuleType
from typing import Any, Final

from django.core.management.base import CommandError

from ...pipeline import java
from ...pipeline.errors import SparkMissing
from ...pipeline.session import check, running
from ..base import share_options, with_examples
from ..pipeline.common import MISSING, STOPPED, PipelineCommand, is_spark_error, root, spark_message
from ..pipeline.stopping import Stopped, StopRequest

#: names of subcommands, and of their modules in django_delayq.management.pipeline
SUBCOMMANDS: Final = (
    "run",
    "stream",
    "status",
    "doctor",
    "backfill",
    "compact",
    "purge",
    "export",
    "bulk",
    "reconcile",
    "jobs",
    "runs",
)
_PACKAGE: Final = "django_delayq.management.pipeline"


class Command(PipelineCommand):
    """Command that runs the subcommands of the data pipeline."""

    help = (
        "Runs the data pipeline on Spark: the history of jobs (run, stream, status, runs, backfill, compact, purge, "
        "export), bulk scheduling (bulk), restoring missing jobs (reconcile) and repair by SQL (jobs). Start with "
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
        for name in SUBCOMMANDS:
            module = _module(name)
            parser_options = with_examples(*getattr(module, "EXAMPLES", ()))
            description = f"{module.HELP[0].upper()}{module.HELP[1:]}."
            module.add_arguments(
                subcommands.add_parser(name, help=module.HELP, description=description, **parser_options)
            )
        share_options(parser, subcommands.choices.values())

    def run(self, **options: Any) -> None:
        """Run the chosen subcommand. A result other than 0 is the exit code."""
        module = _module(options["subcommand"])
        with StopRequest() as self.stop_request:
            try:
                if getattr(module, "NEEDS_SPARK", True) and running() is None:
                    check()
                    java.find()
                code = module.run(self, options)
            except SparkMissing as error:
                text = f"{error}\n`manage.py delayq_pipeline doctor` lists everything that is missing."
                raise CommandError(text, returncode=MISSING) from error
            except Stopped as error:
                raise CommandError(str(error), returncode=STOPPED) from error
            except OSError as error:
                raise CommandError(f"{error}{_hint(str(error))}") from error
            except Exception as error:
                if self.stop_request():
                    raise CommandError(self.stop_request.message, returncode=STOPPED) from error
                if is_spark_error(error):
                    raise CommandError(f"{spark_message(error)}\n--traceback shows Spark's full error.") from error
                raise
        if code:
            sys.exit(code)


def _hint(text: str) -> str:
    """Return advice on the history's folder for an error of a file, unless the error names a file elsewhere."""
    if "/" in text and root() not in text:
        return ""
    return (
        "\nIs the folder DELAYQ['PIPELINE']['root'] writable, and has its disk free space? "
        "`manage.py delayq_pipeline doctor` tests both."
    )


def _module(name: str) -> ModuleType:
    return import_module(f"{_PACKAGE}.{name}")

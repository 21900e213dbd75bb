"""Command ``manage.py delayq_pipeline``: the data pipeline on Spark."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Final

from django.core.management.base import CommandError

from ...pipeline import java
from ...pipeline.errors import SparkMissing
from ...pipeline.session import check, running
from ..base import DelayQCommand, share_options
from ..pipeline.common import MISSING, STOPPED, is_sparks, told
from ..pipeline.stopping import Stopped, Stopping

#: each is a module of django_delayq.management.pipeline
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
_ROOM: Final = "django_delayq.management.pipeline"


class Command(DelayQCommand):
    """Command that runs the subcommands of the data pipeline."""

    help = (
        "The data pipeline on Spark: keeps the history of jobs (run, stream, status, backfill, compact, purge, "
        "export), schedules in bulk (bulk), puts back what is missing (reconcile), repairs by SQL (jobs). "
        "Begin with `doctor`, which says what is missing here. Exit codes: 0 done, 1 failed, 2 wrong use, "
        "3 something is not installed or not there, 4 stopped by a signal."
    )
    requires_system_checks = ()
    stopping: Stopping

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the arguments of all subcommands."""
        subcommands = parser.add_subparsers(dest="subcommand", required=True, metavar="SUBCOMMAND")
        for name in filter(_is_there, SUBCOMMANDS):
            module = _module(name)
            one = subcommands.add_parser(
                name, help=module.HELP, description=f"{module.HELP[0].upper()}{module.HELP[1:]}."
            )
            module.add_arguments(one)
        share_options(parser, subcommands.choices.values())

    def run(self, **options: Any) -> None:
        """Run the chosen subcommand. A result other than 0 is the exit code."""
        module = _module(options["subcommand"])
        with Stopping() as self.stopping:
            try:
                if getattr(module, "NEEDS_SPARK", True) and running() is None:
                    check()
                    java.find()
                code = module.run(self, options)
            except SparkMissing as error:
                text = f"{error}\n`manage.py delayq_pipeline doctor` says what else is missing."
                raise CommandError(text, returncode=MISSING) from error
            except Stopped as error:
                raise CommandError(str(error), returncode=STOPPED) from error
            except OSError as error:
                raise CommandError(
                    f"{error}\nCan the folder DELAYQ['PIPELINE']['root'] be written, and is there room? "
                    f"`manage.py delayq_pipeline doctor` tries it."
                ) from error
            except Exception as error:
                if is_sparks(error):
                    raise CommandError(f"{told(error)}\n--traceback shows all that Spark says.") from error
                raise
        if code:
            sys.exit(code)


def _module(name: str) -> ModuleType:
    return import_module(f"{_ROOM}.{name}")


def _is_there(name: str) -> bool:
    return find_spec(f"{_ROOM}.{name}") is not None

"""Subcommand ``delayq_pipeline export``: copy the history to a folder of plain Parquet. Needs no Java."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Mapping
from dataclasses import asdict
from datetime import date
from typing import Any, Final

from django.core.management.base import CommandError

from ...pipeline.errors import SparkMissing
from ...pipeline.session import HOW_TO
from ..base import queue_list
from . import common
from .status import TABLES

HELP: Final = "copy the history to a folder of plain Parquet, for tools that do not read Delta tables"
EXAMPLES: Final = ("delayq_pipeline export --parquet /srv/history --from 2026-11-01",)
NEEDS_SPARK: Final = False


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    parser.add_argument(
        "--parquet", required=True, metavar="FOLDER", help="new folder for the files, or a URL that Arrow can open"
    )
    parser.add_argument(
        "--tables",
        type=queue_list,
        default=TABLES,
        metavar="A,B",
        help=f"only these tables, of {', '.join(TABLES)} (default: all)",
    )
    for name, dest, text in (("--from", "first", "first day, in UTC"), ("--to", "last", "last day")):
        parser.add_argument(name, dest=dest, type=common.day, metavar="DAY", help=f"{text} (default: all days)")


def run(command: common.PipelineCommand, options: Mapping[str, Any]) -> None:
    """Copy the files, and print how many."""
    if unknown := [name for name in options["tables"] if name not in TABLES]:
        raise CommandError(
            f"--tables: there is no table {unknown[0]!r}. Known tables: {', '.join(TABLES)}", returncode=2
        )
    try:
        from ...pipeline.export import export
        from ...pipeline.store import Store
        from ...pipeline.versions import Versions
    except ImportError as error:
        raise SparkMissing(f"The pipeline needs {error.name}: {HOW_TO}") from error
    store = Store(common.root())
    days = (options["first"] or date.min, options["last"] or date.max)
    with command.progress("export", unit="files") as progress:

        def on_file(done: int, total: int) -> None:
            command.stop_request.check()
            progress.update(done, total)

        try:
            exported = export(
                [Versions(store, name) for name in options["tables"]], options["parquet"], *days, on_file=on_file
            )
        except OSError as error:
            raise CommandError(
                f"{error}\nThe export copies from {common.root()} to {options['parquet']}: is the one readable, the "
                "other writable, and has its disk free space?"
            ) from error
    tables = {name: asdict(files) for name, files in exported.items()}
    command.print_result({"state": "finished", "folder": options["parquet"], "tables": tables})

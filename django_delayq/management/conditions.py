"""Options of commands that choose jobs by conditions."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Mapping
from typing import Any

from ..core.errors import InvalidJob
from ..core.moments import ms_of, parse_moment
from ..core.operations.job_filter import JobFilter
from .base import positive


def add_conditions(parser: ArgumentParser, *, text: bool = True) -> None:
    """Add the options. A job must meet all conditions that are given.

    Args:
        text: also ``--text``; else the command has an argument of this name.
    """
    group = parser.add_argument_group("conditions", "Only jobs that meet all of them.")
    if text:
        group.add_argument(
            "--text",
            "--match",
            metavar="TEXT",
            help="text in the id, the task name, the arguments, payloads, context or error",
        )
    group.add_argument("--task", default="", metavar="NAME", help="name of the task")
    group.add_argument("--prefix", default="", metavar="TEXT", help="beginning of the id")
    group.add_argument("--id-from", default="", metavar="ID", help="ids from this one on")
    group.add_argument("--id-to", default="", metavar="ID", help="ids up to this one")
    group.add_argument("--due-from", type=_moment, metavar="TIME", help="due at this time (ISO 8601) or later")
    group.add_argument("--due-before", type=_moment, metavar="TIME", help="due before this time (ISO 8601)")
    group.add_argument(
        "--failures",
        type=positive(int, "a number of failures"),
        default=0,
        metavar="N",
        help="failed at least so often",
    )
    group.add_argument(
        "--failures-to",
        type=positive(int, "a number of failures", zero=True),
        metavar="N",
        help="failed at most so often",
    )
    group.add_argument("--never-started", action="store_true", help="never reserved by anybody")
    group.add_argument("--buried-from", type=_moment, metavar="TIME", help="buried at this time (ISO 8601) or later")
    group.add_argument("--buried-before", type=_moment, metavar="TIME", help="buried before this time (ISO 8601)")


def filter_of(options: Mapping[str, Any]) -> JobFilter:
    """Return the filter of a command's options.

    Raises:
        InvalidJob: an option has a value that no job can have.
    """
    if options["text"] == "":
        raise InvalidJob("search for what? The text is empty; give a part of an id, a task or the arguments")
    return JobFilter(
        text=options["text"] or "",
        task=options["task"],
        prefix=options["prefix"],
        id_from=options["id_from"],
        id_to=options["id_to"],
        due_from_ms=options["due_from"],
        due_before_ms=options["due_before"],
        failures=options["failures"],
        failures_to=options["failures_to"],
        never_started=options["never_started"],
        buried_from_ms=options["buried_from"],
        buried_before_ms=options["buried_before"],
    )


def _moment(text: str) -> int:
    """Return Unix ms."""
    try:
        return ms_of(parse_moment(text))
    except InvalidJob as error:
        raise ArgumentTypeError(str(error)) from None

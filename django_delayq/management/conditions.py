"""Options of commands that choose jobs by conditions."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from ..core.errors import InvalidJob
from ..core.job_filter import JobFilter
from ..core.times import ms_of, parse_moment
from .base import positive

_MOMENTS: Final = {
    "due-from": "due at this time (ISO 8601) or later",
    "due-before": "due before this time (ISO 8601)",
    "buried-from": "buried at this time (ISO 8601) or later",
    "buried-before": "buried before this time (ISO 8601)",
}


def add_conditions(parser: ArgumentParser, *, text: bool = True) -> None:
    """Add the options, whose values are fields of a filter. A job must meet all conditions that are given.

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
    for name, meaning in _MOMENTS.items():
        dest = f"{name.replace('-', '_')}_ms"
        group.add_argument(f"--{name}", dest=dest, type=_moment, metavar="TIME", help=meaning)
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


def filter_of(options: Mapping[str, Any]) -> JobFilter:
    """Return the filter of a command's options.

    Raises:
        InvalidJob: an option has a value that no job can have.
    """
    if options["text"] == "":
        raise InvalidJob("search for what? The text is empty; give a part of an id, a task or the arguments")
    values = {field.name: options[field.name] for field in fields(JobFilter)}
    return JobFilter(**{**values, "text": options["text"] or ""})


def _moment(text: str) -> int:
    """Return Unix ms."""
    try:
        return ms_of(parse_moment(text))
    except InvalidJob as error:
        raise ArgumentTypeError(str(error)) from None

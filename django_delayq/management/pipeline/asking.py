"""A look before something is done, and the question whether to do it; on stderr, because stdout is for machines."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.core.management.base import CommandError

from ...status.formatting import printable, table
from ..base import mask_for
from . import common

if TYPE_CHECKING:
    from ...pipeline.selection import Selection


def check(options: Mapping[str, Any]) -> None:
    """Is there somebody who could be asked?

    Raises:
        CommandError: there is not, and the command line does not say yes.
    """
    if not options["yes"] and not sys.stdin.isatty():
        raise CommandError("Nobody is there to say yes: repeat the command with --yes, or with --dry-run", returncode=2)


def agreed(command: common.Desk, question: str, options: Mapping[str, Any]) -> bool:
    """Whether somebody says yes: on the command line, or now."""
    if options["yes"]:
        return True
    check(options)
    command.stderr.write(f"{question} [y/N] ", ending="")
    command.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def preview(command: common.Desk, selection: Selection, options: Mapping[str, Any]) -> None:
    """How many jobs of which kinds were chosen, and the first of them."""
    if not selection.total:
        return
    groups = [
        (printable(group.queue), printable(group.task or "?"), group.state, f"{group.jobs:,}")
        for group in selection.groups
    ]
    lines = table(("queue", "task", "state", "jobs"), groups, left=3)
    names, hide = list(selection.examples[0]), mask_for(options)
    rows = [hide.value(row) for row in selection.examples]
    lines += ["", *table(names, ([_cell(row[name]) for name in names] for row in rows), left=len(names))]
    common.say(command, "\n".join(lines), options)


def _cell(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds")
    return "" if value is None else printable(str(value), 40)

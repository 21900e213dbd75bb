"""Subcommand ``delayq_pipeline jobs``: run an action on all jobs that match an SQL condition."""

from __future__ import annotations

import time
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from django.core.management.base import CommandError

from ...core.errors import DelayQError, Misconfigured
from ...core.moments import parse_moment
from ...core.times import delay_ms_of, due_of
from ...settings.conf import conf
from ..base import add_show_secrets, queue_list
from . import asking, common, keeping

if TYPE_CHECKING:
    from ...pipeline.maintain import MaintainOptions
    from ...pipeline.selection import Selection

HELP: Final = "retry, cancel, discard or reschedule the jobs that a condition of SQL chooses"
_VERBS: Final = {
    "retry": "another try now, or after --delay: jobs that failed and wait, and those of the morgue",
    "cancel": "take out what waits or is gated; what runs does not come back",
    "discard": "throw out of the morgue",
    "reschedule": "another due time for what waits or is gated: --delay or --at",
}


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    parser.add_argument(
        "verb", choices=tuple(_VERBS), help="; ".join(f"{verb}: {text}" for verb, text in _VERBS.items())
    )
    parser.add_argument(
        "--where",
        required=True,
        metavar="SQL",
        help="a condition of Spark SQL over the columns of the format delayq, like \"task = 'shop.remind' and failures "
        '> 3 and failed_at > now() - interval 1 day"; times are UTC; "true" means all',
    )
    parser.add_argument("--queues", type=queue_list, default=(), metavar="A,B", help="only these queues (default: all)")
    parser.add_argument("--delay", type=seconds, metavar="TIME", help="from now on, like 90s or 2h30m")
    parser.add_argument("--at", metavar="MOMENT", help="like 2026-11-21T08:00:00+01:00")
    parser.add_argument(
        "--replace", action="store_true", help="jobs of the morgue take the places of live plain jobs of the same ids"
    )
    parser.add_argument("--dry-run", action="store_true", help="show what would be chosen; nothing is done")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    add_show_secrets(parser)
    common.add_spark(parser)


def seconds(text: str) -> float:
    """Return a time span like 90s or 2h30m in seconds, as an argparse type."""
    from ...pipeline.expressions import seconds as read

    try:
        return read(text.removeprefix("+"))
    except Misconfigured as error:
        raise ArgumentTypeError(str(error)) from None


def run(command: common.Desk, options: Mapping[str, Any]) -> None:
    """Select, show, confirm and run; each job only if it has not changed since it was selected."""
    from ...pipeline.maintain import FOR, carry_out

    wanted = _wanted(options)
    if not options["dry_run"]:
        asking.check(options)
    run_id, began = keeping.new_run("jobs"), time.monotonic()
    with common.session(command, options, f"delayq jobs {run_id}") as spark:
        selection = choose(command, spark, wanted)
        asking.preview(command, selection, options)
        told: dict[str, Any] = {"run_id": run_id, "verb": wanted.verb, "selected": selection.total}
        if options["dry_run"] or not selection.total:
            if not selection.total:
                common.say(command, f"No job is meant. {wanted.verb} is for {FOR[wanted.verb]}.", options)
            state = "dry run" if options["dry_run"] else "finished"
            common.finish(command, {**told, "state": state, "groups": groups(selection), "outcomes": {}})
            return
        if not asking.agreed(command, f"{wanted.verb}: {selection.total:,} jobs?", options):
            raise CommandError("nothing was done")
        detail = {"verb": wanted.verb, "where": wanted.where, "queues": list(wanted.queues)}
        with common.recorded(command, "jobs", run_id, total=selection.total, detail=detail) as kept:
            with command.progress(wanted.verb) as shown:

                def show(seen: int, total: int) -> None:
                    shown.update(seen, total)
                    kept.progress(rows=seen)

                outcomes = carry_out(
                    selection.frame, wanted, total=selection.total, progress=show, stop=command.stopping
                )
            seen = sum(outcomes.values())
            kept.progress(rows=seen, bad=outcomes.get("unreadable", 0), detail={"outcomes": outcomes})
            if seen < selection.total:
                command.stopping.check()
    common.finish(
        command, {**told, "state": "finished", "outcomes": outcomes, "seconds": round(time.monotonic() - began, 3)}
    )


def choose(command: common.Desk, spark: Any, wanted: MaintainOptions) -> Selection:
    """Return the selected jobs.

    Raises:
        Stopped: a stop was requested meanwhile.
    """
    from ...pipeline.maintain import choose as look

    try:
        return look(spark, wanted)
    except Exception:
        command.stopping.check()
        raise


def groups(selection: Selection) -> list[dict[str, Any]]:
    """Return the numbers of jobs by queue, task and state, for the last line."""
    return [
        {"queue": group.queue, "task": group.task, "state": group.state, "jobs": group.jobs}
        for group in selection.groups
    ]


def _wanted(options: Mapping[str, Any]) -> MaintainOptions:
    from ...pipeline.maintain import MaintainOptions

    due_ms = delay_ms = None
    try:
        if options["at"] is not None:
            due_ms = _moment(options["at"])
        if options["delay"] is not None:
            delay_ms = delay_ms_of(timedelta(seconds=options["delay"]), allow_far=conf().allow_far)
        return MaintainOptions(
            options["verb"],
            options["where"],
            common.format_options(),
            tuple(options["queues"]),
            delay_ms,
            due_ms,
            options["replace"],
        )
    except DelayQError as error:
        raise CommandError(str(error), returncode=2) from None


def _moment(text: str) -> int | None:
    return due_of(at=parse_moment(text, what="--at"), allow_far=conf().allow_far)[0]

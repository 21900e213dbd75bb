"""Subcommand ``delayq_pipeline jobs``: run an action on all jobs that match an SQL condition."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from django.core.management.base import CommandError

from ...core.errors import DelayQError
from ...core.times import delay_ms_of, due_of, parse_moment
from ...settings.conf import conf
from ...status.formatting import printable, table
from ..base import mask_for
from . import common

if TYPE_CHECKING:
    from ...pipeline.repair import MaintainOptions, Selection

_VERBS: Final = {
    "retry": "run waiting jobs that have failed, and jobs of the morgue, again now or after --delay",
    "cancel": "delete waiting and gated jobs; running ones end and are not retried",
    "discard": "delete jobs from the morgue",
    "reschedule": "give waiting and gated jobs another due time, by --delay or --at",
}


_VERB: Final = f"verb {'|'.join(_VERBS)}  {'; '.join(f'{verb}: {text}' for verb, text in _VERBS.items())}"
_OPTIONS: Final = """
    --where SQL!     condition in Spark SQL over the columns of the format delayq, like "task = 'shop.remind' and
                     failures > 3 and failed_at > now() - interval 1 day"; times are in UTC; "true" selects all jobs
    --queues QUEUES  only these queues (default: all)
    --delay TIME     time from now, like 90s or 2h30m
    --at MOMENT      due time, like 2026-11-21T08:00:00+01:00
    --replace        retry: replace live plain jobs that have the ids of jobs of the morgue
    --dry-run        change nothing, show the selected jobs
    --yes            do not ask for confirmation
    --show-secrets   do not mask values whose names suggest secrets (password, token)
"""


def _run(command: common.PipelineCommand, options: Mapping[str, Any]) -> None:
    """Select, show, confirm and run; each job only if it has not changed since it was selected."""
    from ...pipeline.repair import carry_out, choose

    action = _maintain_options(options)
    if not options["dry_run"]:
        command.check_confirmable(yes=options["yes"])
    run_id, began = common.new_run_id("jobs"), time.monotonic()
    with common.session(command, options, f"delayq jobs {run_id}") as spark:
        selection = choose(spark, action)
        _preview(command, selection, options)
        result: dict[str, Any] = {"run_id": run_id, "verb": action.verb, "selected": selection.total}
        if options["dry_run"] or not selection.total:
            if not selection.total:
                command.print_note(f"No job matches. {action.verb}: {_VERBS[action.verb]}.")
            state = "dry run" if options["dry_run"] else "finished"
            groups = [asdict(group) for group in selection.groups]
            command.print_result({**result, "state": state, "groups": groups, "outcomes": {}})
            return
        command.confirm(f"{action.verb}: {selection.total:,} jobs?", yes=options["yes"])
        detail = {"verb": action.verb, "where": action.where, "queues": list(action.queues)}
        with common.record_run(command, "jobs", run_id, total=selection.total, detail=detail) as record:
            with command.progress(action.verb) as progress:

                def on_progress(seen: int) -> None:
                    progress.update(seen, selection.total)
                    record.progress(rows=seen)

                outcomes = carry_out(selection, action, on_progress)
            seen = sum(outcomes.values())
            record.progress(rows=seen, bad=outcomes.get("unreadable", 0), detail={"outcomes": outcomes})
    command.print_result(
        {**result, "state": "finished", "outcomes": outcomes, "seconds": round(time.monotonic() - began, 3)}
    )


def _preview(command: common.PipelineCommand, selection: Selection, options: Mapping[str, Any]) -> None:
    """Print the numbers of selected jobs by queue, task and state, and the first jobs."""
    if not selection.total:
        return
    groups = [
        {"queue": group.queue, "task": group.task or "?", "state": group.state, "jobs": f"{group.jobs:,}"}
        for group in selection.groups
    ]
    rows = (mask_for(options).value(row) for row in selection.examples)
    examples = [{name: _cell(value) for name, value in row.items()} for row in rows]
    lines = [*table(groups, left=3), "", *table(examples, left=len(examples[0]))]
    command.print_note("\n".join(lines))


def _cell(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds")
    return "" if value is None else printable(str(value), 40)


def _maintain_options(options: Mapping[str, Any]) -> MaintainOptions:
    from ...pipeline.repair import MaintainOptions

    due_ms = delay_ms = None
    allow_far = conf().allow_far
    try:
        if options["at"] is not None:
            due_ms, _ = due_of(at=parse_moment(options["at"], what="--at"), allow_far=allow_far)
        if options["delay"] is not None:
            delay_ms = delay_ms_of(timedelta(seconds=options["delay"]), allow_far=allow_far)
        return MaintainOptions(
            options["verb"],
            options["where"],
            common.format_options(),
            tuple(options["queues"] or ()),
            delay_ms,
            due_ms,
            options["replace"],
        )
    except DelayQError as error:
        raise CommandError(str(error), returncode=2) from None


SUBCOMMAND: Final = common.Subcommand(
    "retry, cancel, discard or reschedule the jobs that an SQL condition selects",
    _run,
    {"verb": _VERB, "jobs": _OPTIONS},
    (
        "delayq_pipeline jobs retry --where \"task = 'shop.remind' and failures > 3\" --dry-run",
        "delayq_pipeline jobs reschedule --where \"id like 'order-%'\" --queues orders --delay 2h",
    ),
)

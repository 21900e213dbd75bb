"""Subcommand ``delayq_pipeline runs``: list recent pipeline runs and their results."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Mapping
from datetime import datetime
from itertools import islice
from typing import Any, Final

from django.utils import timezone

from ...history.records import seconds_of, state_of
from ...models.history import PipelineRun
from ...settings.conf import mask
from ...status.formatting import duration, printable, table
from ..base import positive
from . import common

HELP: Final = "list the pipeline runs, the latest first"
NEEDS_SPARK: Final = False
_COLUMNS: Final = ("started", "kind", "run", "state", "took", "rows", "created", "known", "bad")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    parser.add_argument("--kind", choices=PipelineRun.Kind.values, help="only runs of this kind")
    parser.add_argument("--state", choices=(*PipelineRun.State.values, "died"), help="only runs in this state")
    parser.add_argument("--run-id", metavar="ID", help="only this run and its repetitions")
    parser.add_argument(
        "--limit", type=positive(int, "a number of runs"), default=20, help="at most this many runs (default: 20)"
    )
    parser.add_argument("--json", action="store_true", help="print one line of JSON, with details and errors")


def run(command: common.PipelineCommand, options: Mapping[str, Any]) -> None:
    """Read and print the runs."""
    runs = PipelineRun.objects.all()
    for name in ("kind", "run_id"):
        if options[name]:
            runs = runs.filter(**{name: options[name]})
    state = options["state"]
    if state:
        runs = runs.filter(state="running" if state == "died" else state)
    now = timezone.now()
    found = (row for row in runs.iterator(chunk_size=100) if state is None or state_of(row, now) == state)
    rows = list(islice(found, options["limit"]))
    if options["json"]:
        command.print_result({"runs": [as_json(row, now) for row in rows]})
        return
    if not rows:
        command.stdout.write("No pipeline run found.")
        return
    command.print_lines(table(_COLUMNS, [_cells(row, now) for row in rows], left=4))
    for row in rows:
        if row.error:
            command.stdout.write(f"{row.run_id}: {printable(mask().text(row.error).splitlines()[0], 200)}")


def as_json(row: PipelineRun, now: datetime) -> dict[str, Any]:
    """Return a run as JSON values. Times are in UTC."""
    return {
        "run_id": row.run_id,
        "kind": row.kind,
        "state": state_of(row, now),
        "queue": row.queue,
        "task": row.task,
        "started_at": row.started_at.isoformat(),
        "ended_at": row.ended_at and row.ended_at.isoformat(),
        "seconds": round(seconds_of(row, now), 3),
        "total": row.total,
        "rows": row.rows,
        "created": row.created,
        "known": row.known,
        "bad": row.bad,
        "detail": mask().value(row.detail),
        "error": mask().text(row.error),
    }


def _cells(row: PipelineRun, now: datetime) -> tuple[object, ...]:
    began = timezone.localtime(row.started_at) if timezone.is_aware(row.started_at) else row.started_at
    return (
        f"{began:%Y-%m-%d %H:%M:%S}",
        row.kind,
        printable(row.run_id),
        state_of(row, now),
        duration(seconds_of(row, now)),
        row.rows,
        row.created,
        row.known,
        row.bad,
    )

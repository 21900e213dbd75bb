"""Output of ``delayq_pipeline bulk --dry-run``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ...core.times import iso_of
from ...status.formatting import table
from . import common

if TYPE_CHECKING:
    from ...pipeline.dry_run import DryRun


def print_dry_run(command: common.PipelineCommand, dry_run: DryRun) -> None:
    """Print a dry run as readable text on stderr, and as JSON in the last line."""
    lines = [
        f"{dry_run.rows:,} rows, {dry_run.due_now:,} of them due now; about {dry_run.bytes_per_job:,.0f} bytes per "
        f"job, {dry_run.memory / 1e6:,.1f} MB in total"
    ]
    lines += ["", *table(("due from (UTC)", "rows"), [(iso_of(start), count) for start, count in dry_run.dues])]
    lines += ["", *(json.dumps(row, default=str, ensure_ascii=False) for row in dry_run.first)]
    lines += ["", *(f"WARNING: {text}" for text in dry_run.warnings)]
    command.print_note("\n".join(lines))
    command.print_result(
        {
            "state": "dry run",
            "rows": dry_run.rows,
            "due_now": dry_run.due_now,
            "without_id": dry_run.without_id,
            "without_due": dry_run.without_due,
            "dues": list(dry_run.dues),
            "width_minutes": dry_run.width_min,
            "busiest_minute": {"at": iso_of(dry_run.busiest[0]), "rows": dry_run.busiest[1]},
            "bytes_per_job": round(dry_run.bytes_per_job),
            "bytes": dry_run.memory,
            "free_bytes": dry_run.free,
            "first": list(dry_run.first),
            "warnings": dry_run.warnings,
        },
    )

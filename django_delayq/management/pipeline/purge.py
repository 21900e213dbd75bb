"""Subcommand ``delayq_pipeline purge``: delete old days from the history and from the database. Works without Spark."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from ...history.rows import forget_hours
from ...settings.conf import conf
from . import common, history_runs

if TYPE_CHECKING:
    from ...pipeline.history import History

HELP: Final = "delete days that are older than DELAYQ['PIPELINE'] allows"
EXAMPLES: Final = ("delayq_pipeline purge --dry-run", "delayq_pipeline purge --events 30")
_TABLES: Final = ("events", "attempts", "hours")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    for name in _TABLES:
        history_runs.add_days_option(
            parser, f"--{name}", None, f"keep this many days of the {name} (default: keep_{name}_days of the settings)"
        )
    parser.add_argument("--dry-run", action="store_true", help="delete nothing, print what would be deleted")


def run(command: common.PipelineCommand, options: Mapping[str, Any]) -> None:
    """Delete old days, and print which ones."""
    settings = conf().pipeline
    keep = {name: options[name] or getattr(settings, f"keep_{name}_days") for name in _TABLES}
    if options["dry_run"]:
        outdated = _outdated(history_runs.driver(None, options), keep)
        result = {"state": "dry run", "keep_days": keep, **outdated}
        command.print_result(result)
        return
    run_id = history_runs.new_run_id("purge")
    with common.record_run(command, "purge", run_id, detail={"keep_days": keep}) as record:
        with history_runs.follow_days(command, "purge", record) as on_days:
            purged = history_runs.driver(None, options).purge(*(keep[name] for name in _TABLES), on_days=on_days)
        days = {name: [str(day) for day in dates] for name, dates in asdict(purged).items()}
        rows = asdict(forget_hours(keep["hours"])) if keep["hours"] is not None else {"hours": 0, "runs": 0}
        record.progress(rows=sum(rows.values()), detail={"days": days, "database": rows})
    result = {"run_id": run_id, "state": "finished", "days": days, "database": rows}
    command.print_result(result)


def _outdated(history: History, keep: Mapping[str, float | None]) -> dict[str, Any]:
    from ...pipeline.upkeep import horizon

    now = datetime.now(UTC)
    days: dict[str, list[str]] = {name: [] for name in _TABLES}
    size = 0
    for stored in history.status().days:
        for name, bound in keep.items():
            if bound is not None and stored.bytes.get(name) and stored.day < horizon(now, bound):
                days[name].append(str(stored.day))
                size += stored.bytes[name]
    return {"days": days, "bytes": size}

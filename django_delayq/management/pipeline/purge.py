"""Subcommand ``delayq_pipeline purge``: delete old days from the history and from the database. Works without Spark."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from ... import connections as ours
from ...core.sending import bulk_loads
from ...history.retention import forget_hours
from ...settings.conf import conf
from . import common, keeping
from .day_bar import following_days

if TYPE_CHECKING:
    from ...pipeline.history import History

HELP: Final = "take away the days, and forget the bulk loads, that are older than DELAYQ['PIPELINE'] says"
_TABLES: Final = ("events", "attempts", "hours")
_DAY_MS: Final = 86_400_000


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    for name in _TABLES:
        keeping.days_option(
            parser, f"--{name}", None, f"keep so many days of the {name}, not keep_{name}_days of the settings"
        )
    parser.add_argument("--dry-run", action="store_true", help="take nothing away, say what would go")


def run(command: common.Desk, options: Mapping[str, Any]) -> None:
    """Delete old days, and print which ones."""
    settings = conf().pipeline
    keep = {name: options[name] or getattr(settings, f"keep_{name}_days") for name in _TABLES}
    if options["dry_run"]:
        found = _would_go(keeping.driver(None, options), keep)
        told = {"state": "dry run", "keep_days": keep, **found, "bulk_runs": _old_runs(keep["hours"])}
        common.finish(command, told)
        return
    run_id = keeping.new_run("purge")
    with common.recorded(command, "purge", run_id, detail={"keep_days": keep}) as kept:
        with following_days(command, "purge", kept) as told_days:
            gone = keeping.driver(None, options).purge(*(keep[name] for name in _TABLES), on_days=told_days)
        days = {name: [str(day) for day in found] for name, found in asdict(gone).items()}
        rows = asdict(forget_hours(keep["hours"])) if keep["hours"] is not None else {"hours": 0, "runs": 0}
        kept.progress(rows=sum(rows.values()), detail={"days": days, "database": rows})
        # Last, because everything else can be done without Redis.
        forgotten = _forget_runs(keep["hours"])
        kept.progress(detail={"days": days, "database": rows, "bulk_runs": forgotten})
    told = {"run_id": run_id, "state": "finished", "days": days, "database": rows, "bulk_runs": forgotten}
    common.finish(command, told)


def _forget_runs(days: float | None) -> int:
    """Delete the records of equally old bulk loads from Redis. Return their number."""
    return 0 if days is None else len(bulk_loads.forget_old(ours.broker(), round(days * _DAY_MS)))


def _old_runs(days: float | None) -> int:
    if days is None:
        return 0
    broker = ours.broker()
    before = broker.now_ms() - days * _DAY_MS
    return sum((run.closed_ms or run.opened_ms) <= before for run in bulk_loads.list_loads(broker))


def _would_go(history: History, keep: Mapping[str, float | None]) -> dict[str, Any]:
    from ...pipeline.upkeep import horizon

    now = datetime.now(UTC)
    days: dict[str, list[str]] = {name: [] for name in _TABLES}
    size = 0
    for one in history.status().days:
        for name, bound in keep.items():
            if bound is not None and one.bytes.get(name) and one.day < horizon(now, bound):
                days[name].append(str(one.day))
                size += one.bytes[name]
    return {"days": days, "bytes": size}

"""Subcommand ``delayq_pipeline status``: show the progress and the contents of the history. Works without Spark."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from django.utils import timezone

from ... import connections as ours
from ...models.history import PipelineRun
from ...settings.conf import conf
from ...status.formatting import duration, table
from ...status.json_form import human_bytes
from . import common
from .runs import as_json

if TYPE_CHECKING:
    from ...pipeline.versions import Versions

HELP: Final = "show the last run, the number of unread events, and the stored and pending days of the history"
NEEDS_SPARK: Final = False
TABLES: Final = ("events", "attempts", "hours", "quarantine")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    parser.add_argument("--json", action="store_true", help="print one line of JSON")


def run(command: common.PipelineCommand, options: Mapping[str, Any]) -> None:
    """Read and print the status."""
    status = read_status()
    if options["json"]:
        command.print_result(status)
        return
    command.print_lines(status_lines(status))


def read_status() -> dict[str, Any]:
    """Return the status as JSON values.

    Raises:
        QueueUnavailable: Redis cannot be reached.
    """
    settings = conf()
    root, now = common.root(settings), timezone.now()
    last = PipelineRun.objects.filter(kind=PipelineRun.Kind.HISTORY).order_by("-started_at", "-id").first()
    queues = _queues(root, settings.pipeline.consumer)
    return {
        "root": root,
        "consumer": settings.pipeline.consumer,
        "last_run": None if last is None else as_json(last, now),
        "unread": sum(queue["unread"] for queue in queues),
        "queues": queues,
        **_contents(root),
    }


def _queues(root: str, consumer: str) -> list[dict[str, Any]]:
    """Return the lag by queue, or nothing where the packages to read the checkpoint are missing."""
    try:
        from ...pipeline.status import lag_of
        from ...pipeline.store import Store
    except ImportError:
        return []
    queues: dict[str, dict[str, Any]] = {}
    for shard in lag_of(ours.broker(), Store(root), consumer):
        queue = queues.setdefault(shard.queue, {"queue": shard.queue, "shards": 0, "unread": 0, "behind_seconds": 0.0})
        queue["shards"] += 1
        queue["unread"] += shard.events
        queue["behind_seconds"] = max(queue["behind_seconds"], shard.behind_ms / 1000)
    return sorted(queues.values(), key=lambda queue: (-queue["unread"], queue["queue"]))


def _contents(root: str) -> dict[str, Any]:
    """Return the tables and the pending days, or nothing where the packages to read them are missing."""
    try:
        from ...pipeline.store import Store, pending_days
        from ...pipeline.versions import Versions

        store = Store(root)
        tables = {name: _table(Versions(store, name)) for name in TABLES}
        return {"pending_days": [str(day) for day in pending_days(store)], "tables": tables}
    except ImportError:
        return {"pending_days": None, "tables": None}


def _table(table: Versions) -> dict[str, Any]:
    files = table.files()
    days = {str(file.day) for file in files}
    return {
        "days": len(days),
        "first": min(days, default=None),
        "last": max(days, default=None),
        "bytes": sum(file.bytes for file in files),
        "files": len(files),
    }


def status_lines(status: Mapping[str, Any]) -> list[str]:
    """Return the status as lines of text."""
    last = status["last_run"]
    lines = [f"history in {status['root']}, consumer {status['consumer']!r}"]
    if last is None:
        lines.append("No run yet. Start one with: manage.py delayq_pipeline run")
    else:
        lines.append(
            f"last run {last['run_id']}: {last['state']}, {last['rows']} events, started "
            f"{last['started_at'][:19].replace('T', ' ')} UTC, took {duration(last['seconds'])}"
        )
        if last["error"]:
            lines.append(f"  {last['error'].splitlines()[0][:200]}")
    if status["queues"]:
        rows = [
            (queue["queue"], queue["shards"], queue["unread"], duration(queue["behind_seconds"]))
            for queue in status["queues"]
        ]
        lines += ["", *table(("queue", "shards", "unread", "behind"), rows)]
    if status["tables"] is None:
        return [
            *lines,
            "",
            "The stored history cannot be read without more packages: pip install 'django-delayq[spark]'",
        ]
    days = [
        (name, entry["days"], entry["first"] or "-", entry["last"] or "-", entry["files"], human_bytes(entry["bytes"]))
        for name, entry in status["tables"].items()
    ]
    lines += ["", *table(("table", "days", "first", "last", "files", "size"), days)]
    pending = status["pending_days"]
    if pending:
        lines += [
            "",
            f"the next run computes {len(pending)} days again: {', '.join(pending[:10])}"
            f"{' …' if len(pending) > 10 else ''}",
        ]
    return lines

"""Subcommands of the history: ``run``, ``stream``, ``status``, ``backfill``, ``compact`` and ``purge``."""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict
from datetime import datetime
from textwrap import dedent
from typing import TYPE_CHECKING, Any, Final

from django.db import connections, router, transaction
from django.template.defaultfilters import filesizeformat

from ... import connections as ours
from ...history.records import Record, seconds_of, state_of
from ...history.rows import forget_hours, replace_hours
from ...models.history import HourlyStat, PipelineRun, PublishedHistory
from ...settings.conf import conf, mask
from ...status.formatting import duration, table
from . import common
from .common import Subcommand

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import SparkSession

    from ...pipeline.history import History, OnDays

#: seconds that a stream waits for another process on the same history, such as the nightly compaction
STREAM_WAIT_SECONDS: Final = 3600.0


class DatabaseHours:
    """Database of the metrics; see :class:`~django_delayq.pipeline.history.HoursStore`."""

    def published(self, history: str) -> int:
        """Return the number of the last batch whose hours are stored; -1 for none."""
        _close_old()
        alias = router.db_for_write(HourlyStat)
        found = PublishedHistory.objects.using(alias).filter(history=history).values_list("batch", flat=True)
        return next(iter(found), -1)

    def publish(self, history: str, batch: int | None, metrics: pyarrow.Table, selected: Collection[datetime]) -> None:
        """Replace the metrics of some hours, and store the number of the batch, in one transaction."""
        _close_old()
        alias = router.db_for_write(HourlyStat)
        with transaction.atomic(using=alias):
            replace_hours(metrics, selected)
            if batch is not None:
                rows = PublishedHistory.objects.using(alias)
                rows.update_or_create(history=history, defaults={"batch": batch})


def _close_old() -> None:
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()  # a stream may be idle for a whole night


def make_history(spark: SparkSession | None, options: Mapping[str, Any], **more: Any) -> History:
    """Return the history of the settings and the command line."""
    from ...pipeline.history import History, HistoryOptions

    settings = conf()
    if options.get("max_rows"):
        more["max_rows"] = options["max_rows"]
    chosen = HistoryOptions(
        root=common.root(settings),
        redis_env=common.REDIS_ENV,
        prefix=settings.prefix,
        queues=tuple(options.get("queues") or ()),
        sla=dict(settings.pipeline.sla),
        fail_on_loss=not options.get("allow_loss"),
        **more,
    )
    return History(spark, chosen, DatabaseHours())


def _detail(options: Mapping[str, Any]) -> Any:
    """Return the command line's options for the run's row; none of them is secret."""
    names = ("queues", "max_rows", "interval", "from", "to", "older_than", "allow_loss", "master")
    return _plain({name: options[name] for name in names if options.get(name)})


def _plain(values: object) -> Any:
    """Return values as those of JSON."""
    return json.loads(json.dumps(values, default=str))


@contextlib.contextmanager
def _following(command: common.PipelineCommand, name: str, record: Record) -> Iterator[OnDays]:
    """Yield a callback that shows the progress of work over many days."""
    with command.progress(name, unit="days") as progress:

        def on_days(done: int, days: int) -> None:
            progress.update(done, days)
            record.progress()  # it is alive

        yield on_days


# -- run and stream ----------------------------------------------------------------------------------------------------


_READING: Final = """
    --queues QUEUES  only these queues (default: all)
    --max-rows N     read at most this many events at a time, which limits the memory (default: 500000)
    --allow-loss     if unread events were deleted, report it and continue with the events that are left
"""
_DAYS: Final = """
    --from DAY!  first day, in UTC, like 2026-11-21
    --to DAY!    last day
"""
_OLDER: Final = "--older-than DAYS  only days that ended at least this long ago (default: 2)"
#: default of --interval
INTERVAL_SECONDS: Final = 60.0


def _run(command: common.PipelineCommand, options: Mapping[str, Any]) -> None:
    run_id = common.new_run_id("history")
    names = set(options["queues"] or ())
    unread = make_history(None, options).lag(ours.broker())
    total = sum(shard.events for shard in unread if not names or shard.queue in names)
    with (
        common.record_run(command, "history", run_id, total=total, detail=_detail(options)) as record,
        common.session(command, options, f"delayq {run_id}") as spark,
    ):
        with command.progress("history", unit="events") as progress:

            def on_rows(rows: int) -> None:
                progress.update(rows, total)
                record.progress(rows=rows)

            summary = make_history(spark, options).run(on_rows)
        values = _plain(asdict(summary))
        record.progress(rows=summary.rows, detail=values)
    command.print_result({"run_id": run_id, "state": "finished", **values})


def _stream(command: common.PipelineCommand, options: Mapping[str, Any]) -> None:
    run_id = common.new_run_id("history")
    counts: Counter[str] = Counter(runs=0, rows=0, batches=0)
    command.endless_result = lambda: {"run_id": run_id, "state": "stopped", **counts}
    with (
        common.record_run(command, "history", run_id, detail=_detail(options)) as record,
        common.session(command, options, f"delayq {run_id}") as spark,
    ):
        interval = options["interval"] or INTERVAL_SECONDS
        command.print_note(f"history: reads every {interval:g} s; SIGTERM or Ctrl-C ends it")
        history = make_history(spark, options, wait_s=STREAM_WAIT_SECONDS)
        while True:
            began = time.monotonic()
            summary = history.run()
            counts.update(runs=1, rows=summary.rows, batches=summary.batches)
            record.progress(rows=counts["rows"], detail=_plain(asdict(summary)))
            if summary.rows:
                command.print_note(f"history: {summary.rows} events in {duration(summary.seconds)}")
            time.sleep(max(0.0, began + interval - time.monotonic()))


# -- backfill, compact and purge ---------------------------------------------------------------------------------------


def _backfill(command: common.PipelineCommand, options: Mapping[str, Any]) -> None:
    run_id = common.new_run_id("backfill")
    with (
        common.record_run(command, "backfill", run_id, detail=_detail(options)) as record,
        common.session(command, options, f"delayq {run_id}") as spark,
    ):
        with _following(command, "backfill", record) as on_days:
            summary = make_history(spark, options).backfill(options["from"], options["to"], on_days)
        values = _plain(asdict(summary))
        record.progress(rows=summary.rows, detail=values)
    command.print_result({"run_id": run_id, "state": "finished", **values})


def _compact(command: common.PipelineCommand, options: Mapping[str, Any]) -> None:
    run_id = common.new_run_id("compact")
    with common.record_run(command, "compact", run_id, detail=_detail(options)) as record:
        with _following(command, "compact", record) as on_days:
            compacted = make_history(None, options).compact(options["older_than"] or 2.0, on_days=on_days)
        days = _plain(compacted)
        record.progress(detail={"days": days})
    command.print_result({"run_id": run_id, "state": "finished", "days": days})


def _purge(command: common.PipelineCommand, options: Mapping[str, Any]) -> None:
    settings, history = conf().pipeline, make_history(None, options)
    events, hours = settings.keep_events_days, settings.keep_hours_days
    keep = {"events": events, "hours": hours}
    if options["dry_run"]:
        days = history.outdated(events)
        size_of_all = sum(file.bytes for file in history.table.files() if file.day in days)
        command.print_result({"state": "dry run", "keep_days": keep, "days": days, "bytes": size_of_all})
        return
    run_id = common.new_run_id("purge")
    with common.record_run(command, "purge", run_id, detail={"keep_days": keep}) as record:
        deleted = {"days": _plain(history.purge(events)), "database": {"hours": 0, "runs": 0}}
        if hours is not None:
            deleted["database"] = forget_hours(hours)
        record.progress(rows=sum(deleted["database"].values()), detail=deleted)
    command.print_result({"run_id": run_id, "state": "finished", **deleted})


# -- status ------------------------------------------------------------------------------------------------------------


def _status(command: common.PipelineCommand, options: Mapping[str, Any]) -> None:
    status = read_status()
    if options["json"]:
        command.print_result(status)
    else:
        command.print_lines(status_lines(status))


def read_status() -> dict[str, Any]:
    """Return the status as JSON values.

    Raises:
        QueueUnavailable: Redis cannot be reached.
    """
    last = PipelineRun.objects.filter(kind=PipelineRun.Kind.HISTORY).order_by("-started_at", "-id").first()
    history = make_history(None, {})
    queues: dict[str, dict[str, Any]] = {}
    for shard in history.lag(ours.broker()):
        queue = queues.setdefault(shard.queue, {"queue": shard.queue, "shards": 0, "unread": 0, "behind_seconds": 0.0})
        queue["shards"] += 1
        queue["unread"] += shard.events
        queue["behind_seconds"] = max(queue["behind_seconds"], shard.behind_ms / 1000)
    files = history.table.files()
    days = sorted({str(file.day) for file in files})
    return {
        "root": common.root(),
        "last_run": last and _as_json(last),
        "unread": sum(queue["unread"] for queue in queues.values()),
        "queues": sorted(queues.values(), key=lambda queue: (-queue["unread"], queue["queue"])),
        "pending_days": sorted({str(file.day) for file in history.pending()}),
        "events": {
            "days": len(days),
            "first": days[0] if days else None,
            "last": days[-1] if days else None,
            "rows": sum(file.rows for file in files),
            "bytes": sum(file.bytes for file in files),
            "files": len(files),
        },
    }


def _as_json(run: PipelineRun) -> dict[str, Any]:
    values = {name: getattr(run, name) for name in ("run_id", "started_at", "rows")}
    return {**values, "state": state_of(run), "seconds": round(seconds_of(run), 3), "error": mask().text(run.error)}


def status_lines(status: Mapping[str, Any]) -> list[str]:
    """Return the status as lines of text."""
    last, events, pending = status["last_run"], status["events"], status["pending_days"]
    lines = [f"history in {status['root']}", "No run yet. Start one with: manage.py delayq_pipeline run"]
    if last is not None:
        begun, took = f"{last['started_at']:%Y-%m-%d %H:%M:%S} UTC", duration(last["seconds"])
        lines[1] = f"last run {last['run_id']}: {last['state']}, {last['rows']} events, started {begun}, took {took}"
        lines += [f"  {line[:200]}" for line in last["error"].splitlines()[:1]]
    rows = [
        {**{name: row[name] for name in ("queue", "shards", "unread")}, "behind": duration(row["behind_seconds"])}
        for row in status["queues"]
    ]
    days = f"{events['days']} days, {events['first']} to {events['last']}"
    stored = f"events: {events['rows']:,} of {days}, in {events['files']} files of {filesizeformat(events['bytes'])}"
    lines += ["", *table(rows), "", stored]
    if pending:
        lines += ["", f"the next run publishes hours of {len(pending)} days, {pending[0]} to {pending[-1]}"]
    return lines


SUBCOMMANDS: Final = {
    "run": Subcommand(
        "read the events since the last run into the history, and end; for cron", _run, {"reading": _READING}
    ),
    "stream": Subcommand(
        "keep the history up to date until SIGTERM or Ctrl-C; a second signal ends it at once",
        _stream,
        {"reading": f"--interval SECONDS  pause between two reads (default: {INTERVAL_SECONDS:g})\n{dedent(_READING)}"},
    ),
    "status": Subcommand(
        "show the last run, the number of unread events, and the stored and pending days of the history",
        _status,
        {"output": "--json  print one line of JSON"},
        needs="packages",
    ),
    "backfill": Subcommand(
        "compute the metrics of days again from their events, e.g. after a change of the SLA",
        _backfill,
        {"days": _DAYS},
        ("delayq_pipeline backfill --from 2026-11-01 --to 2026-11-21",),
    ),
    "compact": Subcommand(
        "merge the small files of each past hour into one; run it once a day",
        _compact,
        {"days": _OLDER},
        needs="packages",
    ),
    "purge": Subcommand(
        "delete days that are older than DELAYQ['PIPELINE'] allows",
        _purge,
        {"days": "--dry-run  delete nothing, print what would be deleted"},
        ("delayq_pipeline purge --dry-run",),
        "packages",
    ),
}

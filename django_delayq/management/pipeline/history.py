"""Subcommands of the history: ``run``, ``stream``, ``status``, ``backfill``, ``compact`` and ``purge``."""

from __future__ import annotations

import contextlib
import time
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from django.core.management.base import CommandError
from django.db import connections, router, transaction
from django.utils import timezone

from ... import connections as ours
from ...history.records import Record, seconds_of, state_of
from ...history.rows import forget_hours, replace_hours
from ...models.history import HourlyStat, PipelineRun, PublishedHistory
from ...settings.conf import conf, mask
from ...status.formatting import duration, size, table
from ..base import positive, queue_list
from . import address, common
from .common import Subcommand

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import SparkSession

    from ...pipeline.history import DaysDone, History, OnDays

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
        redis_env=address.ENV,
        prefix=settings.prefix,
        queues=tuple(options.get("queues") or ()),
        sla=dict(settings.pipeline.sla),
        fail_on_loss=not options.get("allow_loss"),
        **more,
    )
    return History(spark, chosen, DatabaseHours())


def _detail(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the command line's options for the run's row; none of them is secret."""
    names = ("queues", "max_rows", "interval", "first", "last", "older_than", "allow_loss", "master")
    detail = {name: options[name] for name in names if options.get(name)}
    return {
        name: value if isinstance(value, int | float | str) else list(value) if isinstance(value, tuple) else str(value)
        for name, value in detail.items()
    }


@contextlib.contextmanager
def _following(command: common.PipelineCommand, name: str, record: Record) -> Iterator[OnDays]:
    """Yield a callback that shows the progress of work over many days and updates the run's row."""
    with command.progress(name, unit="rows") as progress:

        def on_days(done: DaysDone) -> None:
            progress.name = f"{name}, {done.days:,} of {done.of_days:,} days"
            progress.update(done.rows, done.of_rows)
            record.progress(rows=done.rows, total=done.of_rows)

        yield on_days


# -- run and stream ----------------------------------------------------------------------------------------------------


def _add_reading(parser: ArgumentParser) -> None:
    parser.add_argument("--queues", type=queue_list, default=(), metavar="A,B", help="only these queues (default: all)")
    parser.add_argument(
        "--max-rows",
        type=positive(int, "a number of events"),
        metavar="N",
        help="read at most this many events at a time, which limits the memory (default: 500000)",
    )
    parser.add_argument(
        "--allow-loss",
        action="store_true",
        help="if unread events were deleted, report it and continue with the events that are left",
    )
    common.add_spark(parser)


def _add_stream(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--interval",
        type=positive(float, "a number of seconds"),
        default=60.0,
        metavar="SECONDS",
        help="pause between two reads (default: 60)",
    )
    _add_reading(parser)


def _run(command: common.PipelineCommand, options: Mapping[str, Any]) -> None:
    run_id = common.new_run_id("history")
    names = set(options["queues"])
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
        values = _values(asdict(summary))
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
        command.print_note(f"history: reads every {options['interval']:g} s; SIGTERM or Ctrl-C ends it")
        history = make_history(spark, options, wait_s=STREAM_WAIT_SECONDS)
        while True:
            began = time.monotonic()
            summary = history.run()
            counts.update(runs=1, rows=summary.rows, batches=summary.batches)
            record.progress(rows=counts["rows"], detail=_values(asdict(summary)))
            if summary.rows:
                command.print_note(f"history: {summary.rows} events in {duration(summary.seconds)}")
            time.sleep(max(0.0, began + options["interval"] - time.monotonic()))


def _values(summary: Mapping[str, Any]) -> dict[str, Any]:
    return {**summary, "days": [str(day) for day in summary["days"]], "seconds": round(summary["seconds"], 3)}


# -- backfill, compact and purge ---------------------------------------------------------------------------------------


def _add_backfill(parser: ArgumentParser) -> None:
    for name, dest, text in (("--from", "first", "first day, in UTC"), ("--to", "last", "last day")):
        parser.add_argument(
            name, dest=dest, type=common.day, required=True, metavar="DAY", help=f"{text}, like 2026-11-21"
        )
    common.add_spark(parser)


def _backfill(command: common.PipelineCommand, options: Mapping[str, Any]) -> None:
    first, last = options["first"], options["last"]
    if last < first:
        raise CommandError(f"--to {last} is before --from {first}: exchange them", returncode=2)
    run_id = common.new_run_id("backfill")
    with (
        common.record_run(command, "backfill", run_id, detail=_detail(options)) as record,
        common.session(command, options, f"delayq {run_id}") as spark,
    ):
        with _following(command, "backfill", record) as on_days:
            summary = make_history(spark, options).backfill(first, last, on_days)
        values = _values(asdict(summary))
        record.progress(rows=summary.rows, detail=values)
    command.print_result({"run_id": run_id, "state": "finished", **values})


def _add_compact(parser: ArgumentParser) -> None:
    _add_days(parser, "--older-than", 2.0, "only days that ended at least this long ago (default: 2)")


def _add_days(parser: ArgumentParser, name: str, default: float | None, text: str) -> None:
    parser.add_argument(name, type=positive(float, "a number of days"), default=default, metavar="DAYS", help=text)


def _compact(command: common.PipelineCommand, options: Mapping[str, Any]) -> None:
    run_id = common.new_run_id("compact")
    with common.record_run(command, "compact", run_id, detail=_detail(options)) as record:
        with _following(command, "compact", record) as on_days:
            compacted = make_history(None, options).compact(options["older_than"], on_days=on_days)
        days = [str(day) for day in compacted]
        record.progress(detail={"days": days})
    command.print_result({"run_id": run_id, "state": "finished", "days": days})


def _add_purge(parser: ArgumentParser) -> None:
    for name in ("events", "hours"):
        _add_days(parser, f"--{name}", None, f"keep this many days of {name} (default: keep_{name}_days)")
    parser.add_argument("--dry-run", action="store_true", help="delete nothing, print what would be deleted")


def _purge(command: common.PipelineCommand, options: Mapping[str, Any]) -> None:
    settings, history = conf().pipeline, make_history(None, options)
    events, hours = options["events"] or settings.keep_events_days, options["hours"] or settings.keep_hours_days
    keep = {"events": events, "hours": hours}
    if options["dry_run"]:
        outdated = history.outdated(events)
        outdated_bytes = sum(file.bytes for file in history.table.files() if file.day in outdated)
        result = {
            "state": "dry run",
            "keep_days": keep,
            "days": [str(day) for day in outdated],
            "bytes": outdated_bytes,
        }
        command.print_result(result)
        return
    run_id = common.new_run_id("purge")
    with common.record_run(command, "purge", run_id, detail={"keep_days": keep}) as record:
        days = [str(day) for day in history.purge(events)]
        rows = asdict(forget_hours(hours)) if hours is not None else {"hours": 0, "runs": 0}
        record.progress(rows=sum(rows.values()), detail={"days": days, "database": rows})
    command.print_result({"run_id": run_id, "state": "finished", "days": days, "database": rows})


# -- status ------------------------------------------------------------------------------------------------------------


def _add_status(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one line of JSON")


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
        "last_run": None if last is None else _as_json(last),
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
    now = timezone.now()
    return {
        "run_id": run.run_id,
        "state": state_of(run, now),
        "started_at": run.started_at.isoformat(),
        "seconds": round(seconds_of(run, now), 3),
        "rows": run.rows,
        "error": mask().text(run.error),
    }


def status_lines(status: Mapping[str, Any]) -> list[str]:
    """Return the status as lines of text."""
    last, events = status["last_run"], status["events"]
    lines = [f"history in {status['root']}"]
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
    lines += [
        "",
        f"events: {events['rows']:,} of {events['days']} days, {events['first'] or '-'} to {events['last'] or '-'}, in "
        f"{events['files']} files of {size(events['bytes'])}",
    ]
    if status["pending_days"]:
        pending = status["pending_days"]
        shown = f"{', '.join(pending[:10])}{' …' if len(pending) > 10 else ''}"
        lines += ["", f"the next run publishes hours of {len(pending)} days: {shown}"]
    return lines


SUBCOMMANDS: Final = {
    "run": Subcommand("read the events since the last run into the history, and end; for cron", _add_reading, _run),
    "stream": Subcommand(
        "keep the history up to date until SIGTERM or Ctrl-C; a second signal ends it at once", _add_stream, _stream
    ),
    "status": Subcommand(
        "show the last run, the number of unread events, and the stored and pending days of the history",
        _add_status,
        _status,
        needs="packages",
    ),
    "backfill": Subcommand(
        "compute the metrics of days again from their events, e.g. after a change of the SLA",
        _add_backfill,
        _backfill,
        ("delayq_pipeline backfill --from 2026-11-01 --to 2026-11-21",),
    ),
    "compact": Subcommand(
        "merge the small files of each past hour into one; run it once a day", _add_compact, _compact, needs="packages"
    ),
    "purge": Subcommand(
        "delete days that are older than DELAYQ['PIPELINE'] allows",
        _add_purge,
        _purge,
        ("delayq_pipeline purge --dry-run", "delayq_pipeline purge --events 30"),
        "packages",
    ),
}

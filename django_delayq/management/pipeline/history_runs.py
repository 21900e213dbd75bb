"""Shared parts of the history subcommands: options, the driver, progress, and writing metrics to the database."""

from __future__ import annotations

import contextlib
import secrets
from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

from django.db import connections

from ... import connections as ours
from ...history.rows import replace_days
from ...settings.conf import conf
from ..base import positive, queue_list
from . import address, common
from .stopping import Stopped

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import SparkSession

    from ...history.records import Record
    from ...pipeline.history import History, Summary
    from ...pipeline.upkeep import DaysDone, OnDays


def add_read_options(parser: ArgumentParser) -> None:
    """Add ``--queues``, ``--max-rows`` and ``--allow-loss``."""
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


def add_days_option(parser: ArgumentParser, name: str, default: float | None, text: str) -> None:
    """Add an option that is a number of days."""
    parser.add_argument(name, type=positive(float, "a number of days"), default=default, metavar="DAYS", help=text)


def new_run_id(kind: str) -> str:
    """Return a generated id for a pipeline run."""
    return f"{kind}-{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"


def driver(spark: SparkSession | None, options: Mapping[str, Any]) -> History:
    """Return the driver of the history, configured from settings and command line."""
    from ...pipeline.history import History
    from ...pipeline.history_options import HistoryOptions

    settings = conf()
    pipeline = settings.pipeline
    limits: dict[str, Any] = {"max_rows": options["max_rows"]} if options.get("max_rows") else {}
    return History(
        spark,
        HistoryOptions(
            root=common.root(settings),
            redis_env=address.ENV,
            prefix=settings.prefix,
            queues=tuple(options.get("queues") or ()),
            consumer=pipeline.consumer,
            sla=dict(pipeline.sla),
            keep_events_days=pipeline.keep_events_days,
            keep_attempts_days=pipeline.keep_attempts_days,
            keep_hours_days=pipeline.keep_hours_days,
            fail_on_loss=not options.get("allow_loss"),
            **limits,
        ),
    )


def write_hours(table: pyarrow.Table, days: list[date]) -> None:
    """Write the metrics of whole days to the database. Spark's driver calls this when they are computed."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()  # a stream may be idle for a whole night
    replace_days(table, days)


def unread_events(queues: Iterable[str] = ()) -> int:
    """Return the number of events that the history has not read yet."""
    from ...pipeline.status import lag_of
    from ...pipeline.store import Store

    names, settings = set(queues), conf()
    lag = lag_of(ours.broker(), Store(common.root(settings)), settings.pipeline.consumer)
    return sum(shard.events for shard in lag if not names or shard.queue in names)


def run_detail(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the command line's options for the run's row; none of them is secret."""
    names = ("queues", "max_rows", "interval", "first", "last", "older_than", "allow_loss", "master")
    detail = {name: options[name] for name in names if options.get(name)}
    return {
        name: value if isinstance(value, int | float | str) else list(value) if isinstance(value, tuple) else str(value)
        for name, value in detail.items()
    }


def event_counter(spark: SparkSession, total: int | None) -> Callable[[], tuple[int, int | None]]:
    """Return a function for the progress of a session's streams: the number of events in finished batches."""
    rows_of_batch: dict[str, int] = {}

    def count() -> tuple[int, int | None]:
        for query in spark.streams.active:
            for batch in query.recentProgress:
                rows_of_batch[f"{query.id}/{batch['batchId']}"] = int(batch["numInputRows"])
        return sum(rows_of_batch.values()), total

    return count


def summary_values(summary: Summary) -> dict[str, Any]:
    """Return the values of a summary, for the last line and for the run's row."""
    return {
        "rows": summary.rows,
        "bad": summary.bad,
        "batches": summary.batches,
        "days": [str(day) for day in summary.days],
        "broken": dict(summary.broken),
        "seconds": round(summary.seconds, 3),
    }


def finish(command: common.PipelineCommand, run_id: str, record: Record, summary: Summary, **more: Any) -> None:
    """Store and print the result of a run; ``more`` is stored with it.

    Raises:
        Stopped: a stop request has cut the run short.
    """
    values = summary_values(summary)
    record.progress(rows=summary.rows, bad=summary.bad, detail={**values, **more})
    command.print_result({"run_id": run_id, "state": "stopped" if summary.stopped else "finished", **values})
    if summary.stopped:
        raise Stopped(command.stop_request.message)


@contextlib.contextmanager
def follow_days(command: common.PipelineCommand, name: str, record: Record) -> Iterator[OnDays]:
    """Yield a callback that shows the progress of work over many days and updates the run's row.

    If rows are not counted, the progress counts days.
    """
    with command.progress(name, unit="rows") as progress:

        def on_days(done: DaysDone) -> None:
            if done.rows is None:
                progress.unit = "days"
                progress.update(done.days, done.of_days)
                return
            progress.name = f"{name}, {done.days:,} of {done.of_days:,} days"
            progress.update(done.rows, done.of_rows)
            record.progress(rows=done.rows, total=done.of_rows)

        yield on_days

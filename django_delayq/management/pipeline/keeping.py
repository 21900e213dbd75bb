"""Shared parts of the history subcommands: the driver's settings, and the writing of metrics to the database."""

from __future__ import annotations

import secrets
from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

from django.db import connections

from ... import connections as ours
from ...core import events
from ...history.rows import replace_days
from ...settings.conf import conf
from ..base import positive, queue_list
from . import address, common

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import SparkSession

    from ...pipeline.history import History, Summary


def add_reading(parser: ArgumentParser) -> None:
    """Add ``--queues``, ``--max-rows`` and ``--allow-loss``."""
    parser.add_argument("--queues", type=queue_list, default=(), metavar="A,B", help="only these queues (default: all)")
    parser.add_argument(
        "--max-rows",
        type=positive(int, "a number of events"),
        metavar="N",
        help="read at most so many events at once (500000), which bounds the memory; all are read all the same",
    )
    parser.add_argument(
        "--allow-loss",
        action="store_true",
        help="when events were lost before they were read: say so, and go on with what is there",
    )


def days_option(parser: ArgumentParser, name: str, default: float | None, text: str) -> None:
    """Add an option that is a number of days."""
    parser.add_argument(name, type=positive(float, "a number of days"), default=default, metavar="DAYS", help=text)


def new_run(kind: str) -> str:
    """Return a generated name for a run."""
    return f"{kind}-{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"


def driver(spark: SparkSession | None, options: Mapping[str, Any]) -> History:
    """Return the driver of the history, configured from settings and command line."""
    from ...pipeline.history import History
    from ...pipeline.history_options import HistoryOptions

    settings = conf()
    wanted = settings.pipeline
    given: dict[str, Any] = {"max_rows": options["max_rows"]} if options.get("max_rows") else {}
    return History(
        spark,
        HistoryOptions(
            root=common.root(settings),
            redis_env=address.ENV,
            prefix=settings.prefix,
            queues=tuple(options.get("queues") or ()),
            consumer=wanted.consumer,
            sla=dict(wanted.sla),
            keep_events_days=wanted.keep_events_days,
            keep_attempts_days=wanted.keep_attempts_days,
            keep_hours_days=wanted.keep_hours_days,
            fail_on_loss=not options.get("allow_loss"),
            **given,
        ),
    )


def write_hours(table: pyarrow.Table, days: list[date]) -> None:
    """Write the metrics of whole days to the database. Spark's driver calls this when they are computed."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()  # a stream may be idle for a whole night
    replace_days(table, days)


def unread(queues: Iterable[str] = ()) -> int:
    """Return the number of events that the history has not read yet."""
    only = set(queues)
    lag = events.lag(ours.broker(), conf().pipeline.consumer)
    return sum(one.events for one in lag if not only or one.queue in only)


def asked(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the command line's options for the run's row; none of them can be secret."""
    names = ("queues", "max_rows", "interval", "first", "last", "older_than", "allow_loss", "master")
    found = {name: options[name] for name in names if options.get(name)}
    return {
        name: value if isinstance(value, int | float | str) else list(value) if isinstance(value, tuple) else str(value)
        for name, value in found.items()
    }


def counter(spark: SparkSession, total: int | None) -> Callable[[], tuple[int, int | None]]:
    """Return a function for the progress of a session's streams: the number of events in finished batches."""
    counted: dict[str, int] = {}

    def look() -> tuple[int, int | None]:
        for query in spark.streams.active:
            for one in query.recentProgress:
                counted[f"{query.id}/{one['batchId']}"] = int(one["numInputRows"])
        return sum(counted.values()), total

    return look


def told(summary: Summary) -> dict[str, Any]:
    """Return the values of a summary, for the last line and for the run's row."""
    return {
        "rows": summary.rows,
        "bad": summary.bad,
        "batches": summary.batches,
        "days": [str(one) for one in summary.days],
        "broken": dict(summary.broken),
        "seconds": round(summary.seconds, 3),
    }

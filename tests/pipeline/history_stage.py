"""Events made by hand, an inbox that has them, a database of figures, and the same figures computed in Python."""

from __future__ import annotations

import itertools
import json
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.transaction import AddAction, RemoveAction

from django_delayq.core.outcomes import COUNTED, IN_MORGUE
from django_delayq.models.history import HourlyStat
from django_delayq.pipeline.delta import EventTable
from django_delayq.pipeline.event_plan import Positions
from django_delayq.pipeline.history import Batch, History, HistoryOptions, ignore
from django_delayq.pipeline.schemas import EVENTS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DAY = date(2026, 10, 20)
#: of an inbox
PLACE = ("inbox", 0)
_numbers = itertools.count(1)
_ARROW = {
    "string": pa.string(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "map": pa.map_(pa.string(), pa.string()),
}
ARROW = pa.schema([pa.field(each.name, _ARROW[each.dataType.typeName()]) for each in EVENTS.fields])
#: of the metrics
COLUMNS = {field.name for field in HourlyStat._meta.concrete_fields} - {"id"}

Row = dict[str, Any]


def at(day: date = DAY, hour: int = 10, minute: int = 0) -> datetime:
    """A moment of a day, in UTC."""
    return datetime(day.year, day.month, day.day, hour, minute, tzinfo=UTC)


def event(outcome: str = "succeeded", ts: datetime | None = None, **columns: Any) -> Row:
    """An event with a key of its own; a run that took 50 ms and began 100 ms late, unless told."""
    ts = at() if ts is None else ts
    number = next(_numbers)
    late, took = columns.pop("lateness_ms", 100), columns.pop("duration_ms", 50)
    due = ts - timedelta(milliseconds=max(0, late or 0) + max(0, took or 0))
    row: Row = dict.fromkeys(EVENTS.names) | {
        "queue": "orders",
        "shard": 0,
        "stream_id": f"{number}-{int(ts.timestamp() * 1000)}",
        "ts": ts,
        "outcome": outcome,
        "id": f"job-{number}",
        "task": "shop.mail",
        "key": f"{number:032x}",
        "due": due,
        "started": None if late is None else due + timedelta(milliseconds=max(0, late)),
        "lateness_ms": late,
        "duration_ms": took,
        "attempt": 1,
        "worker": "w1",
        "extra": {},
    }
    return row | columns


def never_begun(outcome: str, ts: datetime | None = None, **columns: Any) -> Row:
    """An event of a run that did not begin."""
    return event(outcome, ts, lateness_ms=None, duration_ms=None, **columns)


def bulk(ts: datetime | None = None) -> Row:
    """The event of a chunk of a bulk write."""
    return event(
        "bulk",
        ts,
        id=None,
        task=None,
        key=None,
        due=None,
        started=None,
        lateness_ms=None,
        duration_ms=None,
        attempt=None,
        worker=None,
        jobs=250,
        created=250,
    )


def frame(spark: SparkSession, rows: Iterable[Row]) -> DataFrame:
    """Events as a DataFrame."""
    return spark.createDataFrame(pa.Table.from_pylist(list(rows), ARROW), EVENTS)


def no_more(rows: list[Row]) -> list[Row]:
    """Rows in one order, for a comparison."""
    return sorted(rows, key=repr)


# --- the source


class Inbox:
    """A folder of Parquet files; each file that is added is a batch of the source."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.events: list[Row] = []
        folder.mkdir(parents=True)

    def add(self, *events: Row, schema: pa.Schema = ARROW) -> None:
        self.events += events
        name = f"{next(_numbers):09d}.parquet"
        fresh = self.folder / f"_{name}"
        pq.write_table(pa.Table.from_pylist(list(events), schema), fresh)
        fresh.rename(self.folder / name)

    def __call__(self, spark: SparkSession) -> Callable[[Positions], Batch]:
        def read(stored: Positions) -> Batch:
            done = int(stored.get(PLACE, "0-0").partition("-")[0])
            files = sorted(self.folder.glob("[0-9]*.parquet"))[done:]
            if not files:
                return None
            return spark.read.schema(EVENTS).parquet(str(files[0])), {PLACE: f"{done + 1}-7"}

        return read


# --- who is told


@dataclass
class Database:
    """Keeps the figures as the tables of the Django side do: those of an hour are replaced whole, with the batch."""

    rows: dict[tuple[datetime, str, str], Row] = field(default_factory=dict)
    batches: dict[str, int] = field(default_factory=dict)
    #: hours of each call
    calls: list[set[datetime]] = field(default_factory=list)
    is_down: bool = False

    def published(self, history: str) -> int:
        return self.batches.get(history, -1)

    def publish(self, history: str, batch: int | None, metrics: pa.Table, selected: Collection[datetime]) -> None:
        if self.is_down:
            raise ConnectionError("the database is down")
        assert set(metrics.schema.names) == COLUMNS
        self.calls.append(set(selected))
        self.rows = {key: row for key, row in self.rows.items() if key[0] not in selected}
        for row in metrics.to_pylist():
            key = (row["hour"], row["queue"], row["task"])
            assert row["hour"] in selected
            assert key not in self.rows
            self.rows[key] = row
        if batch is not None:
            self.batches[history] = batch


def history(
    spark: SparkSession,
    root: Path,
    inbox: Inbox,
    database: Database | None = None,
    step: Callable[[str], None] = ignore,
    **options: Any,
) -> History:
    """A history of an inbox."""
    return stepping(History(spark, HistoryOptions(str(root), **options), database, source=inbox), step)


def stepping(made: History, step: Callable[[str], None]) -> History:
    """Return a history that calls ``step`` with the name of each completed step."""

    def then(call: Callable[..., Any], name: str) -> Callable[..., Any]:
        def both(*args: Any, **more: Any) -> Any:
            result = call(*args, **more)
            step(name)
            return result

        return both

    table: Any = made.table
    for method, name in {"write": "files written", "commit": "batch landed", "compact": "day compacted"}.items():
        setattr(table, method, then(getattr(table, method), name))
    store: Any = made._store
    if store is not None:
        publish = then(store.publish, "hours published")
        made._store = SimpleNamespace(published=store.published, publish=publish)  # type: ignore[assignment]
    return made


def move_day(root: Path, day: date, to: date) -> None:
    """Make a day of a history an older one, of which only the folders' names tell."""
    table = EventTable(str(root))
    latest = table.open()
    actions: list[Any] = []
    for file in table.files():
        if file.day == day:
            path = file.path.replace(f"day={day}", f"day={to}")
            (root / "events" / path).parent.mkdir(parents=True)
            (root / "events" / file.path).rename(root / "events" / path)
            values = {"day": str(day), "hour": str(file.hour.hour)}
            stats = json.dumps({"numRecords": file.rows})
            actions.append(RemoveAction(file.path, True, 0, file.bytes, dict(values)))
            actions.append(AddAction(path, file.bytes, {**values, "day": str(to)}, 0, True, stats))
    latest.create_write_transaction(actions, "append", latest.schema(), ["day", "hour"])


# --- the same figures, computed without Spark


def figures(events: Iterable[Row], sla: float | None = 60.0) -> dict[tuple[datetime, str, str], Row]:
    """Return the rows that the database should have in the end."""
    groups: defaultdict[tuple[datetime, str, str], dict[tuple[Any, ...], Row]] = defaultdict(dict)
    for row in events:
        if row["outcome"] != "bulk":
            hour = row["ts"].replace(minute=0, second=0, microsecond=0)
            key = (row["queue"], row["shard"], row["stream_id"])
            groups[hour, row["queue"], row["task"] or ""][key] = row
    return {group: _figures(group, list(rows.values()), sla) for group, rows in groups.items()}


def _figures(group: tuple[datetime, str, str], rows: list[Row], sla: float | None) -> Row:
    found: Row = dict(zip(("hour", "queue", "task"), group, strict=True))
    found["runs"] = len(rows)
    for name in COUNTED:
        found[name] = sum(row["outcome"] == name for row in rows)
    found["buried"] = sum(row["outcome"] in IN_MORGUE for row in rows)
    found["retries"] = sum((row["attempt"] or 0) > 1 for row in rows)
    found["sla_missed"] = sum(sla is not None and (row["lateness_ms"] or 0) > sla * 1000 for row in rows)
    timed = [row for row in rows if row["lateness_ms"] is not None and row["duration_ms"] is not None]
    found["timed"] = len(timed)
    for measure in ("lateness", "duration"):
        values = sorted(max(0, row[f"{measure}_ms"]) for row in timed)
        for name, share in (("p50", 50), ("p95", 95), ("p99", 99)):
            rank = math.ceil(len(values) * share / 100)
            found[f"{measure}_{name}_ms"] = values[rank - 1] if values else None
        found[f"{measure}_max_ms"] = values[-1] if values else None
        found[f"{measure}_sum_ms"] = sum(values)
        found[f"{measure}_histogram"] = [sum(min(31, value.bit_length()) == i for value in values) for i in range(32)]
    return found

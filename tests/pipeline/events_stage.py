"""Helpers for the tests of the readers of events: events, readers, and tasks as Spark runs them."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from django_delayq.core.broker import Broker
from django_delayq.pipeline.events import EventsStreamReader
from django_delayq.pipeline.schemas import EVENTS
from tests.support.event_entries import add, pack

MINUTE = 60_000
Make = Callable[..., EventsStreamReader]


def emit(broker: Broker, *moments: int, queue: str = "q", number: int = 0, **fields: str) -> None:
    """Write entries with one event each; the position of the n-th of a shard is ``n-<moment>``."""
    add(broker, queue, number, [(ms, [event(ms, **fields)]) for ms in moments])


def emit_together(broker: Broker, *moments: int, queue: str = "q", number: int = 0) -> None:
    """Write one entry with all these events, at the first moment."""
    add(broker, queue, number, [(moments[0], [event(ms) for ms in moments])])


def event(ms: int, **fields: str) -> bytes:
    return pack(**{"outcome": "succeeded", "id": f"j{ms}", **fields})


def options_of(redis_url: str, broker: Broker, **options: Any) -> CaseInsensitiveDict:
    given = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
    return CaseInsensitiveDict({"redis": redis_url, "prefix": broker.prefix, **given})


@contextmanager
def readers(redis_url: str, broker: Broker) -> Iterator[Make]:
    """``make(fetch=5)``: a streaming reader on the test's Redis; each is a query that starts anew."""
    made = []

    def make(**options: Any) -> EventsStreamReader:
        made.append(EventsStreamReader(options_of(redis_url, broker, **options), EVENTS))
        return made[-1]

    yield make
    for reader in made:
        reader.stop()


def offsets(reader: EventsStreamReader, start: dict[str, Any], limit: int | None = None) -> dict[str, Any]:
    """The next end, on the way that Spark takes it."""
    return json.loads(json.dumps(reader.latestOffset(start, ReadMaxRows(limit) if limit else ReadAllAvailable())))


def ids(reader: Any, start: dict[str, Any], end: dict[str, Any]) -> list[str]:
    """Return the ids that the tasks of a batch read, each in a process of its own."""
    return [ident for task in reader.partitions(start, end) for ident in ids_of(reader, task)]


def ids_of(reader: Any, task: Any) -> list[str]:
    reader, task = pickle.loads(pickle.dumps((reader, task)))
    return [ident for batch in reader.read(task) for ident in batch.column("id").to_pylist()]


def run_to_end(reader: EventsStreamReader, start: dict[str, Any], limit: int) -> list[list[str]]:
    """The ids of each batch until there is nothing more to read."""
    batches = []
    while (end := offsets(reader, start, limit)) != start:
        batches.append(ids(reader, start, end))
        start = end
        reader.commit(end)
    return batches


def named(*moments: int) -> list[str]:
    return [f"j{ms}" for ms in moments]

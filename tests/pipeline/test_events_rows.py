"""From raw entries to Arrow: every column, and what hostile entries become."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegerType, LongType, StringType, StructType

from django_delayq.core import events
from django_delayq.core.errors import Misconfigured
from django_delayq.core.events import EventEntry, entry_of
from django_delayq.pipeline.events import EventsReader, to_batch, united
from django_delayq.pipeline.schemas import EVENTS
from tests.support.event_entries import pack


def arrow_schema(schema: StructType) -> pa.Schema:
    """Columns of a reader's rows, as Spark asks for them."""
    return EventsReader(CaseInsensitiveDict(), schema).arrow


SCHEMA = arrow_schema(EVENTS)
T0 = 1_700_000_000_000
FINISHED = {
    "outcome": "succeeded",
    "id": "order-5",
    "task": "shop.pay",
    "key": "0f" * 16,
    "due": f"{T0 + 1}",
    "started": f"{T0 + 21}",
    "ms": "7",
    "attempt": "2",
    "error": "",
}


def entry(position: str, *contents: dict[str, Any], worker: bytes = b"w:1") -> EventEntry:
    packed = b"".join(pack(**event) for event in contents)
    return entry_of(position.encode(), {b"worker": worker, events.FIELD: packed})


def rows(*entries: EventEntry, schema: pa.Schema = SCHEMA) -> list[dict[str, Any]]:
    batch = to_batch(entries, "orders", 1024, schema)
    batch.validate(full=True)
    assert batch.schema.equals(schema)
    return list(batch.to_pylist())


def row(**fields: Any) -> dict[str, Any]:
    (found,) = rows(entry(f"4-{T0 + 30}", {**FINISHED, **fields}))
    return found


def moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


@pytest.fixture(params=["UTC", "America/Chicago"])
def zone(request: pytest.FixtureRequest) -> Iterator[None]:
    """The process's time zone, which Django sets to its TIME_ZONE."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = request.param
    time.tzset()
    yield
    os.environ.pop("TZ") if before is None else os.environ.update(TZ=before)
    time.tzset()


def test_the_arrow_form_is_the_one_that_spark_compares_with() -> None:
    assert to_arrow_schema(EVENTS, timezone="UTC").equals(SCHEMA)
    some = StructType([EVENTS["due"], EVENTS["id"], EVENTS["extra"]])
    assert to_arrow_schema(some, timezone="UTC").equals(arrow_schema(some))


@pytest.mark.usefixtures("zone")
def test_a_finished_run_has_all_its_columns() -> None:
    assert row() == {
        "queue": "orders",
        "shard": 1024,
        "stream_id": f"4-{T0 + 30}",
        "ts": moment(T0 + 30),
        "outcome": "succeeded",
        "id": "order-5",
        "task": "shop.pay",
        "key": "0f" * 16,
        "due": moment(T0 + 1),
        "started": moment(T0 + 21),
        "lateness_ms": 20,
        "duration_ms": 7,
        "attempt": 2,
        "worker": "w:1",
        "error_class": None,
        "jobs": None,
        "created": None,
        "extra": None,
    }


def test_a_run_that_never_began_has_neither_start_nor_duration() -> None:
    found = row(outcome="expired", started="0", ms="0")
    assert (found["started"], found["lateness_ms"], found["duration_ms"]) == (None, None, None)
    assert row(ms="0")["duration_ms"] == 0, "a run of less than a millisecond is one"


def test_a_run_that_was_asked_for_before_its_time_is_not_late() -> None:
    assert row(started=f"{T0 - 500}")["lateness_ms"] == 0


def test_a_bulk_write_has_no_run() -> None:
    (found,) = rows(entry(f"1-{T0}", {"outcome": "bulk", "jobs": 250, "created": 249, "extra": "run:r:1"}, worker=b""))
    assert {name: found[name] for name in ("outcome", "jobs", "created", "id", "due", "attempt", "worker")} == {
        "outcome": "bulk",
        "jobs": 250,
        "created": 249,
        "id": None,
        "due": None,
        "attempt": None,
        "worker": None,
    }
    assert (found["queue"], found["extra"]) == ("orders", [("run", "r:1")])


KINDS = [
    FINISHED,
    {"outcome": "bulk", "jobs": 1, "created": 1},
    {"outcome": "cancelled", "id": "c", "task": "t"},
    {**FINISHED, "extra": "trace:x"},
    {},
]


def test_events_of_different_kinds_stay_in_their_order() -> None:
    kinds = [KINDS[n * 7 % 5] for n in range(50)]
    found = rows(*[entry(f"{n}-{T0}", kind) for n, kind in enumerate(kinds, 1)])
    assert found == [one for n, kind in enumerate(kinds, 1) for one in rows(entry(f"{n}-{T0}", kind))]
    assert [one["stream_id"] for one in found] == [f"{n}-{T0}" for n in range(1, 51)]
    assert {one["outcome"] for one in found} == {"succeeded", "bulk", "cancelled", ""}
    assert [one["extra"] for one in found if one["extra"]] == [[("trace", "x")]] * 10


def test_the_events_of_one_entry_are_those_of_as_many_entries() -> None:
    sizes, kinds, entries, last = [1, 3, 1, 7, 2], [KINDS[n * 3 % 5] for n in range(14)], [], 0
    for size in sizes:
        last += size
        entries.append(entry(f"{last}-{T0}", *kinds[last - size : last]))
    assert rows(*entries) == rows(*[entry(f"{n}-{T0}", kind) for n, kind in enumerate(kinds, 1)])


def test_each_event_has_the_worker_of_its_entry() -> None:
    found = rows(entry("2-5", FINISHED, FINISHED, worker=b"a"), entry("3-5", FINISHED, worker=b"b\xff"))
    assert [one["worker"] for one in found] == ["a", "a", "b�"]


def test_an_entry_that_no_script_wrote_is_a_row_of_nothing() -> None:
    strange = entry_of(b"2-5", {b"outcome": b"succeeded", b"id": b"x", b"more": b""})
    found = rows(entry("1-5", FINISHED), strange, entry("3-5", FINISHED))
    assert [one["outcome"] for one in found] == ["succeeded", "", "succeeded"]
    assert {name for name, value in found[1].items() if value} == {"queue", "shard", "stream_id", "ts"}


def test_bytes_that_are_no_text_are_shown_with_replacements() -> None:
    odd = {**FINISHED, "id": b"\xff\x01a\r\n", "error": b"Err\xe4r", "outcome": b"\xc3(", "extra": b"n\xff:v\xfe"}
    (found,) = rows(entry("0-5", odd))
    assert (found["id"], found["error_class"], found["outcome"]) == ("�\1a\r\n", "Err�r", "�(")
    assert found["extra"] == [("n�", "v�")]


@pytest.mark.parametrize("wrong", ["", "x", "-5", "1e5", "5.5", "9" * 30, "99999999999999999", "٣", "1_0", " "])
def test_a_number_that_is_none_becomes_null_and_spoils_no_other_row(wrong: str) -> None:
    bad = {**FINISHED, "due": wrong, "started": wrong, "ms": wrong, "attempt": wrong}
    found = rows(entry("0-5", FINISHED), entry("1-5", bad), entry("2-5", FINISHED))
    assert [found[1][name] for name in ("due", "started", "lateness_ms", "attempt")] == [None] * 4
    assert found[0]["lateness_ms"] == found[2]["lateness_ms"] == 20
    assert (found[0]["attempt"], found[2]["duration_ms"]) == (2, 7)


def test_no_entries_are_no_rows() -> None:
    assert rows() == []


def test_only_the_wanted_columns_are_made() -> None:
    schema = arrow_schema(StructType().add("id", StringType()).add("jobs", LongType()))
    assert rows(entry("0-5", FINISHED), schema=schema) == [{"id": "order-5", "jobs": None}]


@pytest.mark.parametrize(
    ("column", "text"),
    [
        (("ident", StringType()), "an event has no column 'ident'.*Known columns: queue, shard, stream_id, "),
        (("id", IntegerType()), "the column 'id' of an event is string, not int"),
    ],
)
def test_a_column_that_events_do_not_have_is_refused_with_those_they_have(column: tuple[str, Any], text: str) -> None:
    with pytest.raises(Misconfigured, match=text):
        arrow_schema(StructType().add(*column))


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_rows_that_were_read_in_parts_are_one_batch_or_none(count: int) -> None:
    part = pa.RecordBatch.from_pydict({"id": ["a", "b"]})
    assert [batch.to_pydict() for batch in united([part] * count)] == [{"id": ["a", "b"] * count}] * min(count, 1)

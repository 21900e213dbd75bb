"""From raw entries to Arrow: every column, and what hostile entries become."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegerType, LongType, StringType, StructType

from django_delayq.core.errors import Misconfigured
from django_delayq.core.streams import Entry
from django_delayq.pipeline.event_reading import arrow_schema
from django_delayq.pipeline.event_rows import to_batch
from django_delayq.pipeline.schemas import EVENTS

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
    "worker": "w:1",
    "error": "",
}


def entry(position: str, fields: dict[Any, Any]) -> Entry:
    words = [word if isinstance(word, bytes) else str(word).encode() for pair in fields.items() for word in pair]
    return position.encode(), words


def rows(*entries: Entry, schema: pa.Schema = SCHEMA) -> list[dict[str, Any]]:
    batch = to_batch(entries, "orders", 1024, schema)
    batch.validate(full=True)
    assert batch.schema.equals(schema)
    return list(batch.to_pylist())


def row(**fields: Any) -> dict[str, Any]:
    (found,) = rows(entry(f"{T0 + 30}-4", {**FINISHED, **fields}))
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
        "stream_id": f"{T0 + 30}-4",
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
    (found,) = rows(entry(f"{T0}-0", {"outcome": "bulk", "jobs": 250, "created": 249, "run": "r1", "queue": "x"}))
    assert {name: found[name] for name in ("outcome", "jobs", "created", "id", "due", "attempt")} == {
        "outcome": "bulk",
        "jobs": 250,
        "created": 249,
        "id": None,
        "due": None,
        "attempt": None,
    }
    assert (found["queue"], found["extra"]) == ("orders", [("run", "r1"), ("queue", "x")])


def test_entries_of_different_kinds_stay_in_their_order() -> None:
    kinds = [
        FINISHED,
        {"outcome": "bulk", "jobs": 1, "created": 1},
        {"outcome": "cancelled", "id": "c", "task": "t"},
        {**FINISHED, "trace": "x"},
        {},
    ]
    given = [entry(f"{T0}-{n}", kinds[n * 7 % 5]) for n in range(50)]
    found = rows(*given)
    assert found == [one for each in given for one in rows(each)]
    assert [one["stream_id"] for one in found] == [f"{T0}-{n}" for n in range(50)]
    assert {one["outcome"] for one in found} == {"succeeded", "bulk", "cancelled", ""}
    assert [one["extra"] for one in found if one["extra"]] == [[("trace", "x")]] * 10


def test_fields_that_lie_as_if_shifted_are_not_taken_for_each_other() -> None:
    """Names of all entries one after another look like those of equal entries; their bounds do not."""
    found = rows(
        entry("5-0", {"outcome": "a"}),
        entry("5-1", {"id": "b", "task": "c"}),
        entry("5-2", {"outcome": "d", "id": "e", "task": "f"}),
    )
    told = [(one["outcome"], one["id"], one["task"]) for one in found]
    assert told == [("a", None, None), ("", "b", "c"), ("d", "e", "f")]


def test_bytes_that_are_no_text_are_shown_with_replacements() -> None:
    odd = {**FINISHED, "id": b"\xff\x00a\r\n", "error": b"Err\xe4r", "outcome": b"\xc3(", b"n\xff": b"v\xfe"}
    (found,) = rows(entry("5-0", odd))
    assert (found["id"], found["error_class"], found["outcome"]) == ("�\0a\r\n", "Err�r", "�(")
    assert found["extra"] == [("n�", "v�")]


@pytest.mark.parametrize("wrong", ["", "x", "-5", "1e5", "5.5", "9" * 30, "99999999999999999", "٣", "1_0", " "])
def test_a_number_that_is_none_becomes_null_and_spoils_no_other_row(wrong: str) -> None:
    bad = {**FINISHED, "due": wrong, "started": wrong, "ms": wrong, "attempt": wrong}
    found = rows(entry("5-0", FINISHED), entry("5-1", bad), entry("5-2", FINISHED))
    assert [found[1][name] for name in ("due", "started", "lateness_ms", "attempt")] == [None] * 4
    assert found[0]["lateness_ms"] == found[2]["lateness_ms"] == 20
    assert (found[0]["attempt"], found[2]["duration_ms"]) == (2, 7)


def test_no_entries_are_no_rows() -> None:
    assert rows() == []


def test_only_the_wanted_columns_are_made() -> None:
    schema = arrow_schema(StructType().add("id", StringType()).add("jobs", LongType()))
    assert rows(entry("5-0", FINISHED), schema=schema) == [{"id": "order-5", "jobs": None}]


@pytest.mark.parametrize("column", [("ident", StringType()), ("id", IntegerType())])
def test_a_column_that_events_do_not_have_is_refused_with_those_they_have(column: tuple[str, Any]) -> None:
    with pytest.raises(Misconfigured, match=rf"no column {column[0]} .*stream_id string"):
        arrow_schema(StructType().add(*column))

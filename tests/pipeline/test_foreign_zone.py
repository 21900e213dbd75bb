"""Times without a zone are UTC in a session of the user's own, in any zone."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from django_delayq.pipeline.bulk import BulkOptions, jobs
from django_delayq.pipeline.inputs import Files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOON_MS = int(datetime(2030, 1, 1, 12, tzinfo=UTC).timestamp() * 1000)


@pytest.fixture
def berlin(spark: SparkSession) -> Iterator[SparkSession]:
    """A session of the user, who works in Berlin."""
    theirs = spark.newSession()
    theirs.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    yield theirs
    assert theirs.conf.get("spark.sql.session.timeZone") == "Europe/Berlin"


def due_of(frame: Any) -> list[int | None]:
    return jobs(frame, BulkOptions(queue="q", id="{pk}", due="at"), 0).toArrow()["due_ms"].to_pylist()


@pytest.mark.parametrize("text", ["2030-01-01T12:00:00", "2030-01-01 12:00", "2030-01-01T13:00:00+01:00"])
def test_texts_without_a_zone_are_utc(berlin: SparkSession, text: str) -> None:
    assert due_of(berlin.sql(f"SELECT 7 AS pk, '{text}' AS at")) == [NOON_MS]


def test_a_text_that_is_no_time_and_none_are_null(berlin: SparkSession) -> None:
    assert due_of(berlin.sql("SELECT 7 AS pk, 'soon' AS at UNION ALL SELECT 8, NULL")) == [None, None]


@pytest.mark.parametrize("schema", ["pk LONG, at TIMESTAMP", "pk LONG, at STRING"])
@pytest.mark.parametrize(
    ("name", "text"),
    [("rows.csv", "pk,at\n7,2030-01-01T12:00:00\n"), ("rows.json", '{"pk": 7, "at": "2030-01-01T12:00:00"}\n')],
)
def test_times_of_files_without_a_zone_are_utc(
    berlin: SparkSession, tmp_path: Path, schema: str, name: str, text: str
) -> None:
    file = tmp_path / name
    file.write_text(text)
    assert due_of(Files((str(file),), name.partition(".")[2], schema).read(berlin)) == [NOON_MS]

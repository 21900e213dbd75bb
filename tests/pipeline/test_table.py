"""Django's tables in Spark: every kind of field, every way to read them, and what cannot be read."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from django.db import connections
from django.test import override_settings
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from django_delayq.core.errors import Misconfigured
from django_delayq.pipeline.django_worker import DATABASES_ENV, environ
from django_delayq.pipeline.errors import PipelineError
from django_delayq.pipeline.table import Range, Table, ranges_between
from django_delayq.pipeline.table_columns import Column, array_of
from django_delayq.pipeline.table_fields import adapted, columns_of
from django_delayq.pipeline.table_options import TableOptions

from .stock.models import Item, Label, Riddle, Shelf, Ticket
from .stocked import ROOT, SETTINGS, Stock, attached

MADE = datetime(2026, 3, 8, 8, 30, 0, 123456, tzinfo=UTC)  # in the hour that Chicago leaves out
TEXTS = ["", "plain", "a,b", 'say "yes"', "two\nlines", "\\N", "\\.", "NULL", " ", "ünï ☂ 𝄞", "\r\n", "'; DROP x%s %%"]
SHELF = UUID(int=7)

FULL: dict[str, Any] = {
    "name": "x",
    "note": "n",
    "count": -1,
    "big": 2**63 - 1,
    "ratio": 0.1,
    "price": Decimal("-1.500"),
    "huge": Decimal("12345678.25"),
    "fresh": True,
    "made": MADE,
    "day": date(1969, 12, 31),
    "at": time(1, 2, 3, 4),
    "span": timedelta(days=-1, microseconds=5),
    "code": UUID(int=2**127),
    "data": {"ä": [1, None]},
    "raw": bytes(range(256)),
    "ip": "::1",
    "shouted": "loud",
    "coded": "c",
    "shelf_id": SHELF,
    "thrown_away": False,
}
IN_SPARK: dict[str, Any] = {
    **FULL,
    "huge": "12345678.25",
    "at": "01:02:03.000004",
    "span": -86_399_999_995,
    "code": str(FULL["code"]),
    "data": '{"ä":[1,null]}',
    "shouted": "LOUD",
    "coded": "<c>",
    "shelf_id": str(SHELF),
}
NULLS = {
    "note",
    "ratio",
    "price",
    "huge",
    "fresh",
    "day",
    "at",
    "span",
    "code",
    "data",
    "raw",
    "ip",
    "shouted",
    "shelf_id",
}


def refused(spark: SparkSession, model: str, **options: str) -> str:
    with pytest.raises(PySparkException) as error:
        spark.read.format("delayq.model").options(model=model, **options).load().toArrow()
    return str(error.value)


def test_every_kind_of_field_comes_as_it_is(spark: SparkSession, any_stock: Stock) -> None:
    any_stock.rows(Shelf).create(id=SHELF, name="top")
    any_stock.rows(Item).create(**FULL)
    any_stock.rows(Item).create(name="nothing", made=MADE)
    read = any_stock.read(spark, "stock.Item", method="orm")
    kinds = {name: kind for name, kind in read.dtypes if kind not in ("string", "bigint")}
    assert kinds == {
        "ratio": "double",
        "price": "decimal(12,3)",
        "fresh": "boolean",
        "made": "timestamp",
        "day": "date",
        "raw": "binary",
        "thrown_away": "boolean",
    }
    nothing, full = sorted(read.toArrow().to_pylist(), key=lambda row: row["name"])
    assert {name: full[name] for name in FULL} == IN_SPARK
    assert {name for name, value in nothing.items() if value is None} == NULLS
    assert nothing["made"] == MADE


def test_copy_reads_what_the_orm_reads(spark: SparkSession, postgres_stock: Stock) -> None:
    shelf = postgres_stock.rows(Shelf).create(id=SHELF, name="top")
    postgres_stock.rows(Item).bulk_create(
        Item(
            name=text,
            note=text,
            made=MADE,
            shelf=shelf,
            price=Decimal("0.001"),
            ratio=1e300,
            day=date(2026, 1, 2),
            fresh=False,
            code=SHELF,
        )
        for text in TEXTS
    )
    postgres_stock.rows(Item).bulk_create(Item(name=str(n), made=MADE) for n in range(20))
    columns = "name,note,count,big,ratio,price,fresh,made,day,code,shelf,shelf__name"
    ways = {}
    for method in ("orm", "copy"):
        read = postgres_stock.read(spark, "stock.Item", columns=columns, method=method, partitions=3)
        ways[method] = sorted(map(repr, read.toArrow().to_pylist()))
    assert ways["copy"] == ways["orm"]
    assert len(ways["copy"]) == 32
    alone = postgres_stock.read(spark, "stock.Item", columns="note", filter='{"note": "a,b"}', method="copy")
    assert alone.toArrow().to_pylist() == [{"note": "a,b"}]
    nulls = postgres_stock.read(spark, "stock.Item", columns="note", filter='{"note": null}', method="copy")
    assert nulls.toArrow().to_pylist() == [{"note": None}] * 20


def test_copy_is_refused_where_django_has_a_say(spark: SparkSession, stock: Stock, postgres_stock: Stock) -> None:
    assert "Django has to convert shouted, data" in refused(
        spark, "stock.Item", columns="id,shouted,data", method="copy"
    )
    with attached(spark, stock.environ):
        assert "needs PostgreSQL with psycopg 3" in refused(spark, "stock.Ticket", method="copy")


@pytest.mark.parametrize("partitions", [1, 7])
def test_every_row_is_in_one_partition(spark: SparkSession, any_stock: Stock, partitions: int) -> None:
    any_stock.rows(Label).bulk_create(Label(text=f"t{n}") for n in range(10))
    any_stock.rows(Ticket).bulk_create(Ticket(id=n * n - 20, created=MADE) for n in range(40))
    any_stock.rows(Shelf).bulk_create(Shelf(id=UUID(int=n << 100), name=str(n)) for n in range(40))
    tickets = any_stock.read(spark, "stock.Ticket", columns="pk", partitions=partitions, fetch=7)
    assert tickets.rdd.getNumPartitions() == partitions
    assert sorted(tickets.toArrow()["pk"].to_pylist()) == sorted(n * n - 20 for n in range(40))
    shelves = any_stock.read(spark, "stock.Shelf", columns="name", partitions=partitions)
    assert sorted(map(int, shelves.toArrow()["name"].to_pylist())) == list(range(40))
    labels = any_stock.read(spark, "stock.Label", partitions=partitions)
    assert labels.rdd.getNumPartitions() == 1
    assert labels.count() == 10


def test_ranges_lie_side_by_side() -> None:
    assert ranges_between(None, None, 4) == [Range()]
    assert ranges_between(5, 5, 4) == [Range()]
    assert ranges_between(5, 6, 4) == [Range(None, 6), Range(6, None)]
    assert ranges_between(0, 99, 3) == [Range(None, 33), Range(33, 66), Range(66, None)]
    assert ranges_between(-(2**63), 2**63 - 1, 2) == [Range(None, 0), Range(0, None)]
    assert ranges_between(UUID(int=0), UUID(int=9), 2) == [Range(None, UUID(int=5)), Range(UUID(int=5), None)]


def test_a_table_without_rows_has_its_columns(spark: SparkSession, any_stock: Stock) -> None:
    for found in (
        any_stock.read(spark, "stock.Ticket", partitions=4),
        any_stock.read(spark, "stock.Ticket", filter='{"pk__in": []}'),
        any_stock.read(spark, "stock.Ticket", filter='{"pk__in": []}', method="orm"),
    ):
        assert found.toArrow().num_rows == 0
        assert found.columns == ["id", "name", "customer", "state", "created", "day", "due"]


def test_filters_are_those_of_django(spark: SparkSession, any_stock: Stock) -> None:
    shelf = any_stock.rows(Shelf).create(name="top")
    for n in range(6):
        any_stock.rows(Item).create(
            name=f"i{n}", count=n, made=MADE + timedelta(hours=n), shelf=shelf if n % 2 else None, thrown_away=n == 5
        )

    def names(*filters: dict[str, Any]) -> list[str]:
        read = any_stock.read(spark, "stock.Item", columns="name", filter=json.dumps(filters))
        return sorted(read.toArrow()["name"].to_pylist())

    assert names() == ["i0", "i1", "i2", "i3", "i4"], "what the manager leaves out is left out"
    assert names({"shelf__name": "top"}) == ["i1", "i3"]
    assert names({"shelf": None, "count__gte": 2}) == ["i2", "i4"]
    assert names({"count__in": [1, 2]}, {"count__in": [2, 3]}) == ["i2"]
    assert names({"made__lt": "2026-03-08T04:30:00.123456-06:00"}) == ["i0", "i1"]
    assert names({"made__range": ["2026-03-08T09:00:00Z", "2026-03-08T11:00:00Z"]}) == ["i1", "i2"]
    assert names({"made__hour": 6}) == ["i3"], "hours are those of the project's zone, also the one after the gap"
    assert names({"name": "' OR 1=1 --"}) == []


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ('{"state": "open"}', "Cannot resolve keyword 'state' into field"),
        ('{"status__is_like": "x"}', "Unsupported lookup 'is_like'"),
        ('{"version": "many"}', "expected a number but got 'many'"),
        ('{"created_at__lt": "2026-03-08T09:00:00"}', "has no time zone"),
        ('{"created_at__lt": "yesterday"}', "is no moment; write it in ISO 8601"),
        ('{"customer__orders__created_at": ["now"]}', "is no moment; write it in ISO 8601"),
        ('{"created_at__lt": null}', "Cannot use None as a query value"),
        ('{"created_at__date": "tomorrow"}', "has an invalid date format"),
        ('{"pk": 1', "filter must be JSON like"),
        ('"open"', "must be field lookups like"),
        ("[[1]]", "must be field lookups like"),
        ('{"_connector": "OR 1=1"}', "which is no field lookup"),
        ('{"_negated": true}', "which is no field lookup"),
        ('{"na me": 1}', "which is no field lookup"),
        ('{"pk": {"a": 1}}', "a value is a text, a number"),
    ],
)
def test_a_filter_that_cannot_be_is_told_so(stock: Stock, given: str, text: str) -> None:
    with pytest.raises(Misconfigured, match=re.escape(text)):
        Table.of(TableOptions.parse({"model": "shop.Order", "using": stock.alias, "filter": given}))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"model": "shop.Ordr"}, "there is no model 'shop.Ordr'. Did you mean 'shop.Order'?"),
        ({"model": "Order"}, "must be the app's label and the model's name"),
        ({}, "which table? Give the option model"),
        ({"colums": "id"}, "'colums' is no option here. Did you mean 'columns'?"),
        ({"columns": "id,statsu"}, "has no column 'statsu'. Did you mean 'status'?"),
        ({"columns": "customer__nme"}, "has no column 'customer__nme'. Did you mean 'name'?"),
        ({"columns": "status__upper"}, "has no column 'status__upper'"),
        ({"columns": "id,ID"}, "has one twice"),
        ({"columns": "id;name"}, "cannot name a field"),
        ({"columns": " , "}, "is empty"),
        ({"columns": "lines"}, "leads to many rows"),
        ({"using": "replica"}, "there is no database 'replica'"),
        ({"partitions": "0"}, "a whole number from 1 to"),
        ({"fetch": "all"}, "a whole number from 1 to"),
        ({"method": "jdbc"}, "must be one of auto, orm, copy"),
    ],
)
def test_what_cannot_be_read_is_told_before(stock: Stock, options: dict[str, str], text: str) -> None:
    given = {"using": stock.alias, **({"model": "shop.Order"} if options else {}), **options}
    with pytest.raises(Misconfigured, match=re.escape(text)):
        Table.of(TableOptions.parse(given))


def test_a_field_that_nobody_has_heard_of_is_named(stock: Stock) -> None:
    with pytest.raises(Misconfigured, match="'what' is a Strange, which has no form in Spark; list the other columns"):
        columns_of(Riddle, connections[stock.alias], None)


def test_spark_says_what_is_wrong(spark: SparkSession, stock: Stock) -> None:
    with pytest.raises(PySparkException, match=r"has no column 'nam'\. Did you mean 'name'\?"):
        stock.read(spark, "stock.Item", columns="id,nam")


def test_another_field_beside_a_strange_one_can_be_read(spark: SparkSession, stock: Stock) -> None:
    stock.rows(Riddle).create(what="?")
    assert stock.read(spark, "stock.Riddle", columns="pk").count() == 1


def test_sqlite_in_memory_cannot_be_shared(spark: SparkSession, stock: Stock) -> None:
    with attached(spark, {**stock.environ, "DELAYQ_TEST_DB": "sqlite"}):
        assert "SQLite in memory, which no other process can see" in refused(spark, "stock.Ticket")


def test_a_table_that_is_not_there_is_told_with_what_to_do(spark: SparkSession, stock: Stock) -> None:
    told = refused(spark, "auth.User")
    assert "no such table: auth_user" in told
    assert "that the database exists and is migrated" in told


def test_the_columns_may_be_given_by_a_schema(spark: SparkSession, stock: Stock) -> None:
    stock.rows(Ticket).create(name="a", created=MADE)
    reader = spark.read.format("delayq.model").option("model", "stock.Ticket")
    (row,) = reader.schema("created timestamp, name string").load().toArrow().to_pylist()
    assert row == {"created": MADE, "name": "a"}
    with pytest.raises(PySparkException, match=r"'created' of stock\.Ticket is timestamp, not string"):
        reader.schema("created string").load().toArrow()


def test_no_connection_stays_open_and_the_worker_stays_in_utc(spark: SparkSession, postgres_stock: Stock) -> None:
    postgres_stock.rows(Ticket).create(created=MADE)
    before = {pid for pid, *_ in _sessions(postgres_stock)}
    assert postgres_stock.read(spark, "stock.Ticket", partitions=2).count() == 1
    assert {pid for pid, *_ in _sessions(postgres_stock)} == before


def _sessions(stock: Stock) -> list[tuple[int, str, str]]:
    from tests.support.postgres_box import PostgresDatabase

    return PostgresDatabase.from_url(stock.environ["DELAYQ_TEST_DB"]).sessions()


# -- without Spark -----------------------------------------------------------------------------------------------------


def test_a_process_that_django_was_set_up_in_keeps_its_zone(stock: Stock) -> None:
    program = """
import os, time
from django_delayq.pipeline import django_worker
with django_worker.django_ready():
    from django.conf import settings
    assert settings.TIME_ZONE == "America/Chicago"
print(os.environ.get("TZ"), time.timezone)
"""
    environ = {**os.environ, **stock.environ, "TZ": "UTC"}
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=False)
    assert (done.stdout.split(), done.returncode) == (["UTC", "0"], 0), done.stderr


def test_a_worker_that_does_not_know_the_project_says_so() -> None:
    program = "from django_delayq.pipeline import django_worker\nwith django_worker.django_ready(): pass"
    without = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    environ = {**without, "PYTHONPATH": str(ROOT)}
    ends = [
        subprocess.run(
            [sys.executable, "-c", program], env={**environ, **more}, capture_output=True, text=True, check=False
        )
        for more in ({}, {"DJANGO_SETTINGS_MODULE": "nowhere.settings"})
    ]
    assert [end.returncode for end in ends] == [1, 1]
    assert "has no settings of Django. Call django_delayq.pipeline.table.attach(spark)" in ends[0].stderr
    assert "the project has to be importable there" in ends[1].stderr


def test_workers_are_told_settings_path_and_the_databases_in_use(
    monkeypatch: pytest.MonkeyPatch, stock: Stock, django_db_setup: None
) -> None:
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", SETTINGS)
    monkeypatch.syspath_prepend(str(ROOT / "example_project"))
    told = environ()
    names = json.loads(told[DATABASES_ENV])
    assert told["DJANGO_SETTINGS_MODULE"] == SETTINGS
    assert names[stock.alias] == stock.environ["DELAYQ_TEST_DB"].removeprefix("sqlite:///")
    paths = told["PYTHONPATH"].split(os.pathsep)
    assert {str(ROOT), str(ROOT / "example_project")} <= set(paths)
    assert not [path for path in paths if path.endswith("site-packages")]
    monkeypatch.delenv("DJANGO_SETTINGS_MODULE")
    with pytest.raises(Misconfigured, match="put them into a module"):
        environ()


def test_the_routers_of_the_project_name_the_database(stock: Stock) -> None:
    class Router:
        def db_for_read(self, model: object, **hints: object) -> str:
            return stock.alias

    with override_settings(DATABASE_ROUTERS=[Router()]):
        assert Table.of(TableOptions("shop.Order")).alias == stock.alias


def test_moments_without_a_zone_are_in_the_project_s() -> None:
    zone = timezone(timedelta(hours=-6))
    kind = pa.timestamp("us", "UTC")
    found = array_of(Column("made", "moment"), [datetime(2026, 1, 1), None, MADE], kind, zone)
    assert found.to_pylist() == [datetime(2026, 1, 1, 6, tzinfo=UTC), None, MADE]
    assert adapted(Item, "made__lt", "2026-01-01T06:00:00Z", zone) == datetime(2026, 1, 1)
    assert adapted(Item, "made__in", ["2026-01-01T06:00:00Z"], None) == [datetime(2026, 1, 1, 6, tzinfo=UTC)]
    assert adapted(Item, "made__year", "2026", None) == "2026"
    assert adapted(Item, "name", "2026-01-01", None) == "2026-01-01"


def test_a_value_that_its_column_cannot_hold_is_named() -> None:
    with pytest.raises(PipelineError, match=r"the column 'count' has 'many' \(str\), which cannot be read as bigint"):
        array_of(Column("count", "integer"), [1, "many"], pa.int64(), None)
    assert array_of(Column("count", "integer"), [1, "2", None], pa.int64(), None).to_pylist() == [1, 2, None]

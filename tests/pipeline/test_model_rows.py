"""Rows of a Django model in a file of Parquet: every kind of field, and what cannot be read."""

from __future__ import annotations

import json
import re
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from django.core.management import CommandError
from django.test import override_settings

from django_delayq.core.errors import InvalidJob, Misconfigured
from django_delayq.management.pipeline import model_rows
from django_delayq.management.pipeline.bulk import _rows_of
from django_delayq.management.pipeline.model_rows import write_rows
from django_delayq.management.rows import check_filter
from django_delayq.pipeline.errors import PipelineError
from shop.models import Order

from .stock.models import Item, Label, Riddle, Shelf, Ticket
from .stocked import Stock

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
IN_ARROW: dict[str, Any] = {
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


def read(stock: Stock, model: Any, *names: str, path: Path, **filters: Any) -> pa.Table:
    """Write fields of the rows, and return the file."""
    rows = model._default_manager.using(stock.alias).filter(**filters)
    write_rows(rows, names or [field.attname for field in model._meta.concrete_fields], str(path))
    return pq.read_table(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rows.parquet"


def test_every_kind_of_field_comes_as_it_is(any_stock: Stock, path: Path) -> None:
    any_stock.rows(Shelf).create(id=SHELF, name="top")
    any_stock.rows(Item).create(**FULL)
    any_stock.rows(Item).create(name="nothing", made=MADE)
    with override_settings(TIME_ZONE="America/Chicago"):
        found = read(any_stock, Item, path=path)
    kinds = {field.name: str(field.type) for field in found.schema if field.type not in (pa.string(), pa.int64())}
    assert kinds == {
        "ratio": "double",
        "price": "decimal128(12, 3)",
        "fresh": "bool",
        "made": "timestamp[us, tz=UTC]",
        "day": "date32[day]",
        "raw": "binary",
        "thrown_away": "bool",
    }
    nothing, full = sorted(found.to_pylist(), key=lambda row: row["name"])
    assert {name: full[name] for name in FULL} == IN_ARROW
    assert {name for name, value in nothing.items() if value is None} == NULLS
    assert nothing["made"] == MADE


def test_texts_come_as_they_are_and_fields_behind_foreign_keys(any_stock: Stock, path: Path) -> None:
    shelf = any_stock.rows(Shelf).create(id=SHELF, name="top")
    any_stock.rows(Item).bulk_create(Item(name=text, note=text, made=MADE, shelf=shelf) for text in TEXTS)
    any_stock.rows(Item).create(name="no shelf", made=MADE)
    rows = read(any_stock, Item, "name", "shelf", "shelf__name", "pk", path=path).to_pylist()
    assert sorted((row["name"], row["shelf"], row["shelf__name"]) for row in rows if row["shelf"]) == sorted(
        (text, str(SHELF), "top") for text in TEXTS
    )
    assert [row["shelf__name"] for row in rows if row["name"] == "no shelf"] == [None]
    assert all(isinstance(row["pk"], int) for row in rows)


def test_a_long_table_is_written_in_groups(stock: Stock, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_rows, "GROUP_ROWS", 7)
    stock.rows(Label).bulk_create(Label(text=f"t{n}") for n in range(20))
    assert read(stock, Label, path=path).num_rows == 20
    assert pq.ParquetFile(path).num_row_groups == 3


def test_a_table_without_rows_has_its_columns(stock: Stock, path: Path) -> None:
    found = read(stock, Ticket, path=path)
    assert (found.num_rows, found.schema.names) == (
        0,
        ["id", "name", "customer", "state", "created", "day", "due"],
    )
    assert read(stock, Ticket, path=path, pk__in=[]).num_rows == 0


def test_another_field_beside_a_strange_one_can_be_read(stock: Stock, path: Path) -> None:
    stock.rows(Riddle).create(what="?")
    assert read(stock, Riddle, "pk", path=path).num_rows == 1
    with pytest.raises(Misconfigured, match="'what' is a Strange, which has no form in Spark"):
        read(stock, Riddle, path=path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("statsu", "has no column 'statsu'. Did you mean 'status'?"),
        ("customer__nme", "has no column 'customer__nme'. Did you mean 'name'?"),
        ("status__upper", "has no column 'status__upper'"),
        ("lines", "leads to many rows"),
    ],
)
def test_a_column_that_cannot_be_read_is_told(name: str, text: str, path: Path) -> None:
    with pytest.raises(Misconfigured, match=re.escape(text)):
        write_rows(Order._default_manager.all(), ["id", name], str(path))


@override_settings(USE_TZ=False, TIME_ZONE="America/Chicago")
def test_moments_without_a_zone_are_in_the_project_s() -> None:
    column = pa.field("made", pa.timestamp("us", "UTC"))
    found = model_rows._array_of(Item._meta.get_field("made"), column, [datetime(2026, 1, 1), None, MADE])
    assert found.to_pylist() == [datetime(2026, 1, 1, 6, tzinfo=UTC), None, MADE]


def test_a_value_that_its_column_cannot_hold_is_named() -> None:
    column, field = pa.field("count", pa.int64()), Item._meta.get_field("count")
    with pytest.raises(PipelineError, match=r"the column 'count' has a value that cannot be read as int64 \(.*'many'"):
        model_rows._array_of(field, column, [1, "many"])
    assert model_rows._array_of(field, column, [1, "2", None]).to_pylist() == [1, 2, None]


# -- filters -----------------------------------------------------------------------------------------------------------


def test_filters_are_those_of_django(any_stock: Stock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django.apps.apps.get_model", lambda name: Item)  # the app is not installed
    shelf = any_stock.rows(Shelf).create(name="top")
    for n in range(6):
        any_stock.rows(Item).create(
            name=f"i{n}", count=n, made=MADE + timedelta(hours=n), shelf=shelf if n % 2 else None, thrown_away=n == 5
        )

    def names(*filters: dict[str, Any]) -> list[str]:
        options = {"model": "stock.Item", "filter": json.dumps(filters), "using": any_stock.alias}
        return sorted(_rows_of(options).values_list("name", flat=True))

    assert names() == ["i0", "i1", "i2", "i3", "i4"], "what the manager leaves out is left out"
    assert names({"shelf__name": "top"}) == ["i1", "i3"]
    assert names({"shelf": None, "count__gte": 2}) == ["i2", "i4"]
    assert names({"count__in": [1, 2]}, {"count__in": [2, 3]}) == ["i2"]
    assert names({"made__lt": "2026-03-08T04:30:00.123456-06:00"}) == ["i0", "i1"]
    assert names({"made__range": ["2026-03-08T09:00:00Z", "2026-03-08T11:00:00Z"]}) == ["i1", "i2"]
    assert names({"name": "' OR 1=1 --"}) == []
    assert names({"pk__in": []}) == []


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ('{"state": "open"}', "Cannot resolve keyword 'state' into field"),
        ('{"status__is_like": "x"}', "Unsupported lookup 'is_like'"),
        ('{"version": "many"}', "expected a number but got 'many'"),
        ('{"created_at__lt": "yesterday"}', "invalid format"),
        ('{"created_at__lt": null}', "Cannot use None as a query value"),
        ('{"created_at__date": "tomorrow"}', "has an invalid date format"),
        ('{"created_at__year": "this"}', "expected a number but got 'this'"),
        ('{"pk__range": [1]}', "index out of range"),
    ],
)
def test_a_filter_that_cannot_be_is_told_so(given: str, text: str) -> None:
    with pytest.raises(CommandError, match=re.escape(text)):
        _rows_of({"model": "shop.Order", "using": None, "filter": given})


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ('{"pk": 1', "filter must be JSON like"),
        ('"open"', "must be field lookups like"),
        ("[[1]]", "must be field lookups like"),
        ('{"_connector": "OR 1=1"}', "which is no field lookup"),
        ('{"_negated": true}', "which is no field lookup"),
        ('{"na me": 1}', "which is no field lookup"),
        ('{"pk": {"a": 1}}', "a value is a text, a number"),
    ],
)
def test_a_filter_has_field_lookups_alone(given: str, text: str) -> None:
    with pytest.raises(InvalidJob, match=re.escape(text)):
        check_filter(given)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"model": "shop.Ordr"}, "App 'shop' doesn't have a 'Ordr' model"),
        ({"using": "replica"}, "no database 'replica'"),
    ],
)
def test_a_model_and_a_database_that_are_not_there_are_told(wrong: dict[str, str], text: str) -> None:
    with pytest.raises(CommandError, match=text):
        _rows_of({"model": "shop.Order", "using": None, "filter": None, **wrong})

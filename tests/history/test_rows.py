"""Figures of days get into the database, again and again."""

from __future__ import annotations

from datetime import UTC, date, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_delayq.history import rows
from django_delayq.history.moments import from_row
from django_delayq.history.rows import replace_days
from django_delayq.models.history import HourlyStat

from .past import HOUR, NOON, everything, hour_of

pytestmark = pytest.mark.django_db
DAY = NOON.date()


@pytest.fixture(params=["one by one", "beyond the limit of COPY"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways into a PostgreSQL; of other databases there is one."""
    if request.param != "one by one":
        monkeypatch.setattr(rows, "COPY_BEYOND", 0)


def test_rows_are_as_they_were_given(way: None) -> None:
    given = [
        hour_of(),
        hour_of(NOON + HOUR, task='qu"ote, \\tab\t ü', late=(0, 2**31), failed=1),
        hour_of(queue="never began", late=(), runs=2, lost=2),
    ]
    assert replace_days(given, [DAY]) == 3
    found = {(one.queue, one.task): one for one in HourlyStat.objects.all()}
    assert len(found) == 3
    for row in given:
        one = found[row["queue"], row["task"]]
        assert {name: getattr(one, name) for name in row if name != "hour"} == {
            name: value for name, value in row.items() if name != "hour"
        }
        assert from_row(one.hour) == row["hour"]
    assert found["never began", "shop.cancel"].lateness_p50_ms is None


def test_the_same_days_again_change_nothing_not_even_the_keys(way: None) -> None:
    given = [hour_of(), hour_of(NOON + HOUR), hour_of(queue="mail")]
    replace_days(given, [DAY])
    before, keys = everything(), set(HourlyStat.objects.values_list("pk", flat=True))
    assert replace_days(given, [DAY]) == 3
    assert everything() == before
    assert set(HourlyStat.objects.values_list("pk", flat=True)) == keys


def test_what_a_day_has_no_longer_goes_and_other_days_stay(way: None) -> None:
    yesterday, tomorrow = NOON - timedelta(days=1), NOON + timedelta(days=1)
    first, last = NOON.replace(hour=0), NOON.replace(hour=23)
    replace_days(
        [hour_of(one) for one in (yesterday, first, last, tomorrow)],
        [one.date() for one in (yesterday, NOON, tomorrow)],
    )
    assert replace_days([hour_of(last, late=(5,)), hour_of(NOON)], [DAY]) == 2
    assert [(row[0].astimezone(UTC), row[3]) for row in everything()] == [
        (yesterday, 3),
        (NOON, 3),
        (last, 1),
        (tomorrow, 3),
    ]


def test_a_day_without_runs_is_emptied() -> None:
    replace_days([hour_of()], [DAY])
    assert replace_days([], [DAY]) == 0
    assert everything() == []


def test_days_that_are_apart_leave_what_is_between() -> None:
    days = [NOON + timedelta(days=more) for more in range(5)]
    replace_days([hour_of(one) for one in days], [one.date() for one in days])
    replace_days([], [days[0].date(), days[1].date(), days[4].date()])
    assert [row[0].astimezone(UTC) for row in everything()] == days[2:4]


def test_a_table_of_pyarrow_is_as_good(way: None) -> None:
    given = [hour_of(), hour_of(NOON + HOUR, queue="mail", late=(), runs=1, lost=1)]
    table = pa.Table.from_pylist(given)
    assert table.schema.field("hour").type.tz == "UTC"
    assert replace_days(table, [DAY]) == 2
    assert [(row[1], row[3], row[16]) for row in everything()] == [("orders", 3, 20), ("mail", 1, None)]


def test_without_a_value_a_column_has_its_usual_one(way: None) -> None:
    replace_days([{"hour": NOON, "queue": "raw", "task": None, "runs": 4, "succeeded": None}], [DAY])
    one = HourlyStat.objects.get()
    assert (one.task, one.runs, one.succeeded, one.lateness_p99_ms, one.lateness_histogram) == ("", 4, 0, None, [])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"hour": NOON.replace(tzinfo=None)}, "an aware datetime"),
        ({"hour": "2026-11-20"}, "an aware datetime"),
        ({"hour": NOON + timedelta(days=1)}, "belongs to none of the hours"),
        ({"runz": 1}, "no column 'runz'"),
    ],
)
def test_what_is_no_row_of_these_days_is_refused_and_nothing_is_changed(
    wrong: dict[str, Any], said: str, way: None
) -> None:
    replace_days([hour_of()], [DAY])
    before = everything()
    with pytest.raises(ValueError, match=said):
        replace_days([hour_of(NOON + HOUR), {**hour_of(), **wrong}], [DAY])
    assert everything() == before


def test_a_row_that_comes_twice_is_refused_and_nothing_is_changed(way: None) -> None:
    replace_days([hour_of(queue="mail")], [DAY])
    before = everything()
    with pytest.raises(ValueError, match="in queue 'orders' occurs twice"):
        replace_days([hour_of(), hour_of(late=(1,))], [DAY])
    assert everything() == before


def test_a_day_is_one_of_utc_whatever_the_zone(way: None, settings: Any) -> None:
    settings.TIME_ZONE = "Pacific/Kiritimati"  # 14 hours ahead
    first, last = NOON.replace(hour=0), NOON.replace(hour=23)
    replace_days([hour_of(first.astimezone(ZoneInfo("America/Chicago"))), hour_of(last)], [DAY])
    assert [from_row(row[0]) for row in everything()] == [first, last]
    replace_days([hour_of(last)], [DAY])
    assert [from_row(row[0]) for row in everything()] == [last]


def test_both_hours_of_the_night_when_clocks_are_put_back_are_kept(settings: Any) -> None:
    settings.TIME_ZONE = "Europe/Berlin"
    night = [NOON.replace(month=10, day=25, hour=hour) for hour in (0, 1)]  # both are 02:00 there
    replace_days([hour_of(one) for one in night], [date(2026, 10, 25)])
    assert [from_row(row[0]) for row in everything()] == night


def test_without_zones_in_the_database_hours_are_those_of_utc(settings: Any) -> None:
    if connection.vendor != "sqlite":
        pytest.skip("the table of this run was made with zones")
    settings.USE_TZ, settings.TIME_ZONE = False, "Europe/Berlin"
    night = [NOON.replace(month=10, day=25, hour=hour) for hour in (0, 1)]
    replace_days([hour_of(one) for one in night], [date(2026, 10, 25)])
    assert replace_days([hour_of(one) for one in night], [date(2026, 10, 25)]) == 2
    assert [from_row(row[0]) for row in everything()] == night


def test_many_rows_go_into_postgresql_by_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "COPY_BEYOND", 50)
    many = [hour_of(NOON, task=f"shop.task{number}") for number in range(200)]
    with CaptureQueriesContext(connection) as seen:
        assert replace_days(iter(many), [DAY]) == 200
    copied = [one for one in seen.captured_queries if "ON CONFLICT" in one["sql"] and "delayq_brought" in one["sql"]]
    assert len(copied) == (1 if connection.vendor == "postgresql" else 0)
    assert HourlyStat.objects.count() == 200
    replace_days(iter(many[:100]), [DAY])
    assert HourlyStat.objects.count() == 100

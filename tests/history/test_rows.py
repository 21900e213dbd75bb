"""Figures of days get into the database, again and again."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_delayq.history.rows import HOURS_AT_ONCE, forget_hours, replace_days
from django_delayq.history.series import from_row
from django_delayq.models.history import HourlyStat, PipelineRun
from django_delayq.outbox import rows

from .past import HOUR, NOON, everything, hour_of, seed

pytestmark = pytest.mark.django_db
DAY = NOON.date()


def test_rows_are_as_they_were_given() -> None:
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


def test_the_same_days_again_change_nothing_not_even_the_keys() -> None:
    given = [hour_of(), hour_of(NOON + HOUR), hour_of(queue="mail")]
    replace_days(given, [DAY])
    before, keys = everything(), set(HourlyStat.objects.values_list("pk", flat=True))
    assert replace_days(given, [DAY]) == 3
    assert everything() == before
    assert set(HourlyStat.objects.values_list("pk", flat=True)) == keys


def test_what_a_day_has_no_longer_goes_and_other_days_stay() -> None:
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


def test_days_without_runs_are_emptied_and_leave_what_is_between() -> None:
    days = [NOON + timedelta(days=more) for more in range(5)]
    replace_days([hour_of(one) for one in days], [one.date() for one in days])
    assert replace_days([], [days[0].date(), days[1].date(), days[4].date()]) == 0
    assert [row[0].astimezone(UTC) for row in everything()] == days[2:4]


def test_a_table_of_pyarrow_is_as_good() -> None:
    given = [hour_of(), hour_of(NOON + HOUR, queue="mail", late=(), runs=1, lost=1)]
    table = pa.Table.from_pylist(given)
    assert table.schema.field("hour").type.tz == "UTC"
    assert replace_days(table, [DAY]) == 2
    assert [(row[1], row[3], row[16]) for row in everything()] == [("orders", 3, 20), ("mail", 1, None)]


def test_without_a_value_a_column_has_its_usual_one() -> None:
    replace_days([{"hour": NOON, "queue": "raw", "task": None, "runs": 4, "succeeded": None}], [DAY])
    one = HourlyStat.objects.get()
    assert (one.task, one.runs, one.succeeded, one.lateness_p99_ms, one.lateness_histogram) == ("", 4, 0, None, [])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"hour": NOON.replace(tzinfo=None)}, "an aware datetime"),
        ({"hour": "2026-11-20"}, "an aware datetime"),
        ({"hour": NOON + timedelta(days=1)}, "belongs to none of the hours"),
        ({"hour": NOON + HOUR}, "in queue 'orders' occurs twice"),
        ({"runz": 1}, "no column 'runz'"),
    ],
)
def test_what_is_no_row_of_these_days_is_refused_and_nothing_is_changed(wrong: dict[str, Any], said: str) -> None:
    replace_days([hour_of(queue="mail")], [DAY])
    before = everything()
    with pytest.raises(ValueError, match=said):
        replace_days([hour_of(NOON + HOUR), {**hour_of(), **wrong}], [DAY])
    assert everything() == before


def test_a_day_is_one_of_utc_whatever_the_zone(settings: Any) -> None:
    settings.TIME_ZONE = "Pacific/Kiritimati"  # 14 hours ahead
    first, last = NOON.replace(hour=0), NOON.replace(hour=23)
    replace_days([hour_of(first.astimezone(ZoneInfo("America/Chicago"))), hour_of(last)], [DAY])
    assert [from_row(row[0]) for row in everything()] == [first, last]
    replace_days([hour_of(last)], [DAY])
    assert [from_row(row[0]) for row in everything()] == [last]


@pytest.mark.parametrize("zones", [True, False])
def test_both_hours_of_the_night_when_clocks_are_put_back_are_kept(settings: Any, *, zones: bool) -> None:
    if not zones and connection.vendor != "sqlite":
        pytest.skip("the table of this run was made with zones")
    settings.USE_TZ, settings.TIME_ZONE = zones, "Europe/Berlin"
    night = [NOON.replace(month=10, day=25, hour=hour) for hour in (0, 1)]  # both are 02:00 there
    for _ in range(2):
        assert replace_days([hour_of(one) for one in night], [date(2026, 10, 25)]) == 2
    assert [from_row(row[0]) for row in everything()] == night


def test_many_rows_are_written_in_few_statements() -> None:
    many = [hour_of(NOON, task=f"shop.task{number}") for number in range(1_500)]
    with CaptureQueriesContext(connection) as seen:
        assert replace_days(iter(many), [DAY]) == 1_500
    assert len([one for one in seen.captured_queries if "INSERT" in one["sql"]]) <= 1_500 // 20
    assert HourlyStat.objects.count() == 1_500
    replace_days(iter(many[:100]), [DAY])
    assert HourlyStat.objects.count() == 100


def test_rows_of_many_hours_are_looked_for_by_few_hours_at_a_time() -> None:
    """A longer list of hours would have PostgreSQL read the whole table."""
    with CaptureQueriesContext(connection) as seen:
        replace_days([], [DAY + timedelta(days=number) for number in range(20)])
    asked = [one["sql"].count("2026-") for one in seen.captured_queries if "SELECT" in one["sql"]]
    assert sum(asked) == 20 * 24 and max(asked) <= HOURS_AT_ONCE


# -- old rows --------------------------------------------------------------------------------------------------------


def run_of(ago: timedelta, state: str = "finished", silent: timedelta = timedelta()) -> PipelineRun:
    now = timezone.now()
    return PipelineRun.objects.create(
        run_id=f"{state}", kind="history", state=state, started_at=now - ago, seen_at=now - silent
    )


def test_what_is_old_is_forgotten_but_for_runs_that_go_on(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    settings.TIME_ZONE = "Pacific/Kiritimati"
    monkeypatch.setattr(rows, "CHUNK", 2)
    now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    old, young = now - timedelta(days=10, hours=1), now - timedelta(days=9, hours=22)
    seed(*(hour_of(old, task=f"t{number}") for number in range(5)), hour_of(young))
    kept = [run_of(timedelta(days=9)), run_of(timedelta(days=20), "running")]
    run_of(timedelta(days=11))
    run_of(timedelta(days=11), "running", timedelta(hours=1))
    assert forget_hours(10) == {"hours": 5, "runs": 2}
    assert HourlyStat.objects.count() == 1
    assert set(PipelineRun.objects.all()) == set(kept)
    assert forget_hours(10) == {"hours": 0, "runs": 0}
    assert forget_hours(999_999) == {"hours": 0, "runs": 0}


@pytest.mark.parametrize("days", [0, -1, float("nan"), float("inf")])
def test_to_forget_everything_by_mistake_is_refused(days: float) -> None:
    seed(hour_of())
    with pytest.raises(ValueError, match="days must be above 0"):
        forget_hours(days)
    assert HourlyStat.objects.count() == 1

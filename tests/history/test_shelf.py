"""Stored hours: their pages, their files, and their deletion."""

from __future__ import annotations

import asyncio
import csv
import io
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.db import connection
from django.test import RequestFactory
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_delayq.history import csvfile, rows
from django_delayq.history.rows import FIELDS, HOURS, forget_hours
from django_delayq.models.history import HourlyStat, PipelineRun

from .past import HOUR, NOON, histogram, hour_of, seed

pytestmark = pytest.mark.django_db


def test_pages_follow_each_other_in_both_directions() -> None:
    seed(*(hour_of(NOON + HOUR * (more // 3), task=f"t{more % 3}") for more in range(10)))
    rows = HourlyStat.objects.all()
    first = HOURS.page(rows, 4)
    second = HOURS.page(rows, 4, after=first.after)
    third = HOURS.page(rows, 4, after=second.after)
    keys = [(row.hour, row.pk) for one in (first, second, third) for row in one.rows]
    assert keys == sorted(keys, reverse=True)
    assert len(keys) == 10
    assert (first.before, third.after) == ("", "")
    back = HOURS.page(rows, 4, before=third.before)
    assert [row.pk for row in back.rows] == [row.pk for row in second.rows]
    assert [row.pk for row in HOURS.page(rows, 4, before=back.before).rows] == [row.pk for row in first.rows]
    assert HOURS.page(rows, 4, before=second.before).before == ""


@pytest.mark.parametrize(
    "cursor",
    [
        "x",
        "~",
        "2026-11-20T12:00:00Z~",
        "2026-11-20T12:00:00Z~-1",
        "~5",
        "Z~1",
        "2026-13-20T12:00:00Z~1",
        "2026-11-20T12:00:00~1",
        "\u0662Z~1",
        "2026-11-20T12:00:00Z~\u0662",
        "2026-11-20T12:00:00Z~" + "9" * 30,
        "0001-01-01T00:00:00+23:00Z~1",
        "\0Z~1",
    ],
)
def test_what_is_no_cursor_is_refused(cursor: str) -> None:
    with pytest.raises(ValueError, match="is no cursor; start again without one"):
        HOURS.page(HourlyStat.objects.all(), 5, after=cursor)


def test_a_file_has_every_row_and_column_and_no_formula() -> None:
    seed(hour_of(), hour_of(NOON + HOUR, task="=HYPERLINK(1)"), hour_of(NOON + HOUR, task='a,"b"\n', late=(), lost=1))
    found = list(csv.DictReader(io.StringIO("".join(csvfile.lines(HourlyStat.objects.all())), newline="")))
    assert [one["hour"] for one in found] == ["2026-11-20T13:00:00Z", "2026-11-20T13:00:00Z", "2026-11-20T12:00:00Z"]
    assert {one["task"] for one in found} == {"shop.cancel", "'=HYPERLINK(1)", 'a,"b"\n'}
    assert tuple(found[0]) == FIELDS
    last = found[-1]
    assert (last["runs"], last["lateness_p50_ms"]) == ("3", "20")
    assert last["lateness_histogram"] == " ".join(map(str, histogram((10, 20, 900))))


def test_a_file_is_read_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csvfile, "CHUNK", 10)
    seed(*(hour_of(task=f"t{number}") for number in range(25)))
    text = csvfile.lines(HourlyStat.objects.all())
    with CaptureQueriesContext(connection) as seen:
        next(text)
        assert len(seen) == 0
        next(text)
        assert len(seen) == 1
        assert len(list(text)) == 2
    assert len(seen) == 3
    assert [len(some) for some in csvfile.chunks(HourlyStat.objects.all(), 25)] == [25]


def test_without_rows_a_file_has_a_head() -> None:
    assert list(csvfile.lines(HourlyStat.objects.all())) == [",".join(FIELDS) + "\r\n"]


def test_under_wsgi_a_file_is_sent_as_it_is_read() -> None:
    seed(hour_of())
    answer = csvfile.response(RequestFactory().get("/"), HourlyStat.objects.all())
    assert answer.streaming
    assert answer.getvalue().count(b"\r\n") == 2
    assert answer["Content-Disposition"] == 'attachment; filename="history.csv"'


@pytest.mark.django_db(transaction=True)
def test_under_asgi_the_event_loop_does_not_wait_for_the_database() -> None:
    seed(hour_of())
    request = ASGIRequest({"type": "http", "method": "GET", "path": "/", "headers": []}, io.BytesIO())
    answer = csvfile.response(request, HourlyStat.objects.all())
    assert answer.is_async

    async def read() -> bytes:
        found = b"".join([piece async for piece in answer.streaming_content])  # type: ignore[union-attr]
        await sync_to_async(lambda: connection.close())()  # that of the thread that read
        return found

    assert asyncio.run(read()).count(b"\r\n") == 2


def run_of(ago: timedelta, state: str = "finished", silent: timedelta = timedelta()) -> PipelineRun:
    now = timezone.now()
    return PipelineRun.objects.create(
        run_id=f"{state}", kind="history", state=state, started_at=now - ago, seen_at=now - silent
    )


def test_what_is_old_is_forgotten_but_for_runs_that_go_on(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    settings.TIME_ZONE = "Pacific/Kiritimati"
    monkeypatch.setattr(rows, "DELETED_AT_ONCE", 2)
    now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    old, young = now - timedelta(days=10, hours=1), now - timedelta(days=9, hours=22)
    seed(*(hour_of(old, task=f"t{number}") for number in range(5)), hour_of(young))
    kept = [run_of(timedelta(days=9)), run_of(timedelta(days=20), "running")]
    run_of(timedelta(days=11))
    run_of(timedelta(days=11), "running", timedelta(hours=1))
    gone = forget_hours(10)
    assert (gone.hours, gone.runs) == (5, 2)
    assert HourlyStat.objects.count() == 1
    assert set(PipelineRun.objects.all()) == set(kept)
    assert forget_hours(10) == rows.Forgotten(0, 0)
    assert forget_hours(999_999) == rows.Forgotten(0, 0)


@pytest.mark.parametrize("days", [0, -1, float("nan"), float("inf")])
def test_to_forget_everything_by_mistake_is_refused(days: float) -> None:
    seed(hour_of())
    with pytest.raises(ValueError, match="days must be above 0"):
        forget_hours(days)
    assert HourlyStat.objects.count() == 1

"""The page of the history: what it says, for whom, and what it bears."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from django_delayq import connections
from django_delayq.admin import charts
from django_delayq.core.broker import Broker
from django_delayq.core.job import NewJob
from tests.admin.pasts import lively_past, now
from tests.admin.support import cells, tags_of
from tests.history.past import HOUR, NOON, hour_of, seed

PAGE = "/admin/django_delayq/hourlystat/"
pytestmark = pytest.mark.django_db


@pytest.fixture
def reader(client: Client, staff: Callable[..., Any]) -> Client:
    """Client of a user who may only see the history."""
    client.force_login(staff("view_hourlystat"))
    return client


def page(client: Client, query: str = "") -> str:
    answer = client.get(PAGE + query)
    assert answer.status_code == 200
    tags_of(answer.content)
    return answer.content.decode()


def text_of(html: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


# -- who -------------------------------------------------------------------------------------------------------------


def test_only_who_may_sees_it(delayq: Broker, client: Client, staff: Callable[..., Any]) -> None:
    assert client.get(PAGE).status_code == 302
    client.force_login(staff("view_pipelinerun", "view_dashboard"))
    assert client.get(PAGE).status_code == 403
    client.force_login(staff("view_hourlystat"))
    assert client.get(PAGE).status_code == 200
    for address in ("add/", "1/delete/"):
        assert client.get(f"{PAGE}{address}").status_code == 403


# -- what ------------------------------------------------------------------------------------------------------------


def test_the_page_says_what_is_in_the_table(delayq: Broker, reader: Client) -> None:
    hour = now()
    seed(
        hour_of(hour - HOUR, late=[10] * 98 + [5000, 9000], failed=3, timeout=1, retries=4, sla_missed=2),
        hour_of(hour - 2 * HOUR, "mail", "shop.mail"),
        hour_of(hour - timedelta(days=3)),
    )
    html = page(reader)
    tiles = dict(re.findall(r'data-tile="(\w+)"><strong>(.*?)</strong>', html))
    assert (tiles["runs"], tiles["failures"], tiles["late"], tiles["retries"]) == ("103", "3.9 %", "2", "4")
    row = next(one for one in cells(html.encode(), "result_list") if one[1] == "orders")
    assert row[1:] == ["orders", "shop.cancel", "100", "96", "4", "4", "2", "10 ms, 5.0 s", "50 ms, 50 ms"]
    assert len(cells(html.encode(), "result_list")) == 2
    assert cells(html.encode(), "dq-failing") == [
        ["shop.cancel", "orders", "100", "4.0 %", "4", "3", "1", "0", "0", "0"]
    ]
    assert len(cells(page(reader, "?period=7d").encode(), "result_list")) == 3


def test_charts_can_be_read_without_seeing_them(delayq: Broker, reader: Client) -> None:
    lively_past(30)
    html = page(reader)
    names = ("dq-throughput", "dq-lateness", "dq-forecast")
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert len(set(ids)) == len(ids)
    for name in names:
        assert f'id="{name}" ' in html
        assert f'aria-labelledby="{name}-title"' in html
        assert f'<details id="{name}-details">' in html
        assert len(cells(html.encode(), f"{name}-table")) == 24
    for name in names[:2]:
        assert re.search(rf'id="{name}-summary"[^>]*>[^<]+<', html), f"{name} is summed up in a sentence"


def test_the_script_draws_the_numbers_of_the_table(delayq: Broker, reader: Client) -> None:
    seed(hour_of(now() - HOUR, late=[10] * 1_998 + [5000, 9000], failed=500))
    html = page(reader)
    heads = re.findall(r'<th scope="col"[^>]*data-colour="(\d)">(.*?)</th>', html)
    assert heads == [("1", "Attempts"), ("2", "Failed"), ("1", "p50"), ("2", "p99"), ("1", "Fall due")]
    table = html[html.index('id="dq-throughput-rows"') : html.index('id="dq-lateness"')]
    rows = re.findall(r"<tr.*?</tr>", table, re.S)
    busy = [row for row in rows if ">500<" in row]
    assert len(busy) == 1
    assert re.findall(r'data-number="(.*?)">(.*?)<', busy[0]) == [
        ("2000", "2\u202f000"),
        ("", "1\u202f500"),
        ("500", "500"),
    ]
    lateness = html[html.index('id="dq-lateness-rows"') : html.index('id="dq-failing-title"')]
    assert lateness.count('data-number=""') == 24 + 2 * 23, "hours without runs leave a gap"


def test_filters_and_periods_are_in_every_link(delayq: Broker, reader: Client) -> None:
    seed(
        *(
            hour_of(now() - HOUR * more, queue, f"shop.{queue}", failed=1, late=[1] * 9)
            for more in range(40)
            for queue in ("mail", "orders")
        )
    )
    html = page(reader, "?queue=mail&period=7d")
    assert {row[1] for row in cells(html.encode(), "result_list")} == {"mail"}
    assert 'href="?period=30d&amp;queue=mail"' in html
    html = page(reader, "?task=shop.orders")
    assert {row[2] for row in cells(html.encode(), "result_list")} == {"shop.orders"}
    assert 'href="?queue=orders&amp;task=shop.orders"' in html


def test_a_period_of_ones_own_is_in_the_readers_time_zone(delayq: Broker, reader: Client, settings: Any) -> None:
    settings.TIME_ZONE = "Asia/Kolkata"
    seed(*(hour_of(NOON + HOUR * more) for more in range(-3, 4)))
    html = page(reader, "?from=2026-11-20T17:30&to=2026-11-20T19:30")
    assert [row[0] for row in cells(html.encode(), "result_list")] == ["2026-11-20 18:30", "2026-11-20 17:30"]
    assert 'value="2026-11-20T17:30"' in html
    whole = page(reader, "?from=2026-11-20&to=2026-11-20")
    assert len(cells(whole.encode(), "result_list")) == 7


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("?from=yesterday", "“yesterday” is neither a date nor"),
        ("?from=2026-11-20&to=2026-11-10", "ends before it begins"),
        ("?from=1970-01-01", "longer than"),
        ("?from=2026-13-45", "is neither a date nor"),
        ("?to=9999-12-31T23:59", "no calendar"),
        ("?from=0001-01-01&to=0001-01-01", ""),
        ("?from=%3Cscript%3E", "&lt;script&gt;"),
    ],
)
def test_a_period_that_makes_no_sense_is_told_and_nothing_breaks(
    delayq: Broker, reader: Client, query: str, said: str
) -> None:
    html = page(reader, query)
    assert "This period cannot be shown" in html or not said
    assert said in html


@pytest.mark.parametrize(
    "query",
    [
        "?queue=%00&task=a%00",
        "?period=ever",
        "?p=x",
        "?queue=" + "q" * 5000,
        "?p=0&o=1&_popup=1",
    ],
)
def test_hostile_addresses_show_a_page(delayq: Broker, reader: Client, query: str) -> None:
    seed(hour_of(now()))
    answer = reader.get(PAGE + query, follow=True)
    assert answer.status_code == 200
    tags_of(answer.content)


def test_names_are_text_and_nothing_else(delayq: Broker, reader: Client) -> None:
    evil = "<img src=x onerror=alert(1)>&\"'"
    seed(hour_of(now(), "orders", evil, failed=3), hour_of(now(), evil, "shop.x", failed=3, late=[1] * 9))
    html = page(reader)
    assert "<img" not in html
    assert "&lt;img" in html


def test_the_table_is_paged(delayq: Broker, reader: Client) -> None:
    seed(*(hour_of(now(), task=f"shop.t{number}") for number in range(120)))
    pages = [cells(page(reader, f"?p={number}").encode(), "result_list") for number in (1, 2, 3)]
    assert [len(rows) for rows in pages] == [50, 50, 20]
    assert len({row[2] for rows in pages for row in rows}) == 120


def test_without_a_history_the_page_says_how_to_get_one(delayq: Broker, reader: Client) -> None:
    html = page(reader)
    assert "manage.py delayq_pipeline run" in html
    assert "No due jobs are waiting." in html


def test_a_page_costs_the_same_queries_however_much_there_is(delayq: Broker, reader: Client) -> None:
    page(reader)
    costs = []
    for hours in (2, 24 * 14):
        lively_past(hours)
        with CaptureQueriesContext(connection) as seen:
            page(reader, "?period=30d")
        costs.append(len(seen))
    assert costs[0] == costs[1] <= 10


# -- forecast --------------------------------------------------------------------------------------------------------


def test_the_next_day_is_foretold_from_redis_and_the_pace(delayq: Broker, reader: Client) -> None:
    seed(hour_of(now() - HOUR, late=[1] * 120, took=[500] * 120))
    queue = delayq.queue("orders")
    for number in range(4):
        queue.schedule(NewJob(f"d{number}", "shop.x", due_ms=int(delayq.now_ms()) - 5_000, delay_ms=None))
    delayq.queue("mail").schedule(NewJob("m", "shop.x", delay_ms=5_400_000))
    text = text_of(page(reader))
    assert "Jobs due now: 4. Due within 24 hours: 1." in text
    assert "all due jobs are done in about 2 min." in text
    assert "orders 4 0 0 120 500 ms 2 s 2 min" in text
    assert "mail 0 1 0 – – – now" in text
    assert "Jobs due now: 4. Due within 24 hours: 0." in text_of(page(reader, "?queue=orders"))


def test_what_cannot_be_foretold_is_not(delayq: Broker, reader: Client) -> None:
    delayq.queue("orders").schedule(NewJob("d", "shop.x", due_ms=int(delayq.now_ms()) - 5_000, delay_ms=None))
    assert "the history has no attempts from the last week" in text_of(page(reader))
    seed(hour_of(now() - HOUR, "mail"))
    delayq.queue("mail")
    assert "No estimate is possible for all jobs" in text_of(page(reader))


def test_while_redis_is_away_the_past_is_shown(delayq: Broker, reader: Client, settings: Any) -> None:
    seed(hour_of(now()))
    connections.close_broker()
    here = settings.DELAYQ
    settings.DELAYQ = {**here, "REDIS": "redis://127.0.0.1:1/0"}
    html = page(reader)
    assert "Redis cannot be reached just now, so there is no forecast." in html
    assert len(cells(html.encode(), "result_list")) == 1
    connections.close_broker()
    settings.DELAYQ = here


# -- charts ----------------------------------------------------------------------------------------------------------


def test_numbers_for_the_script_are_the_same_in_every_language() -> None:
    assert [charts.number(value) for value in (None, 0, 0.5, 1234567, 12.25)] == [
        "",
        "0",
        "0.5",
        "1.23457e+06",
        "12.25",
    ]

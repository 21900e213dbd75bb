"""Charts over time begin with what dispatchers sampled, and lateness changes colour with its limit."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client

from django_delayq.admin import dashboard
from django_delayq.admin.charts import depth_rows
from django_delayq.core import figures
from django_delayq.core.broker import Broker
from django_delayq.core.figures import DepthPoint
from tests.admin.dashboards import settle, tiles
from tests.admin.support import Yard, cells, tags_of

pytestmark = pytest.mark.django_db

PAGE = "/admin/django_delayq/dashboard/"
QUEUE = "/admin/django_delayq/queueentry/orders/change/"
MINUTE = 60_000


def seed(broker: Broker, minutes: int = 90, *, name: str = "") -> float:
    """A sample for each of the last minutes: 60 jobs done in each, one more waiting each time."""
    now_ms = broker.now_ms()
    for ago in range(minutes, -1, -1):
        sample = DepthPoint(
            ready=minutes - ago, done=60 * (minutes - ago), scheduled=120 * (minutes - ago), p50_ms=5.0, p99_ms=41.0
        )
        figures.record_depths(broker, {name: sample}, now_ms - ago * MINUTE)
    return now_ms


def test_t86_the_charts_begin_with_the_last_hour(delayq: Broker, onlooker: Client) -> None:
    seed(delayq)
    page = onlooker.get(PAGE).content
    tags_of(page)
    depth, throughput, lateness = (cells(page, f"dq-{name}-table") for name in ("depth", "throughput", "lateness"))
    assert [row[1:] for row in depth[1:4]] == [["0", str(ready), "0", "0", "0"] for ready in (90, 89, 88)]
    assert {tuple(row[1:]) for row in throughput[1:]} == {("1.0", "0", "2.0")}
    assert {tuple(row[1:]) for row in lateness} == {("5 ms", "41 ms")}
    assert [len(depth), len(throughput), len(lateness)] == [61, 61, 60]


def test_without_samples_the_charts_begin_empty(delayq: Broker, onlooker: Client) -> None:
    Yard(delayq).put("one")
    page = onlooker.get(PAGE).content
    assert [row[1:] for row in cells(page, "dq-depth-table")] == [["0", "1", "0", "0", "0"]]
    assert cells(page, "dq-throughput-table") == []


def test_parts_for_the_script_have_the_charts_only_if_asked(delayq: Broker, onlooker: Client) -> None:
    seed(delayq)
    assert cells(onlooker.get(f"{PAGE}parts/").content, "dq-depth-table") == []
    assert len(cells(onlooker.get(f"{PAGE}parts/?all=1").content, "dq-depth-table")) == 61


def test_rates_are_those_since_the_last_sample(delayq: Broker, onlooker: Client) -> None:
    yard = Yard(delayq)
    now_ms = delayq.now_ms()
    assert tiles(onlooker.get(PAGE).content)["done_rate"] == "–", "no dispatcher has taken a sample"
    for name in ("", "orders"):
        figures.record_depths(delayq, {name: DepthPoint(done=0, p50_ms=5.0, p99_ms=41.0)}, now_ms - 20_000)
    for number in range(40):
        yard.put(str(number))
    settle(yard, yard.take())
    dashboard.SNAPSHOTS._forget()
    page = onlooker.get(PAGE).content
    shown = tiles(page)
    assert 1 <= float(shown["done_rate"]) <= 2 and shown["failing_rate"] == "0"
    assert (shown["p50"], shown["p99"]) == ("5 ms", "41 ms")
    assert cells(page, "dq-queues")[0][8] == shown["done_rate"]


def test_the_page_of_a_queue_has_its_last_hour_and_its_last_day(delayq: Broker, dashboard_user: Client) -> None:
    delayq.queue("orders")
    seed(delayq, 300, name="orders")
    page = dashboard_user.get(QUEUE).content
    tags_of(page)
    assert [len(cells(page, "dq-depth-table")), cells(page, "dq-depth-table")[0][2]] == [60, "300"]
    day = cells(dashboard_user.get(f"{QUEUE}?span=day").content, "dq-depth-table")
    assert len(day) in (30, 31)
    assert all(row[0][4:] == "0:00" for row in day)


def test_a_line_leads_on_over_one_missing_sample_but_not_over_more() -> None:
    point = figures.DepthPoint(600_000, 1, 2, 3, 4, 5, 0.0, None, None, None, None, None)
    (row,) = depth_rows([point])
    assert float(row.until) - float(row.x) == 150
    (row,) = depth_rows([point], step=10)
    assert float(row.until) - float(row.x) == 1500
    assert depth_rows([point], step=7) == []


def late_tiles(page: bytes) -> set[str]:
    return set(re.findall(r'data-tile="(\w+)"[^>]* class="dq-is-late"', page.decode()))


def test_lag_changes_colour_with_its_limit(delayq: Broker, dashboard_user: Client, settings: Any) -> None:
    Yard(delayq).put("old", due_ms=int(delayq.now_ms()) - 30_000, delay_ms=None)
    listing = "/admin/django_delayq/queueentry/"
    quiet = dashboard_user.get(PAGE).content
    assert late_tiles(quiet) == set()
    assert b'dq-number dq-is-late"' not in quiet
    assert b"dq-pill dq-late" not in dashboard_user.get(listing).content
    settings.DELAYQ = {**settings.DELAYQ, "ADMIN": {"late_after": 20}}
    Yard(delayq).put("old", due_ms=int(delayq.now_ms()) - 30_000, delay_ms=None)
    loud = dashboard_user.get(PAGE).content
    assert late_tiles(loud) == {"lag"}
    assert b'dq-number dq-is-late"' in loud
    assert b"dq-pill dq-late" in dashboard_user.get(listing).content

"""The page of a queue shows limits over all workers, with the jobs that wait behind them, and changes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client

from django_delayq import limits
from django_delayq.core.broker import Broker
from django_delayq.core.job import NewJob
from tests.admin.queue_pages import LIST, press
from tests.admin.support import cells

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def operator(delayq: Broker, client: Client, staff: Callable[..., Any]) -> Client:
    queue = delayq.queue("orders", shards=2)
    queue.schedule_many(NewJob(str(number), "work", group=f"tenant {number % 2}") for number in range(10))
    client.force_login(staff("view_queueentry", "limit_queueentry"))
    return client


def rows(client: Client) -> list[list[str]]:
    return cells(client.get(f"{LIST}orders/change/").content, "dq-limits")


def test_limits_are_shown_with_what_waits_behind_them(operator: Client) -> None:
    limits.set("orders", group="tenant 1", concurrency=2)
    limits.set("orders", rate="30/m", burst=60)
    page = " ".join(operator.get(f"{LIST}orders/change/").content.decode().split())
    assert "Limits over all workers" in page
    group, queue = rows(operator)
    assert group[:4] == ["group tenant 1 set at run time", "2 at a time", "0", "3"]
    assert group[5] == "now" and group[4].endswith(("now", "ago"))
    assert queue == ["queue orders set at run time", "0.5/s, 60 at once", "0", "0", "–", "–"]
    assert f'{LIST}orders/throttle/?group=tenant+1"' in page


def test_a_queue_without_limits_shows_no_table(operator: Client) -> None:
    assert rows(operator) == []


def test_a_limit_is_set_and_cleared(operator: Client) -> None:
    assert press(operator, "throttle", group="tenant 1", concurrency="2", rate="5/s") == ["The limit was set."]
    assert limits.get("orders", group="tenant 1") == {"concurrency": 2, "rate": 5.0, "burst": 1}
    page = operator.get(f"{LIST}orders/throttle/?group=tenant+1").content.decode()
    assert 'value="tenant 1"' in page and 'value="5/s"' in page
    assert press(operator, "throttle", concurrency="7") == ["The limit was set."]
    assert press(operator, "throttle", task="shop.work", concurrency="9") == ["The limit was set."]
    assert (limits.get("orders"), limits.get(task="shop.work")) == ({"concurrency": 7}, {"concurrency": 9})
    cleared = "Cleared: the limits of settings and code hold."
    assert press(operator, "throttle", group="tenant 1") == press(operator, "throttle") == [cleared]
    assert (limits.get("orders"), limits.get("orders", group="tenant 1")) == ({}, {})
    assert [entry.change_message for entry in LogEntry.objects.order_by("pk")][:2] == [
        "limit {'queue': 'orders', 'group': 'tenant 1'}: {'concurrency': 2, 'rate': '5/s'}",
        "limit {'queue': 'orders'}: {'concurrency': 7}",
    ]


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"burst": "3"}, "burst is the number of starts at once of a rate"),
        ({"concurrency": "0"}, "greater than or equal to 1"),
        ({"rate": "often"}, "rate must be like"),
        ({"group": "a", "task": "b", "rate": "1/s"}, "name the jobs"),
        ({"group": "a" * 129, "rate": "1/s"}, "group is a text of 1 to 128 bytes"),
    ],
)
def test_a_wrong_limit_is_refused_with_the_reason(operator: Client, said: dict[str, str], why: str) -> None:
    page = operator.post(f"{LIST}orders/throttle/", said).content.decode()
    assert why in page
    assert limits.get("orders") == {}


def test_without_the_permission_limits_are_only_shown(
    operator: Client, client: Client, staff: Callable[..., Any]
) -> None:
    limits.set("orders", concurrency=2)
    client.force_login(staff("view_queueentry"))
    assert "throttle/" not in client.get(f"{LIST}orders/change/").content.decode()
    assert [row[0] for row in rows(client)] == ["queue orders set at run time"]
    assert client.post(f"{LIST}orders/throttle/", {"concurrency": "9"}).status_code == 403
    assert limits.get("orders") == {"concurrency": 2}

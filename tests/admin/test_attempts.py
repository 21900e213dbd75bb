"""Recently finished jobs, and the attempts of one job."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from django_delayq.core.broker import Broker
from django_delayq.core.outcomes import ack
from tests.admin.support import Yard, cells, tags_of

pytestmark = pytest.mark.django_db

BASE = "/admin/django_delayq/livejob/"


@pytest.fixture
def viewer(client: Client, staff: Callable[..., Any]) -> Client:
    client.force_login(staff("view_livejob"))
    return client


@pytest.fixture
def past(delayq: Broker) -> Broker:
    """A job that was late and succeeded, and one that failed and waits."""
    yard = Yard(delayq)
    yard.put("good", due_ms=int(delayq.now_ms()) - 300_000, delay_ms=None)
    job = yard.take_one()
    yard.queue.settle([ack(job, job.due_ms + 90_000, 1_500)])
    yard.put("bad", task="shop.remind")
    yard.failed(yard.take_one(), **{"class": "shop.errors.LookupError"})  # shown without the module
    return delayq


def rows(client: Client, address: str) -> list[list[str]]:
    page = client.get(address)
    tags_of(page.content)
    return [row[1:] for row in cells(page.content, "dq-attempts")]


def test_finished_jobs_are_listed_with_outcome_lateness_duration_and_error(past: Broker, viewer: Client) -> None:
    bad, good = rows(viewer, f"{BASE}finished/")
    assert (bad[0], bad[1], bad[5]) == ("badorders: shop.remind", "failed", "LookupErrorw@host:1")
    assert good == ["goodorders: shop.cancel_order", "succeeded", "1", "1 min 30 s", "1.5 s", "w@host:1"]
    page = viewer.get(f"{BASE}finished/").content.decode()
    assert '<span class="dq-pill dq-late">1 min 30 s</span>' in page
    assert re.search(r'<td><time [^>]*data-at="\d\d:\d\d:\d\d"', page), (
        "the style sheet puts it beside the relative one"
    )


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("outcome=failed", ["bad"]),
        ("task=shop.cancel_order", ["good"]),
        ("id=good", ["good"]),
        ("queue=orders", ["bad", "good"]),
        ("queue=nowhere", []),
        ("id=nobody", []),
    ],
)
def test_finished_jobs_are_filtered(past: Broker, viewer: Client, query: str, ids: list[str]) -> None:
    assert [row[0].partition("orders:")[0] for row in rows(viewer, f"{BASE}finished/?{query}")] == ids


def test_the_page_of_a_job_has_each_of_its_attempts(past: Broker, viewer: Client) -> None:
    (attempt,) = rows(viewer, f"{BASE}orders/bad/change/")
    assert (attempt[0], attempt[1], attempt[4]) == ("failed", "1", "LookupErrorw@host:1")


def test_the_attempts_of_a_job_that_is_done_are_still_shown(past: Broker, viewer: Client) -> None:
    answer = viewer.get(f"{BASE}orders/good/change/")
    assert answer.status_code == 404
    assert [row[1] for row in cells(answer.content, "dq-attempts")] == ["succeeded"]


def test_the_list_of_jobs_leads_there(past: Broker, viewer: Client) -> None:
    assert f'{BASE}finished/?queue=orders"' in viewer.get(f"{BASE}?queue=orders").content.decode()

"""Status and pages show which due jobs wait behind a limit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.utils import quote
from django.test import Client

from django_delayq.core.broker import Broker
from django_delayq.core.counts import Counts
from django_delayq.core.job import NewJob
from django_delayq.core.limit_status import LimitsPage, LimitStatus
from django_delayq.core.limits import LaneNotes
from django_delayq.core.options import Limits
from django_delayq.status import QueueStatus, RedisStatus, Snapshot, warnings_of
from django_delayq.status.json_form import as_json
from django_delayq.status.report import report
from tests.admin.support import cells

LIST = "/admin/django_delayq/livejob/"


@pytest.mark.django_db(transaction=True)
def test_the_page_of_a_job_says_for_which_slot_it_waits(
    delayq: Broker, client: Client, staff: Callable[..., Any]
) -> None:
    client.force_login(staff("view_livejob"))
    queue = delayq.queue("orders")
    queue.schedule(NewJob("a", "shop.slow"))
    queue.reserve(0, 5, worker="w", lanes=LaneNotes(["shop.slow"]).pack())
    page = " ".join(client.get(f"{LIST}{quote('orders/a')}/change/").content.decode().split())
    assert "It is due, and waits behind a limit of its task, queue or group, or for the turn of its group." in page
    assert "ready behind a limit" in cells(client.get(LIST, {"queue": "orders"}).content)[0]


def test_status_and_dashboard_name_the_queues_with_jobs_behind_a_limit() -> None:
    queues = tuple(
        QueueStatus(name, "python", Counts(name, parked=number), 1, 0) for name, number in (("mail", 0), ("orders", 2))
    )
    page = LimitsPage("orders", 2, 0.0, [LimitStatus("task", "slow", Limits(1), False, 1, None, 0, 2, 0.0)])
    snapshot = Snapshot(0.0, queues, redis=RedisStatus(aof=True, maxmemory_policy="noeviction"), limits=(page,))
    text = "Due jobs of orders (2) wait behind limits."
    assert f"INFO  concurrency: {text}" in report(snapshot)
    assert [queue["parked"] for queue in as_json(snapshot)["queues"]] == [0, 2]
    assert [one.text for one in warnings_of(snapshot)] == [text]

"""Operators' switches in the admin: the queues of running workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client

from django_delayq.core.broker import Broker
from tests.admin.support import Yard, cells

from .test_queues import LIST, operator, press  # noqa: F401 (a fixture)

pytestmark = pytest.mark.django_db


def test_the_buttons_of_a_queue_let_workers_ignore_and_watch_it(delayq: Broker, operator: Client) -> None:  # noqa: F811
    Yard(delayq).put("one")
    delayq.announce("w1", {"queues": ["orders"], "threads": 2})
    delayq.announce("w2", {"queues": ["mail"], "threads": 2})
    page = operator.get(f"{LIST}orders/change/").content
    assert [row[0] for row in cells(page, "dq-workers")] == ["w1"]
    assert [row[0] for row in cells(page, "dq-workers-others")] == ["w2"]
    (said,) = press(operator, "worker", worker="w1", word="ignore")
    assert "next heartbeat" in said
    press(operator, "worker", worker="w2", word="watch")
    assert delayq.announce("w1", {}).choices == {"orders": "ignore"}
    assert delayq.announce("w2", {}).choices == {"orders": "watch"}
    assert {entry.change_message for entry in LogEntry.objects.all()} == {"ignore by w1", "watch by w2"}
    for wrong in ({"worker": "gone", "word": "watch"}, {"worker": "w1", "word": "stop"}):
        assert press(operator, "worker", **wrong) == ["There is no such worker any more. Nothing was changed."]


def test_who_may_not_pause_queues_may_not_choose_those_of_workers(
    delayq: Broker, client: Client, staff: Callable[..., Any]
) -> None:
    Yard(delayq).put("one")
    delayq.announce("w1", {"queues": ["orders"]})
    client.force_login(staff("view_queueentry"))
    assert b"Ignore" not in client.get(f"{LIST}orders/change/").content
    assert client.post(f"{LIST}orders/worker/", {"worker": "w1", "word": "ignore"}).status_code == 403

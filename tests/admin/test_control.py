"""Operators' switches in the admin: the queues of running workers, pauses for a time, all producers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client

from django_delayq.core.broker import Broker
from tests.admin.support import Yard, cells

from .queue_pages import LIST, press

pytestmark = pytest.mark.django_db


def test_the_buttons_of_a_queue_let_workers_ignore_and_watch_it(delayq: Broker, manager: Client) -> None:
    Yard(delayq).put("one")
    delayq.announce("w1", {"queues": ["orders"], "threads": 2})
    delayq.announce("w2", {"queues": ["mail"], "threads": 2})
    page = manager.get(f"{LIST}orders/change/").content
    assert [row[0] for row in cells(page, "dq-workers")] == ["w1"]
    assert [row[0] for row in cells(page, "dq-workers-others")] == ["w2"]
    (said,) = press(manager, "worker", worker="w1", word="ignore")
    assert "next heartbeat" in said
    press(manager, "worker", worker="w2", word="watch")
    assert delayq.announce("w1", {}).choices == {"orders": "ignore"}
    assert delayq.announce("w2", {}).choices == {"orders": "watch"}
    assert {entry.change_message for entry in LogEntry.objects.all()} == {"ignore by w1", "watch by w2"}
    for wrong in ({"worker": "gone", "word": "watch"}, {"worker": "w1", "word": "stop"}):
        assert press(manager, "worker", **wrong) == ["There is no such worker any more. Nothing was changed."]


def test_who_may_not_pause_queues_may_not_choose_those_of_workers(
    delayq: Broker, client: Client, staff: Callable[..., Any]
) -> None:
    Yard(delayq).put("one")
    delayq.announce("w1", {"queues": ["orders"]})
    client.force_login(staff("view_queueentry"))
    assert b"Ignore" not in client.get(f"{LIST}orders/change/").content
    assert client.post(f"{LIST}orders/worker/", {"worker": "w1", "word": "ignore"}).status_code == 403


def test_a_queue_is_paused_for_a_time_that_the_page_offers(delayq: Broker, manager: Client) -> None:
    Yard(delayq).put("one")
    before = delayq.now_ms()
    press(manager, "pause", direction="out", **{"for": "10m"})
    end = delayq.queue("orders").layout["paused"]["out"]
    assert 600_000 <= end - before < 660_000
    assert "paused for workers, ends at 20" in manager.get(f"{LIST}orders/change/").content.decode()
    assert LogEntry.objects.get().change_message == "pause out for 600 s"
    press(manager, "pause", direction="out", **{"for": "?"})
    assert delayq.queue("orders").layout["paused"] == {"out": 0}, "a pause without a known length has no end"


def test_one_button_pauses_all_producers(
    delayq: Broker,
    manager: Client,
    staff: Callable[..., Any],
) -> None:
    Yard(delayq).put("one")
    assert b"Pause all producers" in manager.get(LIST).content
    answer = manager.post(f"{LIST}pause_producers/", follow=True)
    assert b"No queue takes new jobs any more" in answer.content
    assert delayq.producers_paused_since() is not None
    assert b"Producers are paused" in manager.get(LIST).content
    manager.post(f"{LIST}resume_producers/")
    assert delayq.producers_paused_since() is None
    assert [entry.change_message for entry in LogEntry.objects.order_by("pk")] == [
        "pause all producers",
        "resume all producers",
    ]
    manager.force_login(staff("view_queueentry"))
    assert b"Pause all producers" not in manager.get(LIST).content
    assert manager.post(f"{LIST}pause_producers/").status_code == 403

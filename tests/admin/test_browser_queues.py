"""Queues made and changed in a real browser."""

from __future__ import annotations

from django_delayq import task
from django_delayq.core.broker import Broker
from django_delayq.core.registry import recurring_pauses
from django_delayq.core.task import registry
from tests.admin.support import every_place
from tests.support.browser import Browser

LIST = "/admin/django_delayq/queueentry/"


def test_a_queue_lives_from_its_creation_to_its_end(delayq: Broker, operator: Browser) -> None:
    operator.size(1100, 800)
    operator.open(LIST)
    operator.click("Create a queue…")
    operator.fill("name", "images")
    operator.fill("kind", "pull")
    operator.fill("max_length", "100")
    operator.screenshot("queue-create")
    operator.click("Create the queue")
    assert "The queue was created." in operator.text()
    operator.click("Change limits…")
    operator.fill("morgue_max", "7")
    operator.screenshot("queue-limit")
    operator.click("Change the limits")
    assert "maximum of jobs in the morgue: 7" in operator.text()
    operator.click("Change shards…")
    operator.fill("shards", "3")
    operator.click("Change the number of shards")
    operator.until(lambda: delayq.queue("images").reload() or delayq.queue("images").shards == 3, what="three shards")
    operator.screenshot("queue-page")
    operator.click("Delete…")
    operator.fill("typed", "images")
    operator.click("Delete the queue")
    operator.until(lambda: "The queue images was deleted." in operator.text(), what="the end of the queue")
    assert delayq.queue_names() == []


def test_the_reason_why_a_queue_stays_is_beside_the_box(delayq: Broker, operator: Browser) -> None:
    every_place(delayq)
    operator.size(1100, 800)
    operator.open(f"{LIST}orders/delete/")
    operator.fill("typed", "orders")
    operator.click("Delete the queue")
    assert "by ticking this box" in operator.text()
    operator.screenshot("queue-delete")


def test_a_recurring_task_is_paused_and_run(delayq: Broker, operator: Browser) -> None:
    nightly = {"cron": "0 3 * * mon-fri", "timezone": "Europe/Berlin", "missed": "skip"}
    made = [
        task(name="shop.nightly_report", queue="reports", **nightly)(lambda: None),
        task(name="shop.sweep_carts", every=600)(lambda: None),
    ]
    try:
        operator.size(1100, 800)
        operator.open(LIST)
        operator.click("Recurring tasks")
        operator.click('button[aria-label="Pause shop.nightly_report"]')
        assert "Paused: the ticks of shop.nightly_report do not fire until it is resumed." in operator.text()
        operator.click('button[aria-label="Run now shop.sweep_carts"]')
        assert "A run of shop.sweep_carts is due now." in operator.text()
        operator.screenshot("recurring")
        assert recurring_pauses(delayq).keys() == {"shop.nightly_report"}
        assert delayq.inspector.counts("default").ready == 1
    finally:
        for one in made:
            registry.remove(one)

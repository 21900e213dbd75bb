"""Queues made and changed in a real browser."""

from __future__ import annotations

from django_delayq.core.broker import Broker
from django_delayq.core.job import NewJob
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
    assert "Maximum of jobs in the morgue: 7" in operator.text()
    operator.click("Change shards…")
    operator.fill("shards", "3")
    operator.click("Change the number of shards")
    operator.until(lambda: delayq.queue("images").reload() or delayq.queue("images").shards == 3, what="three shards")
    operator.screenshot("queue-page")
    delayq.queue("images").schedule_many(NewJob(f"image-{number}", "", delay_ms=60_000) for number in range(3))
    operator.click("Run all now…")
    operator.click("Run all now")
    assert "3 jobs are due now." in operator.text(".messagelist")
    operator.click("Purge…")
    operator.fill("typed", "image")
    operator.click("Purge the queue")
    assert "This is not the name of the queue." in operator.text(".errorlist")
    operator.screenshot("queue-purge")
    operator.fill("typed", "images")
    operator.click("Purge the queue")
    assert "3 waiting jobs were cancelled." in operator.text(".messagelist")
    operator.click("Delete…")
    operator.fill("typed", "images")
    operator.click("Delete the queue")
    operator.until(lambda: "The queue images was deleted." in operator.text(), what="the end of the queue")
    assert delayq.queue_names() == []

"""The pages over Redis in a real browser: what counts on by itself, what is pressed, and how it looks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django_delayq.core import Inspector
from django_delayq.core.broker import Broker
from django_delayq.core.outcomes import ack
from tests.admin.support import TRACEBACK, Yard, every_place
from tests.support.browser import Browser

JOBS = "/admin/django_delayq/livejob/"
QUEUES = "/admin/django_delayq/queueentry/"
#: responses that the page has had since it was opened
ASKED = "return performance.getEntriesByType('resource').filter(one => one.initiatorType === 'fetch').length"
TASKS = ("shop.cancel_order", "shop.remind", "shop.send_newsletter", "shop.check_payment")


def lively(broker: Broker) -> Yard:
    """A morning's work, for pictures."""
    yard = every_place(broker)
    for number in range(14):
        yard.put(
            f"order-{1000 + number}",
            1000 + number,
            task=TASKS[number % 4],
            delay_ms=45_000 * (number + 1) ** 2,
            context={"trace": f"4bf92f{number}"},
        )
    now_ms = int(broker.now_ms())
    for number in range(3):
        yard.put(f"order-{990 + number}", 990 + number, due_ms=now_ms - 90_000 * number, delay_ms=None)
    crm = Yard(broker, "crm", shards=4)
    for number in range(12):
        crm.add(f"customer-{number % 5}", {"name": "Ada", "email": "ada@example.com", "token": "t"}, str(number))
    mail = Yard(broker, "mail", worker="worker-7@mail-3:4121")
    for number in range(6):
        mail.put(f"mail-{number}", f"customer-{number}@example.com", task="shop.send_newsletter")
    jobs = mail.take(started=True)
    for number, job in enumerate(jobs[:3]):
        mail.failed(
            job,
            delay_ms=20_000 * (number + 1),
            message="connection refused by smtp.example.com:587",
            **{"class": "ConnectionRefusedError"},
        )
    mail.queue.settle([ack(jobs[3], 1, 2)])
    mail.put("mail-4", "changed@example.com", task="shop.send_newsletter", delay_ms=30_000)
    broker.pause("mail", "in")
    broker.limit("orders", max_length=10_000, morgue_ttl=30 * 86_400)
    for number in range(2):
        broker.announce(
            f"worker-{number}@app-1:21{number}7",
            {
                "host": "app-1",
                "queues": ["orders", "crm"],
                "threads": 8,
                "running": 2 + number,
                "dispatcher": not number,
            },
        )
    return yard


def both_looks(browser: Browser, name: str) -> None:
    for theme in ("light", "dark"):
        browser.theme(theme)
        browser.screenshot(f"{name}-{theme}")
    browser.theme("light")


def test_the_list_of_jobs_counts_on_and_leads_to_a_job(operator: Browser, delayq: Broker) -> None:
    lively(delayq)
    operator.open(f"{JOBS}?queue=orders")
    first = operator.text("#result_list time")
    assert first.startswith("3 min")
    assert first.endswith(" ago")
    operator.open(JOBS)
    both_looks(operator, "live-waiting")
    operator.click(".dq-tabs a[href*='place=reserved']")
    before = float(operator.attribute("progress", "value"))
    assert 0 < before <= 15
    both_looks(operator, "live-reserved")
    operator.fill("q", "order-1003")
    operator.click("Search")
    assert [row[0] for row in operator.rows()] == ["order-1003"]
    operator.click("order-1003")
    assert "4bf92f3" in operator.text("#content-main")


def test_a_job_is_moved_run_and_cancelled_by_its_buttons(operator: Browser, delayq: Broker) -> None:
    yard = lively(delayq)
    operator.open(f"{JOBS}orders_2Forder-1002/change/")
    operator.click("Reschedule…")
    operator.fill("delay", "2")
    operator.fill("unit", "hours")
    both_looks(operator, "live-reschedule")
    operator.click("Reschedule")
    assert "The job was rescheduled." in operator.text(".messagelist")
    assert operator.text("#dq-live").count("in 1 h 59 min") + operator.text("#dq-live").count("in 2 h") == 1
    operator.click("Run now")
    assert "The job is due now." in operator.text(".messagelist")
    operator.click("Cancel…")
    both_looks(operator, "live-cancel")
    operator.forgive("404")  # the page of the job that is gone
    operator.click("Cancel the job")
    assert "The waiting job was cancelled." in operator.text(".messagelist")
    assert "Queue orders has no live job with this id." in operator.text()
    assert Inspector(yard.queue.registry).get("orders", "order-1002") is None


def test_a_page_refreshes_itself_if_that_is_wanted(operator: Browser, delayq: Broker) -> None:
    yard = every_place(delayq)
    operator.open(f"{JOBS}?queue=orders")
    assert not operator.find("#dq-auto").is_selected()
    yard.put("brand-new", delay_ms=1_000_000)
    operator.click("#dq-auto")
    operator.until(lambda: "brand-new" in operator.text("#dq-live"), what="the new job")
    operator.open(QUEUES)
    assert operator.find("#dq-auto").is_selected()
    yard.put("another", delay_ms=1_000_000)
    operator.until(lambda: operator.rows()[0][1] == "4", what="the new number")


def test_nothing_changes_while_boxes_are_ticked(operator: Browser, delayq: Broker) -> None:
    yard = every_place(delayq)
    operator.open(f"{JOBS}?queue=orders")
    operator.click("#dq-auto")
    operator.click("#result_list input[name=selected]", stays=True)
    yard.put("brand-new", delay_ms=1_000_000)
    operator.until(lambda: operator.run(ASKED) >= 2, timeout=20, what="two more responses")
    assert "brand-new" not in operator.text("#dq-live")
    operator.click("#result_list input[name=selected]", stays=True)
    operator.until(lambda: "brand-new" in operator.text("#dq-live"), what="the new job")


def test_a_page_that_refreshes_itself_shows_that_redis_is_gone_and_recovers(
    operator: Browser, delayq: Broker, settings: Any
) -> None:
    from django_delayq import connections

    yard = every_place(delayq)
    operator.open(f"{JOBS}?queue=orders")
    operator.click("#dq-auto")
    operator.forgive("503")
    here = settings.DELAYQ
    connections.close_broker()
    settings.DELAYQ = {**here, "REDIS": "redis://127.0.0.1:1/0"}
    operator.until(lambda: "Redis cannot be reached just now" in operator.text("#dq-live"), what="the trouble")
    connections.close_broker()
    settings.DELAYQ = here
    yard.put("brand-new", delay_ms=1_000_000)
    operator.until(lambda: "brand-new" in operator.text("#dq-live"), timeout=20, what="the recovery")


def test_a_page_that_refreshes_itself_shows_that_the_site_is_gone(operator: Browser, delayq: Broker) -> None:
    every_place(delayq)
    operator.open(f"{JOBS}?queue=orders")
    operator.run("window.real = window.fetch; window.fetch = async () => { throw new TypeError('no network') }")
    operator.click("#dq-auto")
    operator.until(lambda: "The site does not answer" in operator.text("#dq-state"), what="the word of it")
    assert "delayed" in operator.text("#dq-live"), "the page stays"
    operator.run("window.fetch = window.real")
    operator.until(lambda: "State in Redis" in operator.text("#dq-state"), timeout=20, what="the recovery")


def test_pages_work_without_scripts(operator: Browser, delayq: Broker) -> None:
    yard = every_place(delayq)
    operator.scripts(run=False)
    operator.open(f"{JOBS}?queue=orders")
    assert not operator.all("#dq-auto")[0].is_displayed()
    yard.put("brand-new", delay_ms=1_000)
    operator.click("Refresh")
    assert "brand-new" in operator.text("#dq-live")
    operator.click("delayed")
    operator.click("Run now")
    assert "The job is due now." in operator.text(".messagelist")


def test_pictures_of_jobs(operator: Browser, delayq: Broker) -> None:
    yard = lively(delayq)
    yard.put("order-2000", {"items": [{"sku": "tea-1", "count": 2}], "password": "x"}, context={"trace": "1"})
    for job in yard.take():
        if job.id == "order-2000":
            yard.failed(job, message="out of tea\nsecond line", traceback=TRACEBACK.replace("no", "out of tea"))
    for name, address, shown in (
        ("live-filtered", "?failures=1", "order-2000"),
        ("live-gated", "?place=gated", "gated"),
        ("live-search", "?q=ada", "customer-1"),
        ("job-failed", "orders_2Forder-2000/change/", "out of tea"),
        ("job-gated", "orders_2Fgated/change/", "gated"),
        ("job-payloads", "crm_2Fcustomer-1/change/", "ada@example.com"),
        ("job-morgue", "orders_2Fburied/change/", "buried"),
    ):
        operator.open(JOBS + address)
        assert shown in operator.text("#content-main")
        both_looks(operator, name)
    operator.size(400, 800)
    operator.open(f"{JOBS}?place=reserved")
    operator.screenshot("live-reserved-narrow")
    width = operator.run("return document.documentElement.scrollWidth")
    assert width <= 400, f"the page is {width} px wide"


def test_a_queue_is_paused_resumed_and_purged_by_its_buttons(operator: Browser, delayq: Broker) -> None:
    lively(delayq)
    operator.open(QUEUES)
    both_looks(operator, "queues")
    operator.click("orders")
    both_looks(operator, "queue")
    operator.click("Pause workers")
    assert "paused for workers" in operator.text("h1")
    operator.click("Resume")
    assert "paused" not in operator.text("h1")
    operator.click("Run all now…")
    both_looks(operator, "queue-run")
    operator.click("Run all now")
    assert "jobs are due now." in operator.text(".messagelist")
    operator.click("Purge…")
    operator.fill("typed", "ordners")
    operator.click("Purge the queue")
    assert "This is not the name of the queue." in operator.text(".errorlist")
    both_looks(operator, "queue-purge")
    operator.fill("typed", "orders")
    operator.click("Purge the queue")
    assert "waiting jobs were cancelled." in operator.text(".messagelist")
    assert delayq.inspector.counts("orders").delayed == 0


def test_a_page_says_kindly_that_redis_is_gone(
    operator: Browser, delayq: Broker, settings: Any, redis_factory: Callable[..., Any]
) -> None:
    from django_delayq import connections

    operator.forgive("503")
    connections.close_broker()
    here = settings.DELAYQ
    settings.DELAYQ = {**here, "REDIS": "redis://127.0.0.1:1/0"}
    operator.open(JOBS)
    assert "Redis cannot be reached just now" in operator.text()
    both_looks(operator, "unavailable")
    connections.close_broker()
    settings.DELAYQ = here
    operator.click("Try again")
    assert "Nothing here." in operator.text()

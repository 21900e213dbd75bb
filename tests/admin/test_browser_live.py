"""The pages over Redis in a real browser: what counts on by itself, what is pressed, and how it looks."""

from __future__ import annotations

from typing import Any

from django_delayq.core.broker import Broker
from tests.admin import dashboards
from tests.admin.support import every_place
from tests.support.browser import Browser

JOBS = "/admin/django_delayq/livejob/"
QUEUES = "/admin/django_delayq/queueentry/"
#: responses that the page has had since it was opened
ASKED = "return performance.getEntriesByType('resource').filter(one => one.initiatorType === 'fetch').length"


def test_the_list_of_jobs_counts_on_and_leads_to_a_job(operator: Browser, delayq: Broker) -> None:
    dashboards.lively(delayq)
    operator.open(JOBS)
    operator.click(".dq-tabs a[href*='place=reserved']")
    before = float(operator.attribute("progress", "value"))
    assert 0 < before <= 15
    operator.screenshot("live-reserved")
    operator.open(f"{JOBS}?queue=crm")
    first = operator.text("#result_list time")
    assert first.startswith("1 min")
    assert first.endswith(" ago")
    operator.screenshot("live-waiting")
    operator.open(f"{JOBS}?queue=orders")
    operator.fill("q", "order-103")
    operator.click("Search")
    assert [row[0] for row in operator.rows()] == ["order-103"]
    operator.click("order-103")
    assert "shop.check_payment" in operator.text("#content-main")


def test_a_job_is_moved_run_and_cancelled_by_its_buttons(operator: Browser, delayq: Broker) -> None:
    dashboards.lively(delayq)
    operator.open(f"{JOBS}orders_2Forder-102/change/")
    operator.click("Reschedule…")
    operator.fill("delay", "2")
    operator.fill("unit", "hours")
    operator.screenshot("live-reschedule")
    operator.click("Reschedule")
    assert "The job was rescheduled." in operator.text(".messagelist")
    assert operator.text("#dq-live").count("in 1 h 59 min") + operator.text("#dq-live").count("in 2 h") == 1
    operator.click("Run now")
    assert "The job is due now." in operator.text(".messagelist")
    operator.click("Cancel…")
    operator.screenshot("live-cancel")
    operator.forgive("404")  # the page of the job that is gone
    operator.click("Cancel the job")
    assert "The waiting job was cancelled." in operator.text(".messagelist")
    assert "Queue orders has no live job with this id." in operator.text()
    assert delayq.inspector.get("orders", "order-102") is None


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


def test_a_finished_job_is_found_by_its_outcome_and_its_attempts_are_on_its_page(
    delayq: Broker, operator: Browser
) -> None:
    dashboards.lively(delayq)
    operator.open(JOBS)
    operator.click("Recently finished")
    operator.screenshot("finished")
    operator.fill("outcome", "failed")
    operator.click("Search")
    rows = operator.rows("#dq-attempts")
    assert {row[2] for row in rows} == {"failed"}
    operator.click("#dq-attempts tbody a")
    assert operator.rows("#dq-attempts")[0][1] == "failed"
    operator.screenshot("finished-job")

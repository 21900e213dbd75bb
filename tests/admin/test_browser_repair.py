"""Handling of failed jobs in a real browser; each step is saved as a picture."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from django_delayq import mirror
from django_delayq.core.broker import Broker
from django_delayq.core.codec import encode_args
from django_delayq.models import BulkAction, FailedJob, MorgueJob
from django_delayq.repair import orders
from tests.admin.mirrors import BASE, FAILED, MORGUE, TRACEBACK, buried_jobs, failed_row
from tests.admin.support import Yard
from tests.app import deeds  # noqa: F401  # registers its tasks
from tests.support.browser import Browser

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def person(browser: Browser, staff: Callable[..., Any]) -> Any:
    user = staff(superuser=True)
    browser.login(user)
    return user


def a_bad_night(broker: Broker) -> None:
    """Failed jobs of several queues, as a shop has them."""
    yard = Yard(broker, "orders")
    for n in range(6):
        yard.put(f"order-{1040 + n}", 1040 + n, task="shop.cancel_order", context={"trace": f"t-{n}"})
    payments = Yard(broker, "payments", worker="web-1:2291")
    for n in range(3):
        payments.put(
            f"payment-{77 + n}",
            raw=encode_args((77 + n,), {"card_number": "4111 1111 1111 1111"}),
            task="shop.check_payment",
        )
    for job in yard.take():
        yard.failed(
            job,
            delay_ms=240_000,
            message="gateway answered 503: token=abc123",
            traceback=TRACEBACK,
            **{"class": "shop.gateway.GatewayDown"},
        )
    for job in payments.take():
        payments.failed(
            job,
            delay_ms=3_600_000,
            message="the bank did not answer within 10 s",
            traceback=TRACEBACK,
            **{"class": "TimeoutError"},
        )
    mirror.rebuild()


def test_failed_jobs_are_filtered_chosen_and_retried_later(delayq: Broker, browser: Browser, person: Any) -> None:
    a_bad_night(delayq)
    failed_row("order-7", ago=timedelta(days=8), crashes=1).save()
    FailedJob.objects.filter(job_id="order-7").update(due_at="2026-01-01T00:00:00+00:00")
    browser.open(FAILED)
    browser.screenshot("failed-list")
    browser.click("payments")
    wanted = ["payment-79", "payment-78", "payment-77"]
    browser.until(lambda: [row[1] for row in browser.rows()] == wanted, what="the filtered list")
    boxes = browser.all("#result_list input.action-select")
    boxes[0].click()
    boxes[2].click()
    browser.fill("action", "Retry in…")
    browser.screenshot("failed-selected")
    browser.click("button[name=index]")
    assert "2 jobs" in browser.text(".dq-confirm")
    browser.screenshot("failed-retry-in")
    browser.fill("delay", "45")
    browser.fill("unit", "minutes")
    browser.click("input[type=submit].default")
    assert browser.text(".messagelist") == "2 jobs will be retried."
    assert browser.path == f"{FAILED}?queue=payments"
    browser.screenshot("failed-retried")
    now_ms = delayq.now_ms()
    away = {
        view.id: round((view.due_ms - now_ms) / 60_000) for view in delayq.inspector.page("payments", "waiting").jobs
    }
    assert away == {"payment-77": 45, "payment-78": 60, "payment-79": 45}


def test_everything_that_matches_is_discarded_in_the_background(
    delayq: Broker, browser: Browser, person: Any, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "ADMIN": {"bulk_threshold": 20}}
    buried_jobs(delayq, 100, queue="crm", task="deeds.rest", mark="a")
    buried_jobs(delayq, 30, queue="crm", task="deeds.rest", mark="b")
    buried_jobs(delayq, 3, queue="orders", mark="c")
    browser.open(f"{MORGUE}?queue=crm")
    assert "130 jobs in the morgue" in browser.text(".paginator")
    browser.click("#action-toggle")
    browser.click("Select all 130 jobs in the morgue")
    browser.fill("action", "Discard")
    browser.click("button[name=index]")
    assert "All 130 jobs" in browser.text(".dq-confirm")
    browser.screenshot("morgue-discard")
    browser.click("input[type=submit].default")
    order = browser.until(BulkAction.objects.first, what="the order")
    browser.until(lambda: browser.path == f"{BASE}bulkaction/{order.pk}/change/", what="its page")
    assert "0 of 130" in browser.text("#dq-live")
    browser.screenshot("bulk-waiting")

    monkeypatch.setattr(orders, "CHUNK", 70)
    orders._run_chunk(order)
    browser.until(lambda: "70 of 130" in browser.text("#dq-live"), what="the first piece")
    browser.screenshot("bulk-running")
    monkeypatch.undo()
    orders.carry_out(str(order.pk))
    browser.until(lambda: "130 of 130" in browser.text("#dq-live"), what="the end")
    browser.screenshot("bulk-done")
    assert not browser.all("#dq-live form")
    browser.open(f"{BASE}bulkaction/")
    browser.screenshot("bulk-list")
    assert MorgueJob.objects.count() == 3

"""Recently finished jobs in a real browser."""

from __future__ import annotations

from django_delayq.core.broker import Broker
from tests.admin.dashboards import lively
from tests.support.browser import Browser


def test_a_finished_job_is_found_by_its_outcome_and_its_attempts_are_on_its_page(
    delayq: Broker, operator: Browser
) -> None:
    lively(delayq)
    operator.size(1280, 800)
    operator.open("/admin/django_delayq/livejob/")
    operator.click("Recently finished")
    operator.screenshot("finished")
    operator.fill("outcome", "failed")
    operator.click("Search")
    rows = operator.rows("#dq-attempts")
    assert {row[2] for row in rows} == {"failed"}
    operator.click("#dq-attempts tbody a")
    assert operator.rows("#dq-attempts")[0][1] == "failed"
    operator.screenshot("finished-job")

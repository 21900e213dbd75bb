"""Commands to workers in a real browser."""

from __future__ import annotations

from django_delayq.core.broker import Broker
from tests.admin.dashboards import lively
from tests.support.browser import Browser


def test_a_worker_is_drained_from_the_dashboard(delayq: Broker, operator: Browser) -> None:
    lively(delayq)
    operator.size(1280, 800)
    operator.open("/admin/django_delayq/dashboard/")
    operator.find(".dq-worker [href]")
    operator.screenshot("workers")
    operator.click("[aria-label='Drain… worker-0@app-1:2107']")
    operator.screenshot("worker-drain")
    operator.click("Drain the worker")
    assert "The worker receives it with its next heartbeat." in operator.text()
    reply = delayq.announce("worker-0@app-1:2107", {"queues": ["orders"]})
    assert list(reply.commands) == ["drain"]

"""Charts over time in a real browser: they begin with the samples of the last hour, and stay bounded."""

from __future__ import annotations

import pytest

from django_delayq.admin import dashboard
from django_delayq.core import figures
from django_delayq.core.broker import Broker
from django_delayq.core.figures import DepthPoint
from tests.admin.dashboards import lively
from tests.support.browser import Browser

PAGE = "/admin/django_delayq/dashboard/"
DRAWN = "return document.getElementById('dq-depth').chart.plot.data.map(one => one.length)"


@pytest.fixture(autouse=True)
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is busy with other tests does not slow the page down."""
    monkeypatch.setattr(dashboard, "PAUSE", 0)


def seed(broker: Broker, *queues: str) -> None:
    """Samples of two hours, with a gap of ten minutes."""
    now_ms = broker.now_ms()
    for ago in range(120, 0, -1):
        if 30 <= ago < 40:
            continue
        wave = (ago * 7) % 40
        sample = DepthPoint(
            delayed=4000 + 20 * ago,
            ready=wave,
            reserved=8,
            failed=3 + ago // 20,
            morgue=1 + (120 - ago) // 30,
            scheduled=700 * (120 - ago),
            done=(600 + wave) * (120 - ago),
            failing=12 * (120 - ago),
            p50_ms=8.0 + wave,
            p99_ms=80.0 + 9 * wave,
        )
        figures.record_depths(broker, dict.fromkeys(queues, sample), now_ms - ago * 60_000)


def test_the_charts_are_full_from_the_first_moment(delayq: Broker, operator: Browser) -> None:
    lively(delayq)
    seed(delayq, "", "orders")
    operator.size(1280, 900)
    operator.open(PAGE)
    operator.until(lambda: max(operator.run(DRAWN)) >= 50, what="a drawn hour")
    gaps = "return document.getElementById('dq-depth').chart.gaps.length"
    operator.until(lambda: operator.run(gaps) >= 1, what="the gap")
    assert len(operator.rows("#dq-throughput-table")) >= 50
    operator.screenshot("depth-dashboard")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_of_a_queue_draws_its_depth(delayq: Broker, operator: Browser, scheme: str) -> None:
    lively(delayq)
    seed(delayq, "orders")
    operator.theme(scheme)
    operator.size(1280, 900)
    operator.open("/admin/django_delayq/queueentry/orders/change/")
    operator.until(lambda: max(operator.run(DRAWN)) >= 45, what="a drawn hour")
    operator.screenshot(f"depth-queue-{scheme}")
    operator.run("document.getElementById('dq-auto').click()")
    figures.record_depths(delayq, {"orders": DepthPoint(ready=77)}, delayq.now_ms())
    operator.until(
        lambda: "77" in operator.run("return document.getElementById('dq-depth-rows').rows[0].textContent"),
        what="the newest sample in the chart that stayed",
    )
    assert max(operator.run(DRAWN)) >= 45
    operator.click("last day")
    operator.until(lambda: 10 <= max(operator.run(DRAWN)) <= 12, what="two hours of a day")

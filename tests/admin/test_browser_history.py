"""The history in a real browser: readable in both themes, on a narrow screen, and under a strict policy."""

from __future__ import annotations

from typing import Any

import pytest

from django_delayq.admin.history import HourlyStatAdmin
from django_delayq.core.broker import Broker
from tests.admin.browser_scripts import CUT, STYLED
from tests.admin.pasts import lively_past
from tests.admin.support import Yard
from tests.support.browser import Browser

PAGE = "/admin/django_delayq/hourlystat/"
#: colours of the drawing of a chart, without transparent ones
COLOURS = """const canvas = document.querySelector(`#${arguments[0]} canvas`);
    const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
    const found = new Set();
    for (let at = 0; at < data.length; at += 4) if (data[at + 3] === 255) found.add(data.slice(at, at + 3).join(' '));
    return Array.from(found)"""


def ahead(broker: Broker) -> None:
    """Work for the next day."""
    yard, now_ms = Yard(broker), int(broker.now_ms())
    for number in range(30):
        yard.put(f"due-{number}", due_ms=now_ms - 9_000, delay_ms=None)
    for number in range(80):
        yard.put(f"later-{number}", delay_ms=number * number * 12_000)


@pytest.mark.parametrize("width", [1280, 360])
def test_everything_is_in_sight_on_any_screen(operator: Browser, delayq: Broker, width: int) -> None:
    lively_past(30)
    ahead(delayq)
    operator.size(width, 900)
    for period in ("today", "7d", "30d"):
        operator.open(f"{PAGE}?period={period}")
        assert operator.run("return document.documentElement.scrollWidth") <= width
        assert operator.run(CUT) == []
        operator.screenshot(f"history-{period}-{width}")


def test_it_is_filtered_without_scripts(operator: Browser, delayq: Broker) -> None:
    lively_past(20)
    operator.scripts(run=False)
    operator.open(PAGE)
    assert "The chart needs JavaScript; the table below has its numbers." in operator.text("#dq-lateness")
    operator.click("#dq-lateness summary")
    assert operator.rows("#dq-lateness-table")[0][0]
    assert {row[1] for row in operator.rows()} == {"orders", "mail", "crm", "pictures"}
    operator.click("crm")
    assert {row[1] for row in operator.rows()} == {"crm"}
    operator.click("7 days")
    assert "queue=crm" in operator.path
    assert "period=7d" in operator.path
    assert {row[1] for row in operator.rows()} == {"crm"}
    operator.click("#dq-failing [data-link='task']")
    assert "task=crm.sync_customers" in operator.path


def test_it_lives_under_a_strict_policy_and_asks_only_its_own_site(
    operator: Browser, delayq: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    lively_past(24)
    ahead(delayq)
    original = HourlyStatAdmin.changelist_view

    def strict(self: HourlyStatAdmin, *args: Any, **named: Any) -> Any:
        response = original(self, *args, **named)
        response["Content-Security-Policy"] = "default-src 'self'"
        return response

    monkeypatch.setattr(HourlyStatAdmin, "changelist_view", strict)
    operator.open(PAGE)
    assert len(operator.all("#dq-ahead canvas")) == 1
    assert operator.run(STYLED) == []
    assert {"22 104 168", "194 65 12"} <= set(operator.run(COLOURS, "dq-throughput")), "the colours are there"
    operator.forgive("willReadFrequently")  # only this test reads the drawing
    operator.theme("dark")
    operator.until(
        lambda: "108 182 245" in operator.run(COLOURS, "dq-throughput"), what="the colours of the dark theme"
    )
    loaded = operator.run("return performance.getEntriesByType('resource').map(one => one.name)")
    assert [one for one in loaded if not one.startswith(operator.site)] == []

"""The dashboard in a real browser: it moves, it can be read in several ways, and it survives what happens to Redis."""

from __future__ import annotations

from typing import Any

import pytest

from django_delayq import connections
from django_delayq.admin import dashboard
from django_delayq.admin.base import RedisPages
from django_delayq.core import figures
from django_delayq.core.broker import Broker
from django_delayq.core.figures import DepthPoint
from django_delayq.core.layouts import queue_policy
from tests.admin.browser_scripts import CUT, STYLED
from tests.admin.dashboards import lively, settle
from tests.admin.support import Yard, every_place
from tests.support.browser import Browser

PAGE = "/admin/django_delayq/dashboard/"
PLACES = ("delayed", "ready", "reserved", "gated", "failed", "morgue")
#: requests for numbers that this page made
ASKED = "return performance.getEntriesByType('resource').filter(one => one.name.includes('/dashboard/parts/')).length"
LOADED = "return performance.getEntriesByType('resource').map(one => one.name)"
TOPS = "return Array.from(document.querySelectorAll('.dq-dash h2, .dq-plot, .dq-tiles li'), one => one.offsetTop)"

#: since when nothing was asked, ms
QUIET = """return performance.now()
    - Math.max(...performance.getEntriesByType('resource').map(one => one.responseEnd))"""
#: from now on the page receives huge numbers: jobs per second, milliseconds, and jobs that fall due
HUGE = """const original = window.fetch;
    window.fetch = async (...request) => {
      const response = await original(...request);
      const page = new DOMParser().parseFromString(await response.text(), 'text/html');
      const numbers = { 'dq-throughput': 40000000, 'dq-lateness': 5000000, 'dq-backlog': 4000000 };
      for (const [name, number] of Object.entries(numbers)) {
        page.querySelectorAll(`#${name}-rows td`).forEach(cell => { cell.dataset.number = number });
      }
      return new Response(page.body.innerHTML, { status: response.status });
    }"""
#: of a chart, the texts at an axis
TICKS = "return Array.from(document.getElementById(arguments[0]).chart.plot.axes[arguments[1]]._values)"
#: the drawing of the throughput
DRAWN = "return document.querySelector('#dq-throughput canvas').toDataURL()"
#: bars of the backlog that are drawn
BARS = "return document.getElementById('dq-backlog').chart.plot.data[1].length"
HIDE = """const hidden = arguments[0];
    Object.defineProperty(document, 'hidden', { configurable: true, get: () => hidden });
    document.dispatchEvent(new Event('visibilitychange'))"""


@pytest.fixture(autouse=True)
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is busy with other tests does not slow the page down."""
    monkeypatch.setattr(dashboard, "PAUSE", 0)


def number(text: str) -> int:
    return int(text.replace("\N{NARROW NO-BREAK SPACE}", ""))


def total(browser: Browser, name: str) -> str:
    return browser.text(f"[data-total='{name}']")


def answers(browser: Browser, more: int) -> None:
    """Wait for so many answers from now on."""
    before = browser.run(ASKED)
    browser.until(lambda: browser.run(ASKED) >= before + more, timeout=30, what=f"{more} answers")


def row(browser: Browser, queue: str) -> list[str]:
    return next(cells for cells in browser.rows("#dq-queues") if cells[0].split()[0] == queue)


def paused(broker: Broker, queue: str = "orders") -> str:
    found: str = queue_policy(broker.queue(queue).layout)["paused"]
    return found


def test_the_numbers_are_the_inspectors_and_follow_it(operator: Browser, delayq: Broker) -> None:
    yards = lively(delayq)
    operator.open(PAGE)

    def wanted() -> list[int]:
        counts = delayq.inspector.all_counts()
        return [sum(getattr(one, place) for one in counts) for place in PLACES]

    def is_told() -> bool:
        return [number(total(operator, place)) for place in PLACES] == wanted()

    operator.until(is_told, what="the numbers of the inspector")
    for more in range(7):
        yards["crm"].put(f"more-{more}", delay_ms=4_000_000)
    operator.until(is_told, what="the new numbers")
    counts = delayq.inspector.counts("crm")
    operator.until(
        lambda: [number(cell) for cell in row(operator, "crm")[1:7]] == [getattr(counts, place) for place in PLACES],
        what="the row",
    )


def test_the_charts_move(operator: Browser, delayq: Broker) -> None:
    yard = every_place(delayq)
    operator.open(PAGE)
    operator.until(lambda: operator.text("#dq-state") == "live", what="the heartbeat")
    operator.run("document.querySelectorAll('.dq-dash details').forEach(one => { one.open = true })")

    def points(chart: str) -> list[list[str]]:
        return operator.rows(f"#{chart}-table")

    operator.until(lambda: operator.run(DRAWN) is not None, what="a drawing")
    drawn = operator.run(DRAWN)
    figures.record_depths(delayq, {"": DepthPoint(p50_ms=40.0, p99_ms=50.0)}, delayq.now_ms() - 30_000)
    for name in range(20):
        yard.put(f"new-{name}")
    jobs = [job for job in yard.take() if job.id.startswith("new")]
    settle(yard, jobs, late_ms=40)
    dashboard.SNAPSHOTS._forget()

    def is_told() -> bool:
        return bool(points("dq-throughput")) and float(points("dq-throughput")[0][1]) > 0

    operator.until(is_told, timeout=20, what="a rate")
    operator.until(lambda: operator.run(DRAWN) != drawn, timeout=20, what="another drawing")
    assert points("dq-lateness")[0][1:] == ["40 ms", "50 ms"]
    assert total(operator, "p99") == "50 ms"
    assert operator.run(BARS) == 60
    operator.click("in the next day")
    operator.until(lambda: operator.run(BARS) == 24, what="the hours of a day")
    assert "span=day" in operator.path


def test_it_is_told_how_old_the_backlog_is(operator: Browser, delayq: Broker) -> None:
    every_place(delayq)
    operator.open(PAGE)

    def ages() -> tuple[str, str]:
        """The time of the backlog, and that of the page."""
        return operator.text("#dq-backlog-summary")[-8:], operator.text("#dq-as-of")[-8:]

    operator.until(lambda: operator.text("#dq-state") == "live" and ages()[0] == ages()[1], what="a new backlog")
    operator.until(lambda: len(set(ages())) == 2, what="an older one")
    old = ages()[0]
    answers(operator, 2)
    assert ages()[0] == old
    operator.click("in the next day")
    operator.until(
        lambda: ages()[0] > old and "in the next day" in operator.text("#dq-backlog-summary"), what="a new one"
    )


@pytest.mark.parametrize("width", [1280, 360])
def test_what_stands_at_an_axis_is_all_in_sight(operator: Browser, delayq: Broker, width: int) -> None:
    every_place(delayq)
    for minutes in (2, 1):
        figures.record_depths(delayq, {"": DepthPoint(p50_ms=40.0, p99_ms=50.0)}, delayq.now_ms() - minutes * 60_000)
    operator.size(width, 900)
    operator.open(PAGE)
    operator.until(lambda: operator.text("#dq-state") == "live", what="the heartbeat")
    operator.run(HUGE)
    operator.until(lambda: operator.run(TICKS, "dq-backlog", 1)[-1] == "5\u202fM", timeout=20, what="a huge backlog")
    operator.until(
        lambda: operator.run(TICKS, "dq-lateness", 1) == ["10 ms", "1 s", "100 s", "2.8 h"],
        what="a huge lateness",
    )
    operator.until(lambda: operator.run(TICKS, "dq-throughput", 1)[-1] == "50\u202fM", what="a huge throughput")
    assert operator.run(TICKS, "dq-backlog", 1)[0] == "0"
    assert operator.run(TICKS, "dq-backlog", 0)[0] == "0 min"
    assert operator.run(CUT) == []


def test_a_queue_is_paused_and_resumed_in_the_table(operator: Browser, delayq: Broker) -> None:
    every_place(delayq)
    operator.open(PAGE)
    operator.until(lambda: operator.text("#dq-state") == "live", what="the heartbeat")
    operator.click("Pause orders")
    assert "paused for workers" in operator.text("h1")
    assert paused(delayq) == "out"
    operator.open(PAGE)
    operator.until(lambda: "paused for workers" in row(operator, "orders")[0], what="the pause in the table")
    operator.click("Resume orders")
    assert paused(delayq) == ""


def test_redis_goes_and_comes_back(operator: Browser, delayq: Broker, settings: Any) -> None:
    every_place(delayq)
    operator.open(PAGE)
    operator.until(lambda: operator.text("#dq-state") == "live", what="the heartbeat")
    operator.forgive("503")
    here = settings.DELAYQ
    connections.close_broker()
    settings.DELAYQ = {**here, "REDIS": "redis://127.0.0.1:1/0"}
    operator.until(
        lambda: operator.text("#dq-state").startswith("Redis does not answer; next attempt in"),
        timeout=20,
        what="the word of it",
    )
    assert "Redis cannot be reached just now." in operator.text("#dq-trouble")
    assert total(operator, "failed") == "1", "the last that was heard stays"
    operator.open(PAGE)
    assert "Redis cannot be reached just now." in operator.text("#dq-trouble")
    connections.close_broker()
    settings.DELAYQ = here
    operator.until(lambda: operator.text("#dq-state") == "live", timeout=30, what="the recovery by itself")
    operator.until(lambda: total(operator, "failed") == "1", what="its numbers")
    assert not operator.all("#dq-trouble")[0].is_displayed()


def test_a_session_that_ended_is_told_and_nothing_is_followed(operator: Browser, delayq: Broker) -> None:
    every_place(delayq)
    operator.open(PAGE)
    operator.until(lambda: operator.text("#dq-state") == "live", what="the heartbeat")
    operator._cdp("Network.clearBrowserCookies")
    operator.until(
        lambda: operator.text("#dq-state") == "You are signed out; reload the page to sign in", what="the word of it"
    )
    assert operator.path == PAGE
    assert total(operator, "failed") == "1", "the last that was heard stays"
    assert not [one for one in operator.run(LOADED) if "/login/" in one]


def test_nothing_is_asked_while_nobody_looks(operator: Browser, delayq: Broker) -> None:
    every_place(delayq)
    operator.open(PAGE)
    answers(operator, 1)
    operator.run(HIDE, True)
    operator.until(lambda: operator.run(QUIET) > 2_500, what="2.5 quiet seconds")
    operator.run(HIDE, False)
    answers(operator, 1)
    operator.click("#dq-auto", stays=True)
    operator.until(lambda: operator.run(QUIET) > 2_500, what="2.5 quiet seconds")
    operator.click("#dq-auto", stays=True)
    answers(operator, 1)


def test_it_lives_under_a_strict_policy_and_asks_only_its_own_site(
    operator: Browser, delayq: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    lively(delayq)
    original = RedisPages.render

    def strict(self: RedisPages, *args: Any, **named: Any) -> Any:
        response = original(self, *args, **named)
        response["Content-Security-Policy"] = "default-src 'self'"
        return response

    monkeypatch.setattr(RedisPages, "render", strict)
    operator.open(PAGE)
    answers(operator, 3)
    assert operator.text("#dq-state") == "live"
    assert operator.run("return document.getElementById('dq-throughput').chart.plot.series.length") == 4
    assert operator.run(STYLED) == []
    assert [one for one in operator.run(LOADED) if not one.startswith(operator.site)] == []


def test_queues_are_found_by_a_part_of_their_name(operator: Browser, delayq: Broker) -> None:
    lively(delayq)
    operator.open(PAGE)
    operator.fill("q", "ORD")
    operator.click("Find")
    assert [cells[0] for cells in operator.rows("#dq-queues")] == ["orders"]
    answers(operator, 2)
    assert operator.text("#dq-queues-note") == "1 / 4"
    operator.click("orders")
    assert operator.path == "/admin/django_delayq/queueentry/orders/change/"


def test_it_is_a_page_without_scripts(operator: Browser, delayq: Broker) -> None:
    lively(delayq)
    operator.scripts(run=False)
    operator.open(PAGE)
    failed = delayq.inspector.counts("orders").failed
    assert row(operator, "orders")[5] == str(failed) == "1"
    assert "The chart needs JavaScript; the table below has its numbers." in operator.text("#dq-backlog")
    assert not operator.all("#dq-auto")[0].is_displayed()
    operator.click("Pause orders")
    assert "paused for workers" in operator.text("h1")
    assert paused(delayq) == "out"


def test_nothing_moves_when_numbers_come_and_narrow_screens_are_not_scrolled(operator: Browser, delayq: Broker) -> None:
    lively(delayq)
    operator.open(PAGE)
    first = operator.run(TOPS)
    answers(operator, 3)
    assert operator.run(TOPS) == first
    operator.size(360, 800)
    operator.open(PAGE)
    answers(operator, 2)
    assert operator.run("return document.documentElement.scrollWidth") <= 360


@pytest.mark.parametrize("width", [1280, 360])
def test_a_long_name_hides_nothing(operator: Browser, delayq: Broker, width: int) -> None:
    name = "q" + "n" * 63
    Yard(delayq, name).put("a", due_ms=int(delayq.now_ms()) - 99_000, delay_ms=None)
    delayq.pause(name, "out")
    operator.size(width, 900)
    operator.open(PAGE)
    answers(operator, 2)
    over = operator.run("""const box = document.querySelector('.dq-queues').closest('.dq-scroll-x');
        const pill = document.querySelector('[data-paused]').getBoundingClientRect();
        const head = document.querySelector('#dq-queues tbody th').getBoundingClientRect();
        return [pill.right - head.right, head.width - box.clientWidth / 2, box.scrollWidth - box.clientWidth]""")
    assert over[0] <= 0, "the pill is in sight"
    assert over[1] <= 0, "the name, which stays in its place, leaves room for the numbers"
    assert over[2] <= 0 or width == 360, "the button is in sight"
    assert operator.attribute("#dq-queues tbody [data-link]", "title") == name


def test_what_a_person_does_outlasts_a_response(operator: Browser, delayq: Broker) -> None:
    lively(delayq)
    operator.open(PAGE)
    operator.until(lambda: operator.text("#dq-state") == "live", what="the heartbeat")
    operator.run("""document.querySelector('#dq-throughput details').open = true;
        document.querySelector('#dq-queues-rows a').focus();
        document.querySelector('#dq-q').value = 'half a na';
        window.kept = [document.activeElement, document.querySelector('#dq-tiles li')]""")
    operator.run("window.scrollTo(0, 200)")
    answers(operator, 12)
    kept = operator.run("""return [document.activeElement === window.kept[0], window.kept[1].isConnected,
        window.scrollY, document.querySelector('#dq-throughput details').open,
        document.querySelector('#dq-q').value]""")
    assert kept == [True, True, 200, True, "half a na"]


def test_nothing_changes_under_a_selected_text(operator: Browser, delayq: Broker) -> None:
    lively(delayq)
    operator.open(PAGE)
    answers(operator, 1)
    operator.run("document.getSelection().selectAllChildren(document.querySelector('#dq-redis'))")
    chosen = operator.run("return document.getSelection().toString()")
    answers(operator, 3)
    assert operator.run("return document.getSelection().toString()") == chosen


def test_curves_of_a_busy_dashboard_are_in_sight_on_any_screen(operator: Browser, delayq: Broker) -> None:
    yards = lively(delayq)
    operator.open(PAGE)
    for turn in range(6):
        jobs = [yards["orders"].put(f"turn-{turn}-{more}") for more in range(4 + turn % 3)]
        assert jobs
        settle(yards["orders"], [job for job in yards["orders"].take() if job.id.startswith("turn")], late_ms=30 + turn)
        answers(operator, 1)
    for width in (1280, 360):
        operator.size(width, 800)
        answers(operator, 1)
        assert operator.run("return document.documentElement.scrollWidth") <= width
        assert operator.run(CUT) == []
        for theme in ("light", "dark"):
            operator.theme(theme)
            operator.screenshot(f"dashboard-{width}-{theme}")


def test_two_tabs_share_their_looks(operator: Browser, delayq: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard, "SHARED", 3_600.0)
    yard = Yard(delayq)
    yard.put("a")
    operator.open(PAGE)
    answers(operator, 1)
    yard.put("b")
    answers(operator, 2)
    assert total(operator, "ready") == "1"
    monkeypatch.setattr(dashboard, "SHARED", 0.9)
    operator.until(lambda: total(operator, "ready") == "2", what="a new look")

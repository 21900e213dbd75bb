"""The dashboard in a real browser: it moves, it can be read in several ways, and it survives what happens to Redis."""

from __future__ import annotations

from typing import Any

import pytest

from django_delayq import connections
from django_delayq.admin import dashboard
from django_delayq.core import figures
from django_delayq.core.broker import Broker
from django_delayq.core.figures import DepthPoint
from django_delayq.core.layouts import queue_policy
from tests.admin.browser_scripts import CUT
from tests.admin.dashboards import lively, settle
from tests.admin.support import Yard, every_place
from tests.support.browser import Browser

PAGE = "/admin/django_delayq/dashboard/"
PLACES = ("delayed", "ready", "reserved", "gated", "failed", "morgue")
#: requests for numbers that this page made, and the ms since the last one ended
ASKED = "return performance.getEntriesByType('resource').filter(one => one.name.includes('/dashboard/parts/')).length"
QUIET = """return performance.now()
    - Math.max(...performance.getEntriesByType('resource').map(one => one.responseEnd))"""
LOADED = "return performance.getEntriesByType('resource').map(one => one.name)"
TOPS = "return Array.from(document.querySelectorAll('.dq-dash h2, .dq-plot, .dq-tiles li'), one => one.offsetTop)"
#: the expensive parts are due again
LATER = "const now = performance.now.bind(performance); performance.now = () => now() + 20000"
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
#: of a chart, the texts at an axis; the lengths of its lines; the drawing of the throughput
TICKS = "return Array.from(document.getElementById(arguments[0]).chart.plot.axes[arguments[1]]._values)"
DRAWN = "return document.getElementById(arguments[0]).chart.plot.data.map(one => one.length)"
PICTURE = "return document.querySelector('#dq-throughput canvas').toDataURL()"
WIDE = "return document.documentElement.scrollWidth"
HIDE = """const hidden = arguments[0];
    Object.defineProperty(document, 'hidden', { configurable: true, get: () => hidden });
    document.dispatchEvent(new Event('visibilitychange'))"""


@pytest.fixture(autouse=True)
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page asks five times a second, also on a machine that is busy with other tests."""
    for name, value in {"PAUSE": 0, "SHORTEST_MS": 200, "SHARED": 0.1}.items():
        monkeypatch.setattr(dashboard, name, value)


def total(browser: Browser, name: str) -> str:
    return browser.text(f"[data-total='{name}']").replace("\N{NARROW NO-BREAK SPACE}", "")


def answers(browser: Browser, more: int) -> None:
    """Wait for so many answers from now on."""
    before = browser.run(ASKED)
    browser.until(lambda: browser.run(ASKED) >= before + more, timeout=30, what=f"{more} answers")


def live(browser: Browser, path: str = PAGE) -> None:
    """Open the page and wait for its first answer."""
    browser.open(path)
    browser.until(lambda: browser.text("#dq-state") == "live", what="the heartbeat")


def row(browser: Browser, queue: str) -> list[str]:
    return next(cells for cells in browser.rows("#dq-queues") if cells[0].split()[0] == queue)


def paused(broker: Broker, queue: str = "orders") -> str:
    found: str = queue_policy(broker.queue(queue).layout)["paused"]
    return found


def seed(broker: Broker, *queues: str) -> None:
    """Samples of two hours, with a gap of ten minutes."""
    now_ms = broker.now_ms()
    for ago in (*range(120, 39, -1), *range(29, 0, -1)):
        wave = (ago * 7) % 40
        depth = {"delayed": 4000 + 20 * ago, "ready": wave, "reserved": 8, "failed": 3, "morgue": 1}
        grown = {"scheduled": 700 * (120 - ago), "done": (600 + wave) * (120 - ago), "failing": 12 * (120 - ago)}
        sample = DepthPoint(**depth, **grown, p50_ms=8.0 + wave, p99_ms=80.0 + 9 * wave)
        figures.record_depths(broker, dict.fromkeys(queues, sample), now_ms - ago * 60_000)


# -- what it shows -----------------------------------------------------------------------------------------------------


def test_the_numbers_are_the_inspectors_and_follow_it(operator: Browser, delayq: Broker) -> None:
    yards = lively(delayq)
    operator.open(PAGE)

    def is_told() -> bool:
        counts = {one.queue: [getattr(one, place) for place in PLACES] for one in delayq.inspector.all_counts()}
        sums = list(map(sum, zip(*counts.values(), strict=True)))
        shown = [int(total(operator, place)) for place in PLACES]
        return shown == sums and list(map(int, row(operator, "crm")[1:7])) == counts["crm"]

    operator.until(is_told, what="the numbers of the inspector")
    for more in range(7):
        yards["crm"].put(f"more-{more}", delay_ms=4_000_000)
    operator.until(is_told, what="the new numbers")


def test_the_charts_move(operator: Browser, delayq: Broker) -> None:
    yard = every_place(delayq)
    live(operator)
    operator.run("document.querySelectorAll('.dq-dash details').forEach(one => { one.open = true })")
    drawn = operator.until(lambda: operator.run(PICTURE), what="a drawing")
    figures.record_depths(delayq, {"": DepthPoint(p50_ms=40.0, p99_ms=50.0)}, delayq.now_ms() - 30_000)
    for name in range(20):
        yard.put(f"new-{name}")
    settle(yard, [job for job in yard.take() if job.id.startswith("new")], late_ms=40)
    dashboard.SNAPSHOTS._forget()
    operator.run(LATER)

    def has_rate() -> bool:
        points = operator.rows("#dq-throughput-table")
        return bool(points) and float(points[0][1]) > 0

    operator.until(has_rate, timeout=20, what="a rate")
    operator.until(lambda: operator.run(PICTURE) != drawn, timeout=20, what="another drawing")
    assert operator.rows("#dq-lateness-table")[0][1:] == ["40 ms", "50 ms"]
    assert total(operator, "p99") == "50 ms"

    def ages() -> tuple[str, str]:
        """The time of the backlog, and that of the page."""
        return operator.text("#dq-backlog-summary")[-8:], operator.text("#dq-as-of")[-8:]

    operator.until(lambda: len(set(ages())) == 2, what="a backlog that says how old it is")
    old = ages()[0]
    assert max(operator.run(DRAWN, "dq-backlog")) == 60
    operator.click("in the next day")
    operator.until(lambda: max(operator.run(DRAWN, "dq-backlog")) == 24, what="the hours of a day")
    operator.until(lambda: ages()[0] > old, what="a new backlog")
    assert "span=day" in operator.path


def test_the_charts_are_full_from_the_first_moment(operator: Browser, delayq: Broker) -> None:
    lively(delayq)
    seed(delayq, "", "orders")
    operator.open(PAGE)
    operator.until(lambda: max(operator.run(DRAWN, "dq-depth")) >= 50, what="a drawn hour")
    gaps = "return document.getElementById('dq-depth').chart.gaps.length"
    operator.until(lambda: operator.run(gaps) >= 1, what="the gap")
    assert len(operator.rows("#dq-throughput-table")) >= 50
    for width in (1280, 360):
        operator.size(width, 800)
        answers(operator, 1)
        assert (operator.run(WIDE) <= width, operator.run(CUT)) == (True, [])
        for theme in ("light", "dark"):
            operator.theme(theme)
            operator.screenshot(f"dashboard-{width}-{theme}")


def test_the_page_of_a_queue_draws_its_depth(operator: Browser, delayq: Broker) -> None:
    lively(delayq)
    seed(delayq, "orders")
    for theme in ("light", "dark"):
        operator.theme(theme)
        operator.open("/admin/django_delayq/queueentry/orders/change/")
        operator.until(lambda: max(operator.run(DRAWN, "dq-depth")) >= 45, what="a drawn hour")
        operator.screenshot(f"depth-queue-{theme}")
    operator.run("document.getElementById('dq-auto').click()")
    figures.record_depths(delayq, {"orders": DepthPoint(ready=77)}, delayq.now_ms())
    newest = "return document.getElementById('dq-depth-rows').rows[0].textContent"
    operator.until(lambda: "77" in operator.run(newest), what="the newest sample in the chart that stayed")
    assert max(operator.run(DRAWN, "dq-depth")) >= 45
    operator.click("last day")
    operator.until(lambda: 10 <= max(operator.run(DRAWN, "dq-depth")) <= 12, what="two hours of a day")


@pytest.mark.parametrize("width", [1280, 360])
def test_nothing_is_hidden_or_moves_on_any_screen(operator: Browser, delayq: Broker, width: int) -> None:
    lively(delayq)
    name = "q" + "n" * 63
    Yard(delayq, name).put("a", due_ms=int(delayq.now_ms()) - 99_000, delay_ms=None)
    delayq.pause(name, "out")
    for minutes in (2, 1):
        figures.record_depths(delayq, {"": DepthPoint(p50_ms=40.0, p99_ms=50.0)}, delayq.now_ms() - minutes * 60_000)
    operator.size(width, 900)
    live(operator)
    first = operator.run(TOPS)
    answers(operator, 3)
    assert operator.run(TOPS) == first
    over = operator.run(
        """const box = document.querySelector('.dq-queues').closest('.dq-scroll-x');
        const cell = document.getElementById(`dq-q-${arguments[0]}`).querySelector('th');
        const [pill, head] = [cell.querySelector('[data-paused]'), cell].map(one => one.getBoundingClientRect());
        return [pill.right - head.right, head.width - box.clientWidth / 2, box.scrollWidth - box.clientWidth]""",
        name,
    )
    assert over[0] <= 0, "the pill is in sight"
    assert over[1] <= 0, "the name, which stays in its place, leaves room for the numbers"
    assert over[2] <= 0 or width == 360, "the button is in sight"
    assert operator.attribute(f"#dq-q-{name} [data-link]", "title") == name
    operator.run(HUGE)
    operator.run(LATER)
    for chart, axis in (
        ("dq-backlog", "5\u202fM"),
        ("dq-lateness", "2.8 h"),
        ("dq-throughput", "50\u202fM"),
    ):
        operator.until(lambda chart=chart, axis=axis: operator.run(TICKS, chart, 1)[-1] == axis, what=f"huge {chart}")
    assert operator.run(TICKS, "dq-lateness", 1)[:3] == ["10 ms", "1 s", "100 s"]
    assert (operator.run(TICKS, "dq-backlog", 1)[0], operator.run(TICKS, "dq-backlog", 0)[0]) == ("0", "0 min")
    assert operator.run(CUT) == []
    assert operator.run(WIDE) <= width


# -- what a person does ------------------------------------------------------------------------------------------------


def test_queues_are_found_paused_and_resumed_and_a_worker_is_drained(operator: Browser, delayq: Broker) -> None:
    lively(delayq)
    operator.open(PAGE)
    operator.fill("q", "ORD")
    operator.click("Find")
    assert [cells[0] for cells in operator.rows("#dq-queues")] == ["orders"]
    answers(operator, 2)
    assert operator.text("#dq-queues-note") == "1 / 4"
    operator.click("Pause orders")
    assert operator.path == "/admin/django_delayq/queueentry/orders/change/"
    assert ("paused for workers" in operator.text("h1"), paused(delayq)) == (True, "out")
    operator.open(PAGE)
    operator.until(lambda: "paused for workers" in row(operator, "orders")[0], what="the pause in the table")
    operator.click("Resume orders")
    assert paused(delayq) == ""
    operator.open(PAGE)
    operator.click("[aria-label='Drain… worker-0@app-1:2107']")
    operator.click("Drain the worker")
    assert "The worker receives it with its next heartbeat." in operator.text()
    assert list(delayq.announce("worker-0@app-1:2107", {"queues": ["orders"]}).commands) == ["drain"]


def test_what_a_person_does_outlasts_a_response(operator: Browser, delayq: Broker) -> None:
    lively(delayq)
    live(operator)
    operator.run("""document.querySelector('#dq-throughput details').open = true;
        document.querySelector('#dq-queues-rows a').focus();
        document.querySelector('#dq-q').value = 'half a na';
        window.kept = [document.activeElement, document.querySelector('#dq-tiles li')]""")
    operator.run("window.scrollTo(0, 200)")
    operator.run(LATER)
    answers(operator, 12)
    kept = operator.run("""return [document.activeElement === window.kept[0], window.kept[1].isConnected,
        window.scrollY, document.querySelector('#dq-throughput details').open,
        document.querySelector('#dq-q').value]""")
    assert kept == [True, True, 200, True, "half a na"]
    operator.run("document.getSelection().selectAllChildren(document.querySelector('#dq-redis'))")
    chosen = operator.run("return document.getSelection().toString()")
    answers(operator, 3)
    assert operator.run("return document.getSelection().toString()") == chosen


def test_nothing_is_asked_while_nobody_looks(operator: Browser, delayq: Broker) -> None:
    every_place(delayq)
    operator.open(PAGE)
    for leave, come in (
        (lambda: operator.run(HIDE, True), lambda: operator.run(HIDE, False)),
        (lambda: operator.click("#dq-auto", stays=True), lambda: operator.click("#dq-auto", stays=True)),
    ):
        answers(operator, 1)
        leave()
        operator.until(lambda: operator.run(QUIET) > 1_200, what="six times the usual pause")
        come()
        answers(operator, 1)


# -- what goes wrong ---------------------------------------------------------------------------------------------------


def test_redis_goes_and_comes_back_and_a_session_ends(operator: Browser, delayq: Broker, settings: Any) -> None:
    every_place(delayq)
    live(operator)
    operator.forgive("503")
    here = settings.DELAYQ
    connections.close_broker()
    settings.DELAYQ = {**here, "REDIS": "redis://127.0.0.1:1/0"}
    trouble = "Redis does not answer; next attempt in"
    operator.until(lambda: operator.text("#dq-state").startswith(trouble), timeout=20, what="the word of it")
    assert "Redis cannot be reached just now." in operator.text("#dq-trouble")
    assert total(operator, "failed") == "1", "the last that was heard stays"
    operator.open(PAGE)
    assert "Redis cannot be reached just now." in operator.text("#dq-trouble")
    connections.close_broker()
    settings.DELAYQ = here
    operator.until(lambda: operator.text("#dq-state") == "live", timeout=30, what="the recovery by itself")
    operator.until(lambda: total(operator, "failed") == "1", what="its numbers")
    assert not operator.all("#dq-trouble")[0].is_displayed()

    operator._cdp("Network.clearBrowserCookies")
    ended = "You are signed out; reload the page to sign in"
    operator.until(lambda: operator.text("#dq-state") == ended, what="the end of the session")
    assert operator.path == PAGE
    assert total(operator, "failed") == "1", "the last that was heard stays"
    assert not [one for one in operator.run(LOADED) if "/login/" in one]

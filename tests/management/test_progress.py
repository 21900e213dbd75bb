"""Progress display of long commands: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import io
import re
import sys

import pytest
from django.core.management.base import OutputWrapper

from django_delayq.management.progress import Progress

from .stage import Terminal


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def a_terminal_of_100_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")


def lines(log: io.StringIO, now: Clock, what: str = "run") -> Progress:
    return Progress(what, "rows", OutputWrapper(log), now=now)


def seen(screen: io.StringIO) -> str:
    """The line that stands on the terminal now."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.getvalue()).rpartition("\r")[2]


def test_a_text_says_share_number_rate_and_the_time_left() -> None:
    now = Clock()
    bar = Progress("bulk", "rows", now=now)
    now.now += 5
    bar.update(0)
    assert bar.text() == "0 rows, 0 rows/s, 5 s so far"
    bar.update(1_234_565)
    assert bar.text() == "1,234,565 rows, 246,913 rows/s, 5 s so far"
    bar.update(250, 1000)
    assert bar.text() == "25 %, 250 of 1,000 rows, 50 rows/s, 15 s left"
    bar.update(0)
    assert bar.text() == "0 %, 0 of 1,000 rows, 0 rows/s, 5 s so far"
    bar.update(999)
    assert bar.text().startswith("99 %, 999 of 1,000 rows")
    bar.update(1200)
    assert bar.text() == "100 %, 1,200 of 1,000 rows, 240 rows/s, 0 s left"
    bar.update(0, 0)
    assert bar.text() == "100 %, 0 of 0 rows, 0 rows/s, 0 s left"


def test_name_and_unit_may_change_meanwhile() -> None:
    log, now = io.StringIO(), Clock()
    with lines(log, now, "purge") as shown:
        now.now += 10
        shown.update(2, 4)
        shown.name, shown.unit = "purge, again", "days"
        now.now += 10
        shown.update(3)
    assert log.getvalue().splitlines()[:2] == [
        "purge: 50 %, 2 of 4 rows, 0 rows/s, 10 s left",
        "purge, again: 75 %, 3 of 4 days, 0 days/s, 10 s left",
    ]


def test_parts_are_added_up() -> None:
    bar = Progress("retry")
    for _ in range(2):
        part = bar.part()
        part(3, 10)
        part(10, 10)
    assert (bar.done, bar.total) == (20, 20)


def test_a_terminal_gets_a_bar_that_is_drawn_over() -> None:
    screen = Terminal()
    with Progress("run", "rows", OutputWrapper(screen)) as bar:
        for row in range(10_000):
            bar.update(row, 10_000)
        bar.update(10_000)
    assert re.fullmatch(r"run ━{20} 100% 10000/10000 rows 0:00:0\d *\n", seen(screen))
    assert screen.getvalue().count("\n") == 1
    assert "\r\x1b[2K" in screen.getvalue(), "the line is cleared before it is drawn again"
    assert screen.getvalue().count("run") <= 8, "a terminal is not flooded"
    assert "\x1b[?25l" not in screen.getvalue(), "the cursor of a killed process is still there"


@pytest.mark.parametrize("columns", [100, 60, 20])
def test_a_line_is_never_wider_than_the_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    screen = Terminal()
    with Progress("a rather long name", "rows", OutputWrapper(screen)) as shown:
        shown.update(500, 1000)
    assert max(map(len, seen(screen).splitlines())) <= columns


@pytest.mark.parametrize("variable", ["NO_COLOR", "TERM"])
def test_a_terminal_without_colours_gets_none(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "1" if variable == "NO_COLOR" else "dumb")
    screen = Terminal()
    with Progress("run", out=OutputWrapper(screen)) as shown:
        shown.update(5, 10)
    assert not re.search(r"\x1b\[[0-9;]*m", screen.getvalue().replace("\x1b[0m", ""))
    assert ("━" in screen.getvalue()) is (variable == "NO_COLOR")


def test_an_operation_without_an_update_shows_nothing() -> None:
    screen = Terminal()
    with Progress("run", out=OutputWrapper(screen)):
        pass
    assert screen.getvalue() == ""


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_a_terminal_without_rich_and_a_pipe_get_plain_lines(
    kind: type[io.StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    if kind is Terminal:
        monkeypatch.setitem(sys.modules, "rich", None)
    screen, now = kind(), Clock()
    with lines(screen, now) as shown:
        now.now += 10
        shown.update(5)
    assert screen.getvalue().splitlines()[0] == "run: 5 rows, 0 rows/s, 10 s so far"


def test_a_log_gets_a_line_every_ten_seconds_and_a_short_run_none() -> None:
    log, now = io.StringIO(), Clock()
    with lines(log, now) as shown:
        for second in range(1, 25):
            now.now += 1
            shown.update(second)
        assert log.getvalue().splitlines() == [
            "run: 10 rows, 1 rows/s, 10 s so far",
            "run: 20 rows, 1 rows/s, 20 s so far",
        ]
    assert log.getvalue().count("\n") == 3
    short = io.StringIO()
    with lines(short, now) as shown:
        shown.update(5)
    assert short.getvalue() == ""


def test_the_rate_is_that_of_the_last_seconds_and_not_of_the_whole_run() -> None:
    now = Clock()
    bar = Progress("run", "rows", now=now)
    for _ in range(100):
        now.now += 1
        bar.update(bar.done + 1000, 200_000)
    for _ in range(15):
        now.now += 1
        bar.update(bar.done + 10)
    assert ", 10 rows/s, " in bar.text()
    bar.update(0)  # it begins anew
    assert ", 0 rows/s, " in bar.text()


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_a_reader_that_has_gone_ends_no_run(kind: type[io.StringIO]) -> None:
    screen, now = kind(), Clock()
    with lines(screen, now) as shown:
        now.now += 100
        screen.close()
        shown.update(5)
    assert shown.done == 5

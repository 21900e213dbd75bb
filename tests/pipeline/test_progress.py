"""Progress display of long runs."""

from __future__ import annotations

import io
import threading

import pytest

from django_delayq.pipeline.progress import Point, Progress, clock, draw, following


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def seen(screen: io.StringIO) -> str:
    """The line that stands on the terminal now."""
    return screen.getvalue().rpartition("\r\x1b[K")[2]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (-3, "0s"), (59.4, "59s"), (59.6, "1:00"), (125, "2:05"), (3725, "1:02:05"), (100 * 3600, "4d 4h")],
)
def test_times_are_short(seconds: float, text: str) -> None:
    assert clock(seconds) == text


@pytest.mark.parametrize(
    ("point", "text"),
    [
        (Point(0, None, 0.0, 3.0), "bulk: 0 rows, 0 rows/s, 3s so far"),
        (Point(1234567, None, 100.0, 3.0), "bulk: 1,234,567 rows, 100 rows/s, 3s so far"),
        (Point(250, 1000, 50.0, 5.0), "bulk: 25 %, 250 of 1,000 rows, 50 rows/s, 15s left"),
        (Point(0, 1000, 0.0, 5.0), "bulk: 0 %, 0 of 1,000 rows, 0 rows/s, 5s so far"),
        (Point(0, 0, 0.0, 5.0), "bulk: 100 %, 0 of 0 rows, 0 rows/s, 0s left"),
        (Point(1200, 1000, 10.0, 5.0), "bulk: 100 %, 1,200 of 1,000 rows, 10 rows/s, 0s left"),
        (Point(999, 1000, 0.0, 5.0), "bulk: 99 %, 999 of 1,000 rows, 0 rows/s, 5s so far"),
    ],
)
def test_a_line_tells_rows_rate_share_and_the_time_left(point: Point, text: str) -> None:
    assert draw("bulk", point) == text


def test_a_line_may_count_something_else_than_rows() -> None:
    assert draw("purge", Point(3, 4, 1.0, 3.0), unit="days") == "purge: 75 %, 3 of 4 days, 1 days/s, 1s left"
    screen = Screen()
    bar = Progress("purge", stream=screen, now=Clock(), unit="days")
    bar.update(2)
    bar.what = "purge, again"
    bar.end()
    assert seen(screen).startswith("purge, again: 2 days, 0 days/s")


def test_a_terminal_gets_a_bar_if_it_is_wide_enough() -> None:
    point = Point(250, 1000, 50.0, 5.0)
    assert draw("bulk", point, 100) == f"bulk: {'█' * 5}{'·' * 15}  25 %, 250 of 1,000 rows, 50 rows/s, 15s left"
    assert draw("bulk", point, 60) == "bulk: 25 %, 250 of 1,000 rows, 50 rows/s, 15s left"
    assert draw("bulk", point, 20) == "bulk: 25 %, 250 of "
    assert all(len(draw("bulk", point, width)) < max(2, width) for width in range(120))


def test_on_a_terminal_the_line_is_drawn_over() -> None:
    screen, now = Screen(), Clock()
    bar = Progress("run", stream=screen, now=now)
    for second in range(1, 6):
        now.now += 1
        bar.update(second * 100, 1000)
    assert screen.getvalue().count("\n") == 0
    assert seen(screen).endswith("50 %, 500 of 1,000 rows, 100 rows/s, 5s left")
    bar.note("a word")
    assert seen(screen) == "a word\n"
    bar.update(1000)
    bar.end()
    assert seen(screen).endswith("100 %, 1,000 of 1,000 rows, 200 rows/s, 0s left\n")


def test_a_terminal_is_not_flooded() -> None:
    screen, now = Screen(), Clock()
    bar = Progress("run", stream=screen, now=now)
    for row in range(10_000):
        now.now += 0.0001
        bar.update(row)
    assert screen.getvalue().count("\r") <= 5


def test_a_log_gets_a_line_every_ten_seconds_and_a_short_run_none() -> None:
    log, now = io.StringIO(), Clock()
    bar = Progress("run", stream=log, now=now)
    for second in range(1, 25):
        now.now += 1
        bar.update(second)
    assert log.getvalue().splitlines() == ["run: 10 rows, 1 rows/s, 10s so far", "run: 20 rows, 1 rows/s, 20s so far"]
    bar.end()
    assert log.getvalue().count("\n") == 3
    short = io.StringIO()
    bar = Progress("run", stream=short, now=now)
    bar.update(5)
    bar.end()
    assert short.getvalue() == ""


def test_the_rate_is_that_of_the_last_seconds_and_not_of_the_whole_run() -> None:
    now = Clock()
    bar = Progress("run", stream=io.StringIO(), now=now)
    for _ in range(100):
        now.now += 1
        bar.update(bar.rows + 1000, 200_000)
    for _ in range(20):
        now.now += 1
        bar.update(bar.rows + 10)
    point = bar.point()
    assert point.rate == pytest.approx(10, rel=0.01)
    assert point.left == pytest.approx((200_000 - 100_200) / 10, rel=0.01)


def test_a_counter_that_begins_anew_gives_no_negative_rate() -> None:
    now = Clock()
    bar = Progress("run", stream=io.StringIO(), now=now)
    now.now += 1
    bar.update(100)
    now.now += 1
    bar.update(0)
    assert bar.point().rate == 0.0


def test_nobody_is_bothered_who_wants_quiet() -> None:
    screen, now = Screen(), Clock()
    bar = Progress("run", stream=screen, now=now, quiet=True)
    now.now += 5
    bar.update(5)
    bar.note("hm")
    bar.end()
    assert screen.getvalue() == ""


def test_a_reader_that_has_gone_ends_no_run() -> None:
    screen, now = Screen(), Clock()
    bar = Progress("run", stream=screen, now=now)
    screen.close()
    now.now += 5
    bar.update(5)
    bar.end()
    assert bar.rows == 5


def test_counters_are_followed_while_a_block_runs_and_once_more_at_its_end() -> None:
    looked = threading.Event()
    counter = [3]

    def look() -> tuple[int, int | None]:
        looked.set()
        return counter[0], 10

    bar = Progress("run", stream=io.StringIO())
    with following(bar, look, every=0.001):
        assert looked.wait(5)
        counter[0] = 10
    assert (bar.rows, bar.total) == (10, 10)
    assert not any(thread.name == "delayq-progress" for thread in threading.enumerate())


def test_a_counter_that_cannot_be_read_stops_nothing() -> None:
    def look() -> tuple[int, int | None]:
        raise ConnectionError("away")

    with following(Progress("run", stream=io.StringIO()), look, every=0.001) as bar:
        bar.update(3)
    assert bar.rows == 3

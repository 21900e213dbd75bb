"""Ticks: pure functions of the clock, in any time zone, over every change of the clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import given, strategies as st

from django_delayq.core import InvalidJob, Misconfigured, Task, TaskOptions
from django_delayq.worker.recurring import Cron, Every, check_recurring, grace_ms

BERLIN = ZoneInfo("Europe/Berlin")


def ms(text: str, zone: str = "UTC") -> int:
    """A local time, or one with its offset, as Unix ms."""
    moment = datetime.fromisoformat(text)
    return int((moment if moment.tzinfo else moment.replace(tzinfo=ZoneInfo(zone))).timestamp() * 1000)


def ticks(expression: str, start: str, count: int, zone: str = "Europe/Berlin") -> list[str]:
    """The ticks after a local time, as "day hour:minute offset"."""
    cron, at, found = Cron.parse(expression, zone), ms(start, zone), []
    for _ in range(count):
        at = cron.following(at)
        found.append(f"{datetime.fromtimestamp(at / 1000, ZoneInfo(zone)):%d %H:%M %z}")
    return found


def recurrence_of(options: TaskOptions, zone: str = "Europe/Berlin") -> Cron | Every:
    recurrence = check_recurring(Task(lambda: None, name="work", options=options), zone)
    assert recurrence is not None
    return recurrence


# --- every


def test_intervals_are_counted_from_1970_on_every_machine() -> None:
    step = 7 * 3600 * 1000  # does not divide a day
    every = Every(step)
    first = every.following(ms("2024-05-01T00:00"))
    assert (first % step, every.following(first)) == (0, first + step)
    assert [every.latest(at) for at in (first - 0.5, first, first + 0.5)] == [first - step, first, first]


def test_an_interval_does_not_care_about_summer_time() -> None:
    every = recurrence_of(TaskOptions(every=timedelta(days=1)))
    assert every.following(ms("2024-03-30T12:00", "Europe/Berlin")) == ms("2024-03-31T00:00+00:00")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(600, "every 10m"), (90, "every 90s"), (7200, "every 2h"), (86400, "every 1d"), (1.5, "every 1.500s")],
)
def test_an_interval_is_told_in_its_largest_unit(seconds: float, text: str) -> None:
    assert recurrence_of(TaskOptions(every=seconds)).text == text


@given(st.integers(1000, 10**9), st.floats(0, 4e12))
def test_the_present_lies_between_the_latest_and_the_following_tick(step: int, now: float) -> None:
    every = Every(step)
    assert every.latest(now) <= now < every.following(now)
    assert every.following(now) - every.latest(now) == step


# --- cron


def test_cron_reads_the_clock_of_its_zone() -> None:
    assert ticks("0 3 * * *", "2024-01-10T12:00", 2) == ["11 03:00 +0100", "12 03:00 +0100"]
    assert ticks("0 3 * * *", "2024-07-10T12:00", 1) == ["11 03:00 +0200"]
    assert ticks("*/5 * * * *", "2024-01-10T12:02", 2) == ["10 12:05 +0100", "10 12:10 +0100"]
    assert ticks("30 9 * * mon-fri", "2024-01-12T12:00", 1) == ["15 09:30 +0100"]
    assert ticks("@daily", "2024-01-10T12:00", 1, "Asia/Kolkata") == ["11 00:00 +0530"]


def test_in_spring_a_time_that_does_not_exist_runs_once_at_the_end_of_the_gap() -> None:
    assert ticks("30 2 * * *", "2024-03-30T12:00", 2) == ["31 03:00 +0200", "01 02:30 +0200"]
    assert ticks("15,45 2 * * *", "2024-03-30T12:00", 2) == ["31 03:00 +0200", "01 02:15 +0200"]


def test_in_spring_a_step_leaves_the_missing_hour_out() -> None:
    assert ticks("*/30 * * * *", "2024-03-31T01:20", 3) == ["31 01:30 +0100", "31 03:00 +0200", "31 03:30 +0200"]


def test_in_autumn_a_time_that_exists_twice_runs_the_first_time_only() -> None:
    assert ticks("30 2 * * *", "2024-10-26T12:00", 2) == ["27 02:30 +0200", "28 02:30 +0100"]


def test_in_autumn_a_step_runs_in_both_hours() -> None:
    found = ticks("*/30 * * * *", "2024-10-27T01:45", 5)
    assert found == ["27 02:00 +0200", "27 02:30 +0200", "27 02:00 +0100", "27 02:30 +0100", "27 03:00 +0100"]


def test_inside_the_repeated_hour_what_is_to_come_on_the_clock_does_not_come_again() -> None:
    cron = Cron.parse("30 2 * * *", "Europe/Berlin")
    second_time = ms("2024-10-27T02:10+01:00")  # 02:30 was there 40 minutes ago, and is to come on the clock
    assert cron.latest(second_time) == ms("2024-10-26T02:30+02:00")
    assert cron.following(second_time) == ms("2024-10-28T02:30+01:00")
    assert cron.latest(ms("2024-10-27T03:00+01:00")) == ms("2024-10-27T02:30+02:00")


def test_a_leap_day_comes_in_leap_years() -> None:
    cron = Cron.parse("0 12 29 2 *", "UTC")
    assert cron.latest(ms("2027-06-01T00:00")) == ms("2024-02-29T12:00")
    assert cron.following(ms("2024-02-29T12:00")) == ms("2028-02-29T12:00")
    assert cron.following(ms("2096-03-01T00:00")) == ms("2104-02-29T12:00")


def test_even_the_rarest_day_is_found_in_the_past() -> None:
    cron = Cron.parse("0 0 * 2 mon#5", "UTC")  # a February with five Mondays
    assert cron.latest(ms("2044-02-28T00:00")) == ms("2016-02-29T00:00")


def test_a_midnight_that_does_not_exist_is_no_end_of_ticks() -> None:
    found = ticks("0 0 * * *", "2024-04-25T12:00", 3, "Africa/Cairo")
    assert found == ["26 01:00 +0300", "27 00:00 +0300", "28 00:00 +0300"]


EXPRESSIONS = (
    "*/7 * * * *",
    "30 2 * * *",
    "0,20,40 1-3 * * *",
    "15 */2 * * *",
    "0 0 * * *",
    "5 3 * * sun",
    "0 2,3 31 3 *",
)


@given(
    st.sampled_from(EXPRESSIONS),
    st.sampled_from(["Europe/Berlin", "UTC", "Australia/Lord_Howe", "America/Santiago", "Africa/Cairo"]),
    st.one_of(
        st.integers(ms("2024-01-01T00:00"), ms("2025-01-01T00:00")),
        st.integers(ms("2024-03-31T00:00"), ms("2024-03-31T03:00")),
        st.integers(ms("2024-10-27T00:00"), ms("2024-10-27T03:00")),
    ),
)
def test_wherever_one_begins_the_ticks_are_the_same(expression: str, zone: str, now: int) -> None:
    cron = Cron.parse(expression, zone)
    start = datetime.fromtimestamp(now / 1000 - 9 * 86400, UTC)
    known = [-1]
    for tick in CronSim(expression, start if zone == "UTC" else start.astimezone(ZoneInfo(zone))):
        known.append(int(tick.timestamp() * 1000))
        if known[-1] > now:
            break
    assert known == sorted(set(known))
    assert cron.following(now) == known[-1]
    here, before = (datetime.fromtimestamp(now / 1000 - ago, ZoneInfo(zone)).utcoffset() for ago in (0, 4 * 3600))
    was_put_back = here is not None and before is not None and here < before
    latest = cron.latest(now)
    assert known[-2] < 0 or latest == known[-2] or (was_put_back and (latest is None or latest <= now))


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("* * * *", "five fields"),
        ("* * * * * *", "for seconds, use every="),
        ("@never", "@daily"),
        ("60 * * * *", "Bad minute"),
        ("* * * * 1L/2", "Bad day-of-week"),
        ("* * */0 * *", "Bad day-of-month"),
        ("0 0 31 2 *", "Bad day-of-month"),
        ("0 0 * jänner *", "Bad month"),
        ("\ud800 * * * *", "Bad minute"),
    ],
)
def test_an_expression_that_cannot_be_read_is_refused(expression: str, text: str) -> None:
    with pytest.raises(InvalidJob, match=text):
        Cron.parse(expression, "UTC")


def test_the_zone_of_the_task_wins_over_the_zone_of_the_project() -> None:
    def zone(options: TaskOptions) -> str:
        return recurrence_of(options).zone

    assert zone(TaskOptions(cron="0 3 * * *")) == "Europe/Berlin"
    assert zone(TaskOptions(cron="0 3 * * *", timezone="Asia/Tokyo")) == "Asia/Tokyo"
    with pytest.raises(Misconfigured, match="Mars/Olympus"):
        recurrence_of(TaskOptions(cron="0 3 * * *"), "Mars/Olympus")


def test_what_cannot_recur_is_said_with_the_name_of_the_task() -> None:
    def work() -> None: ...

    with pytest.raises(Misconfigured, match=r"task shop\.work: cron '61 .*Bad minute"):
        check_recurring(Task(work, name="shop.work", options=TaskOptions(cron="61 * * * *")))
    with pytest.raises(Misconfigured, match="id must be 1 to 255 bytes"):
        check_recurring(Task(work, name="x" * 250, options=TaskOptions(every=60)))
    assert check_recurring(Task(work, name="x" * 250, options=TaskOptions())) is None


def test_lateness_is_measured_by_the_time_to_the_next_tick() -> None:
    assert grace_ms(Every(1000), 0) == 100
    assert grace_ms(Every(86_400_000), 0) == 60_000
    assert grace_ms(Cron.parse("*/5 * * * *", "UTC"), ms("2024-01-01T00:00")) == 30_000

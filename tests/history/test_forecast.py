"""Forecast of due jobs, and of the time at which they will be done."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_delayq import connections
from django_delayq.core.errors import QueueUnavailable
from django_delayq.core.job import NewJob
from django_delayq.history.forecast import HOURS, Pace, forecast, paces, predict
from django_delayq.history.periods import floor_hour

from .past import HOUR, hour_of, seed

NOTHING = (0,) * HOURS
LAST = floor_hour(datetime.now(UTC)) - HOUR


def backlog(due: int, *coming: int, later: int = 0) -> tuple[int, ...]:
    return (due, *coming, *NOTHING[len(coming) :], later)


def test_what_is_due_is_done_at_the_pace_of_the_queue() -> None:
    found = predict("q", backlog(50), Pace(100, 20.0))
    assert found.drained_s == 1800
    assert found.behind == (0.0,) * HOURS
    assert found.work_s == 1.0


def test_what_falls_due_meanwhile_is_done_too() -> None:
    found = predict("q", backlog(150, 50, 0), Pace(100, 20.0))
    assert found.behind[:3] == (100, 0, 0)
    assert found.drained_s == 2 * 3600
    found = predict("q", backlog(10, 80), Pace(100, 20.0))
    assert found.drained_s == 1800, "10 more than fall due are done in half an hour"


def test_more_work_than_is_ever_done_is_not_done_in_a_day() -> None:
    found = predict("q", backlog(1, *(200,) * HOURS, later=7), Pace(100, 1.0))
    assert found.drained_s is None
    assert found.behind[-1] == 1 + 100 * HOURS
    assert found.later == 7


def test_where_nothing_is_due_there_is_nothing_to_wait_for() -> None:
    assert predict("q", backlog(0, 500), Pace(100, 1.0)).drained_s == 0
    assert predict("q", backlog(0, 500), Pace(100, 1.0)).behind[0] == 400
    assert predict("q", backlog(0, 5), None).drained_s == 0


def test_without_a_history_nothing_is_foretold() -> None:
    found = predict("q", backlog(5, 3), None)
    assert (found.drained_s, found.behind, found.work_s) == (None, (), None)


@pytest.mark.django_db
def test_a_pace_is_that_of_the_busiest_full_hour_of_the_week() -> None:
    now = LAST + timedelta(hours=1, minutes=30)
    seed(
        hour_of(LAST, late=[1] * 3, took=[100] * 3),
        hour_of(LAST, task="shop.other", late=[1], took=[500]),
        hour_of(LAST - HOUR, late=[1] * 2, took=[100] * 2),
        hour_of(LAST, "mail", late=(), runs=5, lost=5),
        hour_of(LAST + HOUR, late=[1] * 90),
        hour_of(LAST - timedelta(days=8), late=[1] * 90),
    )
    with CaptureQueriesContext(connection) as seen:
        assert paces(now) == {"orders": Pace(4, 1000 / 6)}
    assert len(seen) == 1


@pytest.mark.django_db
def test_the_forecast_counts_what_is_in_redis(delayq: Any) -> None:
    orders, mail = delayq.queue("orders", shards=2), delayq.queue("mail")
    now_ms = int(delayq.now_ms())
    for number in range(6):
        orders.schedule(NewJob(f"due{number}", "shop.cancel", due_ms=now_ms - 5_000, delay_ms=None, priority=number))
    orders.schedule(NewJob("soon", "shop.cancel", delay_ms=90 * 60_000))
    orders.schedule(NewJob("late", "shop.cancel", delay_ms=30 * 3_600_000))
    mail.schedule(NewJob("next", "shop.mail", delay_ms=30 * 60_000))
    seed(hour_of(LAST, late=[1] * 12, took=[1000] * 12))
    found = forecast(delayq)
    by_name = {one.queue: one for one in found.queues}
    assert (by_name["orders"].due, by_name["orders"].hours[:3], by_name["orders"].later) == (6, (0, 1, 0), 1)
    assert by_name["orders"].drained_s == 1800
    assert by_name["mail"].pace is None
    assert (found.total.due, found.total.hours[:3], found.total.later) == (6, (1, 1, 0), 1)
    assert (found.total.drained_s, found.total.work_s) == (1800, 7.0)
    assert found.total.pace == Pace(12, 1000.0)
    assert abs(found.now - datetime.now(UTC)) < timedelta(seconds=30)
    assert [one.queue for one in forecast(delayq, [mail]).queues] == ["mail"]


@pytest.mark.django_db
def test_without_queues_there_is_nothing_ahead(delayq: Any) -> None:
    found = forecast(delayq)
    assert (found.queues, found.total.due, found.total.hours, found.total.drained_s) == ((), 0, NOTHING, 0)
    assert len(found.begins) == HOURS


@pytest.mark.django_db
def test_a_queue_that_was_never_worked_leaves_the_end_of_all_open(delayq: Any) -> None:
    delayq.queue("mail").schedule(NewJob("a", "shop.mail"))
    assert forecast(delayq).total.drained_s is None


def test_a_redis_that_is_away_is_told() -> None:
    connections.close_broker()  # nobody listens where the settings of the tests say
    with pytest.raises(QueueUnavailable):
        forecast(connections.broker(0.3))
    connections.close_broker()

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
from django_delayq.history.series import floor_hour

from .past import HOUR, hour_of, seed

NOTHING = (0,) * HOURS
LAST = floor_hour(datetime.now(UTC)) - HOUR


def backlog(due: int, *coming: int, later: int = 0) -> tuple[int, ...]:
    return (due, *coming, *NOTHING[len(coming) :], later)


@pytest.mark.parametrize(
    ("counts", "per_hour", "drained_s", "behind"),
    [
        (backlog(50), 100, 1800, (0, 0)),
        (backlog(150, 50, 0), 100, 2 * 3600, (100, 0)),
        (backlog(10, 80), 100, 1800, (0, 0)),  # 10 more than fall due are done in half an hour
        (backlog(1, *(200,) * HOURS, later=7), 100, None, (101, 201)),
        (backlog(0, 500), 100, 0, (400, 300)),
        (backlog(0, 5), None, 0, ()),
        (backlog(5, 3), None, None, ()),
    ],
    ids=["due", "falls due", "both", "never", "not yet", "no pace", "no pace but work"],
)
def test_due_jobs_are_done_at_the_pace_of_their_queue(
    counts: tuple[int, ...], per_hour: int | None, drained_s: float | None, behind: tuple[float, ...]
) -> None:
    found = predict("q", counts, None if per_hour is None else Pace(per_hour, 20.0))
    assert (found.due, found.hours, found.later) == (counts[0], counts[1:-1], counts[-1])
    assert (found.drained_s, found.behind[:2]) == (drained_s, behind)
    assert found.work_s == (None if per_hour is None else (found.due + sum(found.hours)) / 50)


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
    assert found.total.drained_s == 1800
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

"""The delay of a durable job counts on the clocks of Redis and of the database, never on that of the web server."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.db import DatabaseError, transaction
from django.db.models import F

from django_delayq import connections, get_job, reschedule, run_now, schedule, schedule_many
from django_delayq.core.broker import Broker
from django_delayq.models import OutboxJob
from django_delayq.outbox.push import Push
from tests.support.moments import in_days
from tests.support.redis_box import RedisBox

from .deeds import note, sync

pytestmark = pytest.mark.django_db(transaction=True)

HOUR = 3600.0


@pytest.fixture(params=[-HOUR, HOUR], ids=["slow", "fast"])
def web_clock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """This process's wall clock is an hour wrong; Redis's and the database's are right."""
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + request.param)
    yield monkeypatch


@pytest.fixture
def server(redis_factory: Callable[..., RedisBox], settings: Any) -> Iterator[RedisBox]:
    """A Redis of the test's own, which it may stop; this process has used it before."""
    box = redis_factory()
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": box.url, "PREFIX": "delays", "OUTBOX": {}}
    schedule(note, "warm", id="warm", delay=60)
    yield box
    box.resume()
    connections.close_broker()


def wait_of(ident: str | int, task: Any = note) -> float:
    """Seconds until a job is due, on Redis's clock."""
    view = get_job(task, id=ident)
    assert view is not None
    return (view.due_ms - connections.broker().now_ms()) / 1000


def about(*seconds: float) -> Any:
    """Allow for the time that the test itself takes."""
    return pytest.approx(seconds, abs=15)


def reconcile() -> None:
    """Do the dispatchers' part for the outbox."""
    call_command("delayq_reconcile", "--outbox", "--json")


def lose_everything(server: RedisBox) -> None:
    """Empty Redis, and restore the queues as the next worker does."""
    server.client().flushall()
    connections.broker().served((), every=True)


def time_passes(seconds: float) -> None:
    """Make all delays begin so much earlier on the database's clock."""
    OutboxJob.objects.update(delay_from=F("delay_from") - timedelta(seconds=seconds))


def test_a_delay_is_kept_when_redis_is_away_at_the_commit(server: RedisBox, web_clock: object) -> None:
    server.pause()
    with transaction.atomic():
        handles = [
            schedule(note, "x", id="plain", delay=60, durable=True),
            schedule(sync, id="merged", payload={}, delay=90, durable=True),
        ]
        schedule_many(note, [{"args": ["x"], "id": "many", "delay": 120}], durable=True)
    assert [handle.outcome for handle in handles] == ["outbox", "outbox"]
    server.resume()
    reconcile()
    assert tuple(wait_of(ident) for ident in ("plain", "many")) == about(60, 120)
    assert (wait_of("merged", sync),) == about(90)


def test_the_time_until_redis_is_back_is_a_part_of_the_delay(server: RedisBox, web_clock: object) -> None:
    server.pause()
    schedule(note, "x", id="later", delay=60, durable=True)
    schedule(note, "x", id="overdue", durable=True, expires=30)
    server.resume()
    time_passes(40)
    reconcile()
    assert (wait_of("later"),) == about(20)
    assert (wait_of("overdue"),) == about(-40), "lateness and expiry count from when it was due"


def test_a_delay_is_kept_when_redis_loses_everything(server: RedisBox, web_clock: object) -> None:
    schedule(note, "x", id="a", delay=60, durable=True)
    lose_everything(server)
    time_passes(25)
    reconcile()
    assert (wait_of("a"),) == about(35)


@pytest.mark.parametrize("trouble", ["away", "loss"])
def test_a_rescheduled_job_waits_for_its_new_delay(server: RedisBox, web_clock: object, trouble: str) -> None:
    at = in_days(30)
    for ident in "abc":
        schedule(note, "x", id=ident, delay=60, durable=True)
    time_passes(50)
    if trouble == "away":
        server.pause()
    with transaction.atomic():
        reschedule(note, id="a", delay=120)
        run_now(note, id="b")
        reschedule(note, id="c", at=at)
    if trouble == "away":
        server.resume()
        OutboxJob.objects.update(claimed_until=None)  # the claim of the request is over
    else:
        lose_everything(server)
    time_passes(20)
    reconcile()
    assert tuple(wait_of(ident) for ident in "ab") == about(100, -20)
    view = get_job(note, id="c")
    assert view is not None
    assert view.due_ms == at.timestamp() * 1000


@pytest.mark.parametrize("durable", [True, False], ids=["durable", "plain"])
def test_a_delay_is_kept_when_the_job_is_sent_right_after_the_commit(
    delayq: Broker, web_clock: object, durable: bool
) -> None:
    with transaction.atomic():
        schedule(note, "x", id="one", delay=60, durable=durable)
        schedule_many(note, [{"args": ["x"], "id": "many", "delay": 120}], durable=durable)
        schedule(note, "x", id="moved", durable=durable)
        reschedule(note, id="moved", delay=90)
    assert tuple(wait_of(ident) for ident in ("one", "many", "moved")) == about(60, 120, 90)


def test_a_moment_is_a_moment_whatever_the_databases_clock_counts(server: RedisBox, web_clock: object) -> None:
    at = in_days(30)
    server.pause()
    schedule(note, "x", id="a", at=at, durable=True)
    server.resume()
    time_passes(1000)
    reconcile()
    view = get_job(note, id="a")
    assert view is not None
    assert view.due_ms == at.timestamp() * 1000


def test_a_job_that_was_sent_before_its_row_could_be_marked_keeps_its_delay(
    server: RedisBox, web_clock: pytest.MonkeyPatch
) -> None:
    """The relay finds that Redis has it, and has no reason to move it."""

    def fail(*_: Any, **__: Any) -> int:
        raise DatabaseError("gone")

    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(Push, "settle", fail)
        schedule(note, "x", id="a", delay=60, durable=True)
    assert OutboxJob.objects.get(job_id="a").state == "unsent"
    before = get_job(note, id="a")
    OutboxJob.objects.update(claimed_until=F("claimed_until") - timedelta(seconds=10))
    reconcile()
    after = get_job(note, id="a")
    assert before is not None
    assert after is not None
    assert before.due_ms == after.due_ms
    assert (wait_of("a"),) == about(60)
    assert OutboxJob.objects.get(job_id="a").state == "sent"

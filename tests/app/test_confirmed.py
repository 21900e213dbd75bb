"""``wait_for_confirmation`` and ``WAIT_…``: who waits for replicas, and what becomes of jobs and rows without them.

The test run's Redis has no replica, so a wait for one never succeeds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from django.db import transaction

from django_delayq import InvalidJob, NotConfirmed, Queue, connections, schedule, schedule_many, signals
from django_delayq.core import NewJob
from django_delayq.core.builder import JobBuilder, JobRules
from django_delayq.core.task import Task, TaskOptions
from django_delayq.outbox import push, rows
from tests.app.deeds import note
from tests.app.outbox_stage import Stage, State, hears

pytestmark = pytest.mark.django_db(transaction=True)

Demand = Callable[..., Any]


@pytest.fixture
def demand(delayq: Any, redis_setting: Any, settings: Any) -> Demand:
    """Return a function that sets ``WAIT_…`` for the project and returns its broker."""
    plain = {"URL": redis_setting} if isinstance(redis_setting, str) else redis_setting

    def set_wait(**wait: Any) -> Any:
        settings.DELAYQ = {**settings.DELAYQ, "REDIS": {**plain, "WAIT_TIMEOUT": 0.1, **wait}}
        return connections.broker()

    return set_wait


def waiting(broker: Any, queue: str = "default") -> list[str]:
    return sorted(view.id for view in broker.inspector.page(queue, "waiting", limit=1000).jobs)


def test_every_job_waits_for_a_confirmation_unless_it_says_otherwise(demand: Demand) -> None:
    broker = demand(WAIT_REPLICAS=1)
    for options in ({}, {"wait_for_confirmation": True}, {"wait_for_confirmation": None}):
        with pytest.raises(NotConfirmed, match="0 of 1 replicas"):
            schedule(note, "x", id="order-5", delay=60, **options)
    assert waiting(broker) == ["order-5"], "it is there, once"
    assert schedule(note, "x", wait_for_confirmation=False).outcome == "created"
    with pytest.raises(NotConfirmed):
        schedule_many(note, [{"args": ["x"]}])
    assert schedule_many(note, [{"args": ["x"]}, {"args": ["y"]}], wait_for_confirmation=False) == {"created": 2}
    assert schedule_many(note, [{"args": ["x"], "wait_for_confirmation": False}]) == {"created": 1}


def test_a_deployment_may_leave_it_to_calls_and_tasks(demand: Demand) -> None:
    demand(WAIT_REPLICAS=1, WAIT_DEFAULT=False)
    assert schedule(note, "x").outcome == "created"
    with pytest.raises(NotConfirmed):
        schedule(note, "x", wait_for_confirmation=True)
    task = Task(print, name="tests.careful", options=TaskOptions(wait_for_confirmation=True))
    assert JobBuilder(task).build(("x",), {}, {}).confirmed is True
    assert JobBuilder(task).build(("x",), {}, {"wait_for_confirmation": False}).confirmed is False
    with pytest.raises(InvalidJob, match="wait_for_confirmation must be True or False"):
        TaskOptions(wait_for_confirmation="yes")


def test_without_anything_that_confirms_the_wish_is_refused_at_the_call(delayq: Any) -> None:
    expected = r"wait_for_confirmation=True needs something that confirms: .* WAIT_AOF, or leave the option out"
    with pytest.raises(InvalidJob, match=expected):
        schedule(note, "x", wait_for_confirmation=True)
    with transaction.atomic(), pytest.raises(InvalidJob, match=expected):
        schedule(note, "x", wait_for_confirmation=True)
    rules = JobRules(can_confirm=lambda: False)
    with pytest.raises(InvalidJob, match=expected):
        JobBuilder(Task(print, name="tests.careful", options=TaskOptions(wait_for_confirmation=True)), rules)
    with pytest.raises(InvalidJob, match="wait_for_confirmation must be True or False"):
        schedule(note, "x", wait_for_confirmation="yes")
    assert schedule(note, "x", wait_for_confirmation=False).outcome == "created"


def test_after_a_commit_a_missing_confirmation_is_signalled(demand: Demand) -> None:
    broker = demand(WAIT_REPLICAS=1)
    with hears(signals.job_not_sent, "id", "error") as heard, transaction.atomic():
        handle = schedule(note, "x", id="order-5", delay=60)
    assert heard == [("order-5", NotConfirmed)]
    assert isinstance(handle.error, NotConfirmed)
    assert waiting(broker) == ["order-5"]


def test_after_a_commit_no_job_is_kept_back_or_called_lost(demand: Demand, caplog: Any) -> None:
    broker = demand(WAIT_REPLICAS=1)
    broker.queue("default", shards=3)
    with transaction.atomic():
        handles = [schedule(note, "x", id=f"order-{number}", delay=60) for number in range(9)]
        plain = schedule(note, "x", id="plain", delay=60, wait_for_confirmation=False)
        kept = schedule(note, "x", id="kept", delay=60, durable=True)
    assert len(waiting(broker)) == 11
    assert {handle.outcome for handle in [*handles, plain]} == {"created"}
    assert [handle.error.id for handle in handles if isinstance(handle.error, NotConfirmed)] == [h.id for h in handles]
    assert (plain.error, kept.outcome, kept.error) == (None, "outbox", None)
    assert "order-5 in queue default was stored, but not confirmed, after the commit" in caplog.text
    with transaction.atomic():
        schedule_many(note, [{"args": ["x"], "delay": 60}] * 600)
    assert broker.inspector.counts("default").delayed == 611
    assert "several jobs in queue default was stored, but not confirmed, after the commit" in caplog.text
    broker.pause("default")
    with transaction.atomic():
        refused = schedule(note, "x", id="refused")
    assert refused.outcome == "not_sent"
    assert "not sent after the commit: QueuePaused" in caplog.text
    assert "job is lost" not in caplog.text


def test_a_wait_after_a_commit_may_last_longer_than_the_budget(demand: Demand) -> None:
    demand(WAIT_REPLICAS=1, WAIT_TIMEOUT=0.8)
    began = time.monotonic()
    with transaction.atomic():
        handle = schedule(note, "x", delay=60)
    assert isinstance(handle.error, NotConfirmed), "the budget for a reply, 0.2 s, is not that of the wait"
    assert time.monotonic() - began > 0.7
    with transaction.atomic():
        handle = schedule(note, "x", id="order-5", delay=60)
    assert isinstance(handle.error, NotConfirmed), "Redis has answered, so the next call is made, too"
    assert "order-5" in waiting(connections.broker())


def test_a_durable_job_is_left_to_the_relay_until_it_is_confirmed(demand: Demand) -> None:
    broker = demand(WAIT_REPLICAS=1)
    assert schedule(note, "x", id="order-5", delay=60, durable=True).outcome == "outbox"
    stage = Stage(broker)
    assert stage.rows() == {"order-5": State.UNSENT}
    stage.age(61)
    assert stage.relay().turn() == {"later": 1}
    assert stage.rows() == {"order-5": State.UNSENT}, "a row counts as sent only after the confirmation"
    assert stage.table.get().error.startswith("Redis has the job, but replicas or disks did not confirm it in time")
    stage = Stage(demand(WAIT_REPLICAS=0))  # as if the replica was there
    stage.age(61)
    assert stage.relay().turn() == {"sent": 1}
    assert stage.rows() == {"order-5": State.SENT}
    assert waiting(stage.broker) == ["order-5"]


def test_rows_that_are_not_confirmed_hold_up_no_others(demand: Demand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(push, "MAX_TRIES", 2)
    broker = demand(WAIT_REPLICAS=1)
    broker.queue("free").schedule_many([NewJob("taken", "another.task", confirmed=False)])
    stage = Stage(broker)
    for queue, ident in (("slow", "one"), ("slow", "two"), ("free", "three"), ("free", "taken")):
        stage.write(ident, queue=queue)
    assert stage.relay().turn() == {"later": 3, "gone": 1}
    assert (stage.waiting("slow"), stage.count("free")) == (["one", "two"], 2)
    assert not rows.waiting(stage.alias).exists(), "the rows behind them are next"
    for _ in range(3):
        stage.age(61)
        assert stage.relay().turn() == {"later": 3}, "they are tried without limit"
    stage = Stage(demand(WAIT_REPLICAS=0))  # as if the replica was there
    stage.age(61)
    assert stage.relay().turn() == {"sent": 3}


def test_raw_bytes_wait_too(demand: Demand) -> None:
    broker = demand(WAIT_REPLICAS=1)
    broker.queue("images", kind="pull")
    with pytest.raises(NotConfirmed):
        Queue("images").put(b"x", id="one")
    assert Queue("images").put(b"x", id="two", wait_for_confirmation=False).outcome == "created"
    assert waiting(broker, "images") == ["one", "two"]

"""Rows of durable jobs while several processes change them: what is on its way is never lost and never told late."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import transaction

from django_delayq import get_job, schedule
from django_delayq.connections import DjangoBroker
from django_delayq.core.errors import QueueFull
from django_delayq.core.queue import Queue
from django_delayq.models import OutboxJob
from django_delayq.outbox import rows
from django_delayq.outbox.rows import DueTime

from .deeds import note
from .outbox_stage import Stage, State, there

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_job_that_keeps_the_due_time_of_its_forerunner_is_sent_behind_it(delayq: DjangoBroker) -> None:
    with transaction.atomic():
        schedule(note, "x", id="a", delay=60, durable=True)
        schedule(note, "y", id="a", due_policy="keep", durable=True)
        assert there() == [("a", "unsent")] * 2
    job = get_job(note, id="a")
    assert job is not None
    assert job.arguments == (["y"], {})
    assert job.due_ms - delayq.now_ms() == pytest.approx(60_000, abs=5_000)


def test_a_row_that_is_on_its_way_is_not_pushed_out(delayq: DjangoBroker) -> None:
    """The holder of the claim may send the row later, and would replace the newer job by the older one."""
    stage = Stage(delayq)
    stage.hold(stage.write("a", queue="default", task=note.name))
    assert schedule(note, "y", id="a", durable=True).outcome == "outbox"
    assert there() == [("a", "unsent")] * 2
    assert get_job(note, id="a") is None


def test_a_job_that_was_moved_again_while_redis_was_told_is_told_again(delayq: DjangoBroker) -> None:
    stage = Stage(delayq)
    stage.sent("a", due_ms=1_000)
    rows.change(stage.table, DueTime(due_ms=2_000, delay_ms=None))
    push = stage.push()
    push.take()
    push.send()
    rows.change(stage.table, DueTime(due_ms=3_000, delay_ms=None))
    push.settle()
    assert there() == [("a", State.MOVED)]
    assert stage.relay().turn() == {"sent": 1}
    job = delayq.inspector.get("orders", "a")
    assert job is not None
    assert job.due_ms == 3_000


def test_a_row_that_was_moved_on_its_way_and_not_taken_is_sent_with_its_new_time(delayq: DjangoBroker) -> None:
    stage = Stage(delayq)
    stage.write("a")
    push = stage.push()
    push.take()  # and its process dies
    due_ms = int(delayq.now_ms()) + 60_000
    rows.change(stage.table, DueTime(due_ms=due_ms, delay_ms=None))
    assert (there(), stage.relay().turn()) == ([("a", State.MOVED)], {})
    stage.age(10, "claimed_until")
    assert [stage.relay().turn() for _ in range(2)] == [{"unsent": 1}, {"sent": 1}]
    job = delayq.inspector.get("orders", "a")
    assert job is not None
    assert job.due_ms == due_ms


def test_after_a_commit_redis_may_be_told_only_while_the_claim_lasts(
    delayq: DjangoBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadlines: list[tuple[float, float]] = []
    send = Queue.schedule_many

    def noted(queue: Queue, news: Any, *, not_after_ms: float) -> Any:
        (until,) = OutboxJob.objects.values_list("claimed_until", flat=True)
        assert until is not None
        deadlines.append((not_after_ms, until.timestamp() * 1000))
        return send(queue, news, not_after_ms=not_after_ms)

    monkeypatch.setattr(Queue, "schedule_many", noted)
    assert schedule(note, "x", durable=True).outcome == "created"
    ((not_after_ms, until_ms),) = deadlines
    assert not_after_ms < until_ms


def test_what_a_full_redis_did_not_take_may_be_told_again_at_once(
    delayq: DjangoBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise QueueFull("no memory")

    monkeypatch.setattr(Queue, "schedule_many", full)
    assert schedule(note, "x", id="a", durable=True).outcome == "outbox"
    row = OutboxJob.objects.get()
    assert (row.state, row.claim) == (State.UNSENT, None)

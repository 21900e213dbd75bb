"""Durable jobs that live in Redis and have no row any more: what pushed them out takes their place, or them with it."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import call_command

from django_delayq.connections import DjangoBroker

from .outbox_stage import QUEUE, TASK, Stage, State

pytestmark = pytest.mark.django_db


@pytest.fixture
def stage(delayq: DjangoBroker) -> Stage:
    return Stage(delayq)


def key_of(stage: Stage, ident: str) -> bytes | None:
    """The key of what lives under an id."""
    view = stage.broker.inspector.get(QUEUE, ident)
    return view.job.key if view is not None else None


def lost(stage: Stage, ident: str) -> bytes:
    """A row that was sent, and is to be sent again because Redis does not know it; its key."""
    row = stage.write(ident)
    stage.table.filter(pk=row.pk).update(sent_at="2026-01-01T00:00:00Z")
    return row.key.bytes


def test_what_a_cancelled_job_was_to_replace_is_cancelled_too(stage: Stage) -> None:
    """Replaced and cancelled while Redis was away: the replaced one has no row any more."""
    stage.table.filter(pk=stage.sent("order-5").pk).delete()
    stage.write("order-5", state=State.CANCELLED)
    assert stage.relay().turn() == {"gone": 1}
    assert (stage.rows(), stage.waiting()) == ({}, [])


@pytest.mark.parametrize("whose", ["durable", "of another task"])
def test_a_job_that_nobody_replaced_is_not_cancelled_for_another(stage: Stage, whose: str) -> None:
    row = stage.sent("order-5", task=TASK if whose == "durable" else "depot.other")
    if whose == "of another task":
        stage.table.filter(pk=row.pk).delete()
    stage.write("order-5", state=State.CANCELLED)
    assert stage.relay().turn() == {"gone": 1}
    assert stage.rows() == ({"order-5": "sent"} if whose == "durable" else {})
    assert stage.waiting() == ["order-5"]


def test_a_lost_job_takes_the_place_that_was_its_own_before_redis_went_back_in_time(stage: Stage) -> None:
    """An old backup has what was replaced since then; its row is gone."""
    old = stage.sent("order-5", due_ms=int(stage.broker.now_ms()) + 60_000)
    stage.table.filter(pk=old.pk).delete()
    key = lost(stage, "order-5")
    stage.write("order-6")
    assert stage.relay().turn() == {"sent": 2}
    assert key_of(stage, "order-5") == key
    view = stage.broker.inspector.get(QUEUE, "order-5")
    assert view is not None
    assert view.due_ms == stage.table.get(job_id="order-5").due_ms, "nothing of the old one is left"


def test_a_lost_job_waits_behind_the_run_of_what_it_replaced(stage: Stage) -> None:
    old = stage.sent("order-5")
    assert stage.broker.queue(QUEUE).reserve_id("order-5", worker="w").jobs
    stage.table.filter(pk=old.pk).delete()
    key = lost(stage, "order-5")
    assert stage.relay().turn() == {"sent": 1}
    view = stage.broker.inspector.get(QUEUE, "order-5")
    assert view is not None
    assert view.gated is not None
    assert (view.job.key, view.gated.key) == (old.key.bytes, key)


def test_a_lost_job_is_kept_while_an_older_copy_has_brought_back_a_job_of_another_task(stage: Stage) -> None:
    """That one was over when the lost one was scheduled under the same id."""
    old = stage.sent("order-5", task="depot.other")
    stage.table.filter(pk=old.pk).delete()
    key = lost(stage, "order-5")
    assert stage.relay().turn() == {"refused": 1}
    stage.finish("order-5")
    call_command("delayq_reconcile", "--refused", "--yes", stdout=StringIO(), stderr=StringIO())
    assert stage.rows() == {"order-5": State.SENT}
    assert key_of(stage, "order-5") == key

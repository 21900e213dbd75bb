"""A row speaks of the job that it was written for: a later one of its id is not cancelled or moved in its stead."""

from __future__ import annotations

from typing import Any

import pytest

from django_delayq.connections import DjangoBroker
from django_delayq.core.job import NewJob, Payload, new_key

from .outbox_stage import QUEUE, Stage, State

pytestmark = pytest.mark.django_db
MINUTE = 60_000
CHANGES = pytest.mark.parametrize("change", [State.CANCELLED, State.MOVED])


@pytest.fixture
def stage(delayq: DjangoBroker) -> Stage:
    return Stage(delayq)


def change_row(stage: Stage, pk: int, change: str) -> None:
    """Cancel or reschedule, while Redis cannot be told."""
    stage.table.filter(pk=pk).update(state=change, due_ms=int(stage.broker.now_ms()) + 60 * MINUTE)


def due_of(stage: Stage, ident: str) -> int | None:
    view = stage.broker.inspector.get(QUEUE, ident)
    return view.due_ms if view is not None and view.state == "delayed" else None


@CHANGES
@pytest.mark.parametrize("payload", [None, "a"])
def test_a_change_of_a_job_that_is_done_does_not_reach_the_next_one_of_its_id(
    stage: Stage, change: str, payload: Any
) -> None:
    row = stage.sent("order-5", payload=payload)
    stage.finish("order-5")
    change_row(stage, row.pk, change)
    due_ms = int(stage.broker.now_ms()) + MINUTE
    new = NewJob("order-5", row.task, b"[]", due_ms=due_ms, delay_ms=None)
    if payload is not None:
        new = NewJob("order-5", row.task, due_ms=due_ms, delay_ms=None, payload=Payload(b'"a"', "1", new_key()))
    stage.broker.queue(QUEUE).schedule(new)
    stage.relay().turn()
    assert due_of(stage, "order-5") == due_ms


@pytest.mark.parametrize("payload", [None, "a"])
def test_a_run_is_stopped_without_what_is_gated_behind_it(stage: Stage, payload: Any) -> None:
    row = stage.sent("order-5", payload=payload)
    (job,) = stage.broker.queue(QUEUE).reserve_id("order-5", worker="w").jobs
    behind = stage.sent("order-5", payload=payload and "b", due_ms=int(stage.broker.now_ms()) + MINUTE)
    change_row(stage, row.pk, State.CANCELLED)
    stage.relay().turn()
    assert stage.broker.queue(QUEUE).touch([job]) == ["stopping"]
    view = stage.broker.inspector.get(QUEUE, "order-5")
    assert view is not None and view.gated_due_ms == behind.due_ms


@CHANGES
@pytest.mark.parametrize("payload", [None, "a"])
def test_gated_content_is_changed_and_not_the_run_before_it(stage: Stage, change: str, payload: Any) -> None:
    stage.sent("order-5", payload=payload)
    (job,) = stage.broker.queue(QUEUE).reserve_id("order-5", worker="w").jobs
    behind = stage.sent("order-5", payload=payload and "b", due_ms=int(stage.broker.now_ms()) + MINUTE)
    change_row(stage, behind.pk, change)
    stage.relay().turn()
    assert stage.broker.queue(QUEUE).touch([job]) == ["held"]
    view = stage.broker.inspector.get(QUEUE, "order-5")
    assert view is not None
    if change == State.CANCELLED:
        assert view.gated_due_ms is None
    else:
        assert view.gated_due_ms == stage.table.get(pk=behind.pk).due_ms


def test_a_merged_job_is_cancelled_with_all_its_payloads_by_the_row_of_one(stage: Stage) -> None:
    row, _ = stage.sent("customer", payload="a"), stage.sent("customer", payload="b")
    change_row(stage, row.pk, State.CANCELLED)
    stage.relay().turn()
    assert stage.waiting() == []
    stage.take_down()
    assert stage.rows() == {}

"""Rows of buried jobs whose mark was lost: they are found in rotation, and watched again if their jobs live."""

from __future__ import annotations

from typing import Any

import pytest

from django_delayq.connections import DjangoBroker
from django_delayq.core.job import NewJob
from django_delayq.outbox.reconciler import LOOK

from .outbox_stage import QUEUE, TASK, Stage, State

pytestmark = pytest.mark.django_db


@pytest.fixture
def stage(delayq: DjangoBroker) -> Stage:
    return Stage(delayq)


def lose_the_marks(stage: Stage) -> None:
    for queue in stage.broker.queues():
        for number in queue.numbers:
            queue.marks(number, forget=queue.marks(number))
    assert stage.marked() == []


def buried(stage: Stage, ident: str) -> None:
    stage.sent(ident)
    stage.bury(ident)
    stage.take_down()


@pytest.mark.parametrize("place", ["waiting", "reserved", "gated"])
def test_a_row_whose_job_lives_again_is_watched_again(stage: Stage, place: str) -> None:
    buried(stage, "kicked")
    buried(stage, "buried")
    queue = stage.broker.queue(QUEUE)
    if place == "gated":
        queue.schedule(NewJob("kicked", TASK, b"[]"))
        assert queue.reserve_id("kicked", worker="w").jobs
    queue.kick("kicked", replace=place == "gated")
    if place == "reserved":
        assert queue.reserve_id("kicked", worker="w").jobs
    lose_the_marks(stage)
    stage.age(601)
    assert stage.reconciler().run() == LOOK
    assert stage.rows() == {"kicked": State.SENT, "buried": State.BURIED}


def test_a_row_behind_whose_id_another_job_lives_stays_buried(stage: Stage) -> None:
    buried(stage, "order-5")
    stage.broker.queue(QUEUE).schedule(NewJob("order-5", TASK, b"[]"))
    stage.age(601)
    assert stage.reconciler().look_at_graves() == (1, 0)
    stage.broker.queue(QUEUE).discard("order-5")
    lose_the_marks(stage)
    stage.age(601)
    assert stage.reconciler().look_at_graves() == (1, 0)
    assert stage.rows() == {"order-5": State.BURIED}


def test_payloads_of_a_merged_job_are_told_apart(stage: Stage) -> None:
    for number in range(3):
        stage.write("7", payload={"n": number})
    stage.relay().turn()
    stage.bury("7")
    stage.take_down()
    stage.sent("7", payload={"n": "new"})
    stage.age(601)
    assert stage.reconciler().look_at_graves() == (3, 0)
    stage.broker.queue(QUEUE).kick("7", replace=True)
    lose_the_marks(stage)
    stage.age(601)
    assert stage.reconciler().look_at_graves() == (3, 3)
    assert set(stage.rows().values()) == {State.SENT}


def test_a_row_in_other_hands_is_left_alone(stage: Stage) -> None:
    buried(stage, "order-5")
    stage.broker.queue(QUEUE).kick("order-5")
    lose_the_marks(stage)
    stage.age(601)
    stage.hold(stage.table.get())
    assert stage.reconciler().look_at_graves() == (0, 0)


def test_all_rows_come_in_turn_and_none_too_often(stage: Stage, django_assert_num_queries: Any) -> None:
    for ident in "abcde":
        buried(stage, ident)
    small = Stage(stage.broker, batch=3).reconciler()
    assert small.look_at_graves() == (0, 0), "they have just been buried"
    stage.age(601)
    assert [small.run(), small.run()] == [0.0, LOOK]
    stage.age(601)
    with django_assert_num_queries(1):
        assert small.run() == LOOK, "a minute has not passed"
    assert small.look_at_graves() == (3, 0)

"""Recording ends of durable jobs: the row first, the mark only when that is certain."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connection, connections
from django.db.utils import OperationalError

from django_delayq.core.outcomes import fail
from django_delayq.outbox import duties as module
from django_delayq.outbox.duties import AGAIN, GATHER, Marks

from .outbox_stage import QUEUE, Stage, State, locked, together

pytestmark = pytest.mark.django_db


def test_a_job_that_is_done_has_no_row_and_no_mark(stage: Stage) -> None:
    stage.sent("order-5")
    stage.finish("order-5")
    assert stage.marked() == ["done"]
    assert stage.take_down() == (1, 0)
    assert (stage.rows(), stage.marked()) == ({}, [])


def test_a_buried_job_is_buried_in_the_outbox_comes_back_with_its_kick_and_is_buried_again(stage: Stage) -> None:
    queue = stage.broker.queue(QUEUE)
    stage.sent("order-5")
    stage.bury("order-5")
    stage.take_down()
    assert stage.rows() == {"order-5": State.BURIED}
    assert queue.kick("order-5") == "kicked"
    stage.take_down()
    assert stage.rows() == {"order-5": State.SENT}
    stage.bury("order-5")
    stage.take_down()
    assert stage.rows() == {"order-5": State.BURIED}
    assert queue.discard("order-5")
    stage.take_down()
    assert (stage.rows(), stage.marked()) == ({}, [])


def test_a_kick_and_an_end_between_two_looks_leave_one_end(stage: Stage) -> None:
    stage.sent("order-5")
    stage.bury("order-5")
    stage.broker.queue(QUEUE).kick("order-5")
    stage.finish("order-5")
    assert stage.take_down() == (1, 0)
    assert stage.rows() == {}


def test_a_failure_that_is_tried_again_leaves_no_mark(stage: Stage) -> None:
    stage.sent("order-5")
    queue = stage.broker.queue(QUEUE)
    (job,) = queue.reserve_id("order-5", worker="w").jobs
    queue.settle([fail(job, 0, 0, delay_ms=0)])
    assert stage.marked() == []
    assert stage.rows() == {"order-5": State.SENT}


@pytest.mark.parametrize("end", ["cancel", "replace"])
def test_what_is_taken_back_or_replaced_has_no_row(stage: Stage, end: str) -> None:
    first = stage.sent("order-5")
    if end == "cancel":
        assert stage.broker.queue(QUEUE).cancel("order-5") == "cancelled"
    else:
        stage.sent("order-5")
    stage.take_down()
    assert not stage.table.filter(pk=first.pk).exists()
    assert stage.table.count() == (0 if end == "cancel" else 1)


def test_each_payload_of_a_merged_job_has_its_own_end(stage: Stage) -> None:
    for number in range(3):
        stage.write("7", payload={"n": number}, queue="crm")
    stage.write("7", payload={"n": 2}, queue="crm")  # equal to another one: absorbed
    stage.relay().turn()
    stage.take_down()
    assert stage.table.count() == 3
    stage.finish("7", "crm")
    assert stage.take_down() == (3, 0)
    assert stage.rows() == {}


def test_a_row_in_other_hands_keeps_its_mark(stage: Stage) -> None:
    row = stage.sent("order-5")
    stage.sent("order-6")
    stage.hold(row)
    stage.finish("order-5")
    stage.finish("order-6")
    assert stage.take_down() == (1, 1)
    assert (stage.rows(), stage.marked()) == ({"order-5": State.SENT}, ["done"])
    stage.age(61)
    assert stage.take_down() == (1, 0)
    assert (stage.rows(), stage.marked()) == ({}, [])


def test_a_row_in_other_hands_keeps_the_mark_of_a_burial_and_of_a_kick(stage: Stage) -> None:
    row = stage.sent("order-5")
    stage.hold(row)
    stage.bury("order-5")
    assert stage.take_down() == (0, 1)
    stage.age(61)
    assert stage.take_down() == (1, 0)
    assert stage.rows() == {"order-5": State.BURIED}
    stage.hold(row)
    stage.broker.queue(QUEUE).kick("order-5")
    assert stage.take_down() == (0, 1)
    stage.age(61)
    assert stage.take_down() == (1, 0)
    assert stage.rows() == {"order-5": State.SENT}


def test_a_row_whose_sender_died_before_it_could_say_sent_hears_its_end(stage: Stage) -> None:
    for ident, end in (("a", stage.finish), ("b", stage.bury)):
        stage.sent(ident)
        end(ident)
    stage.table.update(state=State.UNSENT, sent_at=None)
    stage.take_down()
    assert stage.rows() == {"b": State.BURIED}
    assert stage.relay().turn() == {}


def test_a_cancelled_row_stays_cancelled_when_its_job_was_buried_meanwhile(stage: Stage) -> None:
    stage.sent("order-5")
    stage.bury("order-5")
    stage.table.update(state=State.CANCELLED)
    stage.take_down()
    assert (stage.rows(), stage.marked()) == ({"order-5": State.CANCELLED}, [])
    assert stage.relay().turn() == {"gone": 1}
    assert stage.rows() == {}


def test_a_mark_without_a_row_is_forgotten(stage: Stage) -> None:
    stage.sent("order-5").delete()
    stage.finish("order-5")
    assert stage.take_down() == (1, 0)
    assert stage.marked() == []


def test_more_marks_than_a_page_are_taken_down_past_those_that_must_wait(stage: Stage) -> None:
    rows = [stage.write(f"order-{number}", queue="big") for number in range(600)]
    while stage.relay().turn():
        pass
    for row in rows[:200]:
        stage.hold(row)
    queue = stage.broker.queue("big")
    assert queue.shards == 1
    for row in rows:
        stage.finish(row.job_id, "big")
    while stage.take_down()[0]:
        pass
    assert stage.table.count() == 200
    assert len(stage.marked()) == 200
    stage.age(61)
    stage.take_down()
    assert (stage.table.count(), stage.marked()) == (0, [])


def test_nothing_is_forgotten_before_the_change_is_committed(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.sent("order-5")
    stage.finish("order-5")
    marks = stage.marks()

    def gone(*_: Any) -> None:
        raise OperationalError("the server closed the connection")

    monkeypatch.setattr(module, "_apply", gone)
    stage.changes.note(QUEUE, 0, "marks")
    with pytest.raises(OperationalError):
        marks.run()
    assert stage.marked() == ["done"]
    assert 0 < marks.run() <= AGAIN, "the shard is not forgotten"
    monkeypatch.undo()
    assert stage.take_down() == (1, 0)
    assert (stage.rows(), stage.marked()) == ({}, [])


def test_the_duty_works_when_it_is_rung_and_rests_when_nothing_is_marked(
    stage: Stage, django_assert_num_queries: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rung = threading.Event()
    marks = stage.marks()
    marks.attach(rung.set)
    now = 0.0
    monkeypatch.setattr("django_delayq.outbox.duties.time", SimpleNamespace(monotonic=lambda: now))
    with django_assert_num_queries(0):
        assert marks.run() > 60
    stage.sent("order-5")
    stage.finish("order-5")
    stage.changes.note(QUEUE, 0, "marks")
    assert rung.is_set()
    rest = marks.run()
    assert 0 < rest <= GATHER, "what comes within so short a time is taken down together"
    now += rest
    assert marks.run() > 60
    assert (stage.rows(), stage.marked()) == ({}, [])


def test_marks_that_must_wait_are_looked_at_again(stage: Stage) -> None:
    marks, row = stage.marks(), stage.sent("order-5")
    stage.hold(row)
    stage.finish("order-5")
    stage.changes.note(QUEUE, 0, "marks")
    assert GATHER <= marks.run() <= AGAIN


def test_a_queue_that_was_deleted_has_no_marks(stage: Stage) -> None:
    assert stage.marks().take_down("nowhere", 0) == (0, 0)


@pytest.mark.django_db(transaction=True)
def test_a_row_that_a_transaction_has_locked_keeps_its_mark_and_nobody_waits(stage: Stage) -> None:
    if connection.vendor == "sqlite":
        pytest.skip("SQLite has one lock for all")
    stage.sent("locked")
    stage.sent("free")
    stage.finish("locked")
    stage.finish("free")
    with locked(stage, "locked"):
        assert stage.take_down() == (1, 1)
        assert stage.rows() == {"locked": State.SENT}
    assert stage.take_down() == (1, 0)


@pytest.mark.django_db(transaction=True)
def test_several_processes_take_marks_down_at_the_same_time(stage: Stage) -> None:
    rows = [stage.write(f"order-{number}") for number in range(300)]
    while stage.relay().turn():
        pass
    for row in rows:
        stage.finish(row.job_id)
    together(3, stage.take_down, lambda: bool(stage.marked()))
    assert (stage.table.count(), stage.marked()) == (0, [])


@pytest.mark.usefixtures("delayq")
def test_a_database_that_is_away_keeps_no_end_from_being_recorded_in_another(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    nowhere = {**connections.settings["default"], "ENGINE": "django.db.backends.sqlite3", "NAME": "/nowhere/at/all"}
    monkeypatch.setitem(connections.settings, "away", nowhere)
    marks = Marks(["away", stage.alias], stage.broker, stage.changes)
    for ident in ("order-5", "order-6"):
        stage.sent(ident)
        stage.finish(ident)
        marks.run()
        stage.changes.note(QUEUE, stage.broker.queue(QUEUE).shard_of(ident), "marks")
        marks._next = 0.0
        marks.run()
    assert (stage.rows(), stage.marked()) == ({}, ["done", "done"]), "a mark does not name its database, so it stays"
    assert caplog.messages.count("marks: away failed and is retried; the rest goes on") == 1

"""The reconciler: jobs that Redis lost are sent again; finished, cancelled and buried ones are not."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection

from django_delayq.connections import DjangoBroker
from django_delayq.core.codec import encode
from django_delayq.core.errors import QueueUnavailable
from django_delayq.core.queue import Queue
from django_delayq.core.records.frames import digest
from django_delayq.outbox import duties
from django_delayq.outbox.duties import LOOK, Reconciler

from .outbox_stage import QUEUE, Stage, State, together

pytestmark = pytest.mark.django_db

LONG: float = 3600.0


def reconcile(stage: Stage, reconciler: Reconciler | None = None) -> None:
    """The reconciler, then the relay, until both have nothing to do."""
    reconciler = reconciler or stage.reconciler()
    while reconciler.run() == 0.0:
        pass
    relay = stage.relay()
    while relay.turn():
        pass


def test_a_lost_job_is_sent_again_under_its_key_at_its_time(stage: Stage) -> None:
    due = int(stage.broker.now_ms()) + 3_600_000
    row = stage.sent("order-5", due_ms=due)
    stage.lose_everything()
    stage.age(61)
    reconcile(stage)
    (view,) = stage.broker.inspector.page(QUEUE, "waiting", limit=10).jobs
    assert (view.id, view.due_ms, view.job.key) == ("order-5", due, row.key.bytes)
    assert stage.rows() == {"order-5": State.SENT}


def test_what_was_finished_cancelled_or_buried_is_not_revived(stage: Stage) -> None:
    for ident in ("finished", "cancelled", "buried", "discarded", "waiting", "kicked"):
        stage.sent(ident)
    queue = stage.broker.queue(QUEUE)
    stage.finish("finished")
    queue.cancel("cancelled")
    for ident in ("buried", "discarded", "kicked"):
        stage.bury(ident)
    queue.discard("discarded")
    queue.kick("kicked")
    stage.take_down()
    assert stage.rows() == {"buried": State.BURIED, "waiting": State.SENT, "kicked": State.SENT}
    stage.lose_everything()
    stage.age(61)
    reconcile(stage)
    assert sorted(stage.waiting()) == ["kicked", "waiting"]
    assert stage.rows() == {"buried": State.BURIED, "waiting": State.SENT, "kicked": State.SENT}


@pytest.mark.parametrize("place", ["waiting", "reserved", "gated", "morgue", "marked"])
def test_what_redis_has_in_any_place_is_left_alone(stage: Stage, place: str) -> None:
    stage.sent("order-5")
    queue = stage.broker.queue(QUEUE)
    if place in ("reserved", "gated"):
        assert queue.reserve_id("order-5", worker="w").jobs
    if place == "gated":
        stage.sent("order-5")
    elif place == "morgue":
        stage.bury("order-5")
    elif place == "marked":
        stage.finish("order-5")
    before = list(stage.table.order_by("id").values_list("key", "state"))
    stage.age(LONG)
    reconcile(stage)
    assert list(stage.table.order_by("id").values_list("key", "state")) == before
    assert stage.count() == (place == "waiting")


def test_a_young_row_is_left_alone_and_found_when_it_is_old_enough(stage: Stage) -> None:
    stage.sent("order-5")
    reconciler = stage.reconciler()
    reconciler.run()
    stage.lose_everything()
    stage.changes.note(QUEUE, 0, "lost")
    reconcile(stage, reconciler)
    assert stage.count() == 0
    assert stage.rows() == {"order-5": State.SENT}
    stage.age(61)
    reconcile(stage, reconciler)
    assert stage.count() == 1


def test_rows_are_asked_about_at_the_start_after_a_loss_and_then_seldom(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    unknown = duties.unknown

    def listen(broker: DjangoBroker, rows: Any) -> Iterator[Any]:
        asked.append(len(rows))
        return unknown(broker, rows)

    monkeypatch.setattr(duties, "unknown", listen)
    for _ in range(5):
        stage.sent()
    stage.age(120)
    reconciler = Stage(stage.broker, batch=3).reconciler()
    reconciler._changes = stage.changes
    assert [reconciler.run(), reconciler.run()] == [0.0, LOOK]
    assert asked == [3, 2]
    reconciler.run()
    assert asked[2:] == [], "all were seen since the start"
    stage.age(1)
    stage.changes.note(QUEUE, 0, "lost")
    reconcile(stage, reconciler)
    assert sum(asked[2:]) == 5
    del asked[:]
    stage.age(300)
    since = reconciler._since
    assert since is not None
    reconciler._since = since.replace(year=2000)  # as if it had begun long ago
    reconciler.run()
    stage.age(301)
    reconcile(stage, reconciler)
    assert asked == [3, 2], "ten minutes after the last look it is each row's turn again"


def test_an_idle_reconciler_asks_the_database_once_and_redis_never(
    stage: Stage, django_assert_num_queries: Any
) -> None:
    from django_delayq.core.redis.connection import RedisConfig, connect

    nowhere = DjangoBroker(connect(RedisConfig.parse("redis://127.0.0.1:1/0")))
    reconciler = Stage(nowhere).reconciler()
    with django_assert_num_queries(1):
        assert reconciler.run() == LOOK
    stage.sent()
    reconciler.run()
    with django_assert_num_queries(1):
        assert reconciler.run() == LOOK


def test_while_redis_does_not_answer_nothing_is_sent_again_and_all_is_asked_afterwards(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.sent("order-5")
    stage.age(61)
    reconciler = stage.reconciler()

    def gone(*_: Any) -> Any:
        raise QueueUnavailable("gone")

    monkeypatch.setattr(stage.broker, "existing", gone)
    with pytest.raises(QueueUnavailable):
        reconciler.run()
    assert stage.rows() == {"order-5": State.SENT}
    monkeypatch.undo()
    stage.lose_everything()
    reconcile(stage, reconciler)
    assert stage.count() == 1


def test_a_row_in_other_hands_is_not_sent_again(stage: Stage) -> None:
    row = stage.sent("order-5")
    stage.lose_everything()
    stage.age(61)
    stage.hold(row)
    reconcile(stage)
    assert stage.count() == 0


def test_a_lost_job_whose_id_another_one_has_taken_is_given_up(stage: Stage) -> None:
    stage.sent("order-5")
    stage.lose_everything()
    newer = stage.sent("order-5")
    stage.age(61)
    reconcile(stage)
    assert [row.key for row in stage.table] == [newer.key]
    view = stage.broker.inspector.get(QUEUE, "order-5")
    assert view is not None
    assert view.job.key == newer.key.bytes


def test_what_was_gated_comes_back_behind_the_run_that_it_waited_for(stage: Stage) -> None:
    first = stage.sent("order-5")
    queue = stage.broker.queue(QUEUE)
    assert queue.reserve_id("order-5", worker="w").jobs
    second = stage.sent("order-5")
    stage.lose_everything()
    stage.age(61)
    reconcile(stage)
    view = stage.broker.inspector.get(QUEUE, "order-5")
    assert view is not None
    assert (view.job.key, view.gated) == (first.key.bytes, None)
    assert stage.table.count() == 2
    stage.finish("order-5")
    stage.take_down()
    stage.age(61)
    reconcile(stage)
    view = stage.broker.inspector.get(QUEUE, "order-5")
    assert view is not None
    assert view.job.key == second.key.bytes


def test_all_payloads_of_a_lost_merged_job_come_back(stage: Stage) -> None:
    for number in range(5):
        stage.write("7", payload={"n": number}, queue="crm")
    stage.relay().turn()
    stage.lose_everything()
    stage.age(61)
    reconcile(stage)
    view = stage.broker.inspector.get("crm", "7")
    assert view is not None
    assert view.payload_count == 5


def test_a_loss_rings_the_duty(stage: Stage) -> None:
    rung = threading.Event()
    stage.reconciler().attach(rung.set)
    stage.changes.note(QUEUE, 0, "lost")
    assert rung.is_set()


@pytest.mark.django_db(transaction=True)
def test_several_dispatchers_share_the_work_and_send_nothing_twice(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [stage.sent(f"order-{number}").job_id for number in range(60)]
    stage.lose_everything()
    stage.age(61)
    small = Stage(stage.broker, batch=7)
    asked: Counter[int] = Counter()
    gate, unknown, mine = threading.Barrier(3), duties.unknown, threading.local()

    def listen(broker: DjangoBroker, rows: Any) -> Iterator[Any]:
        asked.update(row.pk for row in rows)
        return unknown(broker, rows)

    monkeypatch.setattr(duties, "unknown", listen)

    def live() -> None:
        if not hasattr(mine, "duties"):
            mine.duties = small.reconciler(), small.relay()
            gate.wait(10)
        mine.duties[0].run()
        mine.duties[1].turn()

    together(3, live, lambda: stage.table.filter(state=State.UNSENT).exists() or stage.count() < len(ids))
    assert sorted(stage.waiting()) == sorted(ids)
    assert set(stage.rows().values()) == {State.SENT}
    if connection.vendor != "sqlite":
        assert set(asked.values()) == {1}, "each row was asked about by one of them"


def test_a_batch_costs_as_many_queries_as_a_row(stage: Stage, django_assert_max_num_queries: Any) -> None:
    for number in range(40):
        stage.write(str(number // 8), payload={"n": number}, queue="crm")
        stage.write(f"order-{number // 2}", on_conflict="ignore")
    while stage.relay().turn():
        pass
    stage.lose_everything()
    stage.age(61)
    with django_assert_max_num_queries(12):
        asked, missing = stage.reconciler().look(stage.now())
    assert asked == missing == 60


def test_payloads_are_asked_for_by_their_digests(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else Redis had to read all payloads of the id to find one."""
    row = stage.sent("7", payload={"n": 1}, queue="crm")
    stage.sent("7", payload={"n": 2}, queue="crm")
    stage.sent("order-5")
    asked: list[tuple[str, bytes, bytes]] = []
    knows = Queue.knows

    def listen(self: Queue, pairs: Any) -> list[bool]:
        asked.extend(pairs)
        return knows(self, pairs)

    monkeypatch.setattr(Queue, "knows", listen)
    stage.age(61)
    reconcile(stage)
    first = digest(encode({"n": 1}))
    assert {pair[0]: pair[2] == b"" for pair in asked} == {"7": False, "order-5": True}
    assert ("7", row.key.bytes, first) in asked

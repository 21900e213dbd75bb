"""The relay tells Redis what the writer could not: once, in order, and past what Redis refuses."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection

from django_delayq import signals
from django_delayq.connections import DjangoBroker
from django_delayq.core.errors import QueueUnavailable
from django_delayq.core.redis.connection import RedisConfig, connect
from django_delayq.core.task import Registry
from django_delayq.outbox import durability, push, rows
from django_delayq.outbox.duties import BUSY, IDLE
from django_delayq.outbox.push import MAX_TRIES, PAUSES
from django_delayq.outbox.rows import DueTime
from django_delayq.transactions import not_sent

from .outbox_stage import QUEUE, Stage, State

pytestmark = pytest.mark.django_db


@pytest.fixture
def stage(delayq: DjangoBroker) -> Stage:
    return Stage(delayq)


@pytest.fixture
def heard() -> Iterator[list[tuple[str, str]]]:
    """(id, class of the error) of each job_not_sent."""
    found: list[tuple[str, str]] = []

    def hear(*, id: str, error: Exception, **_: Any) -> None:
        found.append((id, type(error).__name__))

    signals.job_not_sent.connect(hear)
    before = not_sent.copy()
    yield found
    signals.job_not_sent.disconnect(hear)
    not_sent.clear()
    not_sent.update(before)


def test_g7_what_was_committed_and_not_sent_is_sent_by_the_relay(stage: Stage) -> None:
    due = int(stage.broker.now_ms()) + 60_000
    row = stage.write("order-5", due_ms=due)
    assert stage.relay().run() == 0.0, "it goes on at once while there is work"
    (view,) = stage.broker.inspector.page(QUEUE, "waiting", limit=10).jobs
    assert (view.id, view.due_ms, view.job.key) == ("order-5", due, row.key.bytes)
    row.refresh_from_db()
    assert (row.state, row.claim, row.claimed_until, row.tries) == (State.SENT, None, None, 0)
    assert row.sent_at == row.checked_at is not None


def test_g8_a_job_that_was_sent_before_its_row_could_be_marked_is_not_sent_twice(stage: Stage) -> None:
    row = stage.sent("order-5")
    stage.table.update(state=State.UNSENT, sent_at=None)
    assert stage.relay().turn() == {"sent": 1}
    assert stage.count() == 1
    stage.finish("order-5")
    stage.table.update(state=State.UNSENT, sent_at=None)
    assert stage.relay().turn() == {"sent": 1}, "Redis knows by its mark that it has ended"
    assert stage.count() == 0
    stage.take_down()
    assert not stage.table.filter(pk=row.pk).exists()


def test_g9_a_finished_job_is_not_revived_however_late_its_row_is_found(stage: Stage) -> None:
    stage.sent("order-5")
    stage.finish("order-5")
    stage.table.update(state=State.UNSENT, sent_at=None)
    stage.age(30 * 86_400)  # a mark waits as long as its row does: there is no window to outlive
    stage.relay().turn()
    assert stage.count() == 0
    assert stage.take_down() == (1, 0)
    assert stage.rows() == {}


def test_a_row_in_other_hands_is_left_there_until_the_claim_is_over(stage: Stage) -> None:
    row = stage.write("order-5")
    stage.hold(row)
    assert stage.relay().run() == BUSY
    assert stage.count() == 0
    stage.age(61)
    assert stage.relay().turn() == {"sent": 1}


def test_rows_of_one_job_are_told_in_their_order(stage: Stage) -> None:
    first = stage.write("order-5")
    second = stage.write("order-5")
    other = stage.write("order-6")
    assert stage.relay().turn() == {"sent": 3}
    view = stage.broker.inspector.get(QUEUE, "order-5")
    assert view is not None
    assert view.job.key == second.key.bytes, "the second replaced the first"
    stage.take_down()
    assert set(stage.table.values_list("pk", flat=True)) == {second.pk, other.pk}
    assert first.pk < second.pk


def test_rows_behind_one_in_other_hands_wait_and_others_do_not(stage: Stage) -> None:
    first = stage.write("order-5")
    behind = [stage.write("order-5") for _ in range(5)]
    stage.write("order-6")
    stage.hold(first)
    narrow = Stage(stage.broker, batch=2)
    assert narrow.relay().turn() == {"sent": 1}
    assert stage.waiting() == ["order-6"]
    assert set(stage.table.filter(state=State.UNSENT).values_list("pk", flat=True)) == {
        first.pk,
        *(row.pk for row in behind),
    }


def test_a_cancellation_is_told_before_what_was_scheduled_after_it(stage: Stage) -> None:
    stage.sent("order-5", due_ms=int(stage.broker.now_ms()) + 60_000)
    stage.table.update(state=State.CANCELLED)
    later = stage.write("order-5")
    assert stage.relay().turn() == {"gone": 1, "sent": 1}
    assert stage.waiting() == ["order-5"]
    assert list(stage.table.values_list("pk", flat=True)) == [later.pk]


def test_a_cancelled_job_that_redis_never_had_is_only_forgotten(stage: Stage) -> None:
    stage.write("order-5", state=State.CANCELLED)
    assert stage.relay().turn() == {"gone": 1}
    assert stage.rows() == {}


def test_cancelling_tells_the_signal(stage: Stage) -> None:
    said: list[Any] = []

    def hear(*, id: str, outcome: str, **_: Any) -> None:
        said.append((id, outcome))

    signals.job_cancelled.connect(hear)
    try:
        stage.sent("order-5")
        stage.table.update(state=State.CANCELLED)
        stage.relay().turn()
    finally:
        signals.job_cancelled.disconnect(hear)
    assert said == [("order-5", "cancelled")]
    assert stage.count() == 0


def test_a_moved_job_is_rescheduled(stage: Stage) -> None:
    row = stage.sent("order-5")
    due = int(stage.broker.now_ms()) + 3_600_000
    stage.move(due)
    assert stage.relay().turn() == {"sent": 1}
    view = stage.broker.inspector.get(QUEUE, "order-5")
    assert view is not None
    assert view.due_ms == due
    row.refresh_from_db()
    assert (row.state, row.claim) == (State.SENT, None)


def test_a_moved_job_that_redis_has_lost_is_sent_again_at_its_new_time(stage: Stage) -> None:
    stage.sent("order-5")
    due = int(stage.broker.now_ms()) + 3_600_000
    stage.move(due)
    stage.lose_everything()
    relay = stage.relay()
    assert [relay.turn(), relay.turn()] == [{"unsent": 1}, {"sent": 1}]
    view = stage.broker.inspector.get(QUEUE, "order-5")
    assert view is not None
    assert view.due_ms == due


def test_a_job_that_was_rescheduled_while_its_first_sender_died_gets_its_new_time(stage: Stage) -> None:
    stage.sent("order-5")
    due = int(stage.broker.now_ms()) + 3_600_000
    stage.table.update(state=State.UNSENT, sent_at=None, claim=uuid.uuid4())
    rows.change(stage.table, DueTime(due_ms=due, delay_ms=None))
    assert stage.relay().turn() == {"sent": 1}
    view = stage.broker.inspector.get(QUEUE, "order-5")
    assert view is not None
    assert view.due_ms == due


def test_a_row_that_was_changed_on_its_way_is_told_again(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.write("moved")
    stage.write("cancelled")
    due = int(stage.broker.now_ms()) + 3_600_000
    settle = push.Push.settle

    def meanwhile(*args: Any) -> None:
        rows.change(stage.table.filter(job_id="moved"), DueTime(due_ms=due, delay_ms=None))
        rows.change(stage.table.filter(job_id="cancelled"), None)
        settle(*args)

    monkeypatch.setattr(push.Push, "settle", meanwhile)
    stage.relay().turn()
    assert stage.rows() == {"moved": State.MOVED, "cancelled": State.CANCELLED}
    monkeypatch.undo()
    assert stage.relay().turn() == {"gone": 1, "sent": 1}
    (view,) = stage.broker.inspector.page(QUEUE, "waiting", limit=10).jobs
    assert (view.id, view.due_ms) == ("moved", due)
    assert stage.rows() == {"moved": State.SENT}


def test_g11_what_cannot_be_read_is_refused_at_once_and_holds_up_nobody(
    stage: Stage, heard: list[tuple[str, str]]
) -> None:
    broken = stage.write("broken", record=b"\xff\xfe")
    behind = stage.write("broken")
    stage.write("x" * 255)
    long = stage.write("x" * 256 if connection.vendor == "sqlite" else "é" * 200)
    good = [stage.write() for _ in range(3)]
    assert stage.relay().turn() == {"refused": 2, "sent": 5}
    assert stage.count() == 5
    refused = {row.pk: row for row in stage.table.filter(state=State.REFUSED)}
    assert set(refused) == {broken.pk, long.pk}
    assert "cannot be read" in refused[broken.pk].error
    assert "InvalidJob" in refused[long.pk].error
    assert {ident for ident, _ in heard} == {"broken", long.job_id}
    assert stage.table.get(pk=behind.pk).state == State.SENT
    assert {row.job_id for row in good} <= set(stage.waiting())


def test_g11_a_paused_queue_is_tried_again_for_ever_in_growing_intervals(stage: Stage) -> None:
    stage.broker.queue(QUEUE)
    stage.broker.pause(QUEUE, "in")
    row = stage.write("order-5")
    stage.write("other", queue="others")
    relay = stage.relay()
    assert relay.turn() == {"later": 1, "sent": 1}
    pauses = []
    for _ in range(12):
        row.refresh_from_db()
        assert row.claimed_until is not None
        pauses.append(round((row.claimed_until - stage.now()).total_seconds()))  # type: ignore[operator]
        assert "paused" in row.error
        assert relay.turn() == {}, "it rests"
        stage.age(61, "claimed_until")
        assert relay.turn() == {"later": 1}
    assert pauses == [*map(round, PAUSES), *[60] * 5]
    stage.broker.resume(QUEUE)
    stage.age(61, "claimed_until")
    assert relay.turn() == {"sent": 1}
    row.refresh_from_db()
    assert (row.state, row.tries, row.error) == (State.SENT, 0, "")


def test_g11_a_full_queue_holds_up_only_itself(delayq: DjangoBroker, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {QUEUE: {"max_length": 1}}}
    from django_delayq import connections

    stage = Stage(connections.broker())
    stage.write("a", queue="others")
    for ident in ("b", "c"):
        stage.write(ident)
    assert stage.relay().turn() == {"sent": 2, "later": 1}
    stage.finish("b")
    stage.age(61, "claimed_until")
    assert stage.relay().turn() == {"sent": 1}
    assert stage.waiting() == ["c"]


@pytest.mark.broken_on_purpose
def test_g11_another_error_is_tried_so_often_and_then_a_person_is_asked(
    stage: Stage, heard: list[tuple[str, str]]
) -> None:
    queue = stage.broker.queue(QUEUE, shards=1)
    stage.broker.client.set(queue.shard(queue.shard_of("bad")).names["body"], b"not a hash")
    row = stage.write("bad")
    stage.write("good", queue="others")
    relay = stage.relay()
    assert relay.turn() == {"later": 1, "sent": 1}
    for _ in range(MAX_TRIES - 1):
        stage.age(61, "claimed_until")
        relay.turn()
    row.refresh_from_db()
    assert (row.state, row.tries, row.claim) == (State.REFUSED, MAX_TRIES, None)
    assert "WRONGTYPE" in row.error
    assert heard == [("bad", "DelayQError")]


@pytest.mark.parametrize(
    ("options", "outcome", "signalled"),
    [
        ({"task": "depot.other"}, "taken", [("order-5", "IdTaken")]),
        ({"on_conflict": "error"}, "exists", [("order-5", "IdTaken")]),
        ({"on_conflict": "ignore"}, "ignored", []),
    ],
)
def test_g11_a_job_whose_id_is_in_use_is_given_up_and_told(
    stage: Stage, heard: list[tuple[str, str]], options: dict[str, str], outcome: str, signalled: list[tuple[str, str]]
) -> None:
    stage.sent("order-5")
    before = not_sent[outcome]
    stage.write("order-5", **options)
    assert stage.relay().turn() == {"gone": 1}
    assert stage.table.count() == 1
    assert not_sent[outcome] == before + 1
    assert heard == signalled


def test_a_lost_job_that_is_sent_again_pushes_nobody_aside(stage: Stage) -> None:
    lost = stage.sent("order-5")
    stage.lose_everything()
    newer = stage.sent("order-5")
    stage.table.filter(pk=lost.pk).update(state=State.UNSENT)
    assert stage.relay().turn() == {"gone": 1}
    view = stage.broker.inspector.get(QUEUE, "order-5")
    assert view is not None
    assert view.job.key == newer.key.bytes


def test_payloads_of_a_merged_job_are_all_sent(stage: Stage) -> None:
    for number in range(7):
        stage.write("7", payload={"n": number}, task="depot.collect", queue="crm")
    assert stage.relay().turn() == {"sent": 7}
    view = stage.broker.inspector.get("crm", "7")
    assert view is not None
    assert view.payload_count == 7


def test_more_rows_than_a_batch_are_sent_in_several(stage: Stage) -> None:
    for _ in range(7):
        stage.write()
    relay = Stage(stage.broker, batch=3).relay()
    assert [relay.run() for _ in range(4)] == [0.0, 0.0, 0.0, BUSY]
    assert stage.count() == 7


def test_an_outbox_that_nothing_announces_is_looked_at_seldom(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, django_assert_num_queries: Any
) -> None:
    monkeypatch.setattr(durability, "registry", Registry())  # without a durable task
    nowhere = DjangoBroker(connect(RedisConfig.parse("redis://127.0.0.1:1/0")))  # it is not asked
    relay = Stage(nowhere).relay()
    with django_assert_num_queries(1):
        assert relay.run() == IDLE
    stage.write("order-5")
    assert stage.relay().run() == 0.0


def test_an_outbox_that_the_settings_name_is_looked_at_often(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    monkeypatch.setattr(durability, "registry", Registry())
    relay = stage.relay()
    assert relay.run() == IDLE
    settings.DELAYQ = {**settings.DELAYQ, "OUTBOX": {}}
    assert relay.run() == BUSY


def test_work_that_is_announced_ends_the_rest(stage: Stage) -> None:
    rung = threading.Event()
    relay = stage.relay()
    relay.attach(rung.set)
    relay.wake()
    assert rung.is_set()


def test_g12_while_redis_is_gone_rows_pile_up_and_are_all_sent_afterwards(
    stage: Stage, redis_factory: Callable[..., Any], proxy_factory: Callable[..., Any]
) -> None:
    box = redis_factory(tcp=True)
    proxy = proxy_factory(box.address)
    broker = DjangoBroker(connect(RedisConfig.parse(f"{proxy.url}?retries=0&socket_timeout=0.5")), prefix="far")
    away = Stage(broker)
    away.sent("before")
    now = int(broker.now_ms())
    proxy.refuse()
    relay = away.relay()
    for number in range(30):
        away.write(f"order-{number}", due_ms=now)
        with pytest.raises(QueueUnavailable):
            relay.turn()
    assert set(away.table.exclude(job_id="before").values_list("state", "claimed_until")) == {(State.UNSENT, None)}
    proxy.passing()
    assert relay.turn() == {"sent": 30}
    assert away.count() == 31
    broker.connection.close()


def test_g12_a_redis_that_dies_in_the_middle_leaves_rows_that_are_tried_again_at_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.write("a", queue="first")
    stage.write("b", queue="second")
    relay = stage.relay()
    queue = stage.broker.queue

    def dead(name: str) -> Any:
        if name == "second":
            raise QueueUnavailable("gone")
        return queue(name)

    monkeypatch.setattr(stage.broker, "queue", dead)
    with pytest.raises(QueueUnavailable):
        relay.turn()
    assert stage.rows() == {"a": State.SENT, "b": State.UNSENT}
    monkeypatch.undo()
    assert relay.turn() == {"sent": 1}

"""The relay tells Redis what the writer could not: once, in order, and past what Redis refuses."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection

from django_delayq import signals
from django_delayq.connections import DjangoBroker
from django_delayq.core.errors import DelayQError, IdTaken, QueueUnavailable
from django_delayq.core.job import NewJob, Payload, new_key
from django_delayq.core.redis.connection import RedisConfig, connect
from django_delayq.core.task import Registry
from django_delayq.outbox import durability, push, rows
from django_delayq.outbox.duties import BUSY, IDLE
from django_delayq.outbox.push import MAX_TRIES, PAUSES
from django_delayq.outbox.rows import DueTime
from django_delayq.transactions import not_sent

from .outbox_stage import QUEUE, TASK, Stage, State, hears

pytestmark = pytest.mark.django_db
Heard = list[tuple[str, type[Exception]]]


@pytest.fixture
def heard() -> Iterator[Heard]:
    """(id, class of the error) of each job_not_sent."""
    before = not_sent.copy()
    with hears(signals.job_not_sent, "id", "error") as found:
        yield found
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
    with hears(signals.job_cancelled, "id", "outcome") as said:
        stage.sent("order-5")
        stage.table.update(state=State.CANCELLED)
        stage.relay().turn()
    assert said == [("order-5", "cancelled")]
    assert stage.count() == 0


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


def test_g11_what_cannot_be_read_is_refused_at_once_and_holds_up_nobody(stage: Stage, heard: Heard) -> None:
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
def test_g11_another_error_is_tried_so_often_and_then_a_person_is_asked(stage: Stage, heard: Heard) -> None:
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
    assert heard == [("bad", DelayQError)]


@pytest.mark.parametrize(
    ("options", "outcome"), [({"task": "depot.other"}, "taken"), ({"on_conflict": "error"}, "exists")]
)
def test_g11_a_job_whose_id_is_in_use_is_given_up_and_told(
    stage: Stage, heard: Heard, options: dict[str, str], outcome: str
) -> None:
    stage.sent("order-5")
    before = not_sent[outcome]
    stage.write("order-5", **options)
    assert stage.relay().turn() == {"gone": 1}
    assert stage.table.count() == 1
    assert not_sent[outcome] == before + 1
    assert heard == [("order-5", IdTaken)]


def test_a_job_that_gives_way_to_one_of_its_id_is_scheduled_as_without_an_outage(stage: Stage, heard: Heard) -> None:
    stage.sent("order-5")
    before = not_sent.copy()
    stage.write("order-5", on_conflict="ignore")
    with hears(signals.job_scheduled, "id", "outcome") as scheduled:
        assert stage.relay().turn() == {"gone": 1}
    assert (stage.table.count(), scheduled) == (1, [("order-5", "ignored")])
    assert (not_sent, heard) == (before, [])


def test_a_lost_job_that_is_sent_again_pushes_nobody_aside(stage: Stage) -> None:
    lost = stage.sent("order-5")
    stage.lose_everything()
    newer = stage.sent("order-5")
    stage.table.filter(pk=lost.pk).update(state=State.UNSENT)
    assert stage.relay().turn() == {"gone": 1}
    view = stage.broker.inspector.get(QUEUE, "order-5")
    assert view is not None
    assert view.job.key == newer.key.bytes


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


# -- claims: who tells Redis of a row, and for how long


@pytest.fixture
def scheduled() -> Iterator[list[str]]:
    """Ids of which job_scheduled was sent."""
    with hears(signals.job_scheduled, "id") as found:
        yield found


def test_redis_may_be_told_only_while_the_claim_lasts(stage: Stage) -> None:
    row = stage.write("order-5")
    hand = stage.push()
    assert [claimed.pk for claimed in hand.take()] == [row.pk]
    row.refresh_from_db()
    assert row.claimed_until is not None
    assert hand.deadline_ms < row.claimed_until.timestamp() * 1000


def test_a_row_behind_one_that_another_relay_took_in_the_same_moment_is_given_back(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = stage.write("order-5"), stage.write("order-5")

    def meanwhile(*_: Any) -> list[int]:
        stage.hold(first)
        return [second.pk]

    monkeypatch.setattr(rows, "candidates", meanwhile)
    assert stage.push().take() == []
    second.refresh_from_db()
    assert second.claimed_until is None


def test_a_relay_gives_back_no_rows_but_its_own(stage: Stage) -> None:
    row = stage.write("order-5")
    late = stage.push()
    late.take()
    stage.hold(row)
    late.settle()
    row.refresh_from_db()
    assert row.claimed_until is not None


def test_a_job_that_is_sent_again_after_a_loss_is_not_signalled_again(stage: Stage, scheduled: list[str]) -> None:
    stage.sent("order-5")
    stage.lose_everything()
    stage.table.update(state=State.UNSENT)
    assert stage.relay().turn() == {"sent": 1}
    assert scheduled == ["order-5"]


@pytest.mark.broken_on_purpose
def test_the_time_in_which_a_queue_is_paused_is_not_counted_as_errors(stage: Stage) -> None:
    queue = stage.broker.queue(QUEUE, shards=1)
    stage.broker.pause(QUEUE, "in")
    row = stage.write("order-5")
    for _ in range(MAX_TRIES + 2):
        assert stage.relay().turn() == {"later": 1}
        stage.age(61, "claimed_until")
    stage.broker.resume(QUEUE)
    stage.broker.client.set(queue.shard(0).names["body"], b"not a hash")
    assert stage.relay().turn() == {"later": 1}
    row.refresh_from_db()
    assert (row.state, row.tries) == (State.UNSENT, 1)


# -- a row speaks of the job that it was written for


MINUTE = 60_000
CHANGES = pytest.mark.parametrize("change", [State.CANCELLED, State.MOVED])


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


# -- jobs in Redis whose rows are gone


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

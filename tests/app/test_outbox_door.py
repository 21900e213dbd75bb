"""Durable jobs: a row in the caller's transaction, and the job with Redis right after the commit."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.db.models import F

from django_delayq import IdTaken, InvalidJob, schedule, schedule_many, signals, task, transactions
from django_delayq.core.broker import Broker
from django_delayq.core.codec import decode_args
from django_delayq.core.errors import Misconfigured
from django_delayq.core.job import is_durable
from django_delayq.core.task import registry
from django_delayq.models import OutboxJob
from django_delayq.outbox import durability, inbox
from django_delayq.outbox.rows import unpack_job

from .deeds import keyed, note, rest, sync
from .outbox_stage import hears, there

pytestmark = pytest.mark.django_db(transaction=True)
EVERY_DB = pytest.mark.django_db(transaction=True, databases=["default", "postgres"])


def stored(broker: Broker, queue: str = "default") -> list[str]:
    return sorted(view.id for view in broker.inspector.page(queue, "waiting", limit=1000).jobs)


def test_the_job_is_sent_and_its_row_stays(delayq: Broker) -> None:
    handle = schedule(note, "x", delay=60, id="a", durable=True)
    assert (handle.outcome, handle.durable, handle.state()) == ("created", True, "delayed")
    row = OutboxJob.objects.get()
    assert (row.queue, row.job_id, row.task, row.state, row.claim, row.claimed_until) == (
        "default",
        "a",
        "deeds.note",
        "sent",
        None,
        None,
    )
    (job,) = delayq.inspector.page("default", "waiting").jobs
    assert (delayq.queue("default").knows([("a", row.key.bytes)]), is_durable(row.key.bytes)) == ([True], True)
    assert abs(row.expected_ms - job.due_ms) < 2_000
    assert row.created_at <= row.sent_at == row.checked_at


def test_in_a_transaction_the_row_is_written_at_once_and_the_job_is_sent_after_the_commit(delayq: Broker) -> None:
    with transaction.atomic():
        handle = schedule(note, "x", id="a", durable=True)
        assert (handle.outcome, there(), stored(delayq)) == ("outbox", [("a", "unsent")], [])
    assert (handle.outcome, there(), stored(delayq)) == ("created", [("a", "sent")], ["a"])


def test_a_rollback_leaves_neither_row_nor_job(delayq: Broker) -> None:
    with suppress(ZeroDivisionError), transaction.atomic():
        handle = schedule(note, "x", durable=True)
        assert schedule_many(note, [{"args": ["y"]}], durable=True) == {"outbox": 1}
        raise ZeroDivisionError
    assert (handle.outcome, there(), stored(delayq)) == ("outbox", [], [])


def test_g14_a_rollback_to_a_savepoint_drops_row_and_job(delayq: Broker) -> None:
    with transaction.atomic():
        schedule(note, "x", id="before", durable=True)
        with suppress(ZeroDivisionError), transaction.atomic():
            schedule(note, "x", id="inside", durable=True)
            raise ZeroDivisionError
        with transaction.atomic():
            schedule(note, "x", id="kept", durable=True)
    assert (there(), stored(delayq)) == ([("before", "sent"), ("kept", "sent")], ["before", "kept"])


def test_g15_without_a_transaction_the_row_is_committed_by_itself(delayq: Broker) -> None:
    assert connection.get_autocommit()
    handle = schedule(note, "x", id="a", durable=True)
    with suppress(ZeroDivisionError), transaction.atomic():
        raise ZeroDivisionError  # what happens to other writes does not concern the job
    assert (handle.outcome, there(), stored(delayq)) == ("created", [("a", "sent")], ["a"])


@EVERY_DB
def test_g16_row_and_transaction_are_those_of_the_database_that_is_named(
    delayq: Broker, settings: Any, postgres_alias: str
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "OUTBOX": {"databases": ["default", "postgres"]}}
    with transaction.atomic(using="postgres"):
        with pytest.raises(InvalidJob, match=r"is open on the database 'postgres', .* using_db='postgres'"):
            schedule(note, "x", durable=True)
        with pytest.raises(InvalidJob, match="using_db='postgres'"):
            schedule_many(note, [{"args": ["x"]}], durable=True)
        handle = schedule(note, "x", id="a", durable=True, using_db="postgres")
        assert stored(delayq) == []
    assert (handle.outcome, there(), there("postgres"), stored(delayq)) == ("created", [], [("a", "sent")], ["a"])
    assert handle.cancel() == "cancelled"
    assert (there("postgres"), stored(delayq)) == ([], [])


class Shut:
    """A router that keeps every table out of the database "postgres"."""

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        return False if db == "postgres" else None


@EVERY_DB
def test_a_router_that_keeps_the_table_out_is_named(
    delayq: Broker, settings: Any, postgres_alias: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "OUTBOX": {"databases": ["default", "postgres"]}}
    settings.DATABASE_ROUTERS = [Shut()]
    monkeypatch.setattr(durability, "_tables_seen", set())
    with pytest.raises(Misconfigured, match=r"allow_migrate\(\) of DATABASE_ROUTERS must not refuse the app"):
        schedule(note, "x", durable=True, using_db="postgres")


def test_what_travels_with_a_job_is_in_its_row(delayq: Broker) -> None:
    with transaction.atomic():
        options: dict[str, Any] = {"context": {"trace": "t"}, "max_attempts": 3, "expires": 600, "retry_in": 5}
        schedule(note, "x", delay=60, id="a", priority=1, on_conflict="ignore", durable=True, **options)
        new = unpack_job(OutboxJob.objects.get().record)
    (job,) = delayq.queue("default").reserve_id("a", worker="w", early=True).jobs
    assert decode_args(new.args) == (["x"], {})
    assert (new.id, new.task, new.key, new.priority, new.options, new.on_conflict, new.fresh) == (
        "a",
        "deeds.note",
        job.key,
        1,
        job.options_json,
        "ignore",
        False,
    )
    assert b'"expires_in_ms":600000' in new.options


def test_each_payload_of_a_merged_job_has_a_row(delayq: Broker) -> None:
    with transaction.atomic():
        first = schedule(sync, id=1, payload={"v": 1}, score=1, durable=True)
        second = sync.using(durable=True).schedule(1, {"v": 2}, score=2)
    assert (first.outcome, second.outcome) == ("created", "merged")
    assert there() == [("1", "sent"), ("1", "sent")]
    batch = delayq.queue(sync.options.queue).reserve_id("1", worker="w")
    assert [payload.key for payload in batch.jobs[0].payloads] == [
        row.key.bytes for row in OutboxJob.objects.order_by("pk")
    ]


def test_many_are_written_and_sent_in_bulk(delayq: Broker, django_assert_max_num_queries: Any) -> None:
    entries = [{"args": [str(n)], "id": f"j{n}", "delay": 60} for n in range(600)]
    with django_assert_max_num_queries(40):
        assert schedule_many(note, entries, durable=True) == {"created": 600}
    with transaction.atomic():
        assert schedule_many(rest, [{}, {}], durable=True) == {"outbox": 2}
        assert stored(delayq, "naps") == []
    assert OutboxJob.objects.filter(state="sent").count() == 602
    assert (delayq.inspector.counts("default").delayed, len(stored(delayq, "naps"))) == (600, 2)


def test_the_call_wins_over_the_task_and_the_task_over_the_queue(delayq: Broker, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"naps": {"durable": True}}}
    kept = task(name="test.kept", durable=True)(lambda: None)
    light = task(name="test.light", queue="naps", durable=False)(lambda: None)
    try:
        handles = [
            schedule(rest, id="by queue"),
            schedule(rest, id="not by call", durable=False),
            schedule(kept, id="by task"),
            schedule(kept, id="not by call either", durable=False),
            schedule(light, id="not by task"),
            schedule(light, id="by call", durable=True),
            light.using(durable=True, id="by using").schedule(),
        ]
    finally:
        registry.remove(kept)
        registry.remove(light)
    assert [ident for ident, _ in there()] == ["by queue", "by task", "by call", "by using"]
    assert [handle.durable for handle in handles] == [True, False, True, False, False, True, True]


def test_a_refused_job_leaves_no_row_and_is_raised(delayq: Broker) -> None:
    schedule(note, "live", id="a", delay=60)
    for refused in (
        lambda: schedule(note, "x", id="a", on_conflict="error", durable=True),
        lambda: schedule(keyed, id="a", durable=True),
    ):
        with pytest.raises(IdTaken):
            refused()
    assert schedule(note, "x", id="a", on_conflict="ignore", durable=True).outcome == "ignored"
    assert there() == []


def test_a_job_that_is_refused_after_the_commit_leaves_no_row_and_is_signalled(delayq: Broker) -> None:
    schedule(note, "live", id="a", delay=60)
    before = transactions.not_sent["IdTaken"]
    with hears(signals.job_not_sent, "sender", "verb", "id", "error") as heard, transaction.atomic():
        refused = schedule(note, "x", id="a", on_conflict="error", durable=True)
        other = schedule(note, "x", id="b", durable=True)
    assert (refused.outcome, type(refused.error), other.outcome) == ("not_sent", IdTaken, "created")
    assert heard == [(note, "schedule", "a", IdTaken)]
    assert (transactions.not_sent["IdTaken"], there()) == (before + 1, [("b", "sent")])


@pytest.mark.parametrize("how", ["full", "paused"])
def test_what_redis_does_not_take_now_is_left_to_the_relay(delayq: Broker, settings: Any, how: str) -> None:
    if how == "full":
        settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"default": {"max_length": 1}}}
        schedule(note, "x", id="first", delay=60)
    else:
        schedule(note, "x", id="first", delay=60)
        delayq.pause("default", "in")
    now = schedule(note, "x", id="now", durable=True)
    with transaction.atomic():
        late = schedule(note, "x", id="late", durable=True)
    assert schedule_many(note, [{"args": ["x"], "id": "many"}], durable=True) == {"outbox": 1}
    assert (now.outcome, late.outcome, now.error, late.error) == ("outbox", "outbox", None, None)
    assert there() == [("now", "unsent"), ("late", "unsent"), ("many", "unsent")]
    assert not OutboxJob.objects.exclude(claim=None).exists(), "the relay need not wait for a claim to end"


def test_a_job_behind_a_row_of_its_id_that_waits_is_left_to_the_relay(delayq: Broker) -> None:
    delayq.queue("default")
    delayq.pause("default", "in")
    schedule(keyed, 1, id="a", durable=True)
    delayq.resume("default", "in")
    second = schedule(keyed, 2, id="a", durable=True)
    other = schedule(keyed, 3, id="b", durable=True)
    fresh = schedule(keyed, 4, durable=True)
    assert (second.outcome, other.outcome, fresh.outcome) == ("outbox", "created", "created")
    assert there() == [("a", "unsent"), ("a", "unsent"), ("b", "sent"), (fresh.id, "sent")]


def test_rows_of_one_id_in_one_transaction_go_together_and_in_order(delayq: Broker) -> None:
    with transaction.atomic():
        first = schedule(keyed, 1, id="a", durable=True)
        second = schedule(keyed, 2, id="a", durable=True)
        plain = schedule(keyed, 3, id="a")
    assert [handle.outcome for handle in (first, second, plain)] == ["created", "ignored", "ignored"]
    assert there() == [("a", "sent")]


def test_a_job_that_replaces_pushes_earlier_rows_out(delayq: Broker) -> None:
    schedule(note, "old", id="a", delay=60, durable=True)
    schedule(note, "other", id="b", delay=60, durable=True)
    old = OutboxJob.objects.get(job_id="a").key
    new = schedule(note, "new", id="a", delay=60, durable=True)
    assert (new.outcome, there()) == ("replaced", [("b", "sent"), ("a", "sent")])
    assert OutboxJob.objects.get(job_id="a").key != old
    with transaction.atomic():
        first = schedule(note, "1", id="c", durable=True)
        second = schedule(note, "2", id="c", durable=True)
    assert (first.outcome, second.outcome) == ("outbox", "created"), "the first was never sent"


def test_an_earlier_row_is_pushed_out_only_together_with_the_new_one(
    delayq: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule(note, "old", id="a", delay=60, durable=True)
    schedule(note, "other", id="b", delay=60, durable=True)
    taken = OutboxJob.objects.get(job_id="b").key.bytes
    monkeypatch.setattr(inbox, "new_key", lambda durable: taken)
    with pytest.raises(IntegrityError):
        schedule(note, "new", id="a", delay=60, durable=True)
    assert there() == [("a", "sent"), ("b", "sent")], "the job that Redis has keeps its row"


def test_the_due_time_is_fixed_at_the_call_so_the_wait_for_the_commit_is_a_part_of_the_delay(delayq: Broker) -> None:
    now = time.time()
    with transaction.atomic():
        handle = schedule(note, "x", id="a", delay=100, durable=True)
        schedule(note, "x", id="b", at=now + 200, durable=True)
        OutboxJob.objects.update(delay_from=F("delay_from") - timedelta(seconds=40))
    due = {job.id: job.due_ms - delayq.now_ms() for job in delayq.inspector.page("default", "waiting").jobs}
    assert 58_000 < due["a"] <= 60_001
    assert 198_000 < due["b"] < 200_500
    assert handle.outcome == "created"


@pytest.mark.parametrize(
    ("outbox", "options", "error", "message"),
    [
        ({"databases": []}, {}, Misconfigured, "durable jobs are switched off: name a database in DELAYQ..OUTBOX"),
        ({}, {"using_db": "defualt"}, InvalidJob, "no alias in DATABASES. Did you mean 'default'"),
        ({"databases": ["other"]}, {}, InvalidJob, "the outbox of the database 'default' has no relay"),
        ({}, {"durable": 1}, InvalidJob, "durable must be True or False, got 1"),
    ],
)
def test_a_durable_call_that_cannot_be_kept_is_refused(
    delayq: Broker, settings: Any, outbox: dict[str, Any], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "OUTBOX": outbox}
    said = {"durable": True, **options}
    calls: list[Callable[[], object]] = [
        lambda: schedule(note, "x", **said),
        lambda: schedule_many(note, [{"args": ["x"]}], **said),
    ]
    for call in calls:
        with pytest.raises(error, match=message):
            call()
    assert (there(), stored(delayq)) == ([], [])


def test_an_entry_of_many_cannot_be_durable_by_itself(delayq: Broker) -> None:
    with pytest.raises(InvalidJob, match="entry 0: durable applies to all jobs of one call"):
        schedule_many(note, [{"args": ["x"], "durable": True}])


def test_a_database_that_was_not_migrated_is_noticed_before_anything_is_written(
    delayq: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durability, "_tables_seen", set())
    monkeypatch.setattr(OutboxJob._meta, "db_table", "not_there_yet")
    with transaction.atomic():
        with pytest.raises(Misconfigured, match="table not_there_yet in the database 'default': run manage"):
            schedule(note, "x", durable=True)
        assert schedule(note, "x").outcome == "on_commit"
    assert len(stored(delayq)) == 1


def test_with_autocommit_off_and_no_atomic_block_a_durable_job_is_refused(delayq: Broker) -> None:
    transaction.set_autocommit(False)
    try:
        with pytest.raises(InvalidJob, match="autocommit is off"):
            schedule(note, "x", durable=True)
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)

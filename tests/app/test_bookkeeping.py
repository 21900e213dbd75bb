"""Duties in the database: their trouble is their own, and a deployment without durable jobs pays nothing for them."""

from __future__ import annotations

import logging
import threading
import uuid
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, connections
from django.db.models import F
from django.db.utils import OperationalError, ProgrammingError

from django_delayq.connections import DjangoBroker
from django_delayq.core.errors import QueueUnavailable
from django_delayq.models import InboxEntry, OutboxJob
from django_delayq.outbox.duties import EVERY, Retention
from django_delayq.runtime import bookkeeping
from django_delayq.runtime.bookkeeping import LONG_REST, UNMIGRATED, WithDatabase
from django_delayq.settings.conf import conf
from django_delayq.worker.loop import Changes, Loop, RedisHealth

from .outbox_stage import Stage, State


class Errand:
    """A duty that does what it is told, in turn."""

    def __init__(self, *turns: Callable[[], float]) -> None:
        self.turns = list(turns)
        self.done = threading.Event()

    def run(self) -> float:
        try:
            return self.turns.pop(0)()
        finally:
            if not self.turns:
                self.turns.append(lambda: 3600.0)
                self.done.set()


def in_thread(work: Callable[[], Any]) -> Any:
    """A duty closes the connections of its thread, so it gets one."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(work())
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    (answer,) = found
    return answer


def ask(rest: float) -> Callable[[], float]:
    """A turn that uses the database."""

    def turn() -> float:
        OutboxJob.objects.exists()
        return rest

    return turn


def fail(error: Exception) -> Callable[[], float]:
    def turn() -> float:
        raise error

    return turn


@pytest.mark.django_db(transaction=True)
def test_a_connection_is_kept_through_short_rests_and_given_back_for_long_ones() -> None:
    def work() -> list[bool]:
        duty = WithDatabase(Errand(ask(1.0), ask(LONG_REST + 1)))
        held = []
        for _ in range(2):
            duty.run()
            held.append(connection.connection is not None)
        return held

    assert in_thread(work) == [True, False]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("between_turns", [False, True])
def test_a_database_that_is_gone_is_told_once_and_redis_is_not_blamed(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, between_turns: bool
) -> None:
    health, gone = RedisHealth(), [OperationalError("the server closed the connection")] * 3

    def lost() -> float:
        if gone:
            raise gone.pop()
        return 1.0

    errand = Errand(ask(3600.0)) if between_turns else Errand(*[lost] * 3, ask(3600.0))
    if between_turns:
        monkeypatch.setattr(bookkeeping.hygiene, "before_job", lost)
    loop = Loop("errand", WithDatabase(errand), health)
    with caplog.at_level(logging.INFO):
        loop.start()
        assert errand.done.wait(20)
        loop.close(10)
    assert caplog.messages == ["errand failed and is retried"]
    assert "OperationalError: the server closed the connection" in caplog.text
    assert health.lasting() == 0


@pytest.mark.django_db(transaction=True)
def test_a_good_turn_says_nothing_about_redis() -> None:
    health = RedisHealth()
    health.failed("shard-poller", QueueUnavailable("gone"))
    errand = Errand(ask(3600.0))
    loop = Loop("errand", WithDatabase(errand), health)
    loop.start()
    assert errand.done.wait(20)
    loop.close(10)
    assert health.lasting() > 0, "that Redis is back has to be seen by somebody who asked it"


@pytest.mark.django_db(transaction=True)
def test_a_loop_that_ends_closes_the_connection_of_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    errand = Errand(ask(1.0), ask(1.0))
    duty = WithDatabase(errand)
    held: list[bool] = []
    close = duty.close

    def listen() -> None:
        held.append(connection.connection is not None)
        close()
        held.append(connection.connection is not None)

    monkeypatch.setattr(duty, "close", listen)
    loop = Loop("errand", duty, RedisHealth())
    loop.start()
    loop.ring()
    assert errand.done.wait(20)
    loop.close(10)
    assert held == [True, False]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("kind", [None, ProgrammingError], ids=["sqlite", "other"])
def test_a_missing_table_is_told_once_by_all_duties_and_looked_for_seldom(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, kind: type[Exception] | None
) -> None:
    monkeypatch.setattr(bookkeeping, "_logged", threading.Event())
    monkeypatch.setattr(OutboxJob._meta, "db_table", "no_such_table")

    def work() -> list[float]:
        turn = fail(kind('relation "no_such_table" does not exist')) if kind else ask(1.0)
        return [WithDatabase(Errand(turn)).run() for _ in range(2)]

    assert in_thread(work) == [UNMIGRATED, UNMIGRATED]
    (message,) = caplog.messages
    assert "no_such_table" in message and "; run manage.py migrate" in message


@pytest.mark.django_db(transaction=True)
def test_trouble_with_redis_is_the_loops_business() -> None:
    duty = WithDatabase(Errand(fail(QueueUnavailable("gone"))))

    def work() -> str:
        with pytest.raises(QueueUnavailable):
            duty.run()
        return "raised"

    assert in_thread(work) == "raised"


def test_each_database_with_an_outbox_has_its_own_duties_and_all_share_the_marks(
    delayq: DjangoBroker, settings: Any
) -> None:
    changes = Changes()
    names = bookkeeping.duties(conf(), delayq, changes, list).keys()
    assert names == {"marks", "relay", "reconciler", "retention", "limits", "mirror"}
    assert bookkeeping.duties(conf(), delayq, changes, list, dispatcher=False).keys() == {"marks"}
    settings.DELAYQ = {**settings.DELAYQ, "OUTBOX": {"databases": ["default", "nowhere"]}}
    assert bookkeeping.duties(conf(), delayq, changes, list).keys() == names, "a database that is not there"


def test_what_exactly_once_remembers_in_another_database_is_forgotten_there(
    delayq: DjangoBroker, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bookkeeping, "remembering", lambda: {"default": "shop.charge", "nowhere": "shop.pay"})
    settings.DELAYQ = {**settings.DELAYQ, "OUTBOX": {"databases": ["nowhere"]}}
    assert bookkeeping.duties(conf(), delayq, Changes(), list).keys() == {"marks", "retention", "limits", "mirror"}


def test_every_reader_of_changes_hears_of_a_loss() -> None:
    changes = Changes()
    first, second = changes.reader("lost"), changes.reader("lost", "marks")
    rung: list[str] = []
    first.ring, second.ring = lambda: rung.append("first"), lambda: rung.append("second")
    changes.note("orders", 0, "lost")
    changes.note("orders", 1, "marks")
    assert rung == ["first", "second", "second"]
    assert first.take("lost") == second.take("lost") == {("orders", 0)}
    assert second.take("marks") == {("orders", 1)}
    changes.note("orders", 0, "lost")
    assert first.take("lost") == {("orders", 0)}, "although the second reader did not take it"


@pytest.mark.django_db
def test_refused_rows_and_entries_of_the_inbox_are_forgotten_when_they_are_old(
    delayq: DjangoBroker, settings: Any
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "OUTBOX": {"keep_days": 2}, "INBOX": {"keep_days": 5}}
    stage = Stage(delayq)
    for ident, state in (("old", State.REFUSED), ("sent", State.SENT), ("unsent", State.UNSENT)):
        stage.write(ident, state=state)
    InboxEntry.objects.bulk_create(
        InboxEntry(key=uuid.uuid4(), queue="q", job_id=str(number % 8), task="t") for number in range(1_600)
    )
    for day in range(8):
        InboxEntry.objects.filter(job_id=day).update(created_at=F("created_at") - timedelta(days=day))
    stage.age(3 * 86_400, "created_at")
    stage.write("young", state=State.REFUSED)
    assert Retention(conf(), "default").run() == EVERY
    assert stage.rows() == {"sent": State.SENT, "unsent": State.UNSENT, "young": State.REFUSED}
    assert Counter(InboxEntry.objects.values_list("job_id", flat=True)) == dict.fromkeys("01234", 200)


@pytest.mark.django_db
def test_a_refused_row_is_kept_so_long_from_its_refusal_on(delayq: DjangoBroker, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "OUTBOX": {"keep_days": 2}}
    stage = Stage(delayq)
    stage.write("order-5", record=b"no record")
    stage.age(30 * 86_400)  # written long ago, while Redis was away
    assert stage.relay().turn() == {"refused": 1}
    retention = Retention(conf(), "default")
    retention.run()
    assert stage.rows() == {"order-5": State.REFUSED}
    stage.age(3 * 86_400, "claimed_until")
    retention.run()
    assert stage.rows() == {}

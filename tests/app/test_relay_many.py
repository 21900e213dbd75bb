"""Several relays at once, relays that die, relays that sleep: each job is there once, in the order of its id."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.db.utils import OperationalError

from django_delayq.connections import DjangoBroker
from django_delayq.core.job import NewJob
from django_delayq.core.queue import Queue
from django_delayq.outbox import push
from django_delayq.outbox.rows import waiting

from .outbox_stage import QUEUE, Stage, State, locked, together

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def stage(delayq: DjangoBroker) -> Stage:
    return Stage(delayq, batch=7)


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bytes, str]]:
    """(id, key, outcome) of everything that was offered to Redis, in order."""
    found: list[tuple[str, bytes, str]] = []
    lock = threading.Lock()
    schedule_many = Queue.schedule_many

    def listen(self: Queue, news: Any, **options: Any) -> list[str]:
        jobs: list[NewJob] = list(news)
        outcomes = schedule_many(self, jobs, **options)
        with lock:
            found.extend((job.id, job.key, outcome) for job, outcome in zip(jobs, outcomes, strict=True))
        return outcomes

    monkeypatch.setattr(Queue, "schedule_many", listen)
    return found


def relay_all(stage: Stage, relays: int) -> None:
    """So many threads relay until nothing is left.

    Redis answers "known" to a row that is sent again, because another relay had locked it when it was to be settled.
    """
    unsent = stage.table.filter(state=State.UNSENT)
    together(relays, lambda: stage.relay().turn(), lambda: unsent.all().exists())


@pytest.mark.parametrize("relays", [2, 4])
def test_g10_several_relays_send_each_job_once(
    stage: Stage, offered: list[tuple[str, bytes, str]], relays: int
) -> None:
    rows = [stage.write(f"order-{number}") for number in range(120)]
    relay_all(stage, relays)
    received = [(ident, outcome) for ident, _, outcome in offered if outcome != "known"]
    assert Counter(received) == {(row.job_id, "created"): 1 for row in rows}
    assert stage.count() == 120
    assert set(stage.rows().values()) == {State.SENT}


@pytest.mark.parametrize("relays", [2, 4])
def test_g10_several_relays_keep_the_order_of_each_id(
    stage: Stage, offered: list[tuple[str, bytes, str]], relays: int
) -> None:
    wanted: dict[str, list[bytes]] = {}
    for number in range(120):
        row = stage.write(f"order-{number % 9}")
        wanted.setdefault(row.job_id, []).append(row.key.bytes)
    relay_all(stage, relays)
    for ident, keys in wanted.items():
        assert [key for other, key, outcome in offered if other == ident and outcome != "known"] == keys
        view = stage.broker.inspector.get(QUEUE, ident)
        assert view is not None
        assert view.job.key == keys[-1]
    assert stage.count() == 9
    stage.take_down()
    assert stage.table.count() == 9


def test_g10_a_row_that_a_transaction_has_locked_is_not_waited_for(stage: Stage) -> None:
    if connection.vendor == "sqlite":
        pytest.skip("SQLite has one lock for all")
    row = stage.write("locked")
    stage.write("free")
    with locked(stage, row.job_id):
        assert stage.relay().turn() == {"sent": 1}
        assert stage.waiting() == ["free"]
    assert stage.relay().turn() == {"sent": 1}


def test_g10_a_row_that_a_transaction_locks_while_it_is_sent_is_settled_when_the_claim_is_over(
    stage: Stage, offered: list[tuple[str, bytes, str]]
) -> None:
    if connection.vendor == "sqlite":
        pytest.skip("SQLite has one lock for all")
    row = stage.write("order-5")
    hand = stage.push()
    hand.take()
    hand.send()
    with locked(stage, row.job_id):
        hand.settle()
    assert stage.rows() == {"order-5": State.UNSENT}
    stage.age(push.PATIENT + 1, "claimed_until")
    assert stage.relay().turn() == {"sent": 1}
    assert [outcome for _, _, outcome in offered] == ["created", "known"]


@pytest.mark.parametrize("step", ["claimed", "told", "marked", "committed"])
def test_g7_g8_a_relay_is_killed_behind_a_step_and_each_job_is_there_once(
    stage: Stage, spawn: Callable[..., Any], database_env: dict[str, str], step: str
) -> None:
    stage.sent("doomed", queue="others")
    stage.table.update(state=State.CANCELLED)
    plain = [stage.write(f"order-{number}") for number in range(20)]
    stage.write("7", payload={"n": 1}, queue="crm")
    process = spawn(sys.executable, "-m", "tests.app.relay_program", step, env=database_env)
    assert process.wait(30) == -9
    stage.age(push.PATIENT + 1, "claimed_until")
    relay = stage.relay()
    while relay.turn():
        pass
    stage.take_down()
    assert sorted(stage.waiting()) == sorted(row.job_id for row in plain)
    assert stage.count("others") == 0
    view = stage.broker.inspector.get("crm", "7")
    assert view is not None
    assert view.payload_count == 1
    assert stage.rows() == {**dict.fromkeys((row.job_id for row in plain), State.SENT), "7": State.SENT}


def test_a_relay_that_slept_past_its_claim_sends_nothing(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    row = stage.sent("moved", due_ms=int(stage.broker.now_ms()) + 60_000)
    stage.move(row.due_ms + 60_000)
    stage.write("order-5")
    monkeypatch.setattr(push, "PATIENT", 0.3)
    hand = stage.push()
    assert len(hand.take()) == 2
    while stage.broker.now_ms() < hand.deadline_ms or not hand.is_over:
        time.sleep(0.01)  # it sleeps: the length of its claim
    while not waiting(stage.alias).exists():
        time.sleep(0.01)
    monkeypatch.undo()
    assert stage.relay().turn() == {"sent": 2}
    stage.finish("order-5")
    stage.broker.queue(QUEUE).reschedule("moved", delay_ms=5_000)
    before = stage.broker.inspector.get(QUEUE, "moved")
    assert before is not None
    hand.send()
    hand.settle()
    assert {result.outcome for result in hand.results.values()} == {"free"}
    after = stage.broker.inspector.get(QUEUE, "moved")
    assert after is not None
    assert after.due_ms == before.due_ms
    assert stage.waiting() == ["moved"]
    assert stage.rows() == {"moved": State.SENT, "order-5": State.SENT}
    assert stage.take_down() == (1, 0)
    assert stage.rows() == {"moved": State.SENT}


def test_a_database_that_goes_away_behind_the_telling_costs_nothing(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        stage.write(f"order-{number}")
    relay = stage.relay()

    def gone(*_: Any) -> None:
        raise OperationalError("the server closed the connection")

    monkeypatch.setattr(push.Push, "settle", gone)
    with pytest.raises(OperationalError):
        relay.turn()
    monkeypatch.undo()
    assert set(stage.rows().values()) == {State.UNSENT}
    assert stage.count() == 5
    stage.age(push.PATIENT + 1, "claimed_until")
    assert stage.relay().turn() == {"sent": 5}
    assert stage.count() == 5

"""Errors that a healthy PostgreSQL answers with: a serialization failure (40001), a row that is locked (55P03), and a
database that takes no writes (25006), as after a failover to a standby.

They reach a handler, ``@exactly_once`` and the relay.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.contrib.auth.models import Group
from django.db import DatabaseError, connections, transaction

from django_delayq import exactly_once, hygiene
from django_delayq.connections import DjangoBroker
from django_delayq.models import InboxEntry
from django_delayq.runtime import wiring
from django_delayq.settings.conf import conf
from django_delayq.worker.hooks import Hooks
from tests.support.attempt_stage import execute, make_job

from .outbox_stage import Stage, State

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "postgres"])
ALIAS = "postgres"
TABLE = "django_delayq_outboxjob"
#: SQLSTATE -> the class in which Django passes it on
STATES = {"40001": "OperationalError", "55P03": "OperationalError", "25006": "InternalError"}
each_state = pytest.mark.parametrize("state", STATES)


@pytest.fixture
def hooks(postgres_alias: str) -> Iterator[Hooks]:
    """Those of a real worker."""
    yield wiring.make_hooks(conf())
    hygiene.uninstall()
    connections[ALIAS].close()


@pytest.fixture
def stage(delayq: DjangoBroker, postgres_alias: str) -> Stage:
    """The outbox in PostgreSQL."""
    return Stage(delayq, ALIAS)


def fail_with(state: str) -> None:
    with connections[ALIAS].cursor() as cursor:
        cursor.execute(f"DO $$ BEGIN RAISE EXCEPTION 'as ordered' USING ERRCODE = '{state}'; END $$")


@contextmanager
def failing_writes(state: str, new_state: str) -> Iterator[None]:
    """Every change that leaves a row of the outbox in ``new_state`` ends with this SQLSTATE."""
    with connections[ALIAS].cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
            f" $$ BEGIN RAISE EXCEPTION 'as ordered' USING ERRCODE = '{state}'; END $$"
        )
        cursor.execute(
            f"CREATE TRIGGER refuse BEFORE UPDATE ON {TABLE} FOR EACH ROW"
            f" WHEN (NEW.state = '{new_state}') EXECUTE FUNCTION refuse()"
        )
    yield
    with connections[ALIAS].cursor() as cursor:
        cursor.execute(f"DROP TRIGGER refuse ON {TABLE}")
        cursor.execute("DROP FUNCTION refuse")


def write() -> None:
    Group.objects.using(ALIAS).create(name=f"row {rows()}")


def rows() -> int:
    return Group.objects.using(ALIAS).count()


@each_state
def test_a_handler_has_failed_and_the_session_serves_the_next_job(hooks: Hooks, state: str) -> None:
    def handler() -> None:
        with transaction.atomic(using=ALIAS):
            write()
            fail_with(state)

    failed, following = execute(handler, hooks=hooks, job=make_job()), execute(write, hooks=hooks, job=make_job())
    hooks.thread_end()
    assert failed.settlement is not None
    assert following.settlement is not None
    assert (failed.settlement.verb, failed.settlement.error_class) == ("fail", f"django.db.utils.{STATES[state]}")
    assert (following.settlement.verb, rows()) == ("ack", 1)


@each_state
def test_effects_of_a_failed_attempt_are_undone_and_the_next_attempt_makes_them_once(hooks: Hooks, state: str) -> None:
    job, states = make_job(), iter([state])

    @exactly_once(using=ALIAS)
    def handler() -> None:
        write()
        for one in states:
            fail_with(one)

    verbs = [attempt.settlement and attempt.settlement.verb for attempt in (execute(handler, hooks=hooks, job=job),)]
    before = rows(), InboxEntry.objects.using(ALIAS).count()
    verbs += [
        attempt.settlement and attempt.settlement.verb
        for attempt in (execute(handler, hooks=hooks, job=job), execute(handler, hooks=hooks, job=job))
    ]
    hooks.thread_end()
    assert verbs == ["fail", "ack", "ack"]
    assert before == (0, 0)
    assert (rows(), InboxEntry.objects.using(ALIAS).count()) == (1, 1)


@each_state
def test_rows_that_cannot_be_claimed_stay_and_are_sent_later(stage: Stage, state: str) -> None:
    for number in range(3):
        stage.write(f"order-{number}")
    with failing_writes(state, State.UNSENT), pytest.raises(DatabaseError, match="as ordered"):
        stage.relay().turn()
    assert (set(stage.rows().values()), stage.waiting()) == ({State.UNSENT}, [])
    assert stage.relay().turn() == {"sent": 3}
    assert set(stage.rows().values()) == {State.SENT}


@each_state
def test_jobs_whose_rows_cannot_be_marked_as_sent_are_sent_once(stage: Stage, state: str) -> None:
    for number in range(3):
        stage.write(f"order-{number}")
    with failing_writes(state, State.SENT), pytest.raises(DatabaseError, match="as ordered"):
        stage.relay().turn()
    assert (set(stage.rows().values()), stage.count()) == ({State.UNSENT}, 3)
    stage.finish("order-1")
    stage.age(61)  # the claim is over
    stage.relay().turn()
    assert sorted(stage.waiting()) == ["order-0", "order-2"]
    assert set(stage.rows().values()) == {State.SENT}

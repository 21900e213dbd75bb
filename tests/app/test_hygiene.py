"""Database connections of job threads, seen by PostgreSQL itself: no leak, no reconnect, no inherited transaction."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import Group
from django.db import connections, transaction

from django_delayq import LeakedTransaction, hygiene
from django_delayq.core.job import Job
from tests.app import deeds
from tests.support.processes import wait_until

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "postgres"])

JOB = Job("default", 0, "1", deeds.note.name, b"", b"", b"", 4, 0)
ASYNC_JOB = Job("default", 0, "1", deeds.slowly.name, b"", b"", b"", 4, 0)


@pytest.fixture
def sessions(postgres_alias: str) -> Iterator[Callable[[], list[tuple[int, str]]]]:
    """A worker's hygiene in this process; the value asks PostgreSQL for the sessions of this database."""
    from tests.support.postgres_box import PostgresDatabase

    values = connections.settings[postgres_alias]
    database = PostgresDatabase(values["HOST"], int(values["PORT"]), values["USER"], values["NAME"])
    before = {name: values[name] for name in ("CONN_MAX_AGE", "CONN_HEALTH_CHECKS")}
    hygiene.install()
    yield lambda: [(pid, state) for pid, state, _ in database.sessions()]
    assert (values["CONN_MAX_AGE"], values["CONN_HEALTH_CHECKS"]) == (60.0, True)
    hygiene.uninstall()
    values.update(before)


class Slot:
    """A thread that runs jobs as a worker's slot does."""

    def __init__(self) -> None:
        self.errors: list[BaseException | None] = []
        self.ended = False

    def run(self, *handlers: Callable[[], object], job: Job = JOB, end: bool = True) -> list[BaseException | None]:
        def live() -> None:
            for handler in handlers:
                hygiene.before_job()
                error = None
                try:
                    handler()
                    hygiene.after_job(job)
                except Exception as raised:
                    error = raised
                self.errors.append(error)
            if end:
                hygiene.thread_end()

        thread = threading.Thread(target=live)
        thread.start()
        thread.join(30)
        assert not thread.is_alive()
        return self.errors


def backend() -> int:
    with connections["postgres"].cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        (pid,) = cursor.fetchone()
    return int(pid)


def leak() -> None:
    transaction.atomic(using="postgres").__enter__()
    Group.objects.using("postgres").create(name="never committed")


def test_a_thread_keeps_one_connection_over_all_its_jobs_and_closes_it_at_its_end(sessions: Any) -> None:
    pids: list[int] = []
    alive: list[int] = []
    handlers = [lambda: pids.append(backend()) for _ in range(30)]
    Slot().run(*handlers, lambda: alive.append(len(sessions())))
    assert (len(pids), len(set(pids)), alive) == (30, 1, [1])
    wait_until(lambda: sessions() == [], what="the end of all sessions")


def test_a_transaction_that_was_never_left_is_found_and_rolled_back(sessions: Any) -> None:
    pids: list[int] = []
    during: list[list[tuple[int, str]]] = []
    first, second, third = Slot().run(leak, lambda: pids.append(backend()), lambda: during.append(sessions()))
    assert isinstance(first, LeakedTransaction)
    assert "atomic() block on the database 'postgres' was entered and not left" in str(first)
    assert second is third is None
    assert [state for _, state in during[0]] == ["idle"]
    assert not Group.objects.using("postgres").filter(name="never committed").exists()


def test_the_leak_of_a_failing_job_is_not_inherited(sessions: Any) -> None:
    def fail() -> None:
        leak()
        raise ZeroDivisionError

    in_atomic: list[bool] = []
    errors = Slot().run(fail, lambda: in_atomic.append(connections["postgres"].in_atomic_block), lambda: backend())
    assert [type(error) for error in errors] == [ZeroDivisionError, type(None), type(None)]
    assert in_atomic == [False]


def test_a_transaction_begun_by_sql_is_a_leak(sessions: Any) -> None:
    def begin() -> None:
        with connections["postgres"].cursor() as cursor:
            cursor.execute("BEGIN")
        Group.objects.using("postgres").create(name="begun")

    first, second = Slot().run(begin, lambda: backend())
    assert isinstance(first, LeakedTransaction)
    assert "a transaction that SQL began on the database 'postgres' was not ended" in str(first)
    assert second is None
    assert not Group.objects.using("postgres").filter(name="begun").exists()


def test_a_transaction_begun_by_sql_in_a_failing_job_is_not_inherited(sessions: Any) -> None:
    def fail() -> None:
        with connections["postgres"].cursor() as cursor:
            cursor.execute("BEGIN")
        raise ZeroDivisionError

    def work() -> None:
        with transaction.atomic(using="postgres"):
            Group.objects.using("postgres").create(name="kept")

    errors = Slot().run(fail, work)
    assert [type(error) for error in errors] == [ZeroDivisionError, type(None)]
    assert Group.objects.using("postgres").filter(name="kept").exists()


def test_a_transaction_begun_and_ended_by_sql_is_none(sessions: Any) -> None:
    pids: list[int] = []

    def work() -> None:
        with connections["postgres"].cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("COMMIT")
        pids.append(backend())

    assert Slot().run(work, work) == [None, None]
    assert pids[0] == pids[1]


def test_a_connection_closed_inside_a_transaction_is_a_leak(sessions: Any) -> None:
    def close_inside() -> None:
        leak()
        connections["postgres"].close()

    first, second = Slot().run(close_inside, lambda: backend())
    assert isinstance(first, LeakedTransaction)
    assert second is None


def test_honest_transactions_are_left_alone(sessions: Any) -> None:
    def work() -> None:
        with transaction.atomic(using="postgres"), transaction.atomic(using="postgres"):
            Group.objects.using("postgres").get_or_create(name="kept")

    assert Slot().run(work, work) == [None, None]
    assert Group.objects.using("postgres").filter(name="kept").exists()


def test_logged_queries_do_not_pile_up(sessions: Any) -> None:
    lengths: list[int] = []

    def work() -> None:
        connection = connections["postgres"]
        connection.force_debug_cursor = True
        lengths.append(len(connection.queries_log))
        backend()

    assert Slot().run(work, work, work) == [None, None, None]
    assert lengths == [0, 0, 0]


def test_the_thread_behind_async_jobs_is_looked_after_too(sessions: Any) -> None:
    """asgiref runs thread-sensitive code of all coroutines in one thread that runs no jobs itself."""
    pids: list[int] = []

    async def honest() -> None:
        pids.append(await sync_to_async(backend)())

    async def leaking() -> None:
        await sync_to_async(leak)()

    errors = Slot().run(
        lambda: asyncio.run(honest()),
        lambda: asyncio.run(honest()),
        lambda: asyncio.run(leaking()),
        lambda: asyncio.run(honest()),
        job=ASYNC_JOB,
    )
    assert [type(error).__name__ for error in errors] == ["NoneType", "NoneType", "LeakedTransaction", "NoneType"]
    assert (pids[0] == pids[1], pids[0] == pids[2]) == (True, False)
    hygiene.uninstall()
    wait_until(lambda: sessions() == [], what="the end of all sessions")


def test_the_project_decides_with_a_pool() -> None:
    assert hygiene._pooled({"OPTIONS": {"pool": {"max_size": 5}}})
    assert not hygiene._pooled({"OPTIONS": {}})

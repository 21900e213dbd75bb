"""Faults of a database and their effects on jobs: F9–F11, G1–G5 and G17 on a real PostgreSQL.

Real worker processes meet some of them again in tests/acceptance/test_postgres.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from django.contrib.auth.models import Group
from django.db import OperationalError, connections, transaction

from django_delayq import LeakedTransaction, Release, exactly_once, hygiene
from django_delayq.core.broker import Broker
from django_delayq.models import InboxEntry
from django_delayq.runtime import wiring
from django_delayq.settings.conf import conf
from django_delayq.worker.attempt import Attempt
from django_delayq.worker.hooks import Hooks
from tests.support.attempt_stage import execute, make_job
from tests.support.postgres_box import PostgresBox, PostgresDatabase
from tests.support.worker_stage import config, eventually, put, registry_of, working

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "postgres"])


@pytest.fixture
def database(postgres_alias: str) -> PostgresDatabase:
    """The second alias, as PostgreSQL sees it."""
    values = connections.settings[postgres_alias]
    return PostgresDatabase(values["HOST"], int(values["PORT"]), values["USER"], values["NAME"])


@pytest.fixture
def hooks(database: PostgresDatabase) -> Iterator[Hooks]:
    """Those of a real worker; its connections are gone after the test."""
    yield wiring.make_hooks(conf())
    hygiene.uninstall()
    connections["postgres"].close()  # of the test itself
    eventually(lambda: database.sessions() == [], "the end of all sessions")


Absence = tuple[Callable[[], object], Callable[[], object]]


class Slot:
    """Runs jobs one after another in a thread, as a worker's slot does."""

    def __init__(self, hooks: Hooks) -> None:
        self.hooks = hooks

    def run(self, *steps: Callable[[], object]) -> list[str]:
        """The verb with which each run ended and its error; a step marked with ``outside`` is called between jobs."""
        said: list[str] = []

        def live() -> None:
            self.hooks.process_start()
            for step in steps:
                if getattr(step, "outside", False):
                    step()
                else:
                    said.append(told(execute(step, hooks=self.hooks, job=make_job())))
            self.hooks.thread_end()

        thread = threading.Thread(target=live)
        thread.start()
        thread.join(60)
        assert not thread.is_alive()
        return said


def told(run: Attempt) -> str:
    assert run.settlement is not None
    error = f" {type(run.error).__name__}" if run.error is not None else ""
    return f"{run.settlement.verb}{error}"


def outside(step: Callable[[], object]) -> Callable[[], object]:
    step.outside = True  # type: ignore[attr-defined]
    return step


def write() -> None:
    Group.objects.using("postgres").create(name=f"row {Group.objects.using('postgres').count()}")


def rows() -> int:
    return Group.objects.using("postgres").count()


def kill_session(database: PostgresDatabase) -> None:
    """End the session of this thread, from outside."""
    pid = connections["postgres"].connection.info.backend_pid
    with database.connect() as connection:
        connection.execute("SELECT pg_terminate_backend(%s)", [pid])
    eventually(lambda: pid not in {one for one, _, _ in database.sessions()}, "the end of the session")


@pytest.fixture
def absence(database: PostgresDatabase) -> Absence:
    """Steps between two jobs: the database is away from now on, and it is back."""
    port = connections.settings["postgres"]["PORT"]

    def goes_away() -> None:
        connections["postgres"].settings_dict["PORT"] = "1"  # nobody listens there

    def comes_back() -> None:
        connections["postgres"].settings_dict["PORT"] = port

    return outside(goes_away), outside(comes_back)


def seconds_pass() -> None:
    """Let the thread's connection be one that has not been used for a while."""
    hygiene._thread.answered["postgres"] -= 10


def test_f9_an_open_atomic_and_a_changed_autocommit_are_failures_and_the_next_job_is_clean(hooks: Hooks) -> None:
    def leak() -> None:
        transaction.atomic(using="postgres").__enter__()
        write()

    def no_autocommit() -> None:
        transaction.set_autocommit(False, using="postgres")
        write()

    def is_clean() -> None:
        connection = connections["postgres"]
        assert (connection.in_atomic_block, connection.get_autocommit()) == (False, True)
        write()

    name = LeakedTransaction.__name__
    assert Slot(hooks).run(leak, is_clean, no_autocommit, is_clean) == [f"fail {name}", "ack", f"fail {name}", "ack"]
    assert rows() == 2


def test_f10_a_connection_left_in_an_error_state_is_no_trouble_to_the_next_job(hooks: Hooks) -> None:
    def break_it() -> None:
        with connections["postgres"].cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("SELECT 1/0")

    def close_inside() -> None:
        with transaction.atomic(using="postgres"):
            write()
            connections["postgres"].close()

    ends = Slot(hooks).run(break_it, write, close_inside, write)
    assert [end.partition(" ")[0] for end in ends] == ["fail", "ack", "fail", "ack"]
    assert rows() == 2


def test_g1_a_database_that_is_away_gives_jobs_back_without_an_attempt(
    hooks: Hooks, database: PostgresDatabase, absence: Absence
) -> None:
    @outside
    def drops() -> None:
        kill_session(database)
        seconds_pass()

    goes_away, comes_back = absence
    ends = Slot(hooks).run(write, drops, goes_away, write, write, comes_back, write)
    assert ends == ["ack", "release", "release", "ack"]
    assert rows() == 2


def test_g1_a_database_that_no_job_has_reached_yet_holds_up_only_the_jobs_that_need_it(
    hooks: Hooks, absence: Absence
) -> None:
    goes_away, comes_back = absence
    ends = Slot(hooks).run(goes_away, write, lambda: None, comes_back, write)
    assert ends == ["fail OperationalError", "ack", "ack"]


def test_g2_a_session_that_drops_during_the_handler_is_a_counted_failure(
    hooks: Hooks, database: PostgresDatabase
) -> None:
    def dropped() -> None:
        with transaction.atomic(using="postgres"):
            write()
            kill_session(database)
            write()

    assert Slot(hooks).run(dropped, write) == ["fail OperationalError", "ack"]
    assert rows() == 1


def test_g2_after_a_drop_in_a_transaction_no_attempt_is_counted_while_the_database_is_away(
    hooks: Hooks, database: PostgresDatabase, absence: Absence
) -> None:
    goes_away, comes_back = absence

    def dropped() -> None:
        with transaction.atomic(using="postgres"):
            write()
            goes_away()
            kill_session(database)
            write()

    ends = Slot(hooks).run(write, dropped, write, write, comes_back, write)
    assert ends == ["ack", "fail OperationalError", "release", "release", "ack"]
    assert rows() == 2


def test_g3_sessions_that_the_server_dropped_between_jobs_are_replaced_before_the_next_one(
    hooks: Hooks, database: PostgresDatabase
) -> None:
    @outside
    def restarted() -> None:
        kill_session(database)
        seconds_pass()

    assert Slot(hooks).run(write, restarted, write, restarted, write) == ["ack"] * 3
    assert rows() == 3


def test_g4_a_deadlock_is_a_failure_and_the_task_says_how_soon_it_is_tried_again(
    hooks: Hooks, database: PostgresDatabase
) -> None:
    Group.objects.using("postgres").bulk_create([Group(name="a"), Group(name="b")])
    both = threading.Barrier(2)
    runs: list[Attempt] = []

    def crosswise(first: str, second: str) -> Callable[[], None]:
        def handler() -> None:
            with transaction.atomic(using="postgres"):
                with connections["postgres"].cursor() as cursor:
                    cursor.execute("SET LOCAL deadlock_timeout = '50ms'")
                Group.objects.using("postgres").select_for_update().get(name=first)
                both.wait(10)
                Group.objects.using("postgres").select_for_update().get(name=second)

        return handler

    def live(handler: Callable[[], None]) -> None:
        runs.append(
            execute(handler, hooks=hooks, job=make_job(), retry_for={OperationalError: [0.1, 0.5]}, retry_in=[88])
        )
        hooks.thread_end()

    threads = [threading.Thread(target=live, args=(crosswise(*names),)) for names in (("a", "b"), ("b", "a"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    ends = sorted(told(run) for run in runs)
    assert ends == ["ack", "fail OperationalError"]
    (victim,) = [run.settlement for run in runs if run.error is not None]
    assert victim is not None
    assert victim.delay_ms == 100


def test_g5_too_many_connections_lose_no_job(
    hooks: Hooks, postgres_box: PostgresBox, delayq: Broker, database: PostgresDatabase
) -> None:
    """Five threads, and a role that may have two sessions: whoever gets none tries again."""
    with postgres_box.admin.connect() as connection:
        connection.execute("DROP ROLE IF EXISTS two_sessions")
        connection.execute("CREATE ROLE two_sessions LOGIN SUPERUSER")
        connection.execute(f'ALTER DATABASE "{database.name}" CONNECTION LIMIT 2')
        connection.execute("ALTER ROLE two_sessions NOSUPERUSER")
        connection.execute(f'GRANT ALL ON DATABASE "{database.name}" TO two_sessions')
    user = connections.settings["postgres"]["USER"]
    connections["postgres"].close()
    connections.settings["postgres"]["USER"] = "two_sessions"
    done: list[str] = []
    refused: list[OperationalError] = []

    def busy(name: str) -> None:
        try:
            with connections["postgres"].cursor() as cursor:
                cursor.execute("SELECT pg_sleep(0.02)")
        except OperationalError as error:
            refused.append(error)
            raise
        finally:
            connections["postgres"].close()  # else the two threads that came first keep the sessions, idle or not
        if refused:
            done.append(name)
        else:
            raise Release("until somebody was refused", delay=0.05)

    idents = [put(delayq, "busy", str(number), id=f"job-{number}") for number in range(12)]
    try:
        registry = registry_of(busy, retry_in=[0.05], max_attempts=1000)
        with working(delayq, registry, config(threads=5), hooks):
            eventually(lambda: len(done) == len(idents), "the end of all jobs")
    finally:
        connections.settings["postgres"]["USER"] = user
        with postgres_box.admin.connect() as connection:
            connection.execute(f'ALTER DATABASE "{database.name}" CONNECTION LIMIT -1')
            connection.execute(f'REVOKE ALL ON DATABASE "{database.name}" FROM two_sessions')
            connection.execute("DROP ROLE two_sessions")
    assert refused
    assert sorted(done, key=int) == [str(number) for number in range(len(idents))]


def test_g17_an_ack_that_was_lost_after_the_commit_does_not_repeat_the_effects(hooks: Hooks) -> None:
    job, runs = make_job(), []

    def live() -> None:
        # Nothing is settled in between: as if the ack never reached Redis and the lease ran out.
        runs.extend(execute(exactly_once(using="postgres")(write), hooks=hooks, job=job) for _ in range(2))
        hooks.thread_end()

    thread = threading.Thread(target=live)
    thread.start()
    thread.join(20)
    assert [told(run) for run in runs] == ["ack", "ack"]
    assert (rows(), InboxEntry.objects.using("postgres").count()) == (1, 1)

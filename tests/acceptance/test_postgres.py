"""Handlers that use the ORM, seen from PostgreSQL: what sessions there are, what they left open, what was committed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.postgres_box import PostgresBox, PostgresDatabase
from tests.support.redis_box import RedisBox

from .world import Mill, until

THREADS = 3


class Office:
    """A worker on a database."""

    def __init__(self, mill: Mill, database: PostgresDatabase) -> None:
        self.mill = mill
        self.database = database

    def rows(self, name: str) -> int:
        with self.database.connect() as connection:
            found = connection.execute("SELECT count(*) FROM mill_sack WHERE name = %s", [name]).fetchone()
        return int(found[0]) if found else -1

    def states(self) -> list[str]:
        """States of the worker's database sessions."""
        return [state for _, state, _ in self.database.sessions()]

    def backends(self) -> set[int]:
        return {pid for pid, _, _ in self.database.sessions()}

    def run(self, task: str, count: int = 1) -> list[int]:
        """Run jobs to their end; the backends they saw."""
        ids = self.mill.put_many(task, count)
        self.mill.wait_ended(ids)
        return [line["backend"] for line in self.mill.starts() if line["id"] in set(ids)]


@pytest.fixture(scope="module")
def open_office(
    redis_box: RedisBox, postgres_box: PostgresBox, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Office]:
    with (
        postgres_box.database() as database,
        Mill(redis_box.url, tmp_path_factory.mktemp("office"), database=database.url) as mill,
    ):
        with database.connect() as connection:
            connection.execute("CREATE TABLE mill_sack (id bigserial PRIMARY KEY, name text NOT NULL)")
        mill.start("--threads", THREADS)
        yield Office(mill, database)


@pytest.fixture
def office(open_office: Office) -> Iterator[Office]:
    """The worker; afterwards it is the same process, and no session has anything open."""
    mill = open_office.mill
    before = mill.nodes[0].children()
    yield open_office
    mill.wait_empty()
    assert mill.nodes[0].children() == before, mill.nodes[0].said
    until(lambda: set(open_office.states()) <= {"idle"}, "sessions without an open transaction")
    until(lambda: len(open_office.backends()) <= THREADS, "the end of sessions that were closed")
    mill.check()


def test_a_hundred_jobs_share_one_session_for_each_thread(office: Office) -> None:
    office.run("backend", 20)
    backends = office.backends()
    seen = office.run("backend", 100)
    assert set(seen) <= backends | office.backends()
    assert len(set(seen)) <= THREADS
    assert office.backends() >= backends, "nobody connected anew"


@pytest.mark.parametrize("leak", ["leak_a_transaction", "leak_autocommit"])
def test_a_leaked_transaction_is_a_failure_and_the_next_job_gets_a_clean_session(office: Office, leak: str) -> None:
    mill = office.mill
    ident = mill.put(leak, id=leak)
    view = mill.buried(ident)
    assert view.error_class.rpartition(".")[2] == "LeakedTransaction"
    assert "with transaction.atomic()" in view.error["message"]
    assert office.rows("leaked") == 0, "what was never committed is rolled back"
    following = mill.put_many("backend", 12)
    mill.wait_ended(following)
    assert [office.rows(ident) for ident in following] == [1] * 12


def test_an_error_inside_of_atomic_leaves_the_session_usable(office: Office) -> None:
    before = set(office.run("backend", 6))  # the server may still be ending sessions of the test before
    view = office.mill.buried(office.mill.put("break_a_transaction", id="broken"))
    assert view.error_class.endswith("DataError")
    assert office.rows("broken") == 0
    assert len(office.run("backend", 12)) == 12
    assert office.backends() >= before, "no session was thrown away for an honest rollback"


def test_t58_a_job_scheduled_in_a_transaction_that_rolls_back_is_not_there(office: Office) -> None:
    mill = office.mill
    refused = mill.put("order", "refused", True, id="order-refused")
    accepted = mill.put("order", "accepted", False, id="order-accepted")
    assert mill.buried(refused).error["message"] == "the order is refused"
    mill.wait_empty()
    assert len(mill.starts(accepted)) == 1
    assert (office.rows("refused"), office.rows("accepted")) == (0, 1)
    assert [line["sack"] for line in mill.starts("deliver-accepted")] == ["accepted"], "it found the committed row"
    assert mill.starts("deliver-refused") == []
    assert mill.view("deliver-refused") is None


def test_t59_sessions_that_the_server_dropped_between_two_jobs_are_replaced_unnoticed(office: Office) -> None:
    office.run("backend", 10)
    before = office.backends()
    with office.database.connect() as connection:
        for pid in before:
            connection.execute("SELECT pg_terminate_backend(%s)", [pid])
    until(lambda: not office.backends() & before, "the end of the sessions")
    ids = office.mill.put_many("backend", 30)
    office.mill.wait_ended(ids)
    assert {line["attempt"] for line in office.mill.starts() if line["id"] in set(ids)} == {1}
    assert [office.rows(ident) for ident in ids] == [1] * 30


def test_a_worker_that_ends_leaves_no_session(office: Office) -> None:
    mill = office.mill
    office.run("backend", 5)
    other = mill.start("--threads", 2)
    office.run("backend", 30)
    ours = len(office.backends())
    assert ours > 0
    assert other.stop()[0] == 0
    until(lambda: len(office.backends()) <= THREADS, "the end of its sessions")

"""delayq_check on the databases of the outbox."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import DatabaseError, connections

from django_delayq import task
from django_delayq.core.task import registry
from django_delayq.management import diagnosis
from django_delayq.outbox import durability

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "postgres"])


@pytest.fixture
def two_databases(settings: Any, postgres_alias: str) -> Iterator[None]:
    """Durable jobs in two databases."""
    settings.DELAYQ = {**settings.DELAYQ, "OUTBOX": {"databases": ["default", "postgres"]}}

    @task(name="checks.kept", durable=True)
    def kept() -> None: ...

    yield
    registry.remove(kept)


def found() -> list[tuple[str, str, str]]:
    return [(one.level, one.check, one.text) for one in diagnosis.databases(None)]


def test_each_database_of_the_outbox_is_checked(two_databases: None) -> None:
    assert found() == [
        ("OK", "database", "all migrations are applied"),
        ("OK", "database", "all migrations are applied in 'postgres'"),
        ("OK", "outbox", "0 durable jobs wait to be sent, 0 are with Redis"),
    ]


def test_a_database_without_the_table_is_an_error(two_databases: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "has_table", lambda alias: alias == "default")
    ((level, _, text),) = [one for one in found() if one[0] != "OK"]
    assert level == "ERROR"
    assert (
        "durable jobs in 'postgres' are refused, for it has no table: run manage.py migrate --database postgres" in text
    )


def test_a_read_only_database_is_an_error(two_databases: None) -> None:
    with connections["postgres"].cursor() as cursor:
        cursor.execute("SET default_transaction_read_only = on")
    try:
        assert ("ERROR", "database", "'postgres' is read-only: is it a replica? Workers need the primary") in found()
    finally:
        connections["postgres"].close()


def test_a_database_that_is_away_is_an_error(two_databases: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise DatabaseError("no route")

    monkeypatch.setattr(durability, "_tables_seen", set())
    connections["postgres"].close()
    monkeypatch.setattr(connections["postgres"], "connect", refuse)
    assert ("ERROR", "database", "'postgres' cannot be read: no route") in found()

"""SQLite under several worker threads: why Django's default settings fail, what helps, and the check that says so."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.core.checks import run_checks
from django.db import DatabaseError, connections, transaction

from shop_site.settings import DATABASES as OF_THE_EXAMPLE

URL = "redis://localhost:6379/0"
ENGINE = "django.db.backends.sqlite3"
IMMEDIATE = {"transaction_mode": "IMMEDIATE", "timeout": 20}


Found = Callable[..., list[str]]


@pytest.fixture
def found(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Found:
    """``found(worker={…}, OPTIONS={…})``: the messages of the check about such a default database."""

    def look(*, worker: dict[str, Any] | None = None, **default: Any) -> list[str]:
        database = {"ENGINE": ENGINE, "NAME": "/srv/shop.sqlite3", **default}
        monkeypatch.setitem(settings.DATABASES, "default", database)
        settings.DELAYQ = {"REDIS": URL, "WORKER": worker or {}}
        told = [one for one in run_checks(tags=["delayq"]) if one.id == "delayq.W006"]
        assert all("'transaction_mode': 'IMMEDIATE', 'timeout': 20" in str(one.hint) for one in told)
        return [one.msg for one in told]

    return look


@pytest.mark.parametrize("options", [{}, {"timeout": 20}, {"transaction_mode": "DEFERRED"}, {"transaction_mode": None}])
def test_sqlite_on_djangos_default_settings_is_a_warning(found: Found, options: dict[str, Any]) -> None:
    (message,) = found(OPTIONS=options)
    assert "'default'" in message and "with 5 worker threads" in message and "database is locked" in message


@pytest.mark.parametrize(
    "chosen",
    [
        {"OPTIONS": IMMEDIATE},
        {"OPTIONS": {"transaction_mode": "exclusive"}},
        {"worker": {"threads": 1}},
        {"NAME": ":memory:"},
        {"NAME": "file:shared?mode=memory&cache=shared"},
        {"ENGINE": "django.db.backends.postgresql"},
    ],
)
def test_what_cannot_lock_each_other_out_is_none(found: Found, chosen: dict[str, Any]) -> None:
    assert found(**chosen) == []


def test_one_thread_in_each_of_two_processes_are_two(found: Found) -> None:
    assert len(found(worker={"threads": 1, "processes": 2})) == 1


def test_the_example_has_what_the_check_asks_for(found: Found) -> None:
    assert found(**OF_THE_EXAMPLE["default"]) == []
    assert OF_THE_EXAMPLE["default"]["OPTIONS"]["timeout"] == 20


def _five_threads_add(path: Path, options: dict[str, Any], *, meet: bool) -> tuple[int, list[str]]:
    """Let each of five threads read a number, add one and write it; ``meet`` = all have read before one writes.

    Returns:
        The number in the end, and the errors.
    """
    errors: list[str] = []
    barrier = threading.Barrier(5)
    connections.settings["five"] = {
        **connections.settings["default"],
        "ENGINE": ENGINE,
        "NAME": str(path),
        "OPTIONS": options,
    }

    def add() -> None:
        try:
            with transaction.atomic("five"), connections["five"].cursor() as cursor:
                cursor.execute("SELECT n FROM counter")
                (number,) = cursor.fetchone()
                if meet:
                    barrier.wait(10)
                cursor.execute("UPDATE counter SET n = %s", [number + 1])
        except DatabaseError as error:
            errors.append(str(error))
        finally:
            connections["five"].close()

    try:
        with connections["five"].cursor() as cursor:
            cursor.execute("CREATE TABLE counter (n integer)")
            cursor.execute("INSERT INTO counter VALUES (0)")
        threads = [threading.Thread(target=add) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        with connections["five"].cursor() as cursor:
            cursor.execute("SELECT n FROM counter")
            return cursor.fetchone()[0], errors
    finally:
        connections["five"].close()
        del connections["five"], connections.settings["five"]


def test_transactions_that_read_first_fail_on_djangos_default_settings(django_db_blocker: Any, tmp_path: Path) -> None:
    with django_db_blocker.unblock():
        number, errors = _five_threads_add(tmp_path / "a.sqlite3", {"timeout": 0.1}, meet=True)
    assert errors and set(errors) == {"database is locked"} and number == 5 - len(errors)


def test_with_the_options_of_the_example_they_wait_for_each_other(django_db_blocker: Any, tmp_path: Path) -> None:
    with django_db_blocker.unblock():
        ended = _five_threads_add(tmp_path / "a.sqlite3", OF_THE_EXAMPLE["default"]["OPTIONS"], meet=False)
    assert ended == (5, [])

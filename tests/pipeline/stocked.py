"""Databases with the tables of the app ``stock``.

stock            one on SQLite, in a file
postgres_stock   one on PostgreSQL
any_stock        a test with each of both
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.support.postgres_box import PostgresBox


class Stock:
    """A database."""

    def __init__(self, alias: str) -> None:
        self.alias = alias

    def rows(self, model: Any) -> Any:
        """A manager of this database."""
        return model._base_manager.using(self.alias)

    def empty(self) -> None:
        """No row in any table."""
        from .stock.models import MODELS

        for model in reversed(MODELS):
            self.rows(model).all().delete()


@contextlib.contextmanager
def _opened(alias: str, database: dict[str, Any], blocker: Any) -> Iterator[None]:
    """The tables, under an alias of this process."""
    from django.conf import settings
    from django.db import connections

    from .stock.models import MODELS

    before = connections.settings
    connections.settings = connections.configure_settings({**settings.DATABASES, **before, alias: database})
    with blocker.unblock(), connections[alias].schema_editor() as editor:
        for model in MODELS:
            editor.create_model(model)
    yield
    with blocker.unblock():
        connections[alias].close()
    del connections[alias]
    connections.settings = {name: one for name, one in connections.settings.items() if name != alias}


@pytest.fixture(scope="session")
def _sqlite(tmp_path_factory: pytest.TempPathFactory, django_db_setup: None, django_db_blocker: Any) -> Iterator[Stock]:
    path = tmp_path_factory.mktemp("stock") / "stock.sqlite3"
    options = {"timeout": 20, "transaction_mode": "IMMEDIATE", "init_command": "PRAGMA journal_mode=WAL"}
    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(path), "OPTIONS": options}
    with _opened("stock_sqlite", database, django_db_blocker):
        yield Stock("stock_sqlite")


@pytest.fixture(scope="session")
def _postgres(postgres_box: PostgresBox, django_db_setup: None, django_db_blocker: Any) -> Iterator[Stock]:
    with postgres_box.database() as database, _opened("stock_postgres", database.django, django_db_blocker):
        yield Stock("stock_postgres")


@pytest.fixture
def stock(_sqlite: Stock, django_db_blocker: Any) -> Iterator[Stock]:
    """Empty tables on SQLite."""
    yield from _used(_sqlite, django_db_blocker)


@pytest.fixture
def postgres_stock(_postgres: Stock, django_db_blocker: Any) -> Iterator[Stock]:
    """Empty tables on PostgreSQL."""
    yield from _used(_postgres, django_db_blocker)


@pytest.fixture(params=["stock", "postgres_stock"], ids=["sqlite", "postgres"])
def any_stock(request: pytest.FixtureRequest) -> Stock:
    """Empty tables on the one, then on the other."""
    found: Stock = request.getfixturevalue(request.param)
    return found


def _used(stock: Stock, blocker: Any) -> Iterator[Stock]:
    with blocker.unblock():
        stock.empty()
        yield stock

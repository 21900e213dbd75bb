"""Migrations with rows in every table: from the first one to the last, and back."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.apps.registry import Apps
from django.conf import settings
from django.db import connections, models
from django.db.migrations.executor import MigrationExecutor

from tests.support.postgres_box import PostgresBox

APP = "django_delayq"
ALIAS = "migrated"
FIRST = "0001_initial"
MOMENT = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
#: kind of field -> a value that its column takes
VALUES: dict[type[models.Field[Any, Any]], Any] = {
    models.BooleanField: True,
    models.CharField: "x",
    models.TextField: "x",
    models.UUIDField: uuid.UUID(int=7),
    models.IntegerField: 3,
    models.FloatField: 0.5,
    models.DateTimeField: MOMENT,
    models.BinaryField: b"x",
    models.JSONField: {},
}


@pytest.fixture(params=["sqlite", "postgres"])
def alias(request: pytest.FixtureRequest, tmp_path: Path, django_db_blocker: Any) -> Iterator[str]:
    """An empty database with this alias."""
    with django_db_blocker.unblock():
        if request.param == "sqlite":
            database: dict[str, Any] = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "db.sqlite3")}
        else:
            box: PostgresBox = request.getfixturevalue("postgres_box")
            made = box.create()
            request.addfinalizer(lambda: box.drop(made))
            database = made.django
        connections.settings = connections.configure_settings({**settings.DATABASES, ALIAS: database})
        yield ALIAS
        connections[ALIAS].close()
        del connections[ALIAS]
        connections.settings = connections.configure_settings(settings.DATABASES)


def migrate(target: str | None) -> Apps:
    """Migrate the app to a migration (None: away); return its models there."""
    executor = MigrationExecutor(connections[ALIAS])
    executor.migrate([(APP, target)])
    return MigrationExecutor(connections[ALIAS]).loader.project_state([(APP, target)]).apps if target else Apps()


def last() -> str:
    ((_, name),) = MigrationExecutor(connections[ALIAS]).loader.graph.leaf_nodes(APP)
    return name


def tables(apps: Apps) -> list[type[models.Model]]:
    """Return the models of the app that have a table."""
    return [model for model in apps.get_app_config(APP).get_models() if model._meta.managed]


def add_row(model: type[models.Model]) -> None:
    values = {
        field.name: next(value for kind, value in VALUES.items() if isinstance(field, kind))
        for field in model._meta.concrete_fields
        if not (isinstance(field, models.AutoField) or field.has_default() or field.null or field.has_db_default())
    }
    model._default_manager.using(ALIAS).create(**values)


def rows(apps: Apps) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each table."""
    return {model.__name__: list(model._default_manager.using(ALIAS).values()) for model in tables(apps)}


def common(one: dict[str, list[dict[str, Any]]], other: dict[str, list[dict[str, Any]]]) -> list[Any]:
    """Return the rows of the first, with the columns that both have."""
    return [
        [{name: value for name, value in row.items() if name in other[table][0]} for row in one[table]]
        for table in sorted(one.keys() & other.keys())
    ]


def test_rows_of_the_first_migration_are_there_after_the_last_and_those_of_the_last_after_the_way_back(
    alias: str,
) -> None:
    first = migrate(FIRST)
    for model in tables(first):
        add_row(model)
    before = rows(first)
    newest = migrate(last())
    after = rows(newest)
    assert common(before, {name: kept for name, kept in after.items() if kept}) == common(
        {name: kept for name, kept in after.items() if name in before}, before
    )
    for model in tables(newest):
        if not after[model.__name__]:
            add_row(model)
    back = rows(migrate(FIRST))
    assert back == before
    migrate(None)
    again = rows(migrate(last()))
    assert set(map(len, again.values())) == {0}


def test_each_migration_can_be_taken_back(alias: str) -> None:
    newest = last()
    names = sorted(name for app, name in MigrationExecutor(connections[ALIAS]).loader.disk_migrations if app == APP)
    for name in names:
        migrate(newest)
        migrate(name)
    assert names[-1] == newest

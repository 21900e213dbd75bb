"""Emptying of a database between tests.

Django's own way, the command ``flush``, empties every table and creates all permissions again: twenty times as long.
"""

from __future__ import annotations

from django.core.management.color import no_style
from django.db import connections
from django.test import TransactionTestCase

#: made by the migrations; no test changes them
KEPT = frozenset({"auth_permission", "django_content_type"})


def empty(alias: str) -> None:
    """Empty the tables in which there is something."""
    connection = connections[alias]
    tables = sorted({*connection.introspection.django_table_names(only_existing=True, include_views=False)} - KEPT)
    exists = ", ".join(f"EXISTS (SELECT 1 FROM {connection.ops.quote_name(table)})" for table in tables)
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {exists}")
        filled = [table for table, found in zip(tables, cursor.fetchone(), strict=True) if found]
    if filled:
        statements = connection.ops.sql_flush(no_style(), filled, reset_sequences=False, allow_cascade=True)
        connection.ops.execute_sql_flush(statements)


def empty_databases(case: TransactionTestCase) -> None:
    """Empty the databases of a test; replaces ``TransactionTestCase._fixture_teardown``."""
    for alias in case._databases_names(include_mirrors=False):  # type: ignore[attr-defined]
        empty(alias)

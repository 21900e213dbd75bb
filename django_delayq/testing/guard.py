"""Transactions around a job that a test runs: a worker has none open, a ``TestCase`` has its own.

What a job queues for the commit is called when the job is over, as a worker's own commits would have done; and an
``atomic`` that the handler entered and never left is found as a worker finds it.
"""

from __future__ import annotations

import logging
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from ..core.errors import LeakedTransaction

logger = logging.getLogger("django_delayq.testing")


class Guard:
    """Around one job at a time; a job inside another one (``immediate()``) has a guard of its own."""

    def __init__(self) -> None:
        self._seen: list[dict[str, tuple[int, int]]] = []

    def enter(self) -> None:
        """Before the handler."""
        self._seen.append(
            {
                connection.alias: (len(connection.atomic_blocks), len(connection.run_on_commit))
                for connection in connections.all(initialized_only=True)
            }
        )

    def leave(self) -> None:
        """After the handler, whatever it did.

        Raises:
            LeakedTransaction: it left a transaction open, whose work is rolled back now.
            Exception: what a callback of ``transaction.on_commit`` raised that is not robust.
        """
        seen = self._seen.pop()
        for connection in connections.all(initialized_only=True):
            depth, callbacks = seen.get(connection.alias, (0, 0))
            if len(connection.atomic_blocks) > depth:
                _roll_back(connection, depth)
            if depth:
                _commit(connection, callbacks)


def _roll_back(connection: BaseDatabaseWrapper, depth: int) -> None:
    leaked = LeakedTransaction(
        f"an atomic() block on the database {connection.alias!r} was entered and never left, so the work was rolled "
        "back. Use `with transaction.atomic():`"
    )
    while len(connection.atomic_blocks) > depth:
        connection.atomic_blocks[-1].__exit__(LeakedTransaction, leaked, None)
    raise leaked


def _commit(connection: BaseDatabaseWrapper, first: int) -> None:
    """Call what was queued since then, and take it off the list, so that nobody calls it again."""
    while len(connection.run_on_commit) > first:
        entry: Any = connection.run_on_commit.pop(first)  # (savepoints, callback, whether it is robust)
        try:
            entry[1]()
        except Exception:
            if not entry[2]:
                raise
            logger.exception("a robust callback of transaction.on_commit() failed")

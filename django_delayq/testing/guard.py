"""Transaction handling around a job that a test runs: a worker has no open transaction, but a ``TestCase`` has.

The job's on-commit callbacks are called when the job is over, as a worker's own commits would have done. An ``atomic``
block that the handler entered and not left is detected as in a worker.
"""

from __future__ import annotations

import logging
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from ..core.errors import LeakedTransaction

logger = logging.getLogger("django_delayq.testing")


class Guard:
    """Guard around one job at a time; a job inside another one (``immediate()``) has its own."""

    def __init__(self) -> None:
        self._before: list[dict[str, tuple[int, int]]] = []

    def enter(self) -> None:
        """Record the transactions before the handler runs."""
        self._before.append(
            {
                connection.alias: (len(connection.atomic_blocks), len(connection.run_on_commit))
                for connection in connections.all(initialized_only=True)
            }
        )

    def leave(self) -> None:
        """Check the transactions after the handler, whatever it did, and call its on-commit callbacks.

        Raises:
            LeakedTransaction: it left a transaction open; its work is rolled back.
            Exception: raised by a callback of ``transaction.on_commit`` that is not robust.
        """
        before = self._before.pop()
        for connection in connections.all(initialized_only=True):
            depth, callbacks = before.get(connection.alias, (0, 0))
            if len(connection.atomic_blocks) > depth:
                _roll_back(connection, depth)
            if depth:
                _commit(connection, callbacks)


def _roll_back(connection: BaseDatabaseWrapper, depth: int) -> None:
    leaked = LeakedTransaction(
        f"an atomic() block on the database {connection.alias!r} was entered and not left, so the work was rolled "
        "back. Use `with transaction.atomic():`"
    )
    while len(connection.atomic_blocks) > depth:
        connection.atomic_blocks[-1].__exit__(LeakedTransaction, leaked, None)
    raise leaked


def _commit(connection: BaseDatabaseWrapper, first: int) -> None:
    """Call the callbacks queued since then, and remove them so that they are not called again."""
    while len(connection.run_on_commit) > first:
        entry: Any = connection.run_on_commit.pop(first)  # (savepoints, callback, robust)
        try:
            entry[1]()
        except Exception:
            if not entry[2]:
                raise
            logger.exception("a robust callback of transaction.on_commit() failed")

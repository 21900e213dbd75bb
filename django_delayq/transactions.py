"""Verbs inside a database transaction: sent after the commit, in call order; dropped with a rollback.

Each verb is one ``transaction.on_commit`` callback, so that rolling back a savepoint drops exactly the verbs of that
savepoint, and Django's own test helpers (``captureOnCommitCallbacks``) see them.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal, TypeVar

from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.utils.connection import ConnectionDoesNotExist

from .core.errors import InvalidJob
from .core.inputs import short, suggest
from .core.task import Task
from .signals import emit, job_not_sent

OnCommit = Literal["on_commit"]
ON_COMMIT: Final[OnCommit] = "on_commit"

logger: Final = logging.getLogger("django_delayq.transactions")

#: verbs of this process that could not be sent after their commit, by the class name of the error (jobs of
#: schedule_many also by the outcome: taken, exists, full, paused)
not_sent: Final[Counter[str]] = Counter()

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class What:
    """Which verb on which job; for the log and the signal when it cannot be sent."""

    verb: str
    queue: str
    id: str
    task: Task | None = None


def in_transaction(using: str | None) -> bool:
    """Whether an ``atomic`` block is open here on the database ``using`` (None = the default one).

    Raises:
        InvalidJob: there is no such database.
    """
    try:
        return connections[using or DEFAULT_DB_ALIAS].in_atomic_block
    except ConnectionDoesNotExist:
        raise InvalidJob(
            f"using_db={short(using)} is no alias in DATABASES.{suggest(str(using), connections)}"
        ) from None


def now_or_on_commit(
    send: Callable[[], T], what: What, *, using: str | None, failed: Callable[[Exception], None] | None = None
) -> T | OnCommit:
    """Call ``send`` now, or after the commit if a transaction is open on ``using``.

    Arguments:
        failed: called with the error when ``send`` fails after the commit. Such an error is logged, counted in
            :data:`not_sent` and signalled, never raised: the transaction has succeeded already.

    Raises:
        Whatever ``send`` raises, when it is called now.
    """
    if not in_transaction(using):
        return send()
    transaction.on_commit(partial(_send_late, send, what, failed), using=using, robust=True)
    return ON_COMMIT


def _send_late(send: Callable[[], object], what: What, failed: Callable[[Exception], None] | None) -> None:
    try:
        send()
    except Exception as error:
        not_sent[type(error).__name__] += 1
        logger.error(
            "%s of %s in queue %s was not sent after the commit: %s: %s",
            what.verb,
            what.id or "several jobs",
            what.queue,
            type(error).__name__,
            error,
            extra={"verb": what.verb, "job_id": what.id, "queue": what.queue},
        )
        if failed is not None:
            failed(error)
        emit(job_not_sent, what.task, verb=what.verb, id=what.id, queue=what.queue, error=error)


#: outcomes of schedule_many by which a job is not stored
REFUSED: Final = ("taken", "exists", "full", "paused")


def log_refused(what: What, counts: Mapping[str, int]) -> None:
    """After a commit nobody is left to read the counts, so what was not stored is logged and counted in `not_sent`."""
    for outcome in REFUSED:
        number = counts.get(outcome, 0)
        if number:
            not_sent[outcome] += number
            logger.error(
                "%s of %d jobs in queue %s had no effect after the commit: %s",
                what.verb, number, what.queue, outcome, extra={"verb": what.verb, "queue": what.queue},
            )  # fmt: skip

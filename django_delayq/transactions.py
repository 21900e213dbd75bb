"""Verbs inside a database transaction: sent after the commit, in call order; dropped with a rollback.

Each verb is one ``transaction.on_commit`` callback, so that rolling back a savepoint drops exactly the verbs of that
savepoint, and Django's own test helpers (``captureOnCommitCallbacks``) see them.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeVar

from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.utils.connection import ConnectionDoesNotExist

from .connections import refuse_in_tests
from .core.errors import DelayQError, InvalidJob, NotConfirmed, QueueUnavailable
from .core.inputs import short, suggest
from .core.outcomes import REFUSALS
from .core.task import Task
from .core.thread_lock import ThreadLock
from .signals import emit, job_not_sent

OnCommit = Literal["on_commit"]
ON_COMMIT: Final[OnCommit] = "on_commit"

logger: Final = logging.getLogger("django_delayq.transactions")

#: verbs that could not be sent after their commit, by the class of the error (jobs of schedule_many also by outcome)
not_sent: Final[Counter[str]] = Counter()
_counting: Final = ThreadLock()

#: what the log adds when Redis was away; nobody is left who could try again
_UNLESS_DURABLE: Final = ". The job is lost; durable=True keeps such jobs in the database until Redis is back"

_PACKAGE: Final = __name__.partition(".")[0]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CallDescription:
    """Description of a call, used in the log and the signal when it cannot be sent."""

    verb: str
    queue: str
    id: str
    task: Task | None = None


def in_transaction(using: str | None) -> bool:
    """Return True if an ``atomic`` block is open here on the database ``using`` (None = the default one).

    Raises:
        InvalidJob: there is no such database.
    """
    try:
        return connections[using or DEFAULT_DB_ALIAS].in_atomic_block
    except (ConnectionDoesNotExist, TypeError):
        raise InvalidJob(
            f"using_db={short(using)} is no alias in DATABASES.{suggest(str(using), connections)} "
            f"Known aliases: {', '.join(connections)}"
        ) from None


def open_elsewhere(using: str | None) -> str | None:
    """Return another database than ``using`` on which an ``atomic`` block is open here; None if there is none."""
    for alias in connections.settings:
        if alias != (using or DEFAULT_DB_ALIAS):
            # `connections[alias]` would make a connection, and `connections.all()` takes four times as long.
            connection = getattr(connections._connections, alias, None)  # type: ignore[attr-defined]
            if connection is not None and connection.in_atomic_block:
                return alias
    return None


def warn_of_other_transaction(verb: str, using: str | None) -> None:
    """Warn if a call that names no database is sent at once although a transaction is open on another one."""
    elsewhere = None if using is not None else open_elsewhere(None)
    if elsewhere is not None and not in_transaction(None):
        warn_caller(
            f"{verb}() is sent at once, and not with the transaction that is open on the database {elsewhere!r}: give "
            f"using_db={elsewhere!r} to wait for its commit, or using_db={DEFAULT_DB_ALIAS!r} if it shall not wait",
            RuntimeWarning,
        )


def warn_caller(text: str, category: type[Warning]) -> None:
    """Issue a warning that names the line of the project which called this package."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == _PACKAGE:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)


def now_or_on_commit(send: Callable[[], T], what: CallDescription, *, using: str | None) -> T | OnCommit:
    """Call ``send`` now, or after the commit if a transaction is open on ``using``.

    An error after the commit is logged, counted in :data:`not_sent` and signalled, never raised: the transaction has
    already succeeded.

    Raises:
        Exception: any error of ``send``, when it is called now.
    """
    if not in_transaction(using):
        return send()
    OnCommitCall(what, using, send).wait()
    return ON_COMMIT


@dataclass(eq=False)
class OnCommitCall:
    """Call that waits for the commit. The testing kit finds these among Django's callbacks.

    Attributes:
        what: description of the call.
        using: alias of the database; None = the default one.
        function: sends the call, unless :meth:`send` is overridden.
        sent: True once the call was sent after the commit.
    """

    what: CallDescription
    using: str | None
    function: Callable[[], object] = lambda: None
    sent: bool = field(default=False, init=False)

    def send(self) -> None:
        """Send the call."""
        self.function()

    def wait(self) -> None:
        """Register the call to run after the commit of the open transaction.

        Raises:
            Misconfigured: this is a test that may not use Redis.
        """
        refuse_in_tests()
        transaction.on_commit(self, using=self.using, robust=True)

    def __call__(self) -> None:
        if self.sent:  # Django's nested test helpers call it twice
            return
        self.sent = True
        try:
            self.send()
        except Exception as error:
            self.failed(error)

    def failed(self, error: Exception) -> None:
        """Log, count and signal a call that failed. It cannot be raised, because its caller is gone."""
        what = self.what
        advice = _UNLESS_DURABLE if what.verb == "schedule" and type(error) is QueueUnavailable else ""
        with _counting:
            not_sent[type(error).__name__] += 1
        logger.error(
            "%s of %s in queue %s was %s after the commit: %s: %s%s",
            what.verb,
            what.id or "several jobs",
            what.queue,
            "stored, but not confirmed," if isinstance(error, NotConfirmed) else "not sent",
            type(error).__name__,
            error,
            advice,
            exc_info=None if isinstance(error, DelayQError) else error,
            extra={"verb": what.verb, "job_id": what.id, "queue": what.queue},
        )
        emit(job_not_sent, what.task, verb=what.verb, id=what.id, queue=what.queue, error=error)


def log_refused(what: CallDescription, counts: Mapping[str, int]) -> None:
    """Log jobs that were not stored and count them in `not_sent`: after a commit the caller cannot read the counts."""
    for outcome in REFUSALS:
        if number := counts.get(outcome, 0):
            with _counting:
                not_sent[outcome] += number
            logger.error(
                "%s of %d jobs in queue %s had no effect after the commit: %s",
                what.verb,
                number,
                what.queue,
                outcome,
                extra={"verb": what.verb, "queue": what.queue},
            )

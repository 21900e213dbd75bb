"""Verbs inside a database transaction: sent after the commit, in call order; dropped with a rollback.

Each verb is one ``transaction.on_commit`` callback, so that rolling back a savepoint drops exactly the verbs of that
savepoint, and Django's own test helpers (``captureOnCommitCallbacks``) see them.

Consecutive schedules nevertheless share a round trip. The verbs of a transaction are queued in a :class:`CommitQueue`.
The first verb that Django calls after the commit also sends the following ones, as long as these are schedules too and
are
*certain* to be called. When Django calls those, they have already been sent and do nothing. A verb is certain if its
callback can no longer be dropped: none of the savepoints that it depends on was, or can have been, rolled back.

* A verb depends on the savepoints that were open at its call. When one of them is closed, which is detected at the next
  call, either its callback is gone with the savepoint, or it depends on the outer savepoints only.
* A verb that is called after the commit proves that none of the savepoints that it depended on was rolled back since
  its call. A later verb that depends on no others is certain.

A callback that a test calls itself, inside its transaction, sends no other verb.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar
from weakref import WeakKeyDictionary

from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.connection import ConnectionDoesNotExist

from .connections import refuse_unwanted
from .core.errors import InvalidJob, NotConfirmed, QueuePaused, QueueUnavailable
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

#: maximum number of verbs that share a round trip
TOGETHER: Final = 250

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


def now_or_on_commit(send: Callable[[], T], what: CallDescription, *, using: str | None) -> T | OnCommit:
    """Call ``send`` now, or after the commit if a transaction is open on ``using``.

    An error after the commit is logged, counted in :data:`not_sent` and signalled, never raised: the transaction has
    already succeeded.

    Raises:
        Exception: any error of ``send``, when it is called now.
    """
    if not in_transaction(using):
        return send()
    OnCommitCall(send, what).wait(using)
    return ON_COMMIT


class OnCommitCall:
    """Call that waits for the commit. The testing kit finds these among Django's callbacks.

    Attributes:
        what: description of the call.
        sent: True once the call was sent after the commit.
        line: queue of the calls of its transaction.
        place: position in ``line``.
        opened: savepoints that were open at the call.
        risk: those of them that may still be rolled back; None if one was rolled back.
    """

    __slots__ = ("_send", "line", "opened", "place", "risk", "sent", "what")

    line: CommitQueue
    place: int
    opened: frozenset[str]
    risk: frozenset[str] | None

    def __init__(self, send: Callable[[], object], what: CallDescription) -> None:
        self._send = send
        self.what = what
        self.sent = False

    def wait(self, using: str | None) -> None:
        """Register the call to run after the commit of the open transaction.

        Raises:
            Misconfigured: this is a test that may not use Redis.
        """
        refuse_unwanted()
        connection = connections[using or DEFAULT_DB_ALIAS]
        line = _lines.get(connection)
        if line is None or not connection.run_on_commit:  # the earlier queue is committed, or dropped
            line = _lines[connection] = CommitQueue(connection)
        line.append(self)
        transaction.on_commit(self, using=using, robust=True)

    def __call__(self) -> None:
        if not self.sent:
            batch = self.line.with_followers(self)
            for late in batch:
                late.sent = True
            self.deliver(batch)

    def travels_with(self, first: OnCommitCall) -> bool:
        """Return True if this call and ``first`` can be sent by one :meth:`deliver` of ``first``."""
        return False

    def deliver(self, batch: Sequence[Any]) -> None:
        """Send the calls of ``batch``, of which this is the first. Never raises."""
        try:
            self._send()
        except Exception as error:
            self.failed(error)

    def failed(self, error: Exception) -> None:
        """Log, count and signal a call that failed. It cannot be raised, because its caller is gone."""
        what = self.what
        is_stored, is_reply = isinstance(error, NotConfirmed), isinstance(error, (NotConfirmed, QueuePaused))
        is_away = isinstance(error, QueueUnavailable) and not is_reply
        advice = _UNLESS_DURABLE if what.verb == "schedule" and is_away else ""
        with _counting:
            not_sent[type(error).__name__] += 1
        logger.error(
            "%s of %s in queue %s was %s after the commit: %s: %s%s",
            what.verb,
            what.id or "several jobs",
            what.queue,
            "stored, but not confirmed," if is_stored else "not sent",
            type(error).__name__,
            error,
            advice,
            extra={"verb": what.verb, "job_id": what.id, "queue": what.queue},
        )
        emit(job_not_sent, what.task, verb=what.verb, id=what.id, queue=what.queue, error=error)


class CommitQueue:
    """Queue of the calls of one transaction, in call order."""

    __slots__ = ("_at_risk", "_connection", "_verbs")

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self._connection = connection
        self._verbs: list[OnCommitCall] = []
        self._at_risk: dict[str, list[OnCommitCall]] = {}

    def append(self, late: OnCommitCall) -> None:
        """Add a call to the queue of the transaction, with the savepoints that are open now."""
        late.line, late.place = self, len(self._verbs)
        late.opened = late.risk = frozenset(sid for sid in self._connection.savepoint_ids if sid is not None)
        for sid in [sid for sid in self._at_risk if sid not in late.opened]:
            self._closed(sid)
        for sid in late.opened:
            self._at_risk.setdefault(sid, []).append(late)
        self._verbs.append(late)

    def _closed(self, sid: str) -> None:
        """Update the calls that depended on a savepoint which is no longer open."""
        verbs = self._at_risk.pop(sid)
        there = set()
        waiting: list[Any] = self._connection.run_on_commit  # (savepoints, callback, robust)
        for _, callback, _ in reversed(waiting):
            if isinstance(callback, OnCommitCall) and callback.line is self:
                there.add(callback)
                if callback.place <= verbs[0].place:
                    break
        for late in verbs:
            if late.risk is not None:
                late.risk = late.risk - {sid} if late in there else None

    def with_followers(self, first: OnCommitCall) -> list[OnCommitCall]:
        """Return the call that is due, followed by those that are sent with it."""
        batch = [first]
        if self._connection.in_atomic_block:
            return batch
        for place in range(first.place + 1, min(first.place + TOGETHER, len(self._verbs))):
            late = self._verbs[place]
            sure = not late.sent and late.risk is not None and late.risk <= first.opened
            if not (sure and late.travels_with(first)):
                break
            batch.append(late)
        return batch


_lines: Final[WeakKeyDictionary[BaseDatabaseWrapper, CommitQueue]] = WeakKeyDictionary()


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

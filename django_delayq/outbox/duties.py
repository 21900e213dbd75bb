"""Duties of dispatchers and workers for the outbox.

    Relay       sends the rows which their writer could not send
    Marks       stores how jobs ended
    Reconciler  detects jobs lost by Redis
    Retention   deletes rows that are no longer needed

The script that ends a durable job leaves a mark in Redis. A mark is deleted only after the change of its row was
committed, and only if it is still the same mark. Until then Redis answers ``known`` to every attempt to send the job
again. Rows that are claimed, or locked by a transaction, keep their marks, because a process may be about to send them.

The row of a sent job belongs to a job that Redis has, live or in its morgue, or to a job whose end is marked. If Redis
has neither, the job was lost with its memory: its row is reset to unsent, and the relay sends it again.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Final

from django.db.models import DateTimeField, Value
from django.db.models.functions import Coalesce, Greatest, Now
from django.db.utils import Error as DatabaseError

from ..core.outcomes import CompletionMark
from ..models import InboxEntry, OutboxJob
from ..settings.conf import Conf
from ..worker.loop import Parts
from . import rows
from .durability import declared, is_announced
from .push import Push
from .rows import ahead, free, read, table

if TYPE_CHECKING:
    from ..connections import DjangoBroker
    from ..worker.loop import Changes

logger: Final = logging.getLogger("django_delayq.outbox")
State = OutboxJob.State

#: seconds between two looks of the relay if the settings or a task announce durable jobs, and if they do not
BUSY: Final = 1.0
IDLE: Final = 10.0
#: seconds for which the ends of jobs are collected, so that they are stored together
GATHER: Final = 0.2
#: seconds until marks are read again after some could not be stored: their rows are claimed or locked
AGAIN: Final = 1.0
#: seconds between two searches for rows that are due for a check
LOOK: Final = 10.0
#: seconds between two deletions of old rows
EVERY: Final = 3600.0
_FOR_EVER: Final = 3600.0
_DAY: Final = 86_400.0
#: of each end of a job the states from which its mark changes a row; a mark for a row in another state is obsolete
_CHANGED_FROM: Final = {
    "done": tuple(State),
    "buried": (State.UNSENT, State.SENT, State.MOVED),
    "live": (State.BURIED,),
}


class Relay:
    """Duty that sends the rows of one database which their writer could not send."""

    #: number of rows that are claimed and sent together
    batch = rows.CHUNK

    def __init__(self, settings: Conf, alias: str, broker: DjangoBroker) -> None:
        self._settings = settings
        self._alias = alias
        self._broker = broker

    def run(self) -> float:
        """Handle one batch. Return the seconds until the next one."""
        if rows.waiting(self._alias).exists():
            return 0.0 if self.turn() else BUSY
        return BUSY if is_announced() or declared(self._settings) else IDLE

    def turn(self) -> Counter[str]:
        """Handle one batch. Return counts by result; empty if all waiting rows are claimed by other processes.

        Raises:
            QueueUnavailable: Redis became unavailable; rows that it had not received were released.
        """
        push = Push(self._alias, self._broker, self.batch)
        try:
            push.run()
        finally:
            counts = push.report()
        return counts


class Marks:
    """Duty that stores how durable jobs ended.

    Args:
        aliases: all databases that have an outbox; a mark does not name its database.
        changes: names the shards with new marks.
    """

    def __init__(self, aliases: Sequence[str], broker: DjangoBroker, changes: Changes) -> None:
        self._aliases = aliases
        self._broker = broker
        self._changes = changes.reader("marks")
        #: shards with marks
        self._places: set[tuple[str, int]] = set()
        self._next = 0.0
        self._shards = Parts("marks", broker, shared=(DatabaseError,))
        self._databases = Parts("marks", shared=(DatabaseError,) if len(aliases) == 1 else ())

    def attach(self, ring: Callable[[], None]) -> None:
        """Let new marks end the rest of the loop."""
        self._changes.ring = ring

    def run(self) -> float:
        """Store the marks that are due. Return the seconds until the next turn."""
        now = time.monotonic()
        if now < self._next:
            return self._next - now
        self._places.update(self._changes.take("marks"))
        self._next = now + AGAIN
        for place in list(self._places):
            self._shards.attempt(place, partial(self._take_down_or_keep, place))
        if self._places:
            return AGAIN
        self._next = now + GATHER
        return _FOR_EVER

    def _take_down_or_keep(self, place: tuple[str, int]) -> None:
        if not self.take_down(*place)[1]:
            self._places.remove(place)

    def take_down(self, queue: str, shard: int) -> tuple[int, int]:
        """Store the marks of a shard. Return how many were stored, and how many have to wait for now."""
        opened, count = self._broker.existing(queue), 0
        stored: list[CompletionMark] = []
        while opened is not None:
            page = opened.marks(shard, forget=stored)
            count += len(stored)
            waiting = self.apply(page) if page else set()
            stored = [mark for mark in page if mark.key not in waiting]
            if not stored:
                return count, len(waiting)
        return 0, 0

    def apply(self, marks: Sequence[CompletionMark]) -> set[bytes]:
        """Change the rows of some marks. Return the keys of those whose rows could not be changed now.

        A mark does not name its database, so it waits while one of several databases cannot be reached. The rows in the
        others are changed nevertheless.
        """
        waiting: set[bytes] = set()
        for alias in self._aliases:
            keys = {mark.key for mark in marks}
            self._databases.attempt(alias, lambda: keys.intersection_update(_apply(alias, marks)))  # noqa: B023
            waiting |= keys
        return waiting


def _apply(alias: str, marks: Sequence[CompletionMark]) -> set[bytes]:
    ends = {uuid.UUID(bytes=mark.key): mark.end for mark in marks}
    with rows.locking(alias):
        mine = table(alias).filter(free(), key__in=ends)
        keys = dict(rows.unlocked(mine).order_by("id").values_list("id", "key"))
        for end in set(ends.values()):
            ended = mine.filter(pk__in=[pk for pk, key in keys.items() if ends[key] == end])
            ended = ended.filter(state__in=_CHANGED_FROM[end])
            if end == "done":
                ended.delete()
            else:
                state = State.BURIED if end == "buried" else State.SENT
                ended.update(state=state, claim=None, claimed_until=None, checked_at=Now())
    remaining = table(alias).filter(key__in=ends).values_list("key", "state")
    return {key.bytes for key, state in remaining if state in _CHANGED_FROM[ends[key]]}


class Reconciler:
    """Duty that detects durable jobs lost by Redis.

    All rows are checked when this process starts and whenever a shard has lost its data; later they are checked in
    rotation.

    Args:
        changes: reports that a shard has lost its data.
    """

    #: number of rows that are looked up together
    batch = rows.CHUNK
    #: seconds after which a job that was sent, but is unknown to Redis, counts as lost and is sent again
    resubmit_after = 60.0
    #: seconds between two checks that Redis still has a job that was sent
    recheck_every = 600.0

    def __init__(self, alias: str, broker: DjangoBroker, changes: Changes) -> None:
        self._alias = alias
        self._broker = broker
        self._losses = changes.reader("lost")
        #: time on the database's clock; rows not checked since then are checked now; None = not read yet
        self._since: datetime | None = None

    def attach(self, ring: Callable[[], None]) -> None:
        """Let a loss of data end the rest of the loop."""
        self._losses.ring = ring

    def run(self) -> float:
        """Check one batch. Return the seconds until the next one."""
        if self._losses.take("lost") or self._since is None:
            self._since = database_time(self._alias)
        if self._since is None:
            return LOOK
        try:
            count, _ = self.look(self._since)
        except Exception:
            self._since = None  # rows of a query without a reply are checked again
            raise
        return 0.0 if count == self.batch else min(LOOK, self.resubmit_after / 2)

    def look(self, since: datetime, *, at_once: bool = False) -> tuple[int, int]:
        """Check one batch of rows of sent jobs against Redis, those first that were not checked for the longest time.

        The rows are marked as checked now, so that other dispatchers take other rows.

        Args:
            since: only rows that were not checked since then, or not for long.
            at_once: include rows that were sent recently.

        Returns:
            Number of rows checked, and number of rows to send again.

        Raises:
            QueueUnavailable: Redis does not answer; nothing is sent again.
        """
        # One bound for the index, not two with an "or" between.
        bound = Greatest(Value(since, output_field=DateTimeField()), ahead(-self.recheck_every))
        unchecked = table(self._alias).filter(free(), checked_at__lte=bound, state=State.SENT)
        if not at_once:
            unchecked = unchecked.filter(sent_at__lte=ahead(-self.resubmit_after))
        if not unchecked.exists():
            return 0, 0
        with rows.locking(self._alias):
            checked = read(rows.unlocked(unchecked).order_by("checked_at", "id")[: self.batch])
            mine = table(self._alias).filter(pk__in=[row.pk for row in checked], state=State.SENT)
            mine.update(checked_at=Now())
        missing = list(unknown(self._broker, checked))
        return len(checked), self._send_again(missing) if missing else 0

    def _send_again(self, missing: list[OutboxJob]) -> int:
        """Reset rows to unsent, unless another process has done so or is sending them. Return their number.

        A plain job behind another one of its id keeps waiting for the end of that one.
        """
        pks = {row.pk for row in missing}
        behind = rows.beside(self._alias, pks)
        later = {row.pk for row in missing if row.pk in behind and not rows.payload_digest(row)}
        sent = table(self._alias).filter(state=State.SENT)
        if later:
            soon = ahead(self.resubmit_after - self.recheck_every)
            sent.filter(pk__in=later).update(checked_at=soon)
        count = sent.filter(free(), pk__in=pks - later).update(state=State.UNSENT)
        if count:
            example = f"{missing[0].queue}/{missing[0].job_id}"
            logger.warning("Redis has lost %d durable jobs (%s is one); they are sent again", count, example)
        return count


def unknown(broker: DjangoBroker, some: Iterable[OutboxJob]) -> Iterator[OutboxJob]:
    """Yield the rows whose jobs are unknown to Redis."""
    for queue, group in groupby(sorted(some, key=lambda row: row.queue), key=lambda row: row.queue):
        mine, opened = list(group), broker.existing(queue)
        known = [(row.job_id, row.key.bytes, rows.payload_digest(row)) for row in mine]
        in_redis = [False] * len(mine) if opened is None else opened.knows(known)
        yield from (row for row, is_known in zip(mine, in_redis, strict=True) if not is_known)


def database_time(alias: str) -> datetime | None:
    """Return the time of a database; None while its outbox is empty."""
    return table(alias).annotate(moment=Now()).values_list("moment", flat=True).order_by("pk").first()


class Retention:
    """Duty that deletes old rows of one database: refused rows, and entries of ``@exactly_once``.

    Args:
        settings: the project's settings; ``outbox`` and ``inbox`` define the retention.
    """

    def __init__(self, settings: Conf, alias: str) -> None:
        self._settings = settings
        self._alias = alias

    def run(self) -> float:
        """Delete all rows that are old enough, in batches. Return the seconds until the next turn."""
        settings = self._settings
        refused = table(self._alias).filter(state=State.REFUSED)
        refused = refused.annotate(refused_at=Coalesce("claimed_until", "created_at"))
        refused = refused.filter(refused_at__lt=ahead(-settings.outbox.keep_days * _DAY))
        entries = InboxEntry.objects.using(self._alias)
        entries = entries.filter(created_at__lt=ahead(-settings.inbox.keep_days * _DAY))
        for what, old in (("refused jobs of the outbox", refused), ("entries of the inbox", entries)):
            count = rows.purge(old)
            if count:
                logger.info("forgot %d old %s", count, what)
        return EVERY

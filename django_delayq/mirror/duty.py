"""Index mirrors: the copies of the failed jobs and of the morgue in tables, and the dispatcher duty that keeps them.

A walk of :class:`IndexMirror` reads the index of a shard page by page, in the order of its scores, and the names of the
rows in the same range. Only missing jobs are read. It begins at the newest row to copy what is new, and at the first
one for a review.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from django.db import InterfaceError, InternalError, OperationalError, ProgrammingError

from .. import connections
from ..core.bulk import Progress
from ..core.counts import count_shards
from ..core.queue import Queue
from ..core.reading import jobs_of
from ..core.records.frames import CHUNK
from ..core.redis.scripts import clear_errors
from ..settings.conf import conf
from ..worker.loop import Parts
from .rows import FAILED, MORGUE, PLACES, Place, Row, is_readable, row_of, store

if TYPE_CHECKING:
    from ..core.broker import Broker
    from ..worker.loop import Changes

logger: Final = logging.getLogger(__name__)

#: seconds between two full checks
FULL_CHECK_SECONDS: Final = 600.0
#: seconds between two turns without changes; such a turn queries neither Redis nor the database
_IDLE_SECONDS: Final = 30.0
#: seconds between two turns while jobs fail continuously
_BUSY_SECONDS: Final = 0.25
#: minimum seconds between two records of the age
_AGE_SECONDS: Final = 10.0
#: seconds of work in one turn
_TURN_SECONDS: Final = 0.5

#: age in seconds above which the tables are behind: a dispatcher renews it twice a minute, also if nothing fails
LATE_SECONDS: Final = 90.0

#: queue, shard, place
Name: TypeAlias = tuple[str, int, str]

#: seconds between two reviews of one index, and the minimum ratio of that interval to the time a review takes
_REVIEW_SECONDS: Final = 2.0
_REVIEW_SHARE: Final = 20
#: entries of an index that are compared with rows at a time
_PAGE: Final = 2000
#: rows that one statement deletes
DELETE_CHUNK: Final = 1000
_DAY_SECONDS: Final = 86_400
#: scores are moments in µs; a double is an exact integer up to this one, so no script has written a larger one
LAST_SCORE: Final = 1 << 53

_END: Final = object()


# -- one index ---------------------------------------------------------------------------------------------------------


class IndexMirror:
    """Mirror of one index. Its work is done in steps: the caller may pause between two of them, or abandon them."""

    def __init__(self, queue: Queue, number: int, place: Place) -> None:
        self.queue = queue
        self.number = number
        self.place = place
        #: there may be new entries to copy
        self.changed = False
        #: time (``time.monotonic()``) from which on a review is made that is wanted
        self.review_at = 0.0
        #: the review that is wanted: True = of each entry, False = if the counts differ, None = none
        self._review: bool | None = None
        self._steps: Iterator[object] | None = None
        self._key: bytes = queue.shard(number).names[place.name]

    # -- the work ----------------------------------------------------------------------------------------------------

    @property
    def due_at(self) -> float:
        """Time (``time.monotonic()``) from which on a step is due; infinite if nothing is to be done."""
        if self.changed or self._steps is not None:
            return 0.0
        return float("inf") if self._review is None else self.review_at

    def mark(self, *, fully: bool = False) -> None:
        """Have the new entries copied, and the rows reviewed; fully = each of them, as soon as possible."""
        self.changed = True
        self._review = fully or self._review or False
        if fully:
            self.review_at = 0.0

    def step(self) -> None:
        """Do one step of the work. One that fails has it begin again."""
        self._steps = self._steps or self._work()
        try:
            if next(self._steps, _END) is _END:
                self._steps = None
        except Exception:
            self._steps = None
            self.mark(fully=True)
            raise

    def _work(self) -> Iterator[None]:
        if self.changed:
            self.changed = False  # a change noticed from here on needs another copy
            yield from self.copy()
        if self._review is not None and time.monotonic() >= self.review_at:
            fully, self._review = self._review, None
            began_at = time.monotonic()
            yield from self.review(fully=fully)
            now = time.monotonic()
            self.review_at = now + max(_REVIEW_SECONDS, _REVIEW_SHARE * (now - began_at))

    def copy(self) -> Iterator[None]:
        """Copy the entries after the newest row, in steps.

        It begins one ms before that row, because scores within one ms are not assigned in order.
        """
        newest = self._edge("-updated_us")
        low = max(self._lowest(), newest // 1000 * 1000 - 1)
        return self._walk(low, low, newest)

    def review(self, *, fully: bool) -> Iterator[None]:
        """Make the table agree with the index, in steps. Changes made meanwhile are found by the next review.

        Args:
            fully: compare each entry with its row; else only if there is another number of them.
        """
        low = self._lowest()
        if fully or not self._agrees(low):
            yield from self._walk(0, low, self._edge("-updated_us"))

    def _lowest(self) -> int:
        """Return the first score to keep: no entry is too old, and their number is not above the maximum."""
        limits, low = conf().mirror, 0
        if limits.keep_days is not None:
            low = int((time.time() - limits.keep_days * _DAY_SECONDS) * 1_000_000)
        last = -(-limits.max_rows // max(1, self.queue.shards)) - 1
        with clear_errors():
            pairs = self._client.zrange(self._key, last, last, desc=True, withscores=True)
        return max([low, *(int(score) for _, score in pairs)])

    def _agrees(self, low: int) -> bool:
        """Return True if the table has as many rows as the index has entries, from the same one on.

        If the number of rows is limited, an extra row goes with a missing one, and the sum never changes.
        """
        with clear_errors():
            count = self._client.zcount(self._key, low, LAST_SCORE)
        first = next(iter(self._entries(low, LAST_SCORE, 1).values()), 0)
        return count == self.rows.count() and first == self._edge("updated_us")

    def _walk(self, start: int, low: int, newest: int) -> Iterator[None]:
        """Add missing rows from the score ``low`` on, and delete orphan rows from ``start`` on, page by page.

        Rows that are newer than ``newest`` are not deleted: another dispatcher may store them meanwhile.
        """
        while True:
            entries, high = self._page(low)
            rows = self.rows.filter(updated_us__gte=start, updated_us__lte=min(high, newest))
            while True:
                first = rows.values_list("job_id", "key", "pk", "updated_us")[: len(entries) + DELETE_CHUNK]
                found = {self.place.member(ident, key): (pk, score) for ident, key, pk, score in first}
                orphans = [pk for member, (pk, _) in found.items() if member not in entries][:DELETE_CHUNK]
                # Only with the scores read above: a row may have been stored again since, with another score.
                rows.filter(pk__in=orphans).delete()
                if len(orphans) < DELETE_CHUNK:
                    break
                yield
            missing = [pair for pair in entries.items() if pair[0] not in found or found[pair[0]][1] != pair[1]]
            for begin in range(0, len(missing), CHUNK):
                self.store(dict(missing[begin : begin + CHUNK]))
                yield
            if high == LAST_SCORE:
                return
            yield
            start = low = high + 1

    # -- the index ---------------------------------------------------------------------------------------------------

    @property
    def _client(self) -> Any:
        return self.queue.deployment.client

    def _entries(self, low: int, high: int, most: int | None = None) -> dict[bytes, int]:
        """Return members and scores, or the first ``most`` of them, from ``low`` to ``high``, both included."""
        with clear_errors():
            pairs = self._client.zrangebyscore(
                self._key, low, high, start=None if most is None else 0, num=most, withscores=True
            )
        return {member: int(score) for member, score in pairs}

    def _page(self, low: int) -> tuple[dict[bytes, int], int]:
        """Return the first entries from ``low`` on, and the score up to which these are all that there are."""
        entries, high = self._entries(low, LAST_SCORE, _PAGE), LAST_SCORE
        if len(entries) == _PAGE:
            high = max(entries.values())
            entries |= self._entries(high, high)  # of one moment there may be more than a page
        return {member: score for member, score in entries.items() if is_readable(member)}, high

    # -- the table ---------------------------------------------------------------------------------------------------

    @property
    def rows(self) -> Any:
        """Rows of this shard."""
        return self.place.table.filter(queue=self.queue.name, shard=self.number)

    def _edge(self, order: str) -> int:
        """Return the first score of the rows in an order; 0 without rows."""
        score: int | None = self.rows.order_by(order).values_list("updated_us", flat=True).first()
        return score or 0

    def store(self, entries: Mapping[bytes, int]) -> set[bytes]:
        """Read jobs by members and scores, and store their rows. Return the members that still exist."""
        stored = {}
        wanted = {(self.queue.name, self.number): list(entries)}
        for member, view in jobs_of(self.queue.deployment, wanted, buried=self.place is MORGUE):
            if view.broken:
                what = (self.place.name, self.queue.name, self.number, view.broken)
                logger.warning("a record in the %s index of %s, shard %d, cannot be read: %s", *what)
            # A job without failures was replaced since the index was read.
            if view.broken or view.job.failures or self.place is MORGUE:
                stored[member] = row_of(self.place, view, member, entries[member])
        store(self.place, stored.values())
        return set(stored)

    def refresh(self, rows: Sequence[Row]) -> None:
        """Update these rows from Redis. Rows of jobs that no longer exist are deleted."""
        for begin in range(0, len(rows), CHUNK):
            pks = {self.place.member(row.job_id, row.key): row.pk for row in rows[begin : begin + CHUNK]}
            with clear_errors():
                scores = zip(pks, self._client.zmscore(self._key, list(pks)), strict=True)
            kept = self.store({member: int(score) for member, score in scores if score is not None})
            self.rows.filter(pk__in=[pk for member, pk in pks.items() if member not in kept]).delete()


def delete_rows(rows: Any) -> None:
    """Delete rows of a mirror, a limited number in each statement."""
    while keys := list(rows.values_list("pk", flat=True)[:DELETE_CHUNK]):
        rows.filter(pk__in=keys).delete()


# -- all of them -------------------------------------------------------------------------------------------------------


class Mirror:
    """Duty that copies the failed index and the morgue of every shard of ``queues()`` into the tables.

    Args:
        broker: broker of the queues.
        changes: changes that the worker noticed; an idle system is not checked.
        queues: returns the queues of this process, as currently registered.
    """

    def __init__(self, broker: Broker, changes: Changes, queues: Callable[[], Sequence[Queue]]) -> None:
        self._broker = broker
        self._changes = changes.reader("failed", "morgue")
        self._queues = queues
        self._mirrors: dict[Name, IndexMirror] = {}
        self._next_turn = self._next_full = self._next_age = 0.0
        # An error of one row's values concerns its shard, any other error of the database all of them.
        shared = (OperationalError, InterfaceError, ProgrammingError, InternalError)
        self._parts = Parts("mirror", broker, shared=shared)

    def attach(self, ring: Callable[[], None]) -> None:
        """Let a change that the worker notices end the rest of the loop."""
        self._changes.ring = ring

    def run(self) -> float:
        """Do one turn. Return the seconds until the next one."""
        now = began_at = time.monotonic()
        if now < self._next_turn:
            return self._next_turn - now
        self._refresh_shards()
        self._collect_changes()
        if now >= self._next_full:
            self._check_all()
            self._next_full = now + FULL_CHECK_SECONDS
        # One step of each mirror in turn, so that a shard with a million records does not block the others.
        while due := [name for name in self._mirrors if self._due_at(name) <= time.monotonic()]:
            for name in due:
                self._parts.attempt(name, self._mirrors[name].step)
            if time.monotonic() >= began_at + _TURN_SECONDS:
                return 0.0
        now = time.monotonic()
        if now >= self._next_age and not any(mirror.changed for mirror in self._mirrors.values()):
            self._next_age = now + _AGE_SECONDS
            self._parts.attempt("age", lambda: set_age(self._broker, time.monotonic() - began_at))
        self._next_turn = now + _BUSY_SECONDS
        due_at = min(map(self._due_at, self._mirrors), default=self._next_full)
        return max(_BUSY_SECONDS, min(due_at, self._next_full, now + _IDLE_SECONDS) - now)

    def _due_at(self, name: Name) -> float:
        """Return when a step of this mirror is due: not before the pause after an error."""
        return max(self._mirrors[name].due_at, self._parts.retry_at(name))

    def _refresh_shards(self) -> None:
        """Refresh the list of shards. If a shard has disappeared, a full check follows at once."""
        served = {
            (queue.name, number, place.name): (queue, number, place)
            for queue in self._queues()
            for number in queue.numbers
            for place in PLACES.values()
        }
        for name in self._mirrors.keys() - served.keys():
            del self._mirrors[name]
            self._next_full = 0.0
        for name in served.keys() - self._mirrors.keys():
            self._mirrors[name] = IndexMirror(*served[name])

    def _collect_changes(self) -> None:
        """Mark what changed. A data loss in Redis needs no more: its indexes then differ from before, too."""
        changed = [(*place, FAILED.name) for place in self._changes.take("failed")]
        changed += [(*place, MORGUE.name) for place in self._changes.take("morgue")]
        for name in self._mirrors.keys() & changed:
            self._mirrors[name].mark()

    def _check_all(self) -> None:
        """Check every shard for which Redis or the table has entries, and delete rows of removed shards and queues."""
        stored = {
            (queue, shard, place.name)
            for place in PLACES.values()
            for queue, shard in place.table.order_by().values_list("queue", "shard").distinct()
        }
        for queue, number in dict.fromkeys(name[:2] for name in self._mirrors):
            self._parts.attempt((queue, number), partial(self._check_shard, queue, number, stored))
        known_queue = cache(self._broker.known_queue)
        for queue, number, place in sorted(stored - self._mirrors.keys()):
            live = known_queue(queue)
            if live is None or number not in live.numbers:
                logger.info("shard %d of queue %s no longer exists; deleting its rows (%s)", number, queue, place)
                delete_rows(PLACES[place].table.filter(queue=queue, shard=number))

    def _check_shard(self, queue: str, number: int, stored: Set[Name]) -> None:
        counts = count_shards(self._mirrors[queue, number, FAILED.name].queue, [number])
        for name in ((queue, number, place) for place in PLACES):
            if name in stored or getattr(counts, name[2]):
                self._mirrors[name].mark(fully=True)


# -- age ---------------------------------------------------------------------------------------------------------------


def set_age(broker: Broker, seconds: float) -> None:
    """Record that the tables have everything that was noticed until so many seconds ago."""
    with clear_errors():
        broker.client.set(broker.key("mirror"), int(broker.now_ms() - seconds * 1000))


def age(broker: Broker) -> float | None:
    """Return the age of the mirror in seconds; None if nothing was copied yet.

    Raises:
        QueueUnavailable: Redis cannot be reached.
    """
    with clear_errors():
        copied_ms = broker.client.get(broker.key("mirror"))
    return None if copied_ms is None else max(0.0, (broker.now_ms() - float(copied_ms)) / 1000)


# -- rebuild -----------------------------------------------------------------------------------------------------------


def rebuild(queues: Collection[str] | None = None, progress: Progress | None = None) -> dict[str, int]:
    """Delete the rows, and copy everything that Redis has, unless mirrors are switched off (``MIRROR``).

    Dispatchers may keep running.

    Args:
        queues: names of queues; None = all, including removed ones.
        progress: called after each shard with the number of rows copied and the number that Redis had at the start.

    Returns:
        Number of rows after the rebuild, by place (``failed``, ``morgue``).

    Raises:
        QueueUnavailable: Redis cannot be reached. Rows copied before that are kept.
    """
    broker = connections.broker()
    live = [queue for queue in broker.queues() if queues is None or queue.name in queues]
    served = [(queue, number) for queue in live for number in queue.numbers]
    total = sum(one.failed + one.morgue for one in broker.inspector.all_counts(queues=live))
    copied = dict.fromkeys(PLACES, 0)
    for place in PLACES.values():
        delete_rows(place.table if queues is None else place.table.filter(queue__in=queues))
        for queue, number in served if conf().is_mirrored else ():
            mirror = IndexMirror(queue, number, place)
            for _ in mirror.review(fully=True):
                pass
            copied[place.name] += mirror.rows.count()
            if progress:
                progress(sum(copied.values()), max(total, sum(copied.values())))
    return copied

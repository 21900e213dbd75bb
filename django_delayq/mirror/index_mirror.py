"""Index of one shard in Redis, its mirror in a table, and the walk that makes them agree.

A walk reads the index page by page, in the order of its scores, and the names of the rows in the same range. Only
missing jobs are read. It begins at the newest row to copy what is new, and at the first one for a review.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Generator, Iterator, Sequence, Set
from typing import Any, Final, TypeAlias

from django.db import router

from ..core.job_view import JobView
from ..core.queue import Queue
from ..core.reading import jobs_of
from ..core.records.frames import CHUNK
from ..core.redis.scripts import clear_errors
from ..settings.conf import MirrorConf
from .rows import FIRST_SCORE, LAST_SCORE, MORGUE, Entry, Place, Row, broken_row, is_readable, row_of, score_of, store

logger: Final = logging.getLogger(__name__)

#: seconds between two reviews of one index, and the minimum ratio of that interval to the time a review takes
_COUNT_SECONDS: Final = 2.0
_COUNT_SHARE: Final = 20
#: entries of an index that are compared with rows at a time
_PAGE: Final = 2000
#: rows that one statement deletes
DELETE_CHUNK: Final = 1000
_DAY_MS: Final = 86_400_000

#: id, in the morgue the key, and score
Name: TypeAlias = tuple[Any, ...]


class Index:
    """Failed index or morgue of a shard in Redis, read only."""

    def __init__(self, queue: Queue, number: int, place: Place) -> None:
        self.queue = queue
        self.number = number
        self.place = place
        self._key: bytes = queue.shard(number).names[place.name]

    @property
    def _client(self) -> Any:
        return self.queue.deployment.client

    def count(self, low: int, high: int) -> int:
        """Return the number of entries with scores from ``low`` to ``high``, both included."""
        with clear_errors():
            return int(self._client.zcount(self._key, *_bounds(low, high)))

    def between(self, low: int, high: int, most: int | None = None) -> list[Entry]:
        """Return the entries, or the first ``most`` of them, with scores from ``low`` to ``high``, both included."""
        with clear_errors():
            pairs = self._client.zrangebyscore(
                self._key, *_bounds(low, high), start=None if most is None else 0, num=most, withscores=True
            )
        return [Entry(member, score_of(score)) for member, score in pairs]

    def page(self, low: int) -> tuple[list[Entry], int]:
        """Return the first entries from ``low`` on, and the score up to which these are all that there are."""
        entries = self.between(low, LAST_SCORE, _PAGE)
        if len(entries) < _PAGE:
            return entries, LAST_SCORE
        last = entries[-1].score
        if last == entries[0].score:  # of one moment there may be more than a page
            return self.between(last, last), last
        return [entry for entry in entries if entry.score < last], last - 1

    def newest(self, rank: int) -> int | None:
        """Return the score of the entry that has ``rank`` newer ones; None if there are fewer entries."""
        with clear_errors():
            pairs = self._client.zrange(self._key, rank, rank, desc=True, withscores=True)
        return score_of(pairs[0][1]) if pairs else None

    def scores(self, members: Sequence[bytes]) -> list[int | None]:
        """Return the score of each member; None for a missing member."""
        scores: list[int | None] = []
        for start in range(0, len(members), CHUNK):
            with clear_errors():
                replies = self._client.zmscore(self._key, list(members[start : start + CHUNK]))
            scores += [None if reply is None else score_of(reply) for reply in replies]
        return scores

    def rows(self, entries: Sequence[Entry]) -> list[Row]:
        """Return the rows of the entries that still exist."""
        readable = {entry.member: entry for entry in entries if is_readable(entry.member)}
        rows = {}
        for member, view in self.jobs(list(readable)):
            if (row := self._row(view, readable[member])) is not None:
                rows[member] = row
        missing = [entry for entry in entries if entry.member not in rows]
        for entry, score in zip(missing, self.scores([entry.member for entry in missing]), strict=True):
            if score == entry.score:  # otherwise it was removed meanwhile, or is copied with its new score
                rows[entry.member] = self._broken(entry, "its record is missing; run manage.py delayq_fsck")
        return list(rows.values())

    def jobs(self, members: Sequence[bytes]) -> Iterator[tuple[bytes, JobView]]:
        """Yield the jobs of members of the index, as far as they still exist."""
        wanted = {(self.queue.name, self.number): members}
        return jobs_of(self.queue.deployment, wanted, buried=self.place is MORGUE)

    def _row(self, view: JobView, entry: Entry) -> Row | None:
        if view.broken:
            logger.warning(
                "a record in the %s index of %s, shard %d, cannot be read: %s",
                self.place.name,
                self.queue.name,
                self.number,
                view.broken,
            )
            return self._broken(entry, f"its record cannot be read: {view.broken}")
        if self.place is not MORGUE and not view.job.failures:
            return None  # it was replaced since the index was read
        return row_of(self.place, view, entry.score)

    def _broken(self, entry: Entry, why: str) -> Row:
        return broken_row(self.place, self.queue.name, self.number, entry, why)


def _bounds(low: int, high: int) -> tuple[float | str, float | str]:
    """Return the bounds of a range of scores for Redis, where a score may have a fraction, or be infinite."""
    return ("-inf" if low <= FIRST_SCORE else low), ("+inf" if high >= LAST_SCORE else f"({high + 1}")


# -- the mirror --------------------------------------------------------------------------------------------------------


def database_of(place: Place) -> str:
    """Return the alias of the database that has the table."""
    alias: str = router.db_for_write(place.model)
    return alias


def table(place: Place) -> Any:
    """Return a queryset over the table that mirrors this place."""
    return place.model._default_manager.using(database_of(place))


class IndexMirror:
    """Mirror of one index. Its steps are generators: the caller may stop between two steps, or abandon them."""

    def __init__(self, settings: MirrorConf, queue: Queue, number: int, place: Place) -> None:
        self.queue = queue
        self.number = number
        self.place = place
        self.index = Index(queue, number, place)
        self.using = database_of(place)
        self._settings = settings
        #: time (``time.monotonic()``) from which on the rows are reviewed again
        self.count_at = 0.0

    @property
    def rows(self) -> Any:
        """Rows of this shard."""
        return table(self.place).filter(queue=self.queue.name, shard=self.number)

    def within(self, low: int, high: int) -> Any:
        """Return the rows of this shard with scores from ``low`` to ``high``, both included."""
        return self.rows.filter(updated_us__gte=low, updated_us__lte=high)

    def lowest(self) -> int:
        """Return the first score to keep: no entry is too old, and their number is not above the maximum."""
        low = FIRST_SCORE
        if self._settings.keep_days is not None:
            low = int((time.time() * 1000 - self._settings.keep_days * _DAY_MS) * 1000)
        share = -(-self._settings.max_rows // max(1, self.queue.shards))
        first = self.index.newest(share - 1)
        return low if first is None else max(low, first)

    def _end(self, order: str) -> int:
        """Return the first score of the rows in an order; without rows the lowest of all."""
        score: int | None = self.rows.order_by(order).values_list("updated_us", flat=True).first()
        return FIRST_SCORE if score is None else score

    def copy(self) -> Iterator[None]:
        """Copy the entries after the newest row, one page in each step.

        It begins one ms before that row, because scores within one ms are not assigned in order.
        """
        low, newest = self.lowest(), self._end("-updated_us")
        yield from self._walk(max(low, newest // 1000 * 1000 - 1), newest)

    def review(self, *, fully: bool) -> Iterator[None]:
        """Make the table agree with the index, step by step. Changes made meanwhile are found by the next review.

        It is expensive, so callers do not repeat it before :attr:`count_at`.

        Args:
            fully: compare each entry with its row; else only if there is another number of them.
        """
        began_at, low = time.monotonic(), self.lowest()
        if low > FIRST_SCORE:
            yield from self._delete_orphans(FIRST_SCORE, low - 1, {})
        if fully or not self._agrees(low):
            yield from self._walk(low, self._end("-updated_us"))
        now = time.monotonic()
        self.count_at = now + max(_COUNT_SECONDS, _COUNT_SHARE * (now - began_at))

    def _agrees(self, low: int) -> bool:
        """Return True if the table has as many rows as the index has entries, and none is missing before the first.

        If the number of rows is limited, an extra row goes with a missing one, and the sum never changes.
        """
        first, rows = max(low, self._end("updated_us")), self.within(low, LAST_SCORE).count()
        return self.index.count(low, first - 1) == 0 and self.index.count(first, LAST_SCORE) == rows

    def _walk(self, low: int, newest: int) -> Iterator[None]:
        """Add missing rows and delete orphan rows from ``low`` on, one page of the index after the other.

        Rows that are newer than ``newest`` are not deleted: another dispatcher may store them meanwhile.
        """
        while True:
            entries, high = self.index.page(low)
            named = {(*entry.name[: len(self.place.unique) - 1], entry.score): entry for entry in entries}
            kept = yield from self._delete_orphans(low, min(high, newest), named)
            missing = [entry for name, entry in named.items() if name not in kept]
            for start in range(0, len(missing), CHUNK):
                store(self.place, self.index.rows(missing[start : start + CHUNK]), self.using)
                yield
            if high == LAST_SCORE:
                return
            yield
            low = high + 1

    def _delete_orphans(self, low: int, high: int, named: Collection[Name]) -> Generator[None, None, Set[Name]]:
        """Delete rows of a range whose jobs have no entry, one batch in each step; return the names of the others.

        A row whose job has an entry with another score is overwritten, not deleted, so that it keeps its address.
        """
        jobs = {name[:-1] for name in named}
        while True:
            rows = self.within(low, high).values_list("pk", *self.place.unique[1:], "updated_us")
            found = {tuple(name): pk for pk, *name in rows[: len(named) + DELETE_CHUNK]}
            orphans = [name for name in found if name[:-1] not in jobs][:DELETE_CHUNK]
            # Only with the scores read above: a row may have been stored again since, with another score.
            self.within(low, high).filter(pk__in=[found[name] for name in orphans]).delete()
            if len(orphans) < DELETE_CHUNK:
                return found.keys()
            yield

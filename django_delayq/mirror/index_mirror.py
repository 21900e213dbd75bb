"""Index of one shard in Redis, its mirror in a table, and the review that finds rows to delete or to add.

The review is a binary search over the time. Counting a range of the index costs Redis almost nothing. One wrong row
among a million is found with some twenty pairs of counts, and only missing jobs are read.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.db import router

from ..core.job_view import JobView
from ..core.queue import Queue
from ..core.reading import jobs_of, read, unpack_entries
from ..core.records.frames import CHUNK
from ..core.records.keys import SHARD_KEYS
from ..core.redis.scripts import clear_errors
from ..settings.conf import MirrorConf
from .rows import LAST_SCORE, MORGUE, Entry, Place, Row, broken_row, is_readable, row_of, score_of, store

logger: Final = logging.getLogger(__name__)

#: seconds between two counts of one index, and the minimum ratio of that interval to the time a count takes
_COUNT_SECONDS: Final = 2.0
_COUNT_SHARE: Final = 20
#: rows that one statement deletes
DELETE_CHUNK: Final = 1000
_DAY_MS: Final = 86_400_000
#: levels that are halved even if the counts agree: one extra row and one missing row cancel each other out
SURE_LEVELS: Final = 4


class Index:
    """Failed index or morgue of a shard in Redis, read only."""

    def __init__(self, queue: Queue, number: int, place: Place) -> None:
        self.queue = queue
        self.number = number
        self.place = place
        self._key: bytes = queue.shard(number).names[place.name]
        self._position = SHARD_KEYS.index(place.name) + 1

    @property
    def _client(self) -> Any:
        return self.queue.deployment.client

    def count(self, low: int, high: int) -> int:
        """Return the number of entries with scores from ``low`` to ``high``, both included."""
        with clear_errors():
            return int(self._client.zcount(self._key, low, high))

    def after(self, score: bytes, member: bytes) -> list[tuple[bytes, bytes]]:
        """Return up to 250 ``(member, score)`` pairs after the given one, or from the beginning if it is empty."""
        wanted = {"index": self._position, "limit": CHUNK, "names": True, "after": (score, member) if score else None}
        frame = read(self.queue.deployment, self.queue.name, self.number, **wanted)
        _more, entries = unpack_entries(frame, self.number)
        return [(entry.member, entry.text.encode()) for entry in entries]

    def between(self, low: int, high: int) -> list[Entry]:
        """Return the entries with scores from ``low`` to ``high``, both included."""
        with clear_errors():
            pairs = self._client.zrangebyscore(self._key, low, high, withscores=True)
        return [Entry(member, score_of(score)) for member, score in pairs]

    def ends(self, low: int, high: int) -> list[Entry]:
        """Return the first and the last entry with scores from ``low`` to ``high``."""
        pairs: list[tuple[bytes, float]] = []
        with clear_errors():
            for desc in (False, True):
                begin, end = (high, low) if desc else (low, high)
                pairs += self._client.zrange(
                    self._key, begin, end, desc=desc, byscore=True, withscores=True, offset=0, num=1
                )
        return [Entry(member, score_of(score)) for member, score in pairs]

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


# -- the mirror --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scope:
    """Range of scores that the table holds, both ends included."""

    low: int
    high: int


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
        #: time (``time.monotonic()``) from which on the rows are counted again
        self.count_at = 0.0

    @property
    def rows(self) -> Any:
        """Rows of this shard."""
        return table(self.place).filter(queue=self.queue.name, shard=self.number)

    def within(self, scope: Scope) -> Any:
        """Return the rows of this shard whose scores are in ``scope``."""
        return self.rows.filter(updated_us__gte=scope.low, updated_us__lte=scope.high)

    def scope(self) -> Scope:
        """Return the scores to keep: no entries that are too old or that exceed the maximum number of rows."""
        low = 0
        if self._settings.keep_days is not None:
            low = int((time.time() * 1000 - self._settings.keep_days * _DAY_MS) * 1000)
        share = -(-self._settings.max_rows // max(1, self.queue.shards))
        first = self.index.newest(share - 1)
        return Scope(low if first is None else max(low, first), LAST_SCORE)

    # -- copying -----------------------------------------------------------------------------------------------------

    def copy(self) -> Iterator[None]:
        """Copy the entries after the newest row, one page in each step."""
        position = self._begin()
        while True:
            page = self.index.after(*position)
            store(self.place, self.missing([Entry(each, score_of(at)) for each, at in page]), self.using)
            if len(page) < CHUNK:
                return
            member, score = page[-1]
            position = score, member
            yield

    def _begin(self) -> tuple[bytes, bytes]:
        """Return the start of copying: one ms before the newest row.

        Scores within one ms are not assigned in order.
        """
        low = self.scope().low - 1
        newest = self.rows.order_by("-updated_us").values_list("updated_us", flat=True).first()
        if newest is not None:
            low = max(low, newest // 1000 * 1000 - 1)
        return (b"%d" % low, b"") if low > 0 else (b"", b"")

    def missing(self, entries: list[Entry]) -> list[Row]:
        """Return rows for the entries that the table does not have in their current form."""
        new = self._unknown(entries)
        return self.index.rows(new) if new else []

    def _unknown(self, entries: list[Entry]) -> list[Entry]:
        if not entries:
            return []
        scores = [entry.score for entry in entries]
        named = set(self.named(self.within(Scope(min(scores), max(scores)))))
        return [entry for entry in entries if (*self.name_of(entry), entry.score) not in named]

    def name_of(self, entry: Entry) -> tuple[Any, ...]:
        """Return the values that identify the row of an entry within its queue."""
        return entry.name[: len(self.place.unique) - 1]

    def named(self, rows: Any) -> Iterator[tuple[Any, ...]]:
        """Return the identifying values of rows, each with its score."""
        values: Iterator[tuple[Any, ...]] = rows.values_list(*self.place.unique[1:], "updated_us").iterator()
        return values

    # -- counting and deleting ---------------------------------------------------------------------------------------

    def count(self, scope: Scope) -> tuple[int, int]:
        """Return the number of entries in Redis and of rows in the table, in ``scope``."""
        return self.index.count(scope.low, scope.high), self.within(scope).count()

    def agrees(self, scope: Scope) -> bool:
        """Return True if the table has as many rows as the index has entries.

        Counting is expensive, so callers do not repeat it before :attr:`count_at`.
        """
        began_at = time.monotonic()
        parts = self.parts(scope) if scope.low > 0 else [scope]
        counts = [self.count(part) for part in parts]
        now = time.monotonic()
        self.count_at = now + max(_COUNT_SECONDS, _COUNT_SHARE * (now - began_at))
        return all(here == there for here, there in counts)

    def parts(self, scope: Scope) -> list[Scope]:
        """Return the ranges that have to be counted separately: the one before the first row, and the rest.

        If the number of rows is limited, an extra row goes with a missing one, and the sum never changes.
        """
        first = self.within(scope).order_by("updated_us").values_list("updated_us", flat=True).first()
        if first is None or first == scope.low:
            return [scope]
        return [Scope(scope.low, first - 1), Scope(first, scope.high)]

    def delete(self, rows: Any) -> Iterator[None]:
        """Delete rows, one batch in each step."""
        keys = list(rows.values_list("pk", flat=True)[:DELETE_CHUNK])
        while keys:
            rows.filter(pk__in=keys).delete()
            yield
            keys = list(rows.values_list("pk", flat=True)[:DELETE_CHUNK])


# -- the review --------------------------------------------------------------------------------------------------------


def review(mirror: IndexMirror, *, levels: int = 0) -> Iterator[None]:
    """Make the table agree with the index, step by step. Changes made meanwhile are found by the next review.

    Args:
        levels: levels that are compared whatever the counts say.
    """
    scope = mirror.scope()
    if scope.low > 0:
        yield from mirror.delete(mirror.rows.filter(updated_us__lt=scope.low))
    if mirror.agrees(scope) and not levels:
        return
    parts = [(part, levels) for each in mirror.parts(scope) for part in _bounds(mirror, each)]
    while parts:
        part, level = parts.pop()
        here, there = mirror.count(part)
        if here == there and (level == 0 or not here):
            continue
        if not here:
            yield from mirror.delete(mirror.within(part))
        elif max(here, there) <= CHUNK or part.low == part.high:
            _compare(mirror, part)
        else:
            middle = (part.low + part.high) // 2
            parts.append((Scope(middle + 1, part.high), max(0, level - 1)))
            parts.append((Scope(part.low, middle), max(0, level - 1)))
        yield


def _bounds(mirror: IndexMirror, scope: Scope) -> list[Scope]:
    """Return the part of the scope that contains any entry or row, as a list of at most one scope."""
    rows = mirror.within(scope).order_by("updated_us").values_list("updated_us", flat=True)
    scores = [score for score in (rows.first(), rows.last()) if score is not None]
    scores += [entry.score for entry in mirror.index.ends(scope.low, scope.high)]
    return [Scope(min(scores), max(scores))] if scores else []


def _compare(mirror: IndexMirror, part: Scope) -> None:
    """Add missing rows and delete orphan rows. A row is correct if Redis has its member with its score."""
    entries = {(*mirror.name_of(entry), entry.score): entry for entry in mirror.index.between(part.low, part.high)}
    rows_by_member: dict[Any, Any] = {}
    for pk, *name in mirror.within(part).values_list("pk", *mirror.place.unique[1:], "updated_us"):
        rows_by_member[tuple(name)] = pk
    missing: list[Entry] = [entry for name, entry in entries.items() if name not in rows_by_member]
    gone = [pk for name, pk in rows_by_member.items() if name not in entries]
    for start in range(0, len(missing), CHUNK):
        store(mirror.place, mirror.missing(missing[start : start + CHUNK]), mirror.using)
    for start in range(0, len(gone), DELETE_CHUNK):
        # Only with the score read above: the row may have been stored again since, with another score.
        mirror.within(part).filter(pk__in=gone[start : start + DELETE_CHUNK]).delete()

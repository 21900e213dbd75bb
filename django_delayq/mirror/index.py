"""Read-only access to one index of one shard in Redis."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from ..core.job_view import JobView
from ..core.reading import jobs_of, read, unpack_entries
from ..core.records.frames import CHUNK
from ..core.records.keys import SHARD_KEYS
from ..core.redis.scripts import clear_errors
from .rows import MORGUE, Entry, Place, Row, broken_row, is_readable, row_of, score_of

if TYPE_CHECKING:
    from ..core.queue import Queue

logger: Final = logging.getLogger(__name__)


class Index:
    """Failed index or morgue of a shard."""

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

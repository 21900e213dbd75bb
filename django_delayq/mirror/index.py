"""One index of one shard in Redis, read only: how many entries lie where, and which."""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from redis.exceptions import ResponseError

from ..core.operations.views import JobView
from ..core.records.keys import SHARD_KEYS
from ..core.redis.scripts import clear_errors
from ..core.sending.chunks import CHUNK
from .rows import MORGUE, Entry, Place, Row, broken_row, is_readable, row_of, score_of

if TYPE_CHECKING:
    from ..core.queue import Queue

logger: Final = logging.getLogger(__name__)

#: what reading a damaged record may raise, here or (ResponseError) in the script that looks for it
_DAMAGED: Final = (ValueError, ArithmeticError, LookupError, TypeError, RecursionError, struct.error, ResponseError)


class Index:
    """The failed index or the morgue of a shard."""

    def __init__(self, queue: Queue, number: int, place: Place) -> None:
        self.queue = queue
        self.number = number
        self.place = place
        self._key: bytes = queue.shard(number).names[place.name]
        self._position = SHARD_KEYS.index(place.name) + 1

    @property
    def _client(self) -> Any:
        return self.queue.broker.client

    def count(self, low: int, high: int) -> int:
        """Entries whose score is ``low`` to ``high``, both included."""
        with clear_errors():
            return int(self._client.zcount(self._key, low, high))

    def behind(self, score: bytes, member: bytes) -> list[tuple[bytes, bytes]]:
        """Up to 250 ``(member, score)`` behind the one that is given, from the beginning if none is."""
        found = self.queue.call("page", self.number, self._position, b"0", CHUNK, score, member, request=b"")
        return list(zip(found[::2], found[1::2], strict=True))

    def between(self, low: int, high: int) -> list[Entry]:
        """The entries whose score is ``low`` to ``high``, both included."""
        with clear_errors():
            found = self._client.zrangebyscore(self._key, low, high, withscores=True)
        return [Entry(member, score_of(score)) for member, score in found]

    def ends(self, low: int, high: int) -> list[Entry]:
        """The first and the last of them."""
        found: list[tuple[bytes, float]] = []
        with clear_errors():
            for desc in (False, True):
                begin, end = (high, low) if desc else (low, high)
                found += self._client.zrange(
                    self._key, begin, end, desc=desc, byscore=True, withscores=True, offset=0, num=1
                )
        return [Entry(member, score_of(score)) for member, score in found]

    def newest(self, rank: int) -> int | None:
        """Score of the entry that has ``rank`` newer ones; None if there are not so many."""
        with clear_errors():
            found = self._client.zrange(self._key, rank, rank, desc=True, withscores=True)
        return score_of(found[0][1]) if found else None

    def scores(self, members: Sequence[bytes]) -> list[int | None]:
        """The score of each member; None of one that is not there."""
        found: list[int | None] = []
        for start in range(0, len(members), CHUNK):
            with clear_errors():
                answers = self._client.zmscore(self._key, list(members[start : start + CHUNK]))
            found += [None if answer is None else score_of(answer) for answer in answers]
        return found

    def rows(self, entries: Sequence[Entry]) -> list[Row]:
        """The rows of those that are still there."""
        readable = {entry.member: entry for entry in entries if is_readable(entry.member)}
        rows = {}
        for view, entry in self.views(readable):
            if (row := self._row(view, entry)) is not None:
                rows[entry.member] = row
        unseen = [entry for entry in entries if entry.member not in rows]
        for entry, score in zip(unseen, self.scores([entry.member for entry in unseen]), strict=True):
            if score == entry.score:  # else it has left meanwhile, or is copied with its new score
                rows[entry.member] = self._broken(entry, "nothing else is stored of it, see manage.py delayq_fsck")
        return list(rows.values())

    def views(self, entries: dict[bytes, Entry]) -> Iterator[tuple[JobView | str, Entry]]:
        """The jobs, each with its entry; of one that is damaged, what is wrong with it."""
        members = list(entries)
        try:
            found = list(self.queue.broker.inspector.views(self.queue, self.number, self.place.name, members))
        except _DAMAGED as error:
            if len(members) == 1:
                logger.warning(
                    "a record in the %s index of %s, shard %d, cannot be read: %s",
                    self.place.name,
                    self.queue.name,
                    self.number,
                    error,
                )
                yield f"its record cannot be read: {type(error).__name__}: {error}", entries[members[0]]
                return
            for member in members:
                yield from self.views({member: entries[member]})
            return
        for view in found:
            entry = entries.get(self._member(view))
            if entry is not None:
                yield view, entry

    def _member(self, view: JobView) -> bytes:
        ident = view.id.encode()
        return ident + b"\0" + view.job.key if self.place is MORGUE else ident

    def _row(self, view: JobView | str, entry: Entry) -> Row | None:
        if isinstance(view, str):
            return self._broken(entry, view)
        if self.place is not MORGUE and not view.job.failures:
            return None  # it was replaced since the index was read
        return row_of(self.place, view, entry.score)

    def _broken(self, entry: Entry, why: str) -> Row:
        return broken_row(self.place, self.queue.name, self.number, entry, why)

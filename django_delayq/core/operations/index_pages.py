"""Pages of one index of a shard, for the reading of millions of jobs (:mod:`.columns`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from ..records.column_reply import ColumnReply, text_of, unpack_reply
from ..records.column_values import Part
from ..records.keys import SHARD_KEYS
from ..redis.scripts import clear_errors

if TYPE_CHECKING:
    from ..broker import Broker

#: distance by which an entry may have moved and is still found by its rank
NEAR: Final = 50
WITHOUT_BODIES: Final = b"none"


class IndexPages:
    """Members and scores of an index, page by page.

    A read by rank takes Redis a third of the script's time, and the position after the last entry read is easy to find
    as long as that entry is near its former rank. Otherwise the script finds it.
    """

    def __init__(self, broker: Broker, part: Part, index: str, limit: int) -> None:
        self._broker = broker
        self._part = part
        self._index = index
        self._limit = limit
        self._key = broker.shard(part.queue, part.shard).names[index]
        by_due = is_bounded_by_index(part)
        self._bounds = (bound_before(part.low), bound_before(part.high), b"") if by_due else (b"", b"", b"")
        #: first score after the range
        self._end = part.high * 1000 if by_due and part.high is not None else None
        #: last entry read, and its rank if known
        self._last: tuple[bytes, float] | None = None
        self._rank: int | None = None
        self._more = True

    def __iter__(self) -> Iterator[tuple[Sequence[bytes], Sequence[float]]]:
        while self._more:
            entries = self._by_rank() or self._by_script()
            if entries:
                self._last = entries[-1]
                members, scores = zip(*entries, strict=True)
                yield members, scores

    def _by_rank(self) -> list[tuple[bytes, float]]:
        """Return the entries after the last one read; empty if it is not near its former rank, or was the last one."""
        if self._last is None or self._rank is None:
            return []
        start = max(0, self._rank - NEAR)
        with clear_errors():
            entries: list[tuple[bytes, float]] = self._broker.client.zrange(
                self._key, start, max(self._rank + self._limit, start + 2 * NEAR), withscores=True
            )
        try:
            place = entries.index(self._last, 0, 2 * NEAR)
        except ValueError:
            self._rank = None
            return []
        self._rank = start + len(entries) - 1
        behind = entries[place + 1 :]
        if behind and self._end is not None and behind[-1][1] >= self._end:
            self._more = False
            behind = [entry for entry in behind if entry[1] < self._end]
        elif not behind:
            self._more = False
        return behind

    def _by_script(self) -> list[tuple[bytes, float]]:
        if not self._more:
            return []
        member, score = self._last or (b"", None)
        position = SHARD_KEYS.index(self._index) + 1
        reply = read_page(
            self._broker, self._part, WITHOUT_BODIES, position, self._limit, text_of(score), member, *self._bounds
        )
        self._more = reply.more
        entries = list(zip(reply.members(), reply.numbers(), strict=True))
        if entries and self._more:
            with clear_errors():
                self._rank = self._broker.client.zrank(self._key, entries[-1][0])
        return entries


def is_bounded_by_index(part: Part) -> bool:
    """Return True if the index is ordered by the bounded value."""
    return part.place == "waiting" and part.idents is None


def read_page(
    broker: Broker,
    part: Part,
    most: bytes,
    position: int | bytes,
    limit: int,
    score: bytes,
    member: bytes,
    low: bytes,
    high: bytes,
    of_members: bytes,
    idents: bytes = b"",
) -> ColumnReply:
    """Return a page of an index, or the data of the given ids, as ``lua/columns.lua`` replies.

    Args:
        part: the shard, and the place of its jobs.
        most: maximum of bytes of arguments for a job; empty = all, "none" = only members and scores.
        position: number of the index among the keys of the shard; empty = the jobs of ``idents``.
        limit: entries of the page.
        score: with ``member``: the last entry before the page; both empty = from the beginning.
        member: see ``score``.
        low: bound where the range begins; empty = none.
        high: bound where the range ends; empty = none.
        of_members: "1" = the bounds are members, not scores.
        idents: ids, each behind a byte with its length.
    """
    shard = broker.shard(part.queue, part.shard)
    frame = broker.scripts.call(
        "columns",
        shard.keys,
        b"",
        shard.constants,
        part.place[:1].encode(),
        position,
        limit,
        score,
        member,
        low,
        high,
        of_members,
        most,
        idents,
    )
    return unpack_reply(frame, with_bodies=most != WITHOUT_BODIES)


def bound_before(bound: int | None) -> bytes:
    """Return the bound before a due time (ms), as ZCOUNT takes it."""
    return b"" if bound is None else b"(%d" % (bound * 1000)

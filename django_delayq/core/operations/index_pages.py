"""Pages of one index of a shard, for the reading of millions of jobs (:mod:`.columns`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from ..records.column_reply import ColumnReply, text_of, unpack_reply
from ..records.column_values import Part
from ..records.fields import pack_u8
from ..records.keys import SHARD_KEYS
from ..redis.scripts import clear_errors

if TYPE_CHECKING:
    from ..broker import Broker

#: distance by which an entry may have moved and is still found by its rank
NEAR: Final = 50
WITHOUT_BODIES: Final = b"none"
#: where a range begins and where it ends, each empty (= no bound) or as ZCOUNT takes it; "1" = both are members instead
Bounds: TypeAlias = tuple[bytes, bytes, bytes]


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
        self._bounds = bounds_of(part)
        #: first score after the range
        self._end = part.high * 1000 if is_bounded_by_index(part) and part.high is not None else None
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
        after = text_of(score), member
        reply = read_index(self._broker, self._part, self._index, self._limit, after, self._bounds, WITHOUT_BODIES)
        self._more = reply.more
        entries = list(zip(reply.members(), reply.numbers(), strict=True))
        if entries and self._more:
            with clear_errors():
                self._rank = self._broker.client.zrank(self._key, entries[-1][0])
        return entries


def is_bounded_by_index(part: Part) -> bool:
    """Return True if the index is ordered by the bounded value."""
    return part.place == "waiting" and part.idents is None


def bounds_of(part: Part) -> Bounds:
    """Return the bounds of the part in its index; none if the index has another order."""
    if not is_bounded_by_index(part):
        return b"", b"", b""
    return _bound_before(part.low), _bound_before(part.high), b""


def _bound_before(due: int | None) -> bytes:
    return b"" if due is None else b"(%d" % (due * 1000)


def read_index(
    broker: Broker, part: Part, index: str, limit: int, after: tuple[bytes, bytes], bounds: Bounds, most: bytes
) -> ColumnReply:
    """Return a page of an index.

    Args:
        part: the shard, and the place of its jobs.
        index: name of its key.
        limit: entries of the page.
        after: score and member of the last entry before the page; both empty = from the beginning.
        bounds: those of the range.
        most: maximum of bytes of arguments for a job; empty = all, "none" = only members and scores.
    """
    frame = _call(broker, part, SHARD_KEYS.index(index) + 1, limit, *after, *bounds, most, b"")
    return unpack_reply(frame, with_bodies=most != WITHOUT_BODIES)


def look_up(broker: Broker, part: Part, idents: Iterable[bytes], most: bytes) -> ColumnReply:
    """Return the data of jobs by their ids; see :func:`read_index`."""
    frame = _call(broker, part, b"", 0, b"", b"", b"", b"", b"", most, pack_u8(idents))
    return unpack_reply(frame, with_bodies=True)


def _call(broker: Broker, part: Part, *arguments: object) -> bytes:
    """Return the reply of ``columns.lua``."""
    shard, place = broker.shard(part.queue, part.shard), part.place[:1].encode()
    frame: bytes = broker.scripts.call("columns", shard.keys, b"", shard.constants, place, *arguments)
    return frame

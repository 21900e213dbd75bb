"""Column-wise reading of whole shards, for callers that need millions of jobs.

Waiting jobs and the morgue are paged through in the order of their indexes, each page after the last (score, member)
read. Reserved jobs are scanned as a hash table, because heartbeats move leases within their order. A job that stays in
its place meanwhile is returned exactly once. A job that moves may be returned in both places, or in none.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise
from typing import TYPE_CHECKING, Final

from ..errors import InvalidJob
from ..job import MAX_ID_BYTES, PRIORITIES
from ..records.column_reply import Reply, text_of, unpack_reply
from ..records.column_values import (
    NAMES,
    Columns,
    Part,
    buried_columns,
    decoded,
    default_of,
    live_columns,
    ms_of,
)
from ..records.keys import DUE_KEYS, SHARD_KEYS
from ..records.schedule_frames import CHUNK
from ..redis.scripts import clear_errors
from .paging import Range

if TYPE_CHECKING:
    from ..broker import Broker

__all__ = [
    "INDEXED",
    "NAMES",
    "PLACES",
    "Columns",
    "Entries",
    "Part",
    "default_of",
    "read_columns",
    "read_entries",
    "read_replies",
]

#: places of a job, in the usual order of its life
PLACES: Final = ("waiting", "reserved", "gated", "morgue")
#: place -> columns that its index has; gated content is found only through its lease
INDEXED: Final[Mapping[str, frozenset[str]]] = {
    "waiting": frozenset({"id", "due", "priority"}),
    "reserved": frozenset({"id", "lease_until"}),
    "gated": frozenset(),
    "morgue": frozenset({"id", "buried_at"}),
}
#: entries of an index in one call; they take Redis about 1 ms
PAGE: Final = 2000
#: distance by which an entry may have moved and is still found by its rank
NEAR: Final = 50
#: arguments up to this size are included even if they are not requested
UNWANTED_BYTES: Final = 1024

_GRAVE_TAIL: Final = 17  # \0 and the key, behind the id
_WITHOUT_BODIES: Final = b"none"


@dataclass(slots=True)
class Entries:
    """Entries of an index in packed form: ``<I4`` lengths and bytes of the ids, ``<d`` scores.

    Scores are µs (waiting: due, morgue: buried) or ms (reserved: end of the lease).
    """

    part: Part
    priority: int | None
    n: int
    lengths: bytes
    ids: bytes
    scores: bytes

    @classmethod
    def joined(cls, some: Sequence[Entries]) -> Entries:
        """Join several pages of one index into one."""
        return cls(
            some[0].part,
            some[0].priority,
            sum(page.n for page in some),
            *(
                b"".join(packed)
                for packed in zip(*((page.lengths, page.ids, page.scores) for page in some), strict=True)
            ),
        )

    def idents(self) -> list[str]:
        """Return the ids."""
        sizes = struct.unpack(f"<{self.n}I", self.lengths)
        return decoded(self.ids[a:b] for a, b in pairwise(accumulate(sizes, initial=0)))

    def times(self) -> list[int | None]:
        """Return the scores as Unix ms."""
        scores = struct.unpack(f"<{self.n}d", self.scores)
        return ms_of(scores, 1 if self.part.place == "reserved" else 1000)


def read_entries(broker: Broker, part: Part, *, page: int = PAGE) -> Iterator[Entries]:
    """Yield the entries of a place from its index (:data:`INDEXED`), in pages; selecting single ids is not supported.

    Raises:
        InvalidJob: the place has no index, or single ids are selected.
    """
    if part.place not in PLACES or not INDEXED[part.place] or part.idents is not None:
        raise InvalidJob(f"no index has these jobs of {part.place!r} alone; use read_columns()")
    if part.place == "reserved":
        yield from (_entries_of(part, None, found.keys(), found.values()) for found in _scan(broker, part))
        return
    for index, priority in _indexes(part.place):
        for members, scores in _IndexPages(broker, part, index, page):
            if index == "quarantine":
                yield from _entries_by_priority(broker, part, members, scores)
            else:
                ids = [member[:-_GRAVE_TAIL] for member in members] if part.place == "morgue" else members
                yield _entries_of(part, priority, ids, scores)


def read_columns(broker: Broker, part: Part, *, fetch: int = 200) -> Iterator[Columns]:
    """Yield all columns of the jobs of a place, up to ``fetch`` in one Redis call (fewer when they are large).

    Raises:
        InvalidJob: there is no such place.
    """
    if part.place not in PLACES:
        raise InvalidJob(f"{part.place!r} is no place of a job; use some of {', '.join(PLACES)}")
    read = buried_columns if part.place == "morgue" else live_columns
    for reply in read_replies(broker, part, fetch=fetch):
        if reply.n:
            found = read(part, reply)
            yield found if _is_bounded_by_index(part) else found.bounded()


def read_replies(broker: Broker, part: Part, *, fetch: int = 200) -> Iterator[Reply]:
    """Yield the replies behind :func:`read_columns`, not decoded and not limited to the bounds."""
    most = b"" if part.args else b"%d" % UNWANTED_BYTES
    if part.place == "morgue" and part.idents is not None:
        for name in _names(part.idents):
            ident = name.decode()
            yield from _pages(broker, part, "morgue_id", fetch, most, Range("id", ident, ident).arguments())
    elif part.idents is not None:
        yield from _looked_up(broker, part, _names(part.idents), fetch, most)
    elif part.place in ("reserved", "gated"):
        held = (member for found in _scan(broker, part) for member in found)
        yield from _looked_up(broker, part, held, fetch, most)
    else:
        for index, _ in _indexes(part.place):
            yield from _pages(broker, part, index, fetch, most)


def _indexes(place: str) -> list[tuple[str, int | None]]:
    """Return the indexes of a place, each with the priority of its jobs if it has a single one."""
    if place == "morgue":
        return [("morgue", None)]
    return list(zip(DUE_KEYS, (*range(PRIORITIES), None), strict=True))


def _is_bounded_by_index(part: Part) -> bool:
    """Return True if the index is ordered by the bounded value."""
    return part.place == "waiting" and part.idents is None


def _names(idents: Iterable[str]) -> Iterator[bytes]:
    """Yield ids in stored form, each once; invalid ids are left out."""
    for ident in dict.fromkeys(idents):
        name = ident.encode(errors="replace")
        if 0 < len(name) <= MAX_ID_BYTES and b"\0" not in name and name.decode() == ident:
            yield name


# -- calls ----------------------------------------------------------------------------------------------------------


def _pages(
    broker: Broker, part: Part, index: str, limit: int, most: bytes, bounds: tuple[bytes, bytes, bytes] | None = None
) -> Iterator[Reply]:
    """Yield the entries of an index, page by page."""
    if bounds is None:
        by_due = _is_bounded_by_index(part)
        bounds = (_before(part.low), _before(part.high), b"") if by_due else (b"", b"", b"")
    position = SHARD_KEYS.index(index) + 1
    score = member = b""
    while True:
        reply = _ask(broker, part, most, position, limit, score, member, *bounds)
        if not reply.n:
            return
        yield reply
        if not reply.more:
            return
        score, member = reply.last()


def _looked_up(broker: Broker, part: Part, members: Iterable[bytes], fetch: int, most: bytes) -> Iterator[Reply]:
    """Yield the data of jobs by their ids, in chunks."""
    source, chunk = iter(members), list[bytes]()
    while True:
        chunk += islice(source, fetch - len(chunk))
        if not chunk:
            return
        frame = b"".join(bytes((len(member),)) + member for member in chunk)
        reply = _ask(broker, part, most, b"", 0, b"", b"", b"", b"", b"", frame)
        yield reply
        del chunk[: reply.looked_at]


def _scan(broker: Broker, part: Part) -> Iterator[dict[bytes, float]]:
    """Yield the leases of a shard: id -> end. A job that stays reserved throughout is returned exactly once."""
    key = broker.shard(part.queue, part.shard).names["lease"]
    seen: set[bytes] = set()
    cursor = 0
    while True:
        with clear_errors():
            cursor, found = broker.client.zscan(key, cursor, count=CHUNK)
        fresh = {member: end for member, end in found if member not in seen}
        seen.update(fresh)
        if fresh:
            yield fresh
        if not cursor:
            return


def _entries_of(part: Part, priority: int | None, ids: Collection[bytes], scores: Collection[float]) -> Entries:
    n = len(ids)
    return Entries(
        part, priority, n, struct.pack(f"<{n}I", *map(len, ids)), b"".join(ids), struct.pack(f"<{n}d", *scores)
    )


def _entries_by_priority(
    broker: Broker, part: Part, ids: Sequence[bytes], scores: Sequence[float]
) -> Iterator[Entries]:
    """Yield entries of an index without priorities, which are read from the bodies; jobs that just left are skipped."""
    with clear_errors():
        bodies = broker.client.hmget(broker.shard(part.queue, part.shard).names["body"], list(ids))
    found: dict[int, list[tuple[bytes, float]]] = {}
    for ident, score, body in zip(ids, scores, bodies, strict=True):
        if body:
            found.setdefault(body[0] % PRIORITIES, []).append((ident, score))
    for priority, some in sorted(found.items()):
        yield _entries_of(part, priority, *zip(*some, strict=True))


class _IndexPages:
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
        by_due = _is_bounded_by_index(part)
        self._bounds = (_before(part.low), _before(part.high), b"") if by_due else (b"", b"", b"")
        #: first score after the range
        self._end = part.high * 1000 if by_due and part.high is not None else None
        #: last entry read, and its rank if known
        self._last: tuple[bytes, float] | None = None
        self._rank: int | None = None
        self._more = True

    def __iter__(self) -> Iterator[tuple[Sequence[bytes], Sequence[float]]]:
        while self._more:
            found = self._by_rank() or self._by_script()
            if found:
                self._last = found[-1]
                members, scores = zip(*found, strict=True)
                yield members, scores

    def _by_rank(self) -> list[tuple[bytes, float]]:
        """Return the entries after the last one read; empty if it is not near its former rank, or was the last one."""
        if self._last is None or self._rank is None:
            return []
        start = max(0, self._rank - NEAR)
        with clear_errors():
            found: list[tuple[bytes, float]] = self._broker.client.zrange(
                self._key, start, max(self._rank + self._limit, start + 2 * NEAR), withscores=True
            )
        try:
            place = found.index(self._last, 0, 2 * NEAR)
        except ValueError:
            self._rank = None
            return []
        self._rank = start + len(found) - 1
        behind = found[place + 1 :]
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
        reply = _ask(
            self._broker, self._part, _WITHOUT_BODIES, position, self._limit, text_of(score), member, *self._bounds
        )
        self._more = reply.more
        found = list(zip(reply.members(), reply.numbers(), strict=True))
        if found and self._more:
            with clear_errors():
                self._rank = self._broker.client.zrank(self._key, found[-1][0])
        return found


def _ask(
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
) -> Reply:
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
    return unpack_reply(frame, with_bodies=most != _WITHOUT_BODIES)


def _before(bound: int | None) -> bytes:
    """Return the bound before a due time (ms), as ZCOUNT takes it."""
    return b"" if bound is None else b"(%d" % (bound * 1000)

"""Column-wise reading of whole shards, for callers that need millions of jobs.

Waiting jobs and the morgue are paged through in the order of their indexes, each page after the last (score, member)
read. Reserved jobs are scanned as a hash table, because heartbeats move leases within their order. A job that stays in
its place meanwhile is returned exactly once. A job that moves may be returned in both places, or in none.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

from ..errors import InvalidJob
from ..job import MAX_ID_BYTES, PRIORITIES
from ..records.column_reply import ColumnReply, split
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
from ..records.keys import DUE_KEYS
from ..records.morgue_records import split_name
from ..records.schedule_frames import CHUNK
from ..redis.scripts import clear_errors
from .index_pages import Bounds, IndexPages, bounds_of, is_bounded_by_index, look_up, read_index
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
#: arguments up to this size are included even if they are not requested
UNWANTED_BYTES: Final = 1024


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
        packed = zip(*((page.lengths, page.ids, page.scores) for page in some), strict=True)
        return cls(some[0].part, some[0].priority, sum(page.n for page in some), *map(b"".join, packed))

    def idents(self) -> list[str]:
        """Return the ids of the entries."""
        return decoded(split(self.ids, self.lengths))

    def times(self) -> list[int | None]:
        """Return the times of the entries, Unix ms: of a reserved job the end of its lease, else the index's score."""
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
        yield from (_entries_of(part, None, ends.keys(), ends.values()) for ends in _scan(broker, part))
        return
    for index, priority in _indexes(part.place):
        for members, scores in IndexPages(broker, part, index, page):
            if part.place == "waiting" and priority is None:
                yield from _entries_by_priority(broker, part, members, scores)
            else:
                ids = [split_name(member)[0] for member in members] if part.place == "morgue" else members
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
            columns = read(part, reply)
            yield columns if is_bounded_by_index(part) else columns.bounded()


def read_replies(broker: Broker, part: Part, *, fetch: int = 200) -> Iterator[ColumnReply]:
    """Yield the replies behind :func:`read_columns`, not decoded and not limited to the bounds."""
    most = b"" if part.args else b"%d" % UNWANTED_BYTES
    if part.place == "morgue" and part.idents is not None:
        for name in _names(part.idents):
            ident = name.decode()
            yield from _pages(broker, part, "morgue_id", fetch, most, Range("id", ident, ident).arguments())
    elif part.idents is not None:
        yield from _looked_up(broker, part, _names(part.idents), fetch, most)
    elif part.place in ("reserved", "gated"):
        held = (member for page in _scan(broker, part) for member in page)
        yield from _looked_up(broker, part, held, fetch, most)
    else:
        for index, _ in _indexes(part.place):
            yield from _pages(broker, part, index, fetch, most, bounds_of(part))


def _indexes(place: str) -> list[tuple[str, int | None]]:
    """Return the indexes of a place, each with the priority of its jobs if it has a single one."""
    if place == "morgue":
        return [("morgue", None)]
    return list(zip(DUE_KEYS, (*range(PRIORITIES), None, None), strict=True))


def _names(idents: Iterable[str]) -> Iterator[bytes]:
    """Yield ids in stored form, each once; invalid ids are left out."""
    for ident in dict.fromkeys(idents):
        name = ident.encode(errors="replace")
        if 0 < len(name) <= MAX_ID_BYTES and b"\0" not in name and name.decode() == ident:
            yield name


# -- calls ----------------------------------------------------------------------------------------------------------


def _pages(broker: Broker, part: Part, index: str, limit: int, most: bytes, bounds: Bounds) -> Iterator[ColumnReply]:
    """Yield the entries of an index, page by page."""
    after = b"", b""
    while True:
        reply = read_index(broker, part, index, limit, after, bounds, most)
        if not reply.n:
            return
        yield reply
        if not reply.more:
            return
        after = reply.last()


def _looked_up(broker: Broker, part: Part, members: Iterable[bytes], fetch: int, most: bytes) -> Iterator[ColumnReply]:
    """Yield the data of jobs by their ids, in chunks."""
    source, chunk = iter(members), list[bytes]()
    while True:
        chunk += islice(source, fetch - len(chunk))
        if not chunk:
            return
        reply = look_up(broker, part, chunk, most)
        yield reply
        del chunk[: reply.looked_at]


def _scan(broker: Broker, part: Part) -> Iterator[dict[bytes, float]]:
    """Yield the leases of a shard: id -> end. A job that stays reserved throughout is returned exactly once."""
    key = broker.shard(part.queue, part.shard).names["lease"]
    seen: set[bytes] = set()
    cursor = 0
    while True:
        with clear_errors():
            cursor, page = broker.client.zscan(key, cursor, count=CHUNK)
        fresh = {member: end for member, end in page if member not in seen}
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
    by_priority: dict[int, list[tuple[bytes, float]]] = {}
    for ident, score, body in zip(ids, scores, bodies, strict=True):
        if body:
            by_priority.setdefault(body[0] % PRIORITIES, []).append((ident, score))
    for priority, some in sorted(by_priority.items()):
        yield _entries_of(part, priority, *zip(*some, strict=True))

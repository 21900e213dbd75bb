"""Selections of jobs for an operation: the jobs named by a caller, or all jobs in some indexes of a queue.

A selection yields chunks of names. Jobs of an index are read page by page, one page of each shard in turn, so that all
shards progress together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar

from ..records.frames import encode_id
from ..records.keys import SHARD_KEYS
from ..sending.chunks import CHUNK

if TYPE_CHECKING:
    from ..queue import Queue
    from .actions import Name

T = TypeVar("T")
#: called with the number of jobs checked so far, and the number at the start
Progress = Callable[[int, int], None]
#: an id (its generation that was buried last), or an id and the key of a generation
Wanted = str | tuple[str, bytes]

#: number of the shard of jobs that have to be found
ANYWHERE: Final = -1
#: ids read from an iterable before they are processed
_AT_ONCE: Final = 10_000


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some selected jobs of one shard, or wherever they are (``number`` is :data:`ANYWHERE`)."""

    names: Sequence[Name]
    number: int = ANYWHERE


@dataclass(frozen=True, slots=True)
class Selection:
    """Selected jobs, chunk by chunk, and their number at the start (None = unknown)."""

    chunks: Iterable[Chunk]
    total: int | None = None


@dataclass(frozen=True, slots=True)
class ShardSnapshot:
    """Snapshot of a shard at the moment of the call, on its own clock."""

    now_ms: int
    delayed: int
    waiting: int
    failed: int
    morgue: int

    @property
    def moment(self) -> float:
        """Largest possible score of an entry made up to now, µs."""
        return self.now_ms * 1000 + 999


def shard_snapshots(queue: Queue) -> dict[int, ShardSnapshot]:
    """Return a snapshot of every shard of the queue."""
    queue.broker.read_layout(queue.name)  # finds shards that were opened meanwhile
    found = {}
    for number in queue.numbers:
        now_ms, ready, delayed, _reserved, _gated, failed, morgue, *_ = queue.call("stats", number)
        found[number] = ShardSnapshot(int(now_ms), delayed, ready + delayed, failed, morgue)
    return found


# -- selections ------------------------------------------------------------------------------------------------------


def named(queue: Queue, wanted: Iterable[Wanted]) -> Selection:
    """Return the selection of jobs by id, or by id and key, in all epochs of a queue.

    Raises:
        InvalidJob: while the chunks are read: an invalid id.
    """
    queue.broker.read_layout(queue.name)
    pending = iter(wanted)
    chunks = iter(lambda: [name_of(one) for one in islice(pending, _AT_ONCE)], [])
    return Selection(map(Chunk, chunks))


def name_of(wanted: Wanted) -> Name:
    """Return the name that a script takes.

    Raises:
        InvalidJob: an invalid id.
    """
    ident, key = (wanted, b"") if isinstance(wanted, str) else wanted
    return encode_id(ident), key


def every(
    queue: Queue, indexes: Sequence[str], total: int, until: Callable[[int], float | None] = lambda _: None
) -> Selection:
    """Return the selection of all jobs in some indexes.

    Args:
        total: their number at the moment of the call.
        until: returns the last score to include in a shard; None = that of the last member at the moment of the call.
    """
    walks = [(number, walk_index(queue, number, index, until(number))) for number in queue.numbers for index in indexes]
    return Selection(in_turn([_chunks(number, walk) for number, walk in walks]), total)


def _chunks(number: int, walk: Iterator[list[bytes]]) -> Iterator[Chunk]:
    return (Chunk([split(member) for member in members], number) for members in walk)


def in_turn(iterators: Iterable[Iterator[T]]) -> Iterator[T]:
    """Yield one item of each iterator in turn, until all of them are exhausted."""
    waiting = deque(iterators)
    while waiting:
        iterator = waiting.popleft()
        for item in islice(iterator, 1):
            yield item
            waiting.append(iterator)


def split(member: bytes) -> Name:
    """Return the name of a member of an index; that of a morgue record ends in the key behind a zero byte."""
    ident, _, key = member.partition(b"\0")
    return ident, key


# -- indexes ---------------------------------------------------------------------------------------------------------


def walk_index(queue: Queue, number: int, index: str, until: float | None = None) -> Iterator[list[bytes]]:
    """Return an iterator over the members of an index, in chunks. Members removed meanwhile do not disturb it.

    Args:
        until: the last score to include; None = that of the last member now.
    """
    if until is None:
        until = float(last_score(queue, number, index) or "-inf")
    return _walk(queue, number, index, until)


def last_score(queue: Queue, number: int, index: str) -> bytes:
    """Return the largest score of an index; empty if the index is empty."""
    found = _page(queue, number, index, backwards=True, limit=1)
    return found[1] if found else b""


def _walk(queue: Queue, number: int, index: str, until: float) -> Iterator[list[bytes]]:
    score = member = b""
    while until > float("-inf"):
        found = _page(queue, number, index, score=score, member=member)
        chunk = [each for each, text in zip(found[::2], found[1::2], strict=True) if float(text) <= until]
        if chunk:
            yield chunk
        if len(chunk) < CHUNK:
            return
        member, score = found[-2], found[-1]


def _page(
    queue: Queue,
    number: int,
    index: str,
    *,
    backwards: bool = False,
    limit: int = CHUNK,
    score: bytes = b"",
    member: bytes = b"",
) -> list[bytes]:
    found: list[bytes] = queue.call(
        "page", number, SHARD_KEYS.index(index) + 1, b"1" if backwards else b"0", limit, score, member
    )
    return found

"""Selections of jobs for an operation: the jobs named by a caller, or all jobs in some indexes of a queue.

Selections yield chunks of names. Jobs of an index are read page by page, one page of each shard in turn, so that all
shards progress together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, repeat
from typing import TYPE_CHECKING, Final, TypeVar

from ..records.keys import SHARD_KEYS
from ..records.schedule_frames import CHUNK, encode_id

if TYPE_CHECKING:
    from ..queue import Queue
    from .actions import Name

T = TypeVar("T")
#: called with the number of jobs checked so far, and the number at the start
Progress = Callable[[int, int], None]
#: an id (its generation that was buried last), or an id and the key of a generation
Selected = str | tuple[str, bytes]

#: ids read from an iterable before they are processed
_AT_ONCE: Final = 10_000


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
    snapshots = {}
    for number in queue.numbers:
        ((now_ms, ready, delayed, _reserved, _gated, failed, morgue, *_),) = queue.call("stats", number)
        snapshots[number] = ShardSnapshot(int(now_ms), delayed, ready + delayed, failed, morgue)
    return snapshots


# -- selections ------------------------------------------------------------------------------------------------------


def named(selected: Iterable[Selected]) -> Iterator[list[Name]]:
    """Yield the names of jobs that a caller named, in chunks.

    Raises:
        InvalidJob: an invalid id.
    """
    pending = iter(selected)
    return iter(lambda: [name_of(one) for one in islice(pending, _AT_ONCE)], [])


def name_of(selected: Selected) -> Name:
    """Return the name that a script takes.

    Raises:
        InvalidJob: an invalid id.
    """
    ident, key = (selected, b"") if isinstance(selected, str) else selected
    return encode_id(ident), key


def every(
    queue: Queue, indexes: Sequence[str], until: Callable[[int], float | None] = lambda _: None
) -> Iterator[tuple[int, list[Name]]]:
    """Return an iterator over the names of all jobs in some indexes, in chunks with the number of their shard.

    Args:
        until: returns the last score to include in a shard; None = that of the last member at the moment of the call.
    """
    walks = [(number, walk_index(queue, number, index, until(number))) for number in queue.numbers for index in indexes]
    return in_turn([zip(repeat(number), map(_names, walk), strict=False) for number, walk in walks])


def in_turn(iterators: Iterable[Iterator[T]]) -> Iterator[T]:
    """Yield one item of each iterator in turn, until all of them are exhausted."""
    waiting = deque(iterators)
    while waiting:
        iterator = waiting.popleft()
        for item in islice(iterator, 1):
            yield item
            waiting.append(iterator)


def _names(members: Iterable[bytes]) -> list[Name]:
    """Return the names of members of an index; that of a morgue record ends in the key behind a zero byte."""
    return [(ident, key) for ident, _, key in (member.partition(b"\0") for member in members)]


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
    page = _page(queue, number, index, backwards=True, limit=1)
    return page[1] if page else b""


def _walk(queue: Queue, number: int, index: str, until: float) -> Iterator[list[bytes]]:
    score = member = b""
    while until > float("-inf"):
        page = _page(queue, number, index, score=score, member=member)
        chunk = [each for each, text in zip(page[::2], page[1::2], strict=True) if float(text) <= until]
        if chunk:
            yield chunk
        if len(chunk) < CHUNK:
            return
        member, score = page[-2], page[-1]


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
    page: list[bytes] = queue.call(
        "page", number, SHARD_KEYS.index(index) + 1, b"1" if backwards else b"0", limit, score, member
    )
    return page

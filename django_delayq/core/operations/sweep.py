"""Walks through the indexes of a queue that apply an action to each chunk of members."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..records.keys import SHARD_KEYS
from ..sending.chunks import CHUNK

if TYPE_CHECKING:
    from ..queue import Queue

Progress = Callable[[int, int], None]
#: action on a chunk of one shard; returns an outcome for each member, or for those that it changed
Act = Callable[[int, Sequence[bytes]], list[str]]


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


def look_at(queue: Queue) -> dict[int, ShardSnapshot]:
    """Return a snapshot of every shard of the queue."""
    queue.broker.read_layout(queue.name)  # finds shards that were opened meanwhile
    scene = {}
    for number in queue.numbers:
        now_ms, ready, delayed, _reserved, _gated, failed, morgue, *_ = queue.call("stats", number)
        scene[number] = ShardSnapshot(int(now_ms), delayed, ready + delayed, failed, morgue)
    return scene


def last_score(queue: Queue, number: int, index: str) -> bytes:
    """Return the largest score of an index; empty if the index is empty."""
    found = _page(queue, number, index, backwards=True, limit=1)
    return found[1] if found else b""


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


def walk_index(queue: Queue, number: int, index: str, until: float) -> Iterator[list[bytes]]:
    """Yield the members of an index up to a score, in chunks. Members removed meanwhile do not disturb the walk."""
    score = member = b""
    while True:
        found = _page(queue, number, index, score=score, member=member)
        chunk = [each for each, text in zip(found[::2], found[1::2], strict=True) if float(text) <= until]
        if chunk:
            yield chunk
        if len(chunk) < CHUNK:
            return
        member, score = found[-2], found[-1]


def sweep(
    queue: Queue,
    indexes: Sequence[str],
    until: Mapping[int, float] | None,
    act: Act,
    total: int,
    progress: Progress | None,
) -> dict[str, int]:
    """Apply an action to the members of these indexes, one chunk of each in turn, so that all shards progress together.

    Args:
        until: the last score to include, by shard; None = that of the last member at the moment of the call.
    """
    walks: deque[tuple[int, Iterator[list[bytes]]]] = deque()
    for number in queue.numbers:
        for index in indexes:
            last = until[number] if until else float(last_score(queue, number, index) or "-inf")
            if last > float("-inf"):
                walks.append((number, walk_index(queue, number, index, last)))
    counts: Counter[str] = Counter()
    seen = 0
    while walks:
        number, walk = walks.popleft()
        chunk = next(walk, None)
        if chunk is not None:
            counts.update(act(number, chunk))
            seen += len(chunk)
            walks.append((number, walk))
            if progress:
                progress(seen, total)
    return told(counts)


def told(counts: Counter[str]) -> dict[str, int]:
    """Return the outcomes that occurred."""
    return {outcome: n for outcome, n in counts.items() if n}

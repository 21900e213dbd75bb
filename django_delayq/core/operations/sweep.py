"""Walks through a queue's indexes, chunk by chunk, and lets something be done to what lies there."""

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
#: what is done to a chunk of one shard: an outcome for each, or for those that it was done to
Act = Callable[[int, Sequence[bytes]], list[str]]


@dataclass(frozen=True, slots=True)
class Look:
    """A shard at the moment of the call, on its own clock."""

    now_ms: int
    delayed: int
    waiting: int
    failed: int
    morgue: int

    @property
    def moment(self) -> float:
        """The largest score that anything can have which came up to now, µs."""
        return self.now_ms * 1000 + 999


def look_at(queue: Queue) -> dict[int, Look]:
    """Every shard of the queue as it is now."""
    queue.broker.read_layout(queue.name)  # shards that somebody else opened meanwhile
    scene = {}
    for number in queue.numbers:
        now_ms, ready, delayed, _reserved, _gated, failed, morgue, *_ = queue.call("stats", number)
        scene[number] = Look(int(now_ms), delayed, ready + delayed, failed, morgue)
    return scene


def last_score(queue: Queue, number: int, index: str) -> bytes:
    """The largest score of an index; empty when nothing lies there."""
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
    """The members of an index up to a score, in chunks. What is taken out meanwhile does not disturb the walk."""
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
    """Acts on what lies in these indexes, a chunk of each at a time, so that all shards get on together.

    Args:
        until: the last score that is meant, by shard; None = that of the last member at the moment of the call.
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
    """The outcomes that there were."""
    return {outcome: n for outcome, n in counts.items() if n}

"""Agenda of a test: the waiting jobs of all queues by due time.

Redis orders jobs of one shard only, and does not keep when a due time was set. The in-memory server notes both as its
scripts write them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from heapq import heappop, heappush
from itertools import count
from typing import Final

from ..core.records.keys import DUE_KEYS, number_of
from .times import Clock

_DOUBLE: Final = struct.Struct("<d")
#: class of an entry that waits behind a running attempt
GATED: Final = -1


@dataclass(frozen=True, order=True, slots=True)
class Entry:
    """Due time of a waiting job, and the time at which it was set.

    ``class_`` is the place of its set among :data:`~..core.records.keys.DUE_KEYS`: the most urgent comes first.
    ``arrival`` counts the due times that were set, so that jobs with equal times run in the order of the calls.
    """

    queue: str
    shard: int
    id: str
    class_: int
    score: float
    set_ms: int
    arrival: int

    @property
    def due_ms(self) -> int:
        """Due time, Unix ms."""
        return int(self.score // 1000)


class Agenda:
    """Entries of all waiting jobs.

    An entry is not removed when its job is: reserving the job shows if it still waits.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._arrivals = count(1)
        #: the last entry of each job, and of the content gated behind it
        self._latest: dict[tuple[str, int, str, bool], Entry] = {}
        self._later: list[tuple[int, int, Entry]] = []
        self._due: list[tuple[int, int, int, Entry]] = []

    # -- for the server ----------------------------------------------------------------------------------------------

    def note_due(self, key: bytes, words: Sequence[bytes]) -> None:
        """Note jobs that were added to a sorted set of waiting jobs: an option, scores and ids in turn."""
        place = _place_of(key)
        if place is not None and place[2] in DUE_KEYS:
            words = words[len(words) % 2 :]  # without the option XX
            for score, ident in zip(words[::2], words[1::2], strict=True):
                self._note(*place[:2], ident.decode(), DUE_KEYS.index(place[2]), float(score))

    def note_gated(self, key: bytes, words: Sequence[bytes]) -> None:
        """Note content that was gated: ids and packed content in turn."""
        place = _place_of(key)
        if place is not None and place[2] == "gate":
            for ident, packed in zip(words[::2], words[1::2], strict=True):
                self._note(*place[:2], ident.decode(), GATED, _DOUBLE.unpack_from(packed)[0])

    def _note(self, queue: str, shard: int, ident: str, class_: int, score: float) -> None:
        gated = class_ == GATED
        entry = Entry(queue, shard, ident, class_, score, self._clock.now_ms, next(self._arrivals))
        for known in (self.entry_of(queue, shard, ident, gated=True), self.entry_of(queue, shard, ident)):
            if known is not None and known.score == score:  # released to its old place, or no longer gated
                entry = Entry(queue, shard, ident, class_, score, known.set_ms, known.arrival)
                break
        self._latest[queue, shard, ident, gated] = entry
        if not gated:
            self.put_back([entry])

    # -- for the test ------------------------------------------------------------------------------------------------

    def entry_of(self, queue: str, shard: int, ident: str, *, gated: bool = False) -> Entry | None:
        """Return the last entry of a job, or of the content gated behind it."""
        return self._latest.get((queue, shard, ident, gated))

    def put_back(self, entries: Iterable[Entry]) -> None:
        """Return entries that :meth:`take` took."""
        for entry in entries:
            heappush(self._later, (entry.due_ms, entry.arrival, entry))

    def take(self) -> Entry | None:
        """Take the next due entry: the most urgent class first, then the earliest due time; None = nothing is due."""
        now_ms = self._clock.now_ms
        while self._later and self._later[0][0] <= now_ms:
            due_ms, arrival, entry = heappop(self._later)
            heappush(self._due, (entry.class_, due_ms, arrival, entry))
        while self._due:
            entry = heappop(self._due)[-1]
            if not self._is_latest(entry):
                continue
            if entry.due_ms <= now_ms:
                return entry
            self.put_back([entry])  # the clock was set back
        return None

    def next_ms(self) -> int | None:
        """Return the next due time after now."""
        while self._later and not self._is_latest(self._later[0][-1]):
            heappop(self._later)
        return self._later[0][0] if self._later else None

    def _is_latest(self, entry: Entry) -> bool:
        return self.entry_of(entry.queue, entry.shard, entry.id) is entry


@cache
def _place_of(key: bytes) -> tuple[str, int, str] | None:
    """Return queue, shard and name of a key of a shard: ``<prefix>:{<queue>:<epoch>.<shard>}:<name>``."""
    stem, _, name = key.decode(errors="replace").rpartition("}:")
    queue, _, number = stem.partition(":{")[2].rpartition(":")
    epoch, _, place = number.partition(".")
    return (queue, number_of(int(epoch), int(place)), name) if epoch.isdigit() and place.isdigit() else None

"""Rates between two responses of the dashboard.

The page returns the counters of an earlier response in a header. So any process of the site can compute rates, and none
keeps state for a page.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final
from zlib import crc32

from ..core.figures import BUCKETS_MS, Histogram
from ..status import Change, Rates, united

if TYPE_CHECKING:
    from ..status import QueueStatus, Snapshot

#: request header with the counters of an earlier response
HEADER: Final = "X-Delayq-Since"
#: largest number that is accepted
_LARGEST: Final = 2**53


def counters_of(snapshot: Snapshot, queues: Iterable[QueueStatus]) -> str:
    """Return the counters of a snapshot as a short text: the totals, and what these queues have done."""
    totals, lateness = snapshot.totals, united(snapshot.figures.lateness.values())
    numbers = (round(snapshot.now_ms), totals.done, totals.failing, totals.scheduled, *lateness.counts)
    done = (f"{_key(queue.name)}={queue.done}" for queue in queues)
    return f"{'.'.join(map(str, numbers))};{'.'.join(done)}"


def change_since(text: str, snapshot: Snapshot) -> Change | None:
    """Return the change since the counters of an earlier response; None if they are missing, damaged or not earlier."""
    try:
        numbers, queues = _parse(text)
    except ValueError:
        return None
    now_ms, done, failing, scheduled, *lateness = numbers
    seconds = (snapshot.now_ms - now_ms) / 1000
    if seconds <= 0:
        return None

    def rate(before: int, now: int) -> float:
        return max(0, now - before) / seconds

    totals = snapshot.totals
    late = united(snapshot.figures.lateness.values()).since(Histogram(tuple(lateness)))
    total = Rates(rate(scheduled, totals.scheduled), rate(done, totals.done), rate(failing, totals.failing), late)
    earlier = ((queue, queues.get(_key(queue.name))) for queue in snapshot.queues)
    rates = {queue.name: Rates(done=rate(before, queue.done)) for queue, before in earlier if before is not None}
    return Change(seconds, total, rates)


def _parse(text: str) -> tuple[list[int], Mapping[str, int]]:
    head, _, tail = text.partition(";")
    numbers = [_number(one) for one in head.split(".")]
    if len(numbers) != 4 + len(BUCKETS_MS) + 1:
        raise ValueError(text)
    pairs = (one.partition("=") for one in tail.split(".") if one)
    return numbers, {key: _number(count) for key, _, count in pairs}


def _number(text: str) -> int:
    number = int(text)
    if not 0 <= number <= _LARGEST:
        raise ValueError(text)
    return number


def _key(name: str) -> str:
    """Return a short key of a queue: 100 names of 64 characters would not fit into a header."""
    return f"{crc32(name.encode()):x}"

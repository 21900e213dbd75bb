"""Operations on many jobs that the caller has read before; each is changed only if it is still the same generation.

A job is named by its id and the key of its generation, in the shard where it was read. Jobs that ran, were replaced or
cancelled meanwhile, and new jobs under the same id, are left alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from ..errors import InvalidJob
from ..sending.chunks import CHUNK
from ..times import MAX_DUE_MS

if TYPE_CHECKING:
    from ..queue import Queue
    from .mend import Named

_CANCELLED: Final = {"c": "cancelled", "s": "stopping", "g": "ungated", "r": "running", "n": "gone"}
_MOVED: Final = {"m": "moved", "r": "running", "n": "gone"}
#: jobs that one script call removes: a few ms, for which all other calls have to wait
_AT_A_TIME: Final = 100


def cancel_named(queue: Queue, number: int, wanted: Sequence[Named]) -> list[str]:
    """Cancel jobs: remove waiting and gated ones, mark running ones so that they are not put back.

    Args:
        queue, number: the shard in which they are.
        wanted: (id, key) of each; one Redis call removes at most 100.

    Returns:
        For each: cancelled, stopping (it is running), ungated (it waited for the end of an attempt, which continues),
            running (it waits for the end of an attempt which has left payloads of its own behind: cancel that one), or
            gone.
    """
    outcomes: list[str] = []
    while rest := wanted[len(outcomes) : len(outcomes) + _AT_A_TIME]:
        letters = queue.call("cancel_many", number, b"".join(map(_entry, rest))).decode()
        outcomes += [_CANCELLED[letter] for letter in letters]
    return outcomes


def move_named(
    queue: Queue, number: int, wanted: Sequence[Named], *, due_ms: int | None = None, delay_ms: int | None = None
) -> list[str]:
    """Change the due times of jobs that wait or are gated.

    Args:
        queue, number: the shard in which they are.
        wanted: (id, key) of each; one Redis call moves at most 250.
        due_ms: Unix ms; or
        delay_ms: ms from now, on Redis's clock.

    Returns:
        For each: moved, running (reserved now), or gone.

    Raises:
        InvalidJob: neither or both are given, or the value is out of range.
    """
    if (due_ms is None) == (delay_ms is None):
        raise InvalidJob("give either a delay or a due time")
    ms, relative = (delay_ms, b"1") if due_ms is None else (due_ms, b"0")
    if ms is None or not 0 <= ms <= MAX_DUE_MS:
        raise InvalidJob(f"a delay or a due time is a number of ms from 0 to {MAX_DUE_MS}, not {ms}")
    outcomes: list[str] = []
    for chunk in _chunks(wanted):
        letters = queue.call("move_many", number, b"".join(map(_entry, chunk)), ms, relative).decode()
        outcomes += [_MOVED[letter] for letter in letters]
    return outcomes


def _chunks(wanted: Sequence[Named]) -> Iterator[Sequence[Named]]:
    return (wanted[start : start + CHUNK] for start in range(0, len(wanted), CHUNK))


def _entry(named: Named) -> bytes:
    ident, key = named
    encoded = ident.encode()
    return b"%c%b%c%b" % (len(encoded), encoded, len(key), key)

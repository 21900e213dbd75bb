"""Entries of the event streams: the events of one call, each with a number of its own.

An entry has two fields: ``worker``, and ``events-<version>``, its events one after another. An event is
:data:`COLUMNS`, each word followed by a zero byte, which no id contains; so one split of many events gives their
columns as slices. Workers pack the events of attempts (:func:`pack_attempt`), scripts those of cancellations and bulk
loads (``lua/lib/event.lua``).

A new column is added at the end, under a new version. An entry of an older version is read with empty words in the
newer columns; one of a newer version is refused.

The events of a shard are numbered without gaps from 1. The id of an entry is ``<ms>-<number of its last event>``, and
the *position* of an event ``<ms of its entry>-<its number>``. A reader therefore sees by the numbers alone whether an
event is missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

from ..errors import InvalidJob, Misconfigured
from ..outcomes import Settlement

BEGINNING: Final = "0-0"
#: column -> version of the entries since which it exists. ``extra`` is "<name>:<value>", or empty. Times and durations
#: are in ms; an empty word is a missing value.
SINCE: Final = {
    "outcome": 1,
    "id": 1,
    "task": 1,
    "key": 1,
    "due": 1,
    "started": 1,
    "ms": 1,
    "attempt": 1,
    "error": 1,
    "jobs": 1,
    "created": 1,
    "extra": 1,
}
COLUMNS: Final = tuple(SINCE)
WIDTH: Final = len(COLUMNS)
VERSION: Final = max(SINCE.values())
#: field with the events of an entry; the one that ``lua/lib/event.lua`` writes
FIELD: Final = b"events-%d" % VERSION
#: raw entry from Redis: its id, then field, value, field, value, ...
RawEntry: TypeAlias = tuple[bytes, Sequence[bytes]]

_POSITION: Final = re.compile(r"\d{1,15}-\d{1,20}")
_FIELD_OF_ANY_VERSION: Final = re.compile(rb"events-([1-9]\d{0,4})")


class EventEntry(NamedTuple):
    """Events of one entry, or some of them."""

    ms: int
    #: number of the last event
    last: int
    worker: bytes
    events: bytes

    @property
    def size(self) -> int:
        """Number of events."""
        return self.events.count(b"\0") // WIDTH

    @property
    def position(self) -> str:
        """Position of the last event."""
        return f"{self.ms}-{self.last}"

    @property
    def before(self) -> str:
        """Position before the first event."""
        return f"{self.ms}-{self.last - self.size}"


def parts(position: str) -> tuple[int, int]:
    """Return a position as ``(ms, number)``; these pairs sort in the order of the positions.

    Raises:
        InvalidJob: the text is not a position.
    """
    if not isinstance(position, str) or not _POSITION.fullmatch(position):
        raise InvalidJob(f"{str(position)[:60]!r} is no position of an event; give one like '1700000000000-1'")
    ms, _, number = position.partition("-")
    return int(ms), int(number)


def latest(*positions: str) -> str:
    """Return the greatest of the positions."""
    return max(positions, key=parts)


def pack_attempt(settlement: Settlement) -> bytes:
    """Return the event of an ended attempt."""
    job = settlement.job
    return b"%b\0%b\0%b\0%b\0%d\0%d\0%d\0%d\0%b\0\0\0\0" % (
        settlement.outcome.encode(),
        job.id.encode(),
        _word(job.task),
        job.key.hex().encode(),
        job.due_ms,
        settlement.started_ms,
        settlement.run_ms,
        job.failures + 1,
        _word(settlement.error_class),
    )


def unpack_entry(raw: RawEntry) -> EventEntry:
    """Return an entry as read from Redis. One that no script of ours wrote is a single event without any value.

    Raises:
        Misconfigured: a newer release wrote the entry.
    """
    ident, words = raw
    ms, _, last = ident.partition(b"-")
    if len(words) == 4 and (events := _read_events(ident, words[2], words[3])):
        return EventEntry(int(ms), int(last), words[1], events)
    return EventEntry(int(ms), int(last), b"", b"\0" * WIDTH)


def _read_events(ident: bytes, name: bytes, packed: bytes) -> bytes:
    """Return the events of a field in the present layout, empty if they are unreadable."""
    if name == FIELD:
        return packed if _is_whole(packed, WIDTH) else b""
    match = _FIELD_OF_ANY_VERSION.fullmatch(name)
    if match is None:
        return b""
    version = int(match[1])
    if version > VERSION:
        raise Misconfigured(
            f"a newer release of django_delayq wrote event entry {ident.decode()} (version {version}; this release "
            f"reads up to {VERSION}); upgrade django_delayq in the process that reads the events"
        )
    width = sum(since <= version for since in SINCE.values())
    return _widen(packed, width) if _is_whole(packed, width) else b""


def _widen(events: bytes, width: int) -> bytes:
    """Return events of ``width`` columns with empty words in the columns added since."""
    words = events.split(b"\0")[:-1]
    added = b"\0" * (WIDTH - width)
    return b"".join([_pack(words[first : first + width]) + added for first in range(0, len(words), width)])


def words_of(entries: Iterable[EventEntry]) -> list[bytes]:
    """Return the words of all events, one event after another; column n is the slice ``[n::WIDTH]``."""
    return b"".join([entry.events for entry in entries]).split(b"\0")[:-1]


def between(entries: Sequence[EventEntry], after: str, until: str | None = None) -> list[EventEntry]:
    """Return the events after a position and up to another, where an entry may begin or end in the middle."""
    ms, number = parts(after)
    selected = [_after(entry, number) if entry.ms == ms else entry for entry in entries]
    if until is not None:
        ms, number = parts(until)
        selected = [_until(entry, number) if entry.ms == ms else entry for entry in selected if entry.ms <= ms]
    return [entry for entry in selected if entry.events]


def _after(entry: EventEntry, number: int) -> EventEntry:
    extra = number - (entry.last - entry.size)
    return entry if extra <= 0 else entry._replace(events=_pack(words_of([entry])[extra * WIDTH :]))


def _until(entry: EventEntry, number: int) -> EventEntry:
    extra = entry.last - number
    if extra <= 0:
        return entry
    size = max(0, entry.size - extra)
    return entry._replace(last=number, events=_pack(words_of([entry])[: size * WIDTH]))


def _pack(words: list[bytes]) -> bytes:
    return b"".join([word + b"\0" for word in words])


def _is_whole(events: bytes, width: int) -> bool:
    return events.endswith(b"\0") and events.count(b"\0") % width == 0


def _word(text: str) -> bytes:
    return text.encode(errors="replace").replace(b"\0", b"?")[:255]

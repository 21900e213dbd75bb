"""Access to the event streams of shards: positions, raw entries and the state of each stream.

A *position* is the id of an entry, ``"<ms>-<number>"`` on Redis's clock. A reader that resumes from a position checks
that the entry at the position still exists (a tombstone). If it is missing, later entries may have been trimmed unread.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from redis.exceptions import ResponseError

from .errors import InvalidJob
from .records.layout import ENDED
from .redis.faults import REDIS_ERRORS
from .redis.scripts import clear_errors, pack_argument, raise_clear

if TYPE_CHECKING:
    from .broker import Broker

BEGINNING: Final = "0-0"
#: raw entry from Redis: its id, then field, value, field, value, ...
Entry: TypeAlias = tuple[bytes, list[bytes]]
#: a queue and the number of one of its shards
Place: TypeAlias = tuple[str, int]

_POSITION: Final = re.compile(r"\d{1,15}-\d{1,20}")
_LAST_NUMBER: Final = 2**64 - 1
#: shards queried in one round trip
_AT_ONCE: Final = 500


@dataclass(frozen=True, slots=True)
class Stream:
    """State of the stream of one shard at the moment of the query."""

    #: True if the key exists; the first event creates it
    there: bool = False
    #: number of entries in the stream
    length: int = 0
    #: position of the oldest entry
    first: str | None = None
    #: position of the newest entry ever added, or the end of the stream of a retired or deleted shard
    last: str = BEGINNING
    #: number of entries ever added; None before Redis 7, which does not report it
    added: int | None = None
    #: True if the shard is a tombstone: its epoch is retired, or its queue deleted
    ended: bool = False


def parts(position: str) -> tuple[int, int]:
    """Return a position as ``(ms, number)``; these pairs sort in the order of the positions.

    Raises:
        InvalidJob: the text is not a position.
    """
    if not isinstance(position, str) or not _POSITION.fullmatch(position):
        raise InvalidJob(f"{str(position)[:60]!r} is no position of an event; one looks like '1700000000000-0'")
    ms, _, number = position.partition("-")
    return int(ms), int(number)


def before(position: str) -> str:
    """Return the greatest position smaller than this one; no entry lies between the two."""
    ms, number = parts(position)
    if number:
        return f"{ms}-{number - 1}"
    return f"{ms - 1}-{_LAST_NUMBER}" if ms else BEGINNING


def latest(*positions: str) -> str:
    """Return the greatest of the positions."""
    return max(positions, key=parts)


def entries(
    broker: Broker, queue: str, number: int, first: str = "-", until: str = "+", limit: int = 500
) -> list[Entry]:
    """Return entries of one shard as Redis returns them, oldest first, without decoding.

    Args:
        first: the first position to include; a leading ``(`` excludes it.
        until: the last position to include.
        limit: maximum number of entries.
    """
    return begin(broker, queue, number, first, until, limit)()


def begin(broker: Broker, queue: str, number: int, first: str, until: str, limit: int) -> Callable[[], list[Entry]]:
    """Send the request of :func:`entries` and return a function that reads the reply; the function must be called.

    If sending or reading fails, the request is repeated under the retry policy of the connection.
    """
    key = broker.shard(queue, number).names["event"]

    def again() -> list[Entry]:
        with clear_errors():
            found = broker.client.xrange(key, min=first, max=until, count=limit)
        return [(ident, [word for pair in fields.items() for word in pair]) for ident, fields in found]

    # redis-py makes a dict of each entry, which takes longer than the rest of the read.
    words = (b"XRANGE", key, first, until, b"COUNT", limit)
    packed = b"*%d\r\n" % len(words) + b"".join(map(pack_argument, words))
    patience = broker.connection.patience
    pending = None
    with suppress(*REDIS_ERRORS):
        pending = broker.connection.pool(key).begin(packed, time.monotonic() + patience)

    def finish() -> list[Entry]:
        if pending is not None:
            with suppress(*REDIS_ERRORS):
                found: list[Entry] = pending.reply(time.monotonic() + patience)
                return found
        return again()

    return finish


def streams(broker: Broker, places: Iterable[Place]) -> dict[Place, Stream]:
    """Return the stream state of these shards ``(queue, number)``, including retired and deleted ones."""
    found: dict[Place, Stream] = {}
    for chunk in chunks(list(places)):
        with clear_errors(), broker.client.pipeline(transaction=False) as pipe:
            for queue, number in chunk:
                names = broker.shard(queue, number).names
                pipe.xinfo_stream(names["event"])
                pipe.hmget(names["meta"], "last_event", "rules")
            replies = pipe.execute(raise_on_error=False)
        for place, info, meta in zip(chunk, replies[::2], replies[1::2], strict=True):
            found[place] = _stream(info, meta)
    return found


def have(broker: Broker, positions: Mapping[Place, str]) -> set[Place]:
    """Return the shards that still hold the entry at their given position."""
    found: set[Place] = set()
    for chunk in chunks(list(positions)):
        with clear_errors(), broker.client.pipeline(transaction=False) as pipe:
            for queue, number in chunk:
                position = positions[queue, number]
                pipe.xrange(broker.shard(queue, number).names["event"], min=position, max=position, count=1)
            found.update(place for place, entry in zip(chunk, pipe.execute(), strict=True) if entry)
    return found


def _stream(info: Any, meta: Any) -> Stream:
    for reply in (info, meta):
        if isinstance(reply, Exception) and not _is_missing(reply):
            raise_clear(reply)
    end, rules = meta
    ended = bool(rules) and bool(rules[0] & ENDED)
    if isinstance(info, Exception):
        return Stream(last=end.decode() if end else BEGINNING, ended=ended)
    first = info["first-entry"]
    return Stream(
        True,
        int(info["length"]),
        first[0].decode() if first else None,
        info["last-generated-id"].decode(),
        info.get("entries-added"),
        ended,
    )


def _is_missing(error: Exception) -> bool:
    return isinstance(error, ResponseError) and "no such key" in str(error)


def chunks(places: Sequence[Place]) -> list[Sequence[Place]]:
    """Split shards into groups that fit one round trip each."""
    return [places[start : start + _AT_ONCE] for start in range(0, len(places), _AT_ONCE)]

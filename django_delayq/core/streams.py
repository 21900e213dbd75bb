"""The event streams of shards as Redis has them: positions, entries with nothing decoded, how a stream stands.

A *position* is the id of an entry, ``"<ms>-<number>"`` on Redis's clock. Whoever reads on from one finds the entry at
it still there (a tombstone), or knows that something behind it may have been taken off unread.
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
#: an entry as Redis tells it: its id, then field, value, field, value, ...
Entry: TypeAlias = tuple[bytes, list[bytes]]
#: a queue and the number of one of its shards
Place: TypeAlias = tuple[str, int]

_POSITION: Final = re.compile(r"\d{1,15}-\d{1,20}")
_LAST_NUMBER: Final = 2**64 - 1
#: how many shards are asked about in one round trip
_AT_ONCE: Final = 500


@dataclass(frozen=True, slots=True)
class Stream:
    """The stream of one shard at the moment of the look."""

    #: whether the key is there; it comes with the first event
    there: bool = False
    #: entries that it holds
    length: int = 0
    #: the oldest of them
    first: str | None = None
    #: the newest entry that ever was there, or where the stream of a shard ended that is retired or deleted
    last: str = BEGINNING
    #: entries that were ever added; None = Redis before 7 does not know
    added: int | None = None
    #: the shard is a tombstone: its epoch is retired, or its queue deleted
    ended: bool = False


def parts(position: str) -> tuple[int, int]:
    """``(ms, number)`` of a position, in whose order positions are.

    Raises:
        InvalidJob: it is none.
    """
    if not isinstance(position, str) or not _POSITION.fullmatch(position):
        raise InvalidJob(f"{str(position)[:60]!r} is no position of an event; one looks like '1700000000000-0'")
    ms, _, number = position.partition("-")
    return int(ms), int(number)


def before(position: str) -> str:
    """The greatest position smaller than this one; no entry lies between the two."""
    ms, number = parts(position)
    if number:
        return f"{ms}-{number - 1}"
    return f"{ms - 1}-{_LAST_NUMBER}" if ms else BEGINNING


def latest(*positions: str) -> str:
    """The greatest of them."""
    return max(positions, key=parts)


def entries(
    broker: Broker, queue: str, number: int, first: str = "-", until: str = "+", limit: int = 500
) -> list[Entry]:
    """Entries of one shard as Redis tells them, oldest first; nothing is decoded.

    Args:
        first: the first position that counts, ``(`` in front = that one not.
        until: the last position that counts.
        limit: at most so many.
    """
    return begin(broker, queue, number, first, until, limit)()


def begin(broker: Broker, queue: str, number: int, first: str, until: str, limit: int) -> Callable[[], list[Entry]]:
    """Asks for :func:`entries` and gives back what waits for the answer, which must be called.

    If anything goes wrong on the way, the question is asked again under the retry policy of the connection.
    """
    key = broker.shard(queue, number).names["event"]

    def again() -> list[Entry]:
        with clear_errors():
            found = broker.client.xrange(key, min=first, max=until, count=limit)
        return [(ident, [word for pair in fields.items() for word in pair]) for ident, fields in found]

    # redis-py makes a dict of each entry, which takes longer than the rest of reading it.
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
    """How the streams of these shards ``(queue, number)`` stand, also of those that are retired or deleted."""
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
    """Those of the shards that still hold the entry at the position given for them."""
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
    """As many at a time as are asked about in one round trip."""
    return [places[start : start + _AT_ONCE] for start in range(0, len(places), _AT_ONCE)]

"""Permits: leased shares of a limit that holds over all workers (``lua/permits.lua``).

Who wants to run jobs of a limited task or queue takes permits before it reserves, renews them with its leases, and
returns them when the jobs have ended. A holder that dies loses them when they run out, a moment after its leases.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from .deployment import Deployment
from .errors import QueueUnavailable
from .redis.scripts import clear_errors
from .wake import wake

Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Holding:
    """Permits of one holder: ``keep`` in any case, ``wanted`` if there are so many."""

    holder: str
    keep: int
    wanted: int
    ms: int


@dataclass(frozen=True, slots=True)
class Permits:
    """Reply to a change of permits.

    ``granted``: for each holding. ``retry_ms``: the time until the permits of another holder end; None = there is none.
    ``places``: shards (queue, number) whose jobs waited, and may be reserved now; they are awake.
    """

    granted: tuple[int, ...]
    retry_ms: float | None
    places: tuple[Place, ...]


def lasting_ms(deployment: Deployment) -> int:
    """Return how long permits last: a little longer than the leases that are won or renewed after them."""
    return deployment.lease_ms + deployment.lease_ms // 10


def change(
    deployment: Deployment, limit: str, total: int, holdings: Sequence[Holding], place: Place | None = None
) -> Permits:
    """Set the permits of holders, and wake the shards whose jobs waited for those that became free.

    Args:
        limit: name of the limit.
        total: number of permits that exist.
        holdings: holders with their permits.
        place: shard whose jobs wait; it is remembered if none is granted beyond those to keep, though one is wanted.
    """
    words = [str(word) for one in holdings for word in (one.holder, one.keep, one.wanted, one.ms)]
    waiting = "" if place is None else f"{place[1]}:{place[0]}"
    key = deployment.key(f"permits:{limit}").encode()
    reply = deployment.scripts.call("permits", (key,), str(total), waiting, *words)
    n = len(holdings)
    places = tuple(map(_place_of, reply[n + 1 :]))
    with suppress(QueueUnavailable):  # a lost token delays work until the next safety check; the permits are changed
        wake(deployment, places, beside=key)
    return Permits(tuple(reply[:n]), None if reply[n] < 0 else float(reply[n]), places)


def _place_of(word: bytes) -> Place:
    number, _, queue = word.decode().partition(":")
    return queue, int(number)


def read(deployment: Deployment, limit: str) -> dict[str, int]:
    """Return the holders of permits of a limit with their numbers; some may have ended."""
    with clear_errors():
        stored = deployment.client.hgetall(deployment.key(f"permits:{limit}"))
    return {holder.decode(): int(value.split()[0]) for holder, value in stored.items() if not holder.startswith(b"\0")}

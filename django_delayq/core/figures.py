"""Storage of the counters of finished attempts: read them and add to them (:mod:`.timings` defines them)."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from .errors import DelayQError
from .records.keys import figures_keys
from .redis.scripts import clear_errors
from .tally import CARRIER
from .timings import MOST_FIELDS, Figures, from_fields, level_field, speaks_of, to_fields

if TYPE_CHECKING:
    from .broker import Broker

logger: Final = logging.getLogger(__name__)

#: maximum number of fields in one call
_MOST_AT_ONCE: Final = 1000
#: seconds between two warnings about too many fields; the condition holds for every call
_REMIND: Final = 60.0
_reminded_at = -_REMIND


def read(broker: Broker) -> Figures:
    """Return the counters of all processes; see :meth:`Broker.figures`."""
    key, _ = figures_keys(broker.prefix)
    with clear_errors():
        return from_fields(broker.client.hgetall(key.decode()))


def note(broker: Broker, deltas: Figures, request: bytes | None) -> None:
    """Add counters; see :meth:`Broker.note_figures`.

    More than 1,000 fields are sent in chunks, each with its own request id.
    """
    fields, request = to_fields(deltas), request or os.urandom(16)
    for start in range(0, len(fields), _MOST_AT_ONCE):
        chunk = fields[start : start + _MOST_AT_ONCE]
        _call(broker, request + start.to_bytes(4, "big"), len(chunk), [word for pair in chunk for word in pair])


def set_level(broker: Broker, name: str, value: int) -> None:
    """Store a measured level; see :meth:`Broker.set_level`."""
    _call(broker, os.urandom(16), 0, [level_field(name), value])


def _call(broker: Broker, request: bytes, adding: int, words: Sequence[bytes | int]) -> None:
    global _reminded_at
    left_out = broker.scripts.call(CARRIER, figures_keys(broker.prefix), request, MOST_FIELDS, adding, *words)
    if left_out and time.monotonic() - _reminded_at >= _REMIND:
        _reminded_at = time.monotonic()
        logger.warning(
            "%d figures are left out: there are more than %d of queues and tasks already; queues that are "
            "deleted make room",
            left_out,
            MOST_FIELDS,
        )


def drop(broker: Broker, queue: str) -> None:
    """Delete the counters of a deleted queue. An attempt that ends later may bring back a few.

    An error is only logged, because leftover counters are no reason for the deletion to fail.
    """
    key = figures_keys(broker.prefix)[0].decode()
    try:
        with clear_errors():
            fields = [name for name in broker.client.hkeys(key) if speaks_of(name, queue)]
            for start in range(0, len(fields), _MOST_AT_ONCE):
                broker.client.hdel(key, *fields[start : start + _MOST_AT_ONCE])
    except DelayQError as error:
        logger.warning("the figures of the deleted queue %r stay: %s", queue, error)

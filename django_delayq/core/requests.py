"""Request ids that make calls safe to repeat.

A shard remembers request ids with their replies for a while (``lua/lib/window.lua``): a call that is sent again after a
lost reply gets the first reply and changes nothing. Each call says for how long it may be sent again.

Most ids are random, which covers the retries of the client library. A caller whose own caller may repeat a request,
perhaps to another process, derives the ids from that request.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Sequence
from typing import Final

from .job import NewJob

_BYTES: Final = 16
#: longest time for which one call may be repeated, seconds
RESEND_LIMIT: Final = 100.0
#: seconds that the last attempt of a call may be on its way
_ON_ITS_WAY: Final = 5.0


def new_request() -> bytes:
    """Return a random request id."""
    return os.urandom(_BYTES)


def pack_repeats(patience: float) -> bytes:
    """Return, for the scripts, for how long a call with this time limit (seconds) may arrive again."""
    return struct.pack("<I", int(1000 * (min(patience, RESEND_LIMIT) + _ON_ITS_WAY)))


def digest_of(*parts: bytes) -> bytes:
    """Return a digest of byte strings, which may serve as a request id: the same for the same strings."""
    digest = hashlib.blake2b(digest_size=_BYTES)
    for part in parts:
        digest.update(b"%d:" % len(part))
        digest.update(part)
    return digest.digest()


def request_for(jobs: Sequence[NewJob]) -> bytes:
    """Return the request id of a call that schedules these jobs: random, unless all of them are repeatable."""
    if all(job.repeatable for job in jobs):
        return digest_of(*[job.key if job.payload is None else job.payload.key for job in jobs])
    return new_request()

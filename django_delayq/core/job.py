"""Value types of jobs: as requested, as stored, as held by a worker, and as settled; ids of requests.

One *body* (:mod:`.records.frames`) is stored per generation of an id. The *state*, which changes while the job lives,
is kept apart, and a fresh job has none: ten million jobs have to fit into memory.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import struct
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

MAX_ID_BYTES: Final = 255
MAX_TASK_BYTES: Final = 255
PRIORITIES: Final = 8
#: all keys from this one on are durable (:func:`new_key`)
DURABLE: Final = b"\x80"
DEFAULT_PRIORITY: Final = 4
#: task name of jobs that are raw bytes; never registered, so that no worker runs them
RAW: Final = "raw"
KEY_BYTES: Final = 16
#: random bytes of one job: of its key, and of an id that is generated
_BLOCK_BYTES: Final = KEY_BYTES + 15
#: blocks made by one system call
_BLOCKS: Final = 256
_TIME_BITS: Final = (1 << 47) - 1
_REQUEST_BYTES: Final = 16
#: longest time for which one call may be repeated, seconds
RESEND_LIMIT: Final = 100.0
#: seconds that the last attempt of a call may be on its way
_ON_ITS_WAY: Final = 5.0
#: upper half of byte 7 of a key that begins with a time (as in UUIDs of version 7)
_WITH_TIME: Final = 0x70
#: member ``ttr_ms`` at the end of a job's encoded options, as lua/lib/reserve.lua finds it
_TTR: Final = re.compile(rb'[{,]"ttr_ms":([1-9][0-9]{0,11})}\Z')

# flags of a job; the scripts have them by their names (lua/lib/state.lua)
STARTED: Final = 1
#: its holder has no heartbeat (HTTP, ``Queue.reserve``): the job counted as started at the reserve
UNRENEWED: Final = 2
STOPPING: Final = 4
#: it was lost with its worker, perhaps before its start was recorded: the next start is recorded first
UNCLEAR: Final = 8
POSTPONED: Final = 16


def new_id() -> str:
    """Return a random job id: 20 characters, 119 bits."""
    return id_from(os.urandom(15))


def id_from(raw: bytes) -> str:
    """Return the id of 20 characters for 15 bytes. It begins with a letter, so no command takes it for an option."""
    return urlsafe_b64encode(bytes((raw[0] & 0x7F,)) + raw[1:]).decode("ascii")


def new_key(*, durable: bool = False) -> bytes:
    """Return a generation key (16 bytes): the time (47 bits, Unix ms), a 7 (4 bits), and 76 random bits.

    Its first bit marks a generation whose end is awaited outside Redis: the scripts then leave a completion mark (key
    ``marks``) when it ends.
    """
    return made_durable(stamped(os.urandom(16))) if durable else stamped(os.urandom(16))


def random_blocks() -> Iterator[bytes]:
    """Yield blocks (:func:`random_block`), many of them per system call: each one lets another thread take the GIL."""
    while True:
        blocks = os.urandom(_BLOCK_BYTES * _BLOCKS)
        for at in range(0, len(blocks), _BLOCK_BYTES):
            yield blocks[at : at + _BLOCK_BYTES]


def random_block() -> bytes:
    """Return the random bytes of one job: the first 16 for its key, the others for an id."""
    return os.urandom(_BLOCK_BYTES)


def stamped(block: bytes) -> bytes:
    """Return the key that begins with the present time and has the rest of these random bytes."""
    now_ms, byte = time.time_ns() // 1_000_000, block[6] & 0x0F | _WITH_TIME
    return (now_ms << 8 | byte).to_bytes(7, "big") + block[7:KEY_BYTES]


def derived_key(digest: bytes) -> bytes:
    """Return the key with the bits of a digest (16 bytes) that is neither durable nor has a time."""
    return bytes((digest[0] & 0x7F,)) + digest[1:6] + bytes((digest[6] | 0x80,)) + digest[7:]


def created_ms(key: bytes) -> int | None:
    """Return the time in a generation's key: when it was scheduled, Unix ms on the clock of the caller's machine.

    None if the key follows from a request or a bulk load, which may be repeated (:func:`derived_key`).
    """
    if len(key) != KEY_BYTES or key[6] & 0xF0 != _WITH_TIME:
        return None
    return int.from_bytes(key[:6], "big") & _TIME_BITS


def made_durable(key: bytes) -> bytes:
    """Return the durable key with the other bits of this one."""
    return bytes((key[0] | 0x80,)) + key[1:]


def is_durable(key: bytes) -> bool:
    """Return True if the end of the generation with this key is marked for a reader outside Redis."""
    return key >= DURABLE


class Generation(NamedTuple):
    """Generation of an id: one of the successive jobs under it.

    Attributes:
        keys: of the generation; of a merged job also of the payload, which keeps its key from attempt to attempt.
        digest: of the payload's bytes (:func:`.records.frames.digest`); b"" for a plain job.
    """

    keys: tuple[bytes, ...]
    digest: bytes = b""


@dataclass(slots=True)
class Payload:
    """Argument of a merged job. ``score``, the client's own text of a number, is its order and version.

    An empty score of a new payload means the moment of its arrival: Unix seconds on Redis's clock.
    """

    data: bytes
    score: str
    key: bytes


@dataclass(slots=True)
class NewJob:
    """Requested job. Exactly one of ``due_ms`` (Unix ms) and ``delay_ms`` (from now, server clock) is set."""

    id: str
    task: str
    args: bytes = b""
    due_ms: int | None = None
    delay_ms: int | None = 0
    priority: int = DEFAULT_PRIORITY
    options: bytes = b""  # canonical JSON of per-job overrides: max_attempts, timeout, context, ...
    key: bytes = b""  # a new key is generated when empty
    on_conflict: str = "replace"  # merge | replace | ignore | error
    due_policy: str = "replace"  # keep | replace | earliest | latest | inherit
    reset_retries: bool = True
    payload: Payload | None = None  # set = merged job
    score_policy: str = "min"  # for equal payloads: min | max | first | last
    payloads: str = "all"  # which payloads of the id are kept: all | last | first
    max_payloads: int = 10_000  # maximum number of payloads
    fresh: bool = False  # the id was made by new_id() for this job, so no other job can have it
    repeatable: bool = False  # its key follows from the caller's request: a call with the same keys is the same call
    room_ms: int = 0  # how long its sender waits while the queue is full
    group: str = ""  # jobs of a group take turns with those of others, and share its limits; "" = none
    confirmed: bool | None = None  # its sender waits until its write is confirmed; None = the deployment's default
    joined: bytes = b""  # set by schedule*(): key of the generation that it was merged into, gated in or ignored for

    @property
    def durable(self) -> bool:
        """True if its end is awaited outside Redis. Such a job may be sent twice: see `known`."""
        return (self.key if self.payload is None else self.payload.key) >= DURABLE

    @property
    def due_ms_here(self) -> int:
        """Due time by this machine's clock, in Unix ms."""
        return self.due_ms if self.due_ms is not None else int(time.time() * 1000) + (self.delay_ms or 0)

    def waited(self, ms: int) -> None:
        """Count a wait before the sending as part of the delay: the due time is fixed at the call."""
        if self.delay_ms:
            self.delay_ms = max(0, self.delay_ms - ms)


@dataclass(frozen=True, slots=True)
class JobCounts:
    """Counts of a generation, which a kick keeps; see :attr:`.job_view.JobView.history`.

    ``releases`` of a live job are those before the last kick; later ones follow from its reserves and failures.
    """

    timeouts: int = 0
    releases: int = 0
    buries: int = 0
    kicks: int = 0


@dataclass(slots=True)
class Job:
    """Job held by a worker (reserved), or read by the inspector.

    Times are Unix milliseconds on Redis's clock. ``args`` are the task's encoded arguments, opaque to the core. A
    *postponed* job was reserved and released because its attempt could not begin on that worker: ``postponed_for`` is
    the reason, ``postponed_at_ms`` the start of the unbroken series of releases for this reason. Its original due time
    is kept.
    """

    queue: str
    shard: int
    id: str
    task: str
    key: bytes
    args: bytes
    options_json: bytes
    priority: int
    due_ms: int
    token: int = 0
    failures: int = 0
    reserves: int = 0
    crashes: int = 0
    flags: int = 0
    failed_at_ms: int = 0
    deadline_ms: int = 0
    worker: str = ""
    error: bytes = b""
    payloads: tuple[Payload, ...] = ()
    merged: bool = False
    #: crashes that are certainly its own, because no other job had started in the process
    own_crashes: int = 0
    #: its process died during an attempt, so its next attempt runs in a process of its own
    quarantined: bool = False
    postponed_at_ms: int = 0
    postponed_for: str = ""
    counts: JobCounts = JobCounts()
    #: it is due, and waits behind a limit; only of jobs that are read
    parked: bool = False
    #: group with which it was scheduled
    group: str = ""
    #: its slot in limits while it is held: a name, and the names of the limits, with zero bytes between; b"" = none
    permit: bytes = b""
    #: why its stored bytes cannot be read; "" = they can. An unreadable body is in ``args``
    broken: str = ""

    @property
    def attempt(self) -> int:
        """Number of the present counted attempt; the first is 1."""
        return self.failures + 1

    @property
    def releases(self) -> int:
        """Number of times that a held job was put back uncounted before this attempt."""
        return self.counts.releases + max(0, self.reserves - self.failures - 1)

    @property
    def options(self) -> dict[str, Any]:
        """Per-job overrides given at the schedule call."""
        return json.loads(self.options_json) if self.options_json else {}

    @property
    def ttr_ms(self) -> int | None:
        """Length of the lease, in ms, for a holder without a heartbeat that names none; None = the usual one."""
        match = _TTR.search(self.options_json)
        return int(match[1]) if match else None

    @property
    def context(self) -> Mapping[str, Any]:
        """``context`` of the schedule call; empty if the stored value cannot be read."""
        try:
            context = self.options.get("context")
        except (ValueError, AttributeError, RecursionError):
            return {}
        return context if isinstance(context, dict) else {}

    def has_expired(self, now_ms: float) -> bool:
        """Return True if a start at ``now_ms`` (Redis's clock) would be too late to be of use.

        ``expires_ms`` is a moment, ``expires_in_ms`` counts from the due time. Unreadable options set no limit: they
        must not fail the other jobs of the same reserve.
        """
        if b'"expires' not in self.options_json:
            return False
        try:
            options = self.options
            moment = min(options.get("expires_ms", math.inf), self.due_ms + options.get("expires_in_ms", math.inf))
            return bool(now_ms > moment)
        except (ValueError, TypeError, AttributeError, RecursionError):
            return False


class Undecodable(ValueError):
    """Error for a stored body in an unknown form; its bytes are kept for the morgue."""


# -- requests ---------------------------------------------------------------------------------------------------------
#
# A shard remembers request ids with their replies for a while (lua/lib/window.lua): a call that is sent again after a
# lost reply gets the first reply and changes nothing. Each call says for how long it may be sent again. Most ids are
# random, which covers the retries of the client library. A caller whose own caller may repeat a request, perhaps to
# another process, derives the ids from that request.


def new_request() -> bytes:
    """Return a random request id."""
    return os.urandom(_REQUEST_BYTES)


def pack_repeats(patience: float) -> bytes:
    """Return, for the scripts, for how long a call with this time limit (seconds) may arrive again."""
    return struct.pack("<I", int(1000 * (min(patience, RESEND_LIMIT) + _ON_ITS_WAY)))


def digest_of(*parts: bytes) -> bytes:
    """Return a digest of byte strings, which may serve as a request id: the same for the same strings."""
    digest = hashlib.blake2b(digest_size=_REQUEST_BYTES)
    for part in parts:
        digest.update(b"%d:" % len(part))
        digest.update(part)
    return digest.digest()


def request_for(jobs: Sequence[NewJob]) -> bytes:
    """Return the request id of a call that schedules these jobs: random, unless all of them are repeatable."""
    if all(job.repeatable for job in jobs):
        return digest_of(*[job.key if job.payload is None else job.payload.key for job in jobs])
    return new_request()

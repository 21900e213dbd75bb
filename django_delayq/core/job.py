"""The values that travel: what is asked for, what is stored, what a worker holds, how it ended.

One *body* is stored per generation of an id (see :func:`pack_body`); everything that changes while the job lives is
kept apart in its *state*. Both are flat binary records, because ten million of them have to fit into memory.
"""

from __future__ import annotations

import json
import math
import os
import struct
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

BODY_VERSION: Final = 1
MAX_ID_BYTES: Final = 255
MAX_TASK_BYTES: Final = 255
PRIORITIES: Final = 8
#: keys from this one on are durable (:func:`new_key`)
DURABLE: Final = b"\x80"
DEFAULT_PRIORITY: Final = 4

# flags of a state record, shared with lua/lib/state.lua
STARTED: Final = 1
#: its holder has no heartbeat (HTTP, ``Queue.reserve``): the job counted as started when it was handed out
UNRENEWED: Final = 2
STOPPING: Final = 4
#: it was lost with its worker, and its start may have been too young to be recorded: the next one is recorded first
UNCLEAR: Final = 8
POSTPONED: Final = 16


def new_id() -> str:
    """Return a random job id: 20 characters, 119 bits."""
    return id_from(os.urandom(15))


def id_from(raw: bytes) -> str:
    """Return the id of 20 characters that 15 bytes make. It begins with a letter: no command takes it for an option."""
    return urlsafe_b64encode(bytes((raw[0] & 0x7F,)) + raw[1:]).decode("ascii")


def new_key(*, durable: bool = False) -> bytes:
    """A random generation key (16 bytes).

    Its first bit says whether somebody outside Redis waits to hear how the generation ends: the scripts then leave a
    mark (key ``settled``) when it is over.
    """
    key = os.urandom(16)
    return bytes((key[0] | 0x80 if durable else key[0] & 0x7F,)) + key[1:]


def made_durable(key: bytes) -> bytes:
    """Return the durable key with the other bits of this one."""
    return bytes((key[0] | 0x80,)) + key[1:]


def not_durable(key: bytes) -> bytes:
    """Return the key with the other bits of this one that is not durable."""
    return bytes((key[0] & 0x7F,)) + key[1:]


def is_durable(key: bytes) -> bool:
    """Whether the end of the generation with this key is marked for somebody outside Redis."""
    return key >= DURABLE


@dataclass(frozen=True, slots=True)
class Generation:
    """One of the jobs that live under an id one after the other.

    Attributes:
        keys: of the generation; of a merged job also of the payload, which goes with it from run to run.
        digest: of the payload's bytes (:func:`.records.frames.digest`); b"" for a plain job.
    """

    keys: tuple[bytes, ...]
    digest: bytes = b""


@dataclass(slots=True)
class Payload:
    """One argument of a merged job. ``score`` is the client's own text of a number: its order and version.

    An empty score of a new payload means the moment of its arrival: Unix seconds on Redis's clock.
    """

    data: bytes
    score: str
    key: bytes


@dataclass(slots=True)
class NewJob:
    """A job that is asked for. Exactly one of ``due_ms`` (Unix ms) and ``delay_ms`` (from now, server clock) is set."""

    id: str
    task: str
    args: bytes = b""
    due_ms: int | None = None
    delay_ms: int | None = 0
    priority: int = DEFAULT_PRIORITY
    options: bytes = b""  # canonical JSON of per-job overrides: max_attempts, timeout, context, ...
    key: bytes = b""  # filled with a fresh one when empty
    on_conflict: str = "replace"  # merge | replace | ignore | error
    due_policy: str = "replace"  # keep | replace | earliest | latest | inherit
    reset_retries: bool = True
    payload: Payload | None = None  # set = merged job
    score_policy: str = "min"  # of equal payloads: min | max | first | last
    payloads: str = "all"  # which payloads of the id are kept: all | last | first
    max_payloads: int = 10_000  # how many of them
    fresh: bool = False  # the id was made by new_id() for this job, so nothing can live under it
    repeatable: bool = False  # its key follows from the caller's request: a call with the same keys is the same call
    joined: bytes = b""  # answer of schedule() and schedule_many(): the key of the generation that it was merged into,
    # gated in, or ignored for

    @property
    def durable(self) -> bool:
        """Whether somebody outside Redis waits to hear how it ends. Such a job may be put in twice: see `known`."""
        return is_durable(self.key if self.payload is None else self.payload.key)


@dataclass(slots=True)
class Job:
    """A job in a worker's hands (reserved), or looked at by the inspector.

    Times are Unix milliseconds on Redis's clock. ``args`` are the task's encoded arguments, opaque to the core.
    A *postponed* job was handed out and released because its run could not begin there: ``postponed_for`` is the
    reason, ``postponed_at_ms`` since when it is released for this reason without a break. Its due time stays the one
    that it had before.
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
    #: crashes that surely were its own, because no other job had started in the process
    own_crashes: int = 0
    #: its process died under it, so its next run is in a process of its own
    quarantined: bool = False
    postponed_at_ms: int = 0
    postponed_for: str = ""

    @property
    def options(self) -> dict[str, Any]:
        """Per-job overrides given at the schedule call."""
        return json.loads(self.options_json) if self.options_json else {}

    @property
    def context(self) -> Mapping[str, Any]:
        """The ``context`` of the schedule call; empty if what is stored cannot be read."""
        try:
            found = self.options.get("context")
        except (ValueError, AttributeError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def has_expired(self, now_ms: float) -> bool:
        """Whether a start at ``now_ms`` (Redis's clock) would be too late to be of use.

        ``expires_ms`` is a moment, ``expires_in_ms`` counts from the due time. What cannot be read limits nothing: the
        other jobs of the same reserve must not suffer for it.
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
    """A stored body is not one of ours; its bytes are kept for the morgue."""


# byte 1 of a body: priority (3 bits), merged, options, version (2 bits), quarantine
_MERGED: Final = 8
_OPTIONS: Final = 16
_QUARANTINE: Final = 128
_QUARANTINED_VERSION: Final = _QUARANTINE >> 5 | BODY_VERSION
_HEAD: Final = 19
_U16: Final = struct.Struct("<H")


def pack_body(job: NewJob) -> bytes:
    """The body of one generation, but for the two bytes of its task, which the schedule script puts behind byte 1.

    Layout as stored: priority (3 bits), merged (8), options (16), version (2 bits), quarantine (128) u8 | number of the
    task in its shard u16 | key 16 bytes | [options length u16 | options JSON] | arguments to the end. The task's name
    would cost more than all the rest; the shard keeps each name once.
    """
    flags = job.priority | (_MERGED if job.payload is not None else 0) | (_OPTIONS if job.options else 0)
    head = bytes((flags | BODY_VERSION << 5,))
    if job.options:
        return b"".join((head, job.key or new_key(), _U16.pack(len(job.options)), job.options, job.args))
    return b"".join((head, job.key or new_key(), job.args))


def unpack_body(body: bytes, tasks: Mapping[int, str]) -> tuple[int, bool, bytes, str, bytes, bytes]:
    """``(priority, merged, key, task, options JSON, args)`` of a stored body.

    Args:
        body: the stored bytes.
        tasks: number -> name of the tasks of the shard.

    Raises:
        Undecodable: the bytes are not a body of a version that this code knows.
    """
    if len(body) < _HEAD:
        raise Undecodable(f"a body of {len(body)} bytes is too short to be one")
    flags = body[0]
    if flags >> 5 & 3 != BODY_VERSION:
        raise Undecodable(f"body version {flags >> 5 & 3} is not known here; was it written by a newer release?")
    task = tasks.get(body[1] | body[2] << 8)
    if task is None:
        raise Undecodable("the body's task has no name in its shard")
    if not flags & _OPTIONS:
        return flags & 7, bool(flags & _MERGED), body[3:_HEAD], task, b"", body[_HEAD:]
    end = _HEAD + 2 + int.from_bytes(body[_HEAD : _HEAD + 2], "little")
    if end > len(body):
        raise Undecodable("the body is cut off inside its options")
    return flags & 7, bool(flags & _MERGED), body[3:_HEAD], task, body[_HEAD + 2 : end], body[end:]


def is_quarantined(body: bytes) -> bool:
    """Return True if the body says that its job waits for quarantine."""
    return body != b"" and body[0] >> 5 == _QUARANTINED_VERSION


@dataclass(slots=True)
class Settlement:
    """How a held job leaves its holder's hands: one verb with what the script needs to carry it out.

    ``verb`` is ack, ack_early, fail, release, bury, expire or record (the end of a run whose job was acked early).
    ``delay_ms`` None means "at its old place".
    ``guard`` "token" needs only the fencing token; "expired" also needs the lease to have run out. Of a record it means
    that no end of the run is stored yet.
    For merged jobs: ``oldest`` buries the first payload only, ``inherit`` keeps the back-off although new content came,
    ``score_policy`` decides between a payload that comes back and its twin that came meanwhile.
    Of a job that comes back: ``quarantine`` says that its next run is in quarantine, ``own_crash`` that the crash was
    surely its own, ``unclear`` that its lease was lost and perhaps a start that was not recorded.
    """

    job: Job
    verb: str
    started_ms: int = 0
    run_ms: int = 0
    delay_ms: int | None = None
    outcome: str = "succeeded"  # succeeded failed timeout crashed lost released buried exhausted poison undecodable ...
    reason: str = ""
    error_class: str = ""
    error: bytes = b""
    quarantine: bool = False
    own_crash: bool = False
    unclear: bool = False
    guard: str = "token"
    event: bool = True
    oldest: bool = False
    inherit: bool = False
    score_policy: str = "min"
    priority: int | None = None  # of a release: 0 … 7 from now on
    postpone: bool = False  # of a release: the run could not begin, for this reason
    began: bool = False  # of a release: the run began, so the job is postponed no more
    #: of a release: the end of the run in case its early ack was applied, which is stored behind it
    also: Settlement | None = None


def ack(job: Job, started_ms: int, run_ms: int, *, event: bool = True) -> Settlement:
    """The job is done; nothing of it stays."""
    return Settlement(job, "ack", started_ms, run_ms, event=event)


def fail(
    job: Job,
    started_ms: int,
    run_ms: int,
    *,
    delay_ms: int,
    outcome: str = "failed",
    error_class: str = "",
    error: bytes = b"",
    guard: str = "token",
    quarantine: bool = False,
    own_crash: bool = False,
) -> Settlement:
    """A counted attempt failed (outcome failed, timeout or crashed); it is due again after ``delay_ms``."""
    return Settlement(
        job, "fail", started_ms, run_ms, delay_ms, outcome, "", error_class, error, quarantine, own_crash, guard=guard
    )


def release(
    job: Job,
    *,
    delay_ms: int | None = None,
    reason: str = "",
    quarantine: bool | None = None,
    unclear: bool = False,
    guard: str = "token",
    event: bool = False,
    priority: int | None = None,
    postpone: bool = False,
    began: bool = False,
) -> Settlement:
    """Give the job back without counting an attempt.

    Args:
        quarantine: its next run is in quarantine; None = if that was said before.
        event: record it, because it may cause a second run.
        postpone: its run could not begin for this reason; the wait counts as lateness.
        began: its run began, so a postponement is over. One that never began keeps the moment of the first one.
    """
    wanted = job.quarantined if quarantine is None else quarantine
    return Settlement(
        job,
        "release",
        0,
        0,
        delay_ms,
        "released",
        reason,
        quarantine=wanted,
        unclear=unclear,
        guard=guard,
        event=event,
        priority=priority,
        postpone=postpone,
        began=began,
    )


def bury(
    job: Job,
    started_ms: int,
    run_ms: int,
    *,
    reason: str,
    outcome: str = "buried",
    error_class: str = "",
    error: bytes = b"",
    guard: str = "token",
) -> Settlement:
    """Put the job into the morgue, where it waits for a person. ``reason``: exhausted, poison, buried, ..."""
    return Settlement(job, "bury", started_ms, run_ms, None, outcome, reason, error_class, error, guard=guard)


def expire(job: Job) -> Settlement:
    """The job was handed out too late to be of use: gone without an attempt."""
    return Settlement(job, "expire", outcome="expired")

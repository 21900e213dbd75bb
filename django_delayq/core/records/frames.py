"""Binary frames between Python and the scripts: one framed argument instead of thousands of small ones."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from ..attempt_outcome import AttemptOutcome
from ..errors import InvalidJob
from ..job import (
    DEFAULT_PRIORITY,
    DURABLE,
    MAX_ID_BYTES,
    POSTPONED,
    Generation,
    Job,
    NewJob,
    Payload,
    Settlement,
    Undecodable,
    is_quarantined,
    pack_body,
    unpack_body,
)
from .events import pack_attempt

#: most jobs of one shard in one call
CHUNK: Final = 250
CONFLICT: Final = {"merge": 0, "replace": 1, "ignore": 2, "error": 3}
DUE_POLICY: Final = {"keep": 0, "replace": 1, "earliest": 2, "latest": 3, "inherit": 4}
SCORE_POLICY: Final = {"min": 0, "max": 1, "first": 2, "last": 3}
PAYLOAD_POLICY: Final = {"all": 0, "last": 1, "first": 2}
_DELAY, _KEEP_RETRIES, _MERGED, _SCORE_IS_NOW = 1, 2, 4, 8

_KEY_BYTES: Final = 16
_NEW = struct.Struct("<BBBBdB")
_PAYLOAD_RULES = struct.Struct("<BI")
_ENTRY = struct.Struct("<ddHB")
_BATCH = struct.Struct("<ddddH")
_JOB = struct.Struct("<dHHHHBdB")
_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
_LEASE = struct.Struct("<dB")
_STATE = struct.Struct("<ddHHHHBdB")
_DOUBLE = struct.Struct("<d")
_GRAVE = struct.Struct("<ddHHH")


class Mark(IntEnum):
    """Marks of a settlement; the same bits are in ``lua/lib/settle.lua``."""

    #: of an ack: the job is merged; its end, or that of one of its payloads, is awaited outside Redis
    MERGED = 1
    DURABLE = 2
    #: only if the lease has run out; of a record: only if no end of the attempt is stored
    EXPIRED = 4
    #: the job waits for quarantine from now on
    QUARANTINE = 8
    #: the process died during the attempt; no other job can have caused it
    CRASH = 16
    OWN = 32
    #: of a bury: only the first payload
    OLDEST = 64
    #: content that arrived meanwhile does not shorten the back-off
    INHERIT = 128
    #: of a release: a start of the job may not have been recorded
    UNCLEAR = 256
    #: of a release: the attempt could not begin; it began
    POSTPONED = 512
    BEGAN = 1024


@dataclass(slots=True)
class BrokenJob:
    """Reserved job whose body cannot be read."""

    job: Job
    error: str
    body: bytes


@dataclass(slots=True)
class State:
    """Mutable state of an id, as ``lua/lib/state.lua`` stores it."""

    token: int = 0
    due_us: float = 0
    failures: int = 0
    reserves: int = 0
    crashes: int = 0
    own_crashes: int = 0
    flags: int = 0
    failed_at_ms: int = 0
    worker: str = ""
    taken: tuple[bytes, ...] = ()  # digests of the payloads held by its attempt
    error: bytes = b""
    postponed_at_ms: int = 0
    postponed_for: str = ""


def sortable(score: str) -> bytes:
    """Return eight bytes that sort like the number (IEEE 754, sign bit flipped, negatives inverted)."""
    bits = int.from_bytes(struct.pack(">d", float(score)), "big")
    return (bits ^ (0xFFFFFFFFFFFFFFFF if bits >> 63 else 1 << 63)).to_bytes(8, "big")


def digest(data: bytes) -> bytes:
    """Return the digest that makes two payloads equal: the first 16 bytes of their SHA-1 (available in Lua, too)."""
    return hashlib.sha1(data).digest()[:16]  # noqa: S324 (no security in it)


def generation_of(new: NewJob) -> Generation:
    """Return the generation that a schedule call made or met."""
    key = new.joined or new.key
    if new.payload is None:
        return Generation((key,))
    return Generation((key, new.payload.key), digest(new.payload.data))


def pack_generation(generation: Generation | None) -> tuple[bytes, bytes]:
    """Return keys and digest as the scripts take them (``lua/lib/generation.lua``); None = any live generation."""
    return (b"", b"") if generation is None else (b"".join(generation.keys), generation.digest)


def pack_named(ident: bytes, keys: bytes = b"", payload_digest: bytes = b"") -> bytes:
    """Return an entry of the scripts that change a list of jobs (``lua/lib/each.lua``).

    Args:
        ident: the id.
        keys, payload_digest: see :func:`pack_generation`.
    """
    return b"%c%b%c%b%c%b" % (len(ident), ident, len(keys), keys, len(payload_digest), payload_digest)


def encode_id(ident: str) -> bytes:
    """Return an id as bytes.

    Raises:
        InvalidJob: an invalid id.
    """
    encoded = ident.encode()
    if not 0 < len(encoded) <= MAX_ID_BYTES or b"\0" in encoded:
        raise bad_id(encoded)
    return encoded


def bad_id(ident: bytes) -> InvalidJob:
    """Return the error for an invalid id."""
    if b"\0" in ident:
        # It terminates the id in the names of payloads and morgue records.
        return InvalidJob("an id has no zero character in it; use another one")
    return InvalidJob(f"an id has 1 to 255 bytes, this one has {len(ident)}; use a shorter one")


def pack_new(job: NewJob) -> bytes:
    """Return an entry of ``schedule.lua``.

    Raises:
        InvalidJob: an invalid id or limit, or payloads are to be merged and there is none.
    """
    ident = job.id.encode()
    if len(ident) > 255 or not ident or b"\0" in ident:
        raise bad_id(ident)
    if job.payload is None and job.on_conflict == "merge":
        raise InvalidJob("only jobs with a payload can be merged; give one, or use on_conflict='replace'")
    body = pack_body(job)
    delay = job.due_ms is None
    ms = job.delay_ms if delay else job.due_ms
    marks = (_DELAY if delay else 0) | (0 if job.reset_retries else _KEEP_RETRIES)
    if job.payload is not None:
        marks |= _MERGED if job.payload.score else _MERGED | _SCORE_IS_NOW
    head = _NEW.pack(
        CONFLICT[job.on_conflict],
        DUE_POLICY[job.due_policy],
        SCORE_POLICY[job.score_policy],
        marks,
        ms or 0,
        len(ident),
    )
    task = job.task.encode()
    plain = b"".join((head, ident, bytes((len(task),)), task, _U32.pack(len(body)), body))
    if job.payload is None:
        return plain
    if not 0 < job.max_payloads <= 0xFFFFFFFF:
        raise InvalidJob(f"max_payloads is {job.max_payloads}; use 1 or more")
    rules = _PAYLOAD_RULES.pack(PAYLOAD_POLICY[job.payloads], job.max_payloads)
    record = pack_payload(job.payload)
    return b"".join((plain, digest(job.payload.data), rules, _U32.pack(len(record)), record))


def pack_deadline(not_after_ms: float | None) -> bytes:
    """Return the last argument of ``schedule.lua`` and ``cancel.lua``."""
    return b"" if not_after_ms is None else b"%d" % not_after_ms


def pack_known(ident: str, key: bytes, payload_digest: bytes = b"") -> bytes:
    """Return an entry of ``known.lua``.

    Raises:
        InvalidJob: an invalid id, key or digest.
    """
    encoded = encode_id(ident)
    if len(key) != _KEY_BYTES or len(payload_digest) not in (0, _KEY_BYTES):
        raise InvalidJob(f"a key has 16 bytes, and so has a digest, not {len(key)} and {len(payload_digest)}")
    return b"".join((bytes((len(encoded),)), encoded, key, bytes((len(payload_digest),)), payload_digest))


def pack_payload(payload: Payload) -> bytes:
    """Return a payload record without its arrival, which the script puts after the first eight bytes.

    Where there is no score the script fills in the time.
    """
    if len(payload.key) != _KEY_BYTES:
        raise InvalidJob(f"the key of a payload has 16 bytes, this one has {len(payload.key)}; make it with new_key()")
    score = payload.score.encode()
    front = sortable(payload.score) if score else bytes(8)
    return b"".join((front, payload.key, bytes((len(score),)), score, payload.data))


def unpack_payload(record: bytes) -> Payload:
    """Return the payload of a stored record: sortable (8), arrival (8), key (16), score text, data."""
    end = 33 + record[32]
    return Payload(record[end:], record[33:end].decode(), record[16:32])


def pack_settlement(settlement: Settlement) -> bytes:
    """Return an entry of the settling scripts (``lua/lib/settle.lua``)."""
    job = settlement.job
    ident = job.id.encode()
    is_ack = settlement.verb in ("ack", "ack_early")
    marks = _marks_of_ack(settlement) if is_ack else _marks_of(settlement)
    delay = -1 if settlement.delay_ms is None else settlement.delay_ms
    head = _ENTRY.pack(job.token, delay, marks, len(ident))
    event = pack_attempt(settlement) if settlement.event else b""
    size = _U16.pack(len(event))
    if is_ack:
        return b"".join((head, ident, size, event))
    outcome, reason = settlement.outcome.encode(), settlement.reason.encode()[:255]
    error_class, error = settlement.error_class.encode()[:255], settlement.error[:65535]
    if settlement.verb == "release":  # a release has no error to keep, but may change the priority
        error = b"" if settlement.priority is None else bytes((settlement.priority,))
    return b"".join(
        (
            head,
            ident,
            size,
            event,
            bytes((SCORE_POLICY[settlement.score_policy], len(outcome))),
            outcome,
            bytes((len(reason),)),
            reason,
            bytes((len(error_class),)),
            error_class,
            _U16.pack(len(error)),
            error,
        )
    )


def waits_for_end(job: Job) -> bool:
    """Return True if the end of this attempt is awaited outside Redis."""
    if job.merged:
        return any(payload.key >= DURABLE for payload in job.payloads)
    return job.key >= DURABLE


def _marks_of_ack(settlement: Settlement) -> int:
    marks = Mark.EXPIRED if settlement.guard == "expired" else 0
    if settlement.job.merged:
        marks |= Mark.MERGED
    if waits_for_end(settlement.job):
        marks |= Mark.DURABLE
    return marks


def _marks_of(settlement: Settlement) -> int:
    return (
        Mark.EXPIRED * (settlement.guard == "expired")
        + Mark.QUARANTINE * settlement.quarantine
        + Mark.CRASH * (settlement.outcome in (AttemptOutcome.CRASHED, AttemptOutcome.POISON))
        + Mark.OWN * settlement.own_crash
        + Mark.OLDEST * settlement.oldest
        + Mark.INHERIT * settlement.inherit
        + Mark.UNCLEAR * settlement.unclear
        + Mark.POSTPONED * settlement.postpone
        + Mark.BEGAN * settlement.began
    )


def pack_id(ident: str) -> bytes:
    """Return an id with its length in front."""
    encoded = ident.encode()
    return bytes((len(encoded),)) + encoded


def pack_touch(job: Job, *, started: bool) -> bytes:
    """Return an entry of ``touch.lua``."""
    return struct.pack("<dB", job.token, started) + pack_id(job.id)


def pack_take_over(job: Job, *, only_expired: bool) -> bytes:
    """Return the job argument of ``take_over.lua``."""
    return struct.pack("<dB", job.token, only_expired) + pack_id(job.id)


def unpack_batch(
    frame: bytes, queue: str, shard: int, worker: str
) -> tuple[list[Job], list[BrokenJob], float, float, float]:
    """Return the content of a frame of ``lua/lib/reserve.lua``.

    Returns:
        ``(jobs, broken, now µs, next due µs or -1, quarantined due µs or -1)``.
    """
    token, now_us, next_due, quarantined, n = _BATCH.unpack_from(frame)
    tasks, at = unpack_names(frame, _BATCH.size)
    jobs: list[Job] = []
    broken: list[BrokenJob] = []
    token = int(token)
    for _ in range(n):
        due, failures, reserves, crashes, own, flags, failed_at, length = _JOB.unpack_from(frame, at)
        at += _JOB.size
        ident = frame[at : at + length].decode()
        at += length
        (size,) = _U32.unpack_from(frame, at)
        body = frame[at + 4 : at + 4 + size]
        at += 4 + size
        since, reason = 0, ""
        if flags & POSTPONED:
            since, reason, at = _unpack_postponed(frame, at)
        # The scripts take bit 3 of byte 1 as "merged", so a reader of the bytes after the body must do the same.
        payloads: tuple[Payload, ...] = ()
        if body and body[0] & 8:
            payloads, at = _unpack_payloads(frame, at)
        try:
            priority, merged, key, task, options, args = unpack_body(body, tasks)
        except Undecodable as error:
            job = Job(queue, shard, ident, "", body[3:19], b"", b"", DEFAULT_PRIORITY, int(due // 1000), token)
            broken.append(BrokenJob(job, str(error), body))
            continue
        jobs.append(
            Job(
                queue,
                shard,
                ident,
                task,
                key,
                args,
                options,
                priority,
                int(due // 1000),
                token,
                failures,
                reserves,
                crashes,
                flags,
                int(failed_at),
                0,
                worker,
                b"",
                payloads,
                merged,
                own,
                is_quarantined(body),
                since,
                reason,
            )
        )
    return jobs, broken, now_us, next_due, quarantined


def _unpack_postponed(frame: bytes, at: int) -> tuple[int, str, int]:
    """Return since when (ms) and why a job is postponed, and the position after it."""
    (since,) = _DOUBLE.unpack_from(frame, at)
    reason, at = take_u8(frame, at + 8)
    return int(since), reason.decode(errors="replace"), at


def _unpack_payloads(frame: bytes, at: int) -> tuple[tuple[Payload, ...], int]:
    (n,) = _U16.unpack_from(frame, at)
    at += 2
    payloads = []
    for _ in range(n):
        (size,) = _U32.unpack_from(frame, at)
        payloads.append(unpack_payload(frame[at + 4 : at + 4 + size]))
        at += 4 + size
    return tuple(payloads), at


def unpack_state(packed: bytes) -> State:
    """Return a stored state record; a missing or too short one counts as that of a fresh job."""
    if len(packed) < _STATE.size + 2:
        return State()
    token, due, failures, reserves, crashes, own, flags, failed_at, length = _STATE.unpack_from(packed)
    at = _STATE.size
    worker = packed[at : at + length].decode(errors="replace")
    taken, at = take_u16(packed, at + length)
    since, reason = 0, ""
    if flags & POSTPONED:
        since, reason, at = _unpack_postponed(packed, at)
        at += _DOUBLE.size  # the assigned due score
    return State(
        int(token),
        due,
        failures,
        reserves,
        crashes,
        own,
        flags,
        int(failed_at),
        worker,
        tuple(taken[place + 16 : place + 32] for place in range(0, len(taken) - 31, 32)),
        packed[at:],
        since,
        reason,
    )


def unpack_names(frame: bytes, at: int) -> tuple[dict[int, str], int]:
    """Return number -> name of the tasks in a reply, and the position after them."""
    tasks = {}
    n = frame[at]
    at += 1
    for _ in range(n):
        (number,) = _U16.unpack_from(frame, at)
        name, at = take_u8(frame, at + 2)
        tasks[number] = name.decode()
    return tasks, at


def job_of(
    queue: str, shard: int, ident: str, body: bytes, tasks: Mapping[int, str], state: State, due_us: float
) -> Job:
    """Return a job from its stored records; an unreadable body gives a job with an empty task."""
    try:
        priority, merged, key, task, options, args = unpack_body(body, tasks)
    except Undecodable:
        priority, merged, key, task, options, args = DEFAULT_PRIORITY, False, body[3:19], "", b"", body
    return Job(
        queue,
        shard,
        ident,
        task,
        key,
        args,
        options,
        priority,
        int(due_us // 1000),
        state.token,
        state.failures,
        state.reserves,
        state.crashes,
        state.flags,
        state.failed_at_ms,
        0,
        state.worker,
        state.error,
        (),
        merged,
        state.own_crashes,
        is_quarantined(body),
        state.postponed_at_ms,
        state.postponed_for,
    )


def unpack_leases(frame: bytes, queue: str, shard: int) -> list[Job]:
    """Return the jobs of ``leases.lua``, with their deadlines."""
    tasks, at = unpack_names(frame, 0)
    (n,) = _U16.unpack_from(frame, at)
    at += 2
    jobs = []
    for _ in range(n):
        deadline, length = _LEASE.unpack_from(frame, at)
        at += _LEASE.size
        ident = frame[at : at + length].decode()
        packed, at = take_u32(frame, at + length)
        body, at = take_u32(frame, at)
        state = unpack_state(packed)
        job = job_of(queue, shard, ident, body, tasks, state, state.due_us)
        job.deadline_ms = int(deadline)
        jobs.append(job)
    return jobs


def unpack_begun(frame: bytes, queue: str, shard: int) -> list[Job]:
    """Return the jobs of ``begun.lua``; ``deadline_ms`` is the moment at which their attempts began."""
    tasks, at = unpack_names(frame, 0)
    (n,) = _U16.unpack_from(frame, at)
    at += 2
    jobs = []
    for _ in range(n):
        (began,) = _DOUBLE.unpack_from(frame, at)
        ident, at = take_u8(frame, at + 8)
        packed, at = take_u32(frame, at)
        body, at = take_u32(frame, at)
        payloads, at = take_u32(frame, at)
        state = unpack_state(packed)
        job = job_of(queue, shard, ident.decode(), body, tasks, state, state.due_us)
        job.deadline_ms = int(began)
        if payloads:
            job.payloads, _ = _unpack_payloads(payloads, 0)
        jobs.append(job)
    return jobs


def take_u32(frame: bytes, at: int) -> tuple[bytes, int]:
    """Return bytes that have a 32-bit length in front, and the position after them."""
    (size,) = _U32.unpack_from(frame, at)
    return frame[at + 4 : at + 4 + size], at + 4 + size


def take_u16(frame: bytes, at: int) -> tuple[bytes, int]:
    """Return bytes that have a 16-bit length in front, and the position after them."""
    (size,) = _U16.unpack_from(frame, at)
    return frame[at + 2 : at + 2 + size], at + 2 + size


def take_u8(frame: bytes, at: int) -> tuple[bytes, int]:
    """Return bytes that have an 8-bit length in front, and the position after them."""
    size = frame[at]
    return frame[at + 1 : at + 1 + size], at + 1 + size

"""Frames of reserved jobs in replies of scripts, and the state of an id that they carry."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from ..job import COUNTED, DEFAULT_PRIORITY, NO_COUNTS, POSTPONED, Job, JobCounts, Payload, Undecodable
from .body import is_parked, is_quarantined, unpack_body
from .fields import take_u8, take_u16, take_u32, unpack_names
from .schedule_frames import unpack_payload

_BATCH = struct.Struct("<ddddH")
_JOB = struct.Struct("<dHHHHBdB")
_STATE = struct.Struct("<ddHHHHBdB")
_COUNTS = struct.Struct("<HHHH")
_DOUBLE = struct.Struct("<d")
_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")


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
    counts: JobCounts = NO_COUNTS


def start_flag(*, started: bool, prefer_own_ttr: bool) -> bytes:
    """Return argument 6 of ``reserve.lua``."""
    return b"2" if prefer_own_ttr else b"1" if started else b"0"


def unpack_batch(
    frame: bytes, queue: str, shard: int, worker: str
) -> tuple[list[Job], list[BrokenJob], float, float, float, bytes]:
    """Return the content of a frame of ``lua/lib/reserve.lua``.

    Returns:
        ``(jobs, broken, now µs, next due µs or -1, quarantined due µs or -1, what is parked)``, the last one for
            :func:`~.limit_frames.unpack_parked`.
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
        counts = NO_COUNTS
        if flags & COUNTED:
            counts, at = unpack_counts(frame, at)
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
                flags & ~COUNTED,
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
                counts,
            )
        )
    return jobs, broken, now_us, next_due, quarantined, frame[at:]


def _unpack_postponed(frame: bytes, at: int) -> tuple[int, str, int]:
    """Return since when (ms) and why a job is postponed, and the position after it."""
    (since,) = _DOUBLE.unpack_from(frame, at)
    reason, at = take_u8(frame, at + 8)
    return int(since), reason.decode(errors="replace"), at


def unpack_counts(record: bytes, at: int) -> tuple[JobCounts, int]:
    """Return the counts in a state or a morgue record, and the position after them."""
    return JobCounts(*_COUNTS.unpack_from(record, at)), at + _COUNTS.size


def _unpack_payloads(frame: bytes, at: int) -> tuple[tuple[Payload, ...], int]:
    (n,) = _U16.unpack_from(frame, at)
    at += 2
    payloads = []
    for _ in range(n):
        record, at = take_u32(frame, at)
        payloads.append(unpack_payload(record))
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
    counts = NO_COUNTS
    if flags & COUNTED:
        counts, at = unpack_counts(packed, at)
    return State(
        int(token),
        due,
        failures,
        reserves,
        crashes,
        own,
        flags & ~COUNTED,
        int(failed_at),
        worker,
        tuple(taken[place + 16 : place + 32] for place in range(0, len(taken) - 31, 32)),
        packed[at:],
        since,
        reason,
        counts,
    )


#: state of a job that nobody has reserved yet
NO_STATE = State()


def job_of(
    queue: str, shard: int, ident: str, body: bytes, tasks: Mapping[int, str], state: State, due_us: float
) -> tuple[Job, str]:
    """Return a job from its stored records, and why its body cannot be read; such a job has an empty task."""
    broken = ""
    try:
        priority, merged, key, task, options, args = unpack_body(body, tasks)
    except Undecodable as error:
        priority = body[0] & 7 if body else DEFAULT_PRIORITY  # under which the scripts file it
        broken, merged, key, task, options, args = str(error), False, body[3:19], "", b"", body
    job = Job(queue, shard, ident, task, key, args, options, priority, int(due_us // 1000), merged=merged)
    if body and body[0] >= 64:
        job.quarantined, job.parked = is_quarantined(body), is_parked(body)
    if state is not NO_STATE:
        job.token = state.token
        job.failures, job.reserves, job.crashes = state.failures, state.reserves, state.crashes
        job.own_crashes, job.flags, job.failed_at_ms = state.own_crashes, state.flags, state.failed_at_ms
        job.worker, job.error, job.counts = state.worker, state.error, state.counts
        job.postponed_at_ms, job.postponed_for = state.postponed_at_ms, state.postponed_for
    return job, broken


def unpack_begun(frame: bytes, queue: str, shard: int) -> list[Job]:
    """Return the jobs of ``begun.lua``; ``deadline_ms`` is the moment at which their attempts began."""
    tasks, at = unpack_names(frame, 0)
    (n,) = _U16.unpack_from(frame, at)
    at += _U16.size
    jobs = []
    for _ in range(n):
        (moment,) = _DOUBLE.unpack_from(frame, at)
        ident, at = take_u8(frame, at + _DOUBLE.size)
        packed, at = take_u32(frame, at)
        body, at = take_u32(frame, at)
        payloads, at = take_u32(frame, at)
        state = unpack_state(packed)
        job, _ = job_of(queue, shard, ident.decode(), body, tasks, state, state.due_us)
        job.deadline_ms = int(moment)
        if payloads:
            job.payloads, _ = _unpack_payloads(payloads, 0)
        jobs.append(job)
    return jobs

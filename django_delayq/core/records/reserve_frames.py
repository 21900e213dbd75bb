"""Frames of reserved jobs in replies of scripts, and the state of an id that they carry."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ..job import (
    DEFAULT_PRIORITY,
    NO_COUNTS,
    POSTPONED,
    STARTED,
    STOPPING,
    UNCLEAR,
    UNRENEWED,
    BrokenJob,
    Job,
    JobCounts,
    Undecodable,
)
from .body import is_parked, is_quarantined, unpack_body
from .frames import unpack, unpack_fields
from .schedule_frames import unpack_payload

_COUNTS = struct.Struct("<HHHH")
_FLAGS: Final = {
    b"started": STARTED,
    b"unrenewed": UNRENEWED,
    b"stopping": STOPPING,
    b"unclear": UNCLEAR,
    b"postponed_at": POSTPONED,
}


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
) -> tuple[list[Job], list[BrokenJob], float, float | None, float | None, list[int]]:
    """Return the content of a batch of ``lua/lib/reserve.lua``.

    Returns:
        ``(jobs, broken, now µs, next due µs, quarantined due µs, [moved, parked for each allowance])``; None = no job
            waits, and an empty list where no allowance was given.
    """
    batch = unpack_fields(frame)
    tasks = _names(batch["tasks"])
    fresh = State(batch["token"], reserves=1, worker=worker)
    jobs: list[Job] = []
    broken: list[BrokenJob] = []
    for ident, due, body, *rest in batch["jobs"]:
        state = _state_of(rest[0]) if rest else fresh
        job, error = job_of(queue, shard, ident.decode(), body, tasks, state, due)
        job.worker = worker
        if rest:
            job.payloads = tuple(map(unpack_payload, rest[1]))
        if error:
            broken.append(BrokenJob(job, error, body))
        else:
            jobs.append(job)
    return jobs, broken, batch["now"], batch.get("next_due"), batch.get("quarantined"), batch.get("parked", [])


def _names(tasks: dict[bytes, bytes]) -> dict[int, str]:
    """Return number -> name of the tasks in a reply."""
    return {int.from_bytes(code, "little"): name.decode() for code, name in dict(tasks).items()}


def unpack_counts(record: bytes, at: int) -> tuple[JobCounts, int]:
    """Return the counts in a state or a morgue record, and the position after them."""
    return JobCounts(*_COUNTS.unpack_from(record, at)), at + _COUNTS.size


def unpack_state(packed: bytes) -> State:
    """Return a stored state; a missing one is that of a fresh job."""
    return _state_of(unpack(packed)) if packed else NO_STATE


def _state_of(fields: Mapping[bytes, Any]) -> State:
    get = dict(fields).get  # an empty map is an empty list in Lua
    taken, counts = get(b"taken", b""), get(b"counts", b"")
    return State(
        get(b"token", 0),
        get(b"due", 0),
        get(b"failures", 0),
        get(b"reserves", 0),
        get(b"crashes", 0),
        get(b"own_crashes", 0),
        sum([flag for name, flag in _FLAGS.items() if name in fields]),
        get(b"failed_at", 0),
        get(b"worker", b"").decode(errors="replace"),
        tuple([taken[place + 16 : place + 32] for place in range(0, len(taken) - 31, 32)]),
        get(b"error", b""),
        get(b"postponed_at", 0),
        get(b"postponed_for", b"").decode(errors="replace"),
        unpack_counts(counts, 0)[0] if counts else NO_COUNTS,
    )


#: state of a job that nobody has reserved yet
NO_STATE: Final = State()


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


def unpack_held(frame: bytes, queue: str, shard: int) -> list[Job]:
    """Return the jobs of ``leases.lua`` with their deadlines, or those of ``begun.lua``.

    ``deadline_ms`` of the latter is the moment at which their attempts began.
    """
    names, entries = unpack(frame)
    tasks, jobs = _names(names), []
    for ident, moment, body, fields, *payloads in entries:
        state = _state_of(fields)
        job, _ = job_of(queue, shard, ident.decode(), body, tasks, state, state.due_us)
        job.deadline_ms = int(moment)
        job.payloads = tuple(unpack_payload(record) for records in payloads for record in records)
        jobs.append(job)
    return jobs

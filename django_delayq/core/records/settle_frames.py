"""Frames of the scripts that settle attempts, and of those that renew leases or take them over."""

from __future__ import annotations

import struct

from ..job import DURABLE, Job, Settlement
from .events import pack_attempt
from .schedule_frames import SCORE_POLICY, pack_id

_DURABLE = 4  # of an ack
_RUN_MERGED, _EXPIRED, _QUARANTINE, _CRASH, _OLDEST, _INHERIT, _SCORE_POLICY = 1, 2, 4, 8, 16, 32, 64
_ENTRY = struct.Struct("<ddBB")
_LEASE = struct.Struct("<dB")
_U16 = struct.Struct("<H")


def pack_settlement(settlement: Settlement) -> bytes:
    """Return an entry of the settling scripts (``lua/lib/settle.lua``)."""
    job = settlement.job
    ident = job.id.encode()
    marks = _RUN_MERGED if (settlement.began if settlement.verb == "release" else job.merged) else 0
    if settlement.guard == "expired":
        marks |= _EXPIRED
    is_ack = settlement.verb in ("ack", "ack_early")
    if not is_ack:
        marks |= _other_marks(settlement)
    elif waits_for_end(job):
        marks |= _DURABLE
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
            bytes((len(outcome),)),
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


def _other_marks(settlement: Settlement) -> int:
    """Return the marks that an ack does not need; ``acked.lua`` compares its marks as a number."""
    marks = _SCORE_POLICY * SCORE_POLICY[settlement.score_policy]
    if settlement.quarantine:
        marks |= _QUARANTINE
    if settlement.unclear if settlement.verb == "release" else settlement.outcome in ("crashed", "poison"):
        marks |= _CRASH
    if _fourth_mark(settlement):
        marks |= _OLDEST
    if settlement.inherit:
        marks |= _INHERIT
    return marks


def _fourth_mark(settlement: Settlement) -> bool:
    """Return the mark whose meaning depends on the verb."""
    by_verb = {"release": settlement.postpone, "fail": settlement.own_crash}
    return by_verb.get(settlement.verb, settlement.oldest)


def pack_touch(job: Job, *, started: bool) -> bytes:
    """Return an entry of ``touch.lua``."""
    return _LEASE.pack(job.token, started) + pack_id(job.id)


def pack_take_over(job: Job, *, only_expired: bool) -> bytes:
    """Return the job argument of ``take_over.lua``."""
    return _LEASE.pack(job.token, only_expired) + pack_id(job.id)

"""Frames of the scripts that settle attempts, and of those that renew leases or take them over."""

from __future__ import annotations

import struct
from typing import Final

from ..attempt_outcome import AttemptOutcome
from ..job import DURABLE, Job
from ..settlement import Settlement
from .schedule_frames import SCORE_POLICY, pack_id

_ENTRY = struct.Struct("<ddHB")
_LEASE = struct.Struct("<dB")
_U16 = struct.Struct("<H")


class SettlementMark:
    """Marks of a settlement, which are added up; the same bits are in ``lua/lib/settle.lua``."""

    #: of an ack: the job is merged; its end, or that of one of its payloads, is awaited outside Redis
    MERGED: Final = 1
    DURABLE: Final = 2
    #: only if the lease has run out; of a record: only if no end of the attempt is stored
    EXPIRED: Final = 4
    #: the job waits for quarantine from now on
    QUARANTINE: Final = 8
    #: the process died during the attempt; no other job can have caused it
    CRASH: Final = 16
    OWN: Final = 32
    #: of a bury: only the first payload
    OLDEST: Final = 64
    #: content that arrived meanwhile does not shorten the back-off
    INHERIT: Final = 128
    #: of a release: a start of the job may not have been recorded
    UNCLEAR: Final = 256
    #: of a release: the attempt could not begin; it began
    POSTPONED: Final = 512
    BEGAN: Final = 1024
    #: the attempt's time limit ended it
    TIMEOUT: Final = 2048


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
    # A handler's text may contain anything, lone surrogates too.
    outcome, reason = settlement.outcome.encode(), settlement.reason.encode(errors="backslashreplace")[:255]
    error_class = settlement.error_class.encode(errors="backslashreplace")[:255]
    error = settlement.error[:65535]
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
    marks = SettlementMark.EXPIRED if settlement.guard == "expired" else 0
    if settlement.job.merged:
        marks |= SettlementMark.MERGED
    if waits_for_end(settlement.job):
        marks |= SettlementMark.DURABLE
    return marks


def _marks_of(settlement: Settlement) -> int:
    return (
        SettlementMark.EXPIRED * (settlement.guard == "expired")
        + SettlementMark.QUARANTINE * settlement.quarantine
        + SettlementMark.CRASH * (settlement.outcome in (AttemptOutcome.CRASHED, AttemptOutcome.POISON))
        + SettlementMark.OWN * settlement.own_crash
        + SettlementMark.OLDEST * settlement.oldest
        + SettlementMark.INHERIT * settlement.inherit
        + SettlementMark.UNCLEAR * settlement.unclear
        + SettlementMark.POSTPONED * settlement.postpone
        + SettlementMark.BEGAN * settlement.began
        + SettlementMark.TIMEOUT * (settlement.timed_out or settlement.outcome == AttemptOutcome.TIMEOUT)
    )


def pack_touch(job: Job, *, started: bool) -> bytes:
    """Return an entry of ``touch.lua``."""
    return _LEASE.pack(job.token, started) + pack_id(job.id)


def pack_take_over(job: Job, *, only_expired: bool) -> bytes:
    """Return the job argument of ``take_over.lua``."""
    return _LEASE.pack(job.token, only_expired) + pack_id(job.id)


def pack_attempt(settlement: Settlement) -> bytes:
    """Return the event of an ended attempt: its words in the order of ``COLUMNS`` (:mod:`..events`)."""
    job = settlement.job
    return b"%b\0%b\0%b\0%b\0%d\0%d\0%d\0%d\0%b\0\0\0\0" % (
        settlement.outcome.encode(),
        job.id.encode(),
        _word(job.task),
        job.key.hex().encode(),
        job.due_ms,
        settlement.started_ms,
        settlement.run_ms,
        job.failures + 1,
        _word(settlement.error_class),
    )


def _word(text: str) -> bytes:
    return text.encode(errors="replace").replace(b"\0", b"?")[:255]

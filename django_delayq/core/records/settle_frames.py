"""Calls of the scripts that settle attempts, and of those that renew leases or take them over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..job import DURABLE, Job
from ..outcomes import AttemptOutcome, Settlement
from .frames import pack
from .schedule_frames import SCORE_POLICY


def pack_settlements(settlements: Sequence[Settlement]) -> bytes:
    """Return entries of the settling scripts (``lua/lib/settle.lua``)."""
    return pack([_entry_of(settlement) for settlement in settlements])


def _entry_of(settlement: Settlement) -> dict[str, Any]:
    job = settlement.job
    entry: dict[str, Any] = {"id": job.id, "token": job.token}
    if settlement.event:
        entry["event"] = pack_attempt(settlement)
    if settlement.guard == "expired":
        entry["expired"] = True
    if settlement.verb in ("ack", "ack_early"):
        return {**entry, "durable": True} if waits_for_end(job) else entry
    # A handler's text may contain anything, lone surrogates too.
    entry |= {
        "outcome": settlement.outcome,
        "reason": settlement.reason.encode(errors="backslashreplace")[:255],
        "error_class": settlement.error_class.encode(errors="backslashreplace")[:255],
        "error": settlement.error[:65535],
        # What is no number must not reach the script, which would fail between its writes.
        "delay": None if settlement.delay_ms is None else int(settlement.delay_ms),
        "priority": None if settlement.priority is None else bytes((settlement.priority,)),
        "score_policy": SCORE_POLICY[settlement.score_policy],
    }
    return entry | {mark: True for mark, is_set in _marks_of(settlement).items() if is_set}


def _marks_of(settlement: Settlement) -> dict[str, bool]:
    return {
        "quarantine": settlement.quarantine,
        "crash": settlement.outcome in (AttemptOutcome.CRASHED, AttemptOutcome.POISON),
        "own": settlement.own_crash,
        "oldest": settlement.oldest,
        "inherit": settlement.inherit,
        "unclear": settlement.unclear,
        "postponed": settlement.postpone,
        "began": settlement.began,
        "timeout": settlement.timed_out or settlement.outcome == AttemptOutcome.TIMEOUT,
    }


def waits_for_end(job: Job) -> bool:
    """Return True if the end of this attempt is awaited outside Redis."""
    if job.merged:
        return any(payload.key >= DURABLE for payload in job.payloads)
    return job.key >= DURABLE


def pack_take_over(job: Job, *, only_expired: bool) -> bytes:
    """Return the job argument of ``take_over.lua``."""
    return pack((job.id, job.token, only_expired))


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

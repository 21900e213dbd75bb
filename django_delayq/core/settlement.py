"""Settlements: how the lease of a held job ends."""

from __future__ import annotations

from dataclasses import dataclass

from .attempt_outcome import AttemptOutcome
from .job import Job


@dataclass(slots=True)
class Settlement:
    """Change of a held job that ends its lease: one verb with the arguments of its script.

    ``verb`` is ack, ack_early, fail, release, bury, expire or record (the end of an attempt whose job was acked early).
    ``delay_ms`` None means "at its old place". ``guard`` "token" requires only the fencing token; "expired" also
    requires that the lease has run out. For a record it requires that no end of the attempt is stored yet.

    For merged jobs: ``oldest`` buries the first payload only, ``inherit`` keeps the back-off although new content
    arrived, ``score_policy`` decides between a returning payload and an equal one that arrived meanwhile.

    For a job that is put back: ``quarantine`` sends its next attempt to quarantine, ``own_crash`` means that the crash
    is certainly its own, ``unclear`` that its lease was lost and perhaps a start that was not recorded.
    """

    job: Job
    verb: str
    started_ms: int = 0
    run_ms: int = 0
    delay_ms: int | None = None
    outcome: AttemptOutcome = AttemptOutcome.SUCCEEDED
    reason: str = ""
    error_class: str = ""
    error: bytes = b""
    quarantine: bool = False
    own_crash: bool = False
    unclear: bool = False
    timed_out: bool = False  # of a bury: the time limit ended the attempt
    guard: str = "token"
    event: bool = True
    oldest: bool = False
    inherit: bool = False
    score_policy: str = "min"
    priority: int | None = None  # of a release: new priority, 0 … 7
    postpone: bool = False  # of a release: the attempt could not begin, for this reason
    began: bool = False  # of a release: the attempt began, so the postponement is over
    #: of a release: the end of the attempt in case its early ack was applied, which is stored behind it
    also: Settlement | None = None


def ack(job: Job, started_ms: int, run_ms: int, *, event: bool = True) -> Settlement:
    """Settle a job as done; no part of it stays."""
    return Settlement(job, "ack", started_ms, run_ms, event=event)


def fail(
    job: Job,
    started_ms: int,
    run_ms: int,
    *,
    delay_ms: int,
    outcome: AttemptOutcome = AttemptOutcome.FAILED,
    error_class: str = "",
    error: bytes = b"",
    guard: str = "token",
    quarantine: bool = False,
    own_crash: bool = False,
) -> Settlement:
    """Settle a failed counted attempt (outcome failed, timeout or crashed); the job is due again after ``delay_ms``."""
    return Settlement(
        job, "fail", started_ms, run_ms, delay_ms, outcome, "", error_class, error, quarantine, own_crash, guard=guard
    )


def release(
    job: Job,
    *,
    delay_ms: int | None = None,
    outcome: AttemptOutcome = AttemptOutcome.RELEASED,
    reason: str = "",
    quarantine: bool | None = None,
    unclear: bool = False,
    guard: str = "token",
    event: bool = False,
    priority: int | None = None,
    postpone: bool = False,
    began: bool = False,
) -> Settlement:
    """Put the job back without counting an attempt.

    Args:
        outcome: released; lost if the lease ran out and no start is known.
        quarantine: run its next attempt in quarantine; None = as decided before.
        event: record an event, because the release may cause a second attempt.
        postpone: its attempt could not begin for this reason; the wait counts as lateness.
        began: its attempt began, so a postponement is over. One that never began keeps the moment of the first one.
    """
    next_quarantine = job.quarantined if quarantine is None else quarantine
    return Settlement(
        job,
        "release",
        0,
        0,
        delay_ms,
        outcome,
        reason,
        quarantine=next_quarantine,
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
    outcome: AttemptOutcome = AttemptOutcome.BURIED,
    error_class: str = "",
    error: bytes = b"",
    guard: str = "token",
) -> Settlement:
    """Settle a job by moving it to the morgue, where it waits for an operator.

    ``reason``: exhausted, poison, buried, ...
    """
    return Settlement(job, "bury", started_ms, run_ms, None, outcome, reason, error_class, error, guard=guard)


def expire(job: Job) -> Settlement:
    """Settle a job that was reserved too late to be of use: remove it without an attempt."""
    return Settlement(job, "expire", outcome=AttemptOutcome.EXPIRED)

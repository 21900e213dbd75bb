"""Decision on a job whose attempt did not begin here, or is not to count: it is given back, postponed or buried."""

from __future__ import annotations

from typing import Final

from ..core.job import Job
from ..core.outcomes import AttemptOutcome, Settlement, bury, release
from ..core.retry import ms_of
from .policy import Policy, with_merge_rules
from .record import class_of, error_record, record_of

REASON_CHARS: Final = 200
#: reasons of jobs whose task a worker does not know: a live worker can run it, or none can
_UNKNOWN_HERE: Final = "task unknown to this worker"
_UNKNOWN: Final = "unknown task"
_UNKNOWN_SECONDS: Final = 24 * 3600.0


def give_back(
    job: Job,
    policy: Policy,
    *,
    delay_ms: int | None = None,
    reason: str = "",
    quarantine: bool | None = None,
    event: bool = False,
    priority: int | None = None,
    began: bool = False,
) -> Settlement:
    """Return a release that counts no attempt. ``began``: the attempt began, so the postponement is over."""
    return with_merge_rules(
        release(
            job, delay_ms=delay_ms, reason=reason, quarantine=quarantine, event=event, priority=priority, began=began
        ),
        policy,
    )


def postpone(job: Job, policy: Policy, reason: str, delay: float) -> Settlement:
    """Release a job whose attempt could not begin here; the time until it begins counts as lateness."""
    return with_merge_rules(release(job, delay_ms=ms_of(delay), reason=reason, postpone=True), policy)


def postponed_seconds(job: Job, reason: str, now_ms: float) -> float:
    """Return for how long the job has been postponed for this reason without a break."""
    return max(0.0, now_ms - job.postponed_at_ms) / 1000 if job.postponed_for == reason else 0.0


def unknown_task(job: Job, policy: Policy, now_ms: float, *, elsewhere: bool, jitter: float) -> Settlement:
    """Release a job of a task that is not registered here, uncounted, for up to a day: the caller may be newer code.

    Args:
        elsewhere: a live worker of the queue knows the task. Then the job is due again after a second or two, which
            grows slowly, so that thousands of such jobs are no busy loop while that worker is busy.
        jitter: 0 … 1.
    """
    if elsewhere:
        waited = postponed_seconds(job, _UNKNOWN_HERE, now_ms)
        return postpone(job, policy, _UNKNOWN_HERE, min(15.0, max(1.0 + jitter, waited / 4)))
    waited = postponed_seconds(job, _UNKNOWN, now_ms)
    if waited >= _UNKNOWN_SECONDS:
        return bury(
            job,
            reason=_UNKNOWN,
            error_class="UnknownTask",
            error=record_of(
                "UnknownTask",
                f"no worker knew the task {job.task!r} for 24 hours; "
                f"register it, or give the new name aliases=({job.task!r},)",
            ),
        )
    return postpone(job, policy, _UNKNOWN, min(300.0, max(2.0, waited)))


def undecodable(job: Job, error: BaseException) -> Settlement:
    """Bury a job whose stored arguments cannot be decoded; no later attempt could read them."""
    return bury(
        job,
        reason="undecodable",
        outcome=AttemptOutcome.UNDECODABLE,
        error_class=class_of(error),
        error=error_record(error),
    )


def not_prepared(job: Job, policy: Policy, error: BaseException, now_ms: float) -> Settlement:
    """Postpone a job whose preconditions (a database connection, …) failed; the job is not to blame."""
    reason = f"not prepared: {class_of(error)}"[:REASON_CHARS]
    return postpone(job, policy, reason, min(60.0, max(1.0, postponed_seconds(job, reason, now_ms))))

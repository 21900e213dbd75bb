"""Decision on a job whose attempt did not end by itself: its process died or was ended, or its lease ran out."""

from __future__ import annotations

from typing import Final

from ..core.errors import JobTimeout
from ..core.job import STARTED, UNRENEWED, Job
from ..core.options import TaskOptions
from ..core.outcomes import AttemptOutcome, Settlement, bury, fail
from ..core.retry import ms_of
from .ends import failed, give_back, returning, rule_of
from .record import record_of

_LONGEST_CRASH_DELAY: Final = 3600.0


def overran(job: Job, policy: TaskOptions, started_ms: int, run_ms: int, stack: str = "") -> Settlement:
    """Return the settlement of an attempt that ignored its time limit until its process was ended.

    Args:
        stack: what it ran when the limit was enforced, in the form of a stored traceback.
    """
    message = f"the attempt did not end although its limit of {policy.timeout} s had passed"
    record = record_of("JobTimeout", message, stack)
    rule = rule_of(policy, JobTimeout)
    return failed(job, policy, started_ms, run_ms, JobTimeout, "JobTimeout", record, rule)


def crashed(
    job: Job, policy: TaskOptions, why: str, *, beside: int = 0, started_ms: int = 0, run_ms: int = 0
) -> Settlement:
    """Return the settlement of a job whose process died, but not the host: its next attempt is in quarantine.

    Args:
        beside: other jobs that had started in the process. If there were any, the cause is unknown, so none of them is
            buried for it, however often it happened.
    """
    if beside:
        why += f"; {beside} other {'job' if beside == 1 else 'jobs'} ran in the same process"
        return _retry_crashed(job, policy, why, started_ms, run_ms, quarantine=True)
    if job.own_crashes + 1 >= policy.crash_limit or job.failures + 1 >= policy.max_attempts:
        return _bury_poison(job, why, started_ms, run_ms)
    return _retry_crashed(job, policy, why, started_ms, run_ms, quarantine=True, own_crash=True)


def lost(job: Job, policy: TaskOptions) -> Settlement:
    """Return the settlement of a job whose lease ran out. It counts as an attempt if a start is known.

    A worker's lease runs out when its host is gone, which is not the job's fault, so it does not count towards
    ``crash_limit``. The lease of a holder without a heartbeat was for that job alone, so it counts.
    """
    if not job.flags & STARTED:
        reason = f"the lease of worker {job.worker or '?'} ran out before a known start"
        return give_back(job, policy, reason, unclear=True, outcome=AttemptOutcome.LOST, event=True)
    own = bool(job.flags & UNRENEWED)
    why = f"the lease of worker {job.worker} ran out during the attempt"
    if job.failures + 1 >= policy.max_attempts or (own and job.own_crashes + 1 >= policy.crash_limit):
        return _bury_poison(job, why)
    return _retry_crashed(job, policy, why, quarantine=job.quarantined, own_crash=own)


def crashed_early(job: Job, why: str, now_ms: float) -> Settlement:
    """Return the end of an attempt whose process died. The job was acked before, so it never begins again."""
    return Settlement(
        job,
        job.deadline_ms,
        max(0, int(now_ms) - job.deadline_ms),
        verb="record",
        outcome=AttemptOutcome.CRASHED,
        reason=why[:200],
        error_class="Crashed",
        error=record_of("Crashed", why),
        once=True,
    )


def _bury_poison(job: Job, why: str, started_ms: int = 0, run_ms: int = 0) -> Settlement:
    # All payloads of a merged job, because the cause may be any of them.
    return bury(
        job,
        started_ms,
        run_ms,
        reason="poison",
        outcome=AttemptOutcome.POISON,
        error_class="Crashed",
        error=record_of("Crashed", why),
    )


def _retry_crashed(
    job: Job,
    policy: TaskOptions,
    why: str,
    started_ms: int = 0,
    run_ms: int = 0,
    *,
    quarantine: bool,
    own_crash: bool = False,
) -> Settlement:
    """Return the settlement of a crash: the first is retried at once, later ones after 10 s · 2^n."""
    # The exponent is bounded before the power, because a stored counter may be anything.
    delay = 0.0 if job.crashes == 0 else min(_LONGEST_CRASH_DELAY, 10.0 * 2.0 ** min(job.crashes - 1, 20))
    return returning(
        fail(
            job,
            started_ms,
            run_ms,
            delay_ms=ms_of(delay),
            outcome=AttemptOutcome.CRASHED,
            error_class="Crashed",
            error=record_of("Crashed", why),
            quarantine=quarantine,
            own_crash=own_crash,
        ),
        policy,
    )

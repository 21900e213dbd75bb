"""Decision on a job whose attempt did not simply return. Pure functions: job, policy and error in, settlement out."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from ..core.attempt_outcome import AttemptOutcome
from ..core.errors import Bury, JobTimeout, Misconfigured, PartialFailure, Release, Retry
from ..core.job import PRIORITIES, STARTED, UNRENEWED, Job, Settlement, bury, fail, release
from ..core.retry import Policy as Backoff
from ..core.retry import clamp, default_backoff, safe_delay
from ..core.retry import policy_of as backoff_of
from ..core.task import Task, TaskOptions
from .record import class_of, error_record, name_of, record_of, text_of

logger: Final = logging.getLogger(__name__)

#: reasons of jobs whose task a worker does not know: a live worker can run it, or none can
_UNKNOWN_HERE: Final = "task unknown to this worker"
_UNKNOWN: Final = "unknown task"
_UNKNOWN_PATIENCE: Final = 24 * 3600.0
#: seconds after a release by a handler that gave something else than a delay
_UNUSABLE_DELAY: Final = 10.0
_LONGEST_CRASH_DELAY: Final = 3600.0
_REASON_CHARS: Final = 200
_NO_TASK: Final = TaskOptions()


@dataclass(frozen=True, slots=True)
class Policy:
    """The part of a task's options that decides, with the job's own overrides."""

    max_attempts: int = 26
    crash_limit: int = 3
    timeout: float | None = None
    max_lease: float | None = None
    retry_in: Backoff = default_backoff
    #: exception class → back-off of its own
    retry_for: Mapping[type[BaseException], Backoff] = field(default_factory=dict)
    #: what ``retry_for`` does not name is not tried again
    only_these: bool = False
    give_up_on: tuple[type[BaseException], ...] = ()
    #: acked before the handler begins
    early: bool = False
    #: merged: new content does not shorten the back-off
    inherit: bool = False
    #: merged: between a payload that comes back and its twin that came meanwhile
    score_policy: str = "min"


def policy_of(task: Task | None, job: Job | None = None) -> Policy:
    """Return the policy for ``job``: the defaults if its task is not registered, or an override is unusable."""
    options = task.options if task is not None else _NO_TASK
    own = _overrides(job) if job is not None and job.options_json else {}
    retry_in = own.get("retry_in", options.retry_in)
    rules: Mapping[type[BaseException], Any] | tuple[type[BaseException], ...] = options.retry_for or ()
    return Policy(
        max_attempts=own.get("max_attempts", options.max_attempts),
        crash_limit=options.crash_limit,
        timeout=own.get("timeout", options.timeout),
        max_lease=options.max_lease,
        retry_in=retry_in,
        retry_for=rules if isinstance(rules, Mapping) else dict.fromkeys(rules, retry_in),
        only_these=bool(rules) and not isinstance(rules, Mapping),
        give_up_on=options.give_up_on,
        early=options.ack == "early",
        inherit=options.due_policy == "inherit",
        score_policy=options.score_policy,
    )


def _overrides(job: Job) -> dict[str, Any]:
    """Return the options of the schedule call, which checked them; unusable ones were stored by another program."""
    try:
        given = job.options
        found: dict[str, Any] = {}
        if "max_attempts" in given:
            found["max_attempts"] = max(1, int(given["max_attempts"]))
        if "timeout" in given:
            found["timeout"] = None if given["timeout"] is None else max(0.001, float(given["timeout"]))
        if given.get("retry_in") is not None:
            found["retry_in"] = backoff_of(given["retry_in"])
        return found
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError, Misconfigured) as error:
        logger.warning("%s: its own options cannot be used, those of task %s count: %s", job.id, job.task, error)
        return {}


# --- the handler raised


def raised(
    job: Job,
    policy: Policy,
    error: BaseException,
    started_ms: int,
    run_ms: int,
    *,
    timed_out: bool = False,
    record: Callable[[BaseException], bytes] = error_record,
    retry_delay: Callable[[BaseException, int], float | None] | None = None,
) -> Settlement:
    """Return the settlement of an attempt that raised ``error``: one of the verdicts, or a failure.

    Args:
        timed_out: the time limit made it do so.
        record: makes the stored form of the error.
        retry_delay: knows errors that say themselves when to try again (:attr:`Hooks.retry_delay`).
    """
    if isinstance(error, Release):
        delay = None
        if error.delay is not None and (delay := asked_delay(job, error.delay)) is None:
            delay = _UNUSABLE_DELAY  # at its old place it would run without a pause
        # The attempt ended by itself, as a failed one does, so the job is not suspect any more.
        return give_back(
            job,
            policy,
            delay_ms=None if delay is None else _ms(delay),
            reason=_reason(error),
            quarantine=False,
            priority=asked_priority(job, error.priority),
            began=True,
        )
    if isinstance(error, Bury):
        return bury(
            job, started_ms, run_ms, reason=_reason(error) or "buried", error_class=class_of(error), error=record(error)
        )
    own_delay = asked_delay(job, error.delay) if isinstance(error, Retry) and error.delay is not None else None
    kind = JobTimeout if timed_out else type(error)
    rule = policy.retry_in if isinstance(error, Retry) else _rule(policy, kind)
    if isinstance(rule, str):
        return bury(
            job,
            started_ms,
            run_ms,
            reason=f"{rule}: {name_of(kind)}"[:_REASON_CHARS],
            error_class=class_of(error),
            error=record(error),
        )
    if own_delay is None and retry_delay is not None and rule is policy.retry_in:
        own_delay = retry_delay(error, job.failures)
    return _failed(
        job,
        policy,
        started_ms,
        run_ms,
        AttemptOutcome.TIMEOUT if issubclass(kind, JobTimeout) else AttemptOutcome.FAILED,
        class_of(error),
        record(error),
        own_delay,
        rule,
    )


def failures_of(error: BaseException, ids: Iterable[str]) -> dict[str, BaseException]:
    """Return the error of each failed id of an attempt; an id that is not in it is done.

    Args:
        error: what the handler raised.
        ids: those whose payloads it got.
    """
    ids = list(ids)
    if not isinstance(error, PartialFailure):
        return dict.fromkeys(ids, error)
    failed = {str(ident): _exception(value) for ident, value in error.errors.items()}
    unknown = sorted(failed.keys() - set(ids))
    if not unknown:
        return failed
    names = ", ".join(repr(ident[:60]) for ident in unknown[:5])
    wrong = ValueError(
        f"PartialFailure names {len(unknown)} ids that this call of the handler did not get: {names}; it takes the "
        "keys of the handler's argument. Nobody knows what was meant, so all ids of the batch count as failed"
    )
    wrong.__cause__ = error
    return dict.fromkeys(ids, wrong)


def _exception(value: object) -> BaseException:
    if isinstance(value, BaseException):
        return value
    return Exception(value if isinstance(value, str) else repr(value)[:_REASON_CHARS])


def recorded(
    job: Job,
    error: BaseException | None,
    started_ms: int,
    run_ms: int,
    *,
    timed_out: bool = False,
    record: Callable[[BaseException], bytes] = error_record,
) -> Settlement:
    """Return the record of an attempt whose job was acked before; it changes nothing but events and counters."""
    if error is None:
        return Settlement(job, "record", started_ms, run_ms)
    outcome = AttemptOutcome.TIMEOUT if timed_out or isinstance(error, JobTimeout) else AttemptOutcome.FAILED
    return Settlement(
        job, "record", started_ms, run_ms, None, outcome, "acked before it began", class_of(error), record(error)
    )


def _rule(policy: Policy, kind: type[BaseException]) -> Backoff | str:
    """Return the back-off after such an exception, or the reason against another attempt. The nearest class counts."""
    if not policy.retry_for and not policy.give_up_on:
        return policy.retry_in
    for base in kind.__mro__:
        if base in policy.give_up_on:
            return "gave up"
        if base in policy.retry_for:
            return policy.retry_for[base]
    return "not retried" if policy.only_these else policy.retry_in


def _failed(
    job: Job,
    policy: Policy,
    started_ms: int,
    run_ms: int,
    outcome: AttemptOutcome,
    error_class: str,
    error: bytes,
    own_delay: float | None,
    backoff: Backoff,
) -> Settlement:
    if job.failures + 1 >= policy.max_attempts:
        # Of a merged job only the oldest payload has to go: the others may do better without it.
        settlement = bury(
            job,
            started_ms,
            run_ms,
            reason="exhausted",
            outcome=AttemptOutcome.EXHAUSTED,
            error_class=error_class,
            error=error,
        )
        settlement.oldest = job.merged
        return _merged(settlement, policy)
    delay = safe_delay(backoff, job.failures) if own_delay is None else own_delay
    return _merged(
        fail(job, started_ms, run_ms, delay_ms=_ms(delay), outcome=outcome, error_class=error_class, error=error),
        policy,
    )


def _merged(settlement: Settlement, policy: Policy) -> Settlement:
    """With what the scripts need to unite payloads that come back with those that came meanwhile."""
    if settlement.job.merged:
        settlement.inherit, settlement.score_policy = policy.inherit, policy.score_policy
    return settlement


# --- the attempt did not end by itself


def overran(job: Job, policy: Policy, started_ms: int, run_ms: int) -> Settlement:
    """Return the settlement of an attempt that ignored its time limit until its process was ended."""
    record = record_of("JobTimeout", f"the attempt did not end although its limit of {policy.timeout} s had passed")
    rule = _rule(policy, JobTimeout)
    if isinstance(rule, str):
        return bury(
            job, started_ms, run_ms, reason=f"{rule}: {name_of(JobTimeout)}", error_class="JobTimeout", error=record
        )
    return _failed(job, policy, started_ms, run_ms, AttemptOutcome.TIMEOUT, "JobTimeout", record, None, rule)


def crashed(job: Job, policy: Policy, why: str, *, beside: int = 0, started_ms: int = 0, run_ms: int = 0) -> Settlement:
    """Settle a job whose process died under it, but not the host: its next attempt is in quarantine.

    Args:
        beside: other jobs that had started in the process. If there were any, nobody knows which of them it was, so
            none is buried for it, however often it happened.
    """
    if beside:
        why += f"; {beside} other {'job' if beside == 1 else 'jobs'} ran in the same process"
        return _crashed_again(job, policy, why, started_ms, run_ms, quarantine=True)
    if job.own_crashes + 1 >= policy.crash_limit or job.failures + 1 >= policy.max_attempts:
        return _poison(job, why, started_ms, run_ms)
    return _crashed_again(job, policy, why, started_ms, run_ms, quarantine=True, own_crash=True)


def lost(job: Job, policy: Policy) -> Settlement:
    """Settle a job whose lease ran out. Only one that is known to have started pays for it with an attempt.

    A worker's lease runs out when its host is gone, which proves nothing against the job: it does not count towards
    ``crash_limit``. One of a holder without a heartbeat was that job's alone, so it does.
    """
    if not job.flags & STARTED:
        reason = "lease ran out before a known start"
        return _merged(release(job, unclear=True, reason=reason, guard="expired", event=True), policy)
    own = bool(job.flags & UNRENEWED)
    why = f"the lease of worker {job.worker} ran out during the attempt"
    if job.failures + 1 >= policy.max_attempts or (own and job.own_crashes + 1 >= policy.crash_limit):
        return _poison(job, why, guard="expired")
    return _crashed_again(job, policy, why, quarantine=job.quarantined, own_crash=own, guard="expired")


def _poison(job: Job, why: str, started_ms: int = 0, run_ms: int = 0, *, guard: str = "token") -> Settlement:
    # All payloads of a merged job: nobody knows which of them it was.
    return bury(
        job,
        started_ms,
        run_ms,
        reason="poison",
        outcome=AttemptOutcome.POISON,
        error_class="Crashed",
        error=record_of("Crashed", why),
        guard=guard,
    )


def _crashed_again(
    job: Job,
    policy: Policy,
    why: str,
    started_ms: int = 0,
    run_ms: int = 0,
    *,
    quarantine: bool,
    own_crash: bool = False,
    guard: str = "token",
) -> Settlement:
    """Return the settlement of a crash: the first is retried at once, later ones after 10 s · 2^n."""
    # The exponent is bounded before the power, because a stored counter may be anything.
    delay = 0.0 if job.crashes == 0 else min(_LONGEST_CRASH_DELAY, 10.0 * 2.0 ** min(job.crashes - 1, 20))
    return _merged(
        fail(
            job,
            started_ms,
            run_ms,
            delay_ms=_ms(delay),
            outcome=AttemptOutcome.CRASHED,
            error_class="Crashed",
            error=record_of("Crashed", why),
            guard=guard,
            quarantine=quarantine,
            own_crash=own_crash,
        ),
        policy,
    )


# --- the attempt did not begin


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
    return _merged(
        release(
            job, delay_ms=delay_ms, reason=reason, quarantine=quarantine, event=event, priority=priority, began=began
        ),
        policy,
    )


def postpone(job: Job, policy: Policy, reason: str, delay: float) -> Settlement:
    """Release a job whose attempt could not begin here; the time until it begins counts as lateness."""
    return _merged(release(job, delay_ms=_ms(delay), reason=reason, postpone=True), policy)


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
    if waited >= _UNKNOWN_PATIENCE:
        return bury(
            job,
            0,
            0,
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
        0,
        0,
        reason="undecodable",
        outcome=AttemptOutcome.UNDECODABLE,
        error_class=class_of(error),
        error=error_record(error),
    )


def not_prepared(job: Job, policy: Policy, error: BaseException, now_ms: float) -> Settlement:
    """Postpone a job whose preconditions (a database connection, …) failed; the job is not to blame."""
    reason = f"not prepared: {class_of(error)}"[:_REASON_CHARS]
    return postpone(job, policy, reason, min(60.0, max(1.0, postponed_seconds(job, reason, now_ms))))


# --- values that handlers return


def asked_delay(job: Job, delay: object) -> float | None:
    """Return the delay of a handler's verdict in seconds; None, with a log message, if it is invalid."""
    if isinstance(delay, timedelta):
        delay = delay.total_seconds()
    if isinstance(delay, int) and not isinstance(delay, bool):
        return float(clamp(delay))
    if isinstance(delay, float) and math.isfinite(delay):
        return clamp(delay)
    logger.error("%s: %.60r is no delay; give seconds or a timedelta. It is passed over", job.id, delay)
    return None


def asked_priority(job: Job, priority: object) -> int | None:
    """Return the priority of a handler's verdict; None, with a log message, if it is invalid."""
    if priority is None or (type(priority) is int and 0 <= priority < PRIORITIES):
        return priority
    logger.error("%s: %.60r is no priority; give 0 (first) to 7. It stays as it is", job.id, priority)
    return None


def _reason(error: BaseException) -> str:
    return text_of(error)[:_REASON_CHARS]


def _ms(seconds: float) -> int:
    return max(0, round(seconds * 1000))

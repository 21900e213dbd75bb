"""Decision on a job whose handler did not simply return. Pure functions: job, policy and error in, settlement out."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Final

from ..core.errors import Bury, JobTimeout, PartialFailure, Release, Retry
from ..core.job import PRIORITIES, Job
from ..core.outcomes import AttemptOutcome, Settlement, bury, fail
from ..core.retry import Policy as Backoff
from ..core.retry import ms_of
from .policy import Policy, clamp, safe_delay, with_merge_rules
from .record import class_of, error_record, name_of, text_of
from .unbegun import REASON_CHARS, give_back

logger: Final = logging.getLogger(__name__)

#: seconds until a job is due that its handler released with an invalid delay
_UNUSABLE_DELAY: Final = 10.0


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
        timed_out: the time limit ended the attempt.
        record: makes the stored form of the error.
        retry_delay: returns the delay that an error itself demands (:attr:`Hooks.retry_delay`).
    """
    if isinstance(error, Release):
        delay = None
        if error.delay is not None and (delay := _delay_of(job, error.delay)) is None:
            delay = _UNUSABLE_DELAY  # at its old place it would run without a pause
        # The attempt ended by itself, as a failed one does, so the job is not suspect any more.
        return give_back(
            job,
            policy,
            delay_ms=None if delay is None else ms_of(delay),
            reason=_reason(error),
            quarantine=False,
            priority=_priority_of(job, error.priority),
            began=True,
        )
    if isinstance(error, Bury):
        return bury(
            job, started_ms, run_ms, reason=_reason(error) or "buried", error_class=class_of(error), error=record(error)
        )
    own_delay = _delay_of(job, error.delay) if isinstance(error, Retry) and error.delay is not None else None
    kind = JobTimeout if timed_out else type(error)
    rule = policy.retry_in if isinstance(error, Retry) else rule_of(policy, kind)
    if own_delay is None and retry_delay is not None and rule is policy.retry_in:
        own_delay = _demanded(retry_delay, job, error)
    return failed(job, policy, started_ms, run_ms, kind, class_of(error), record(error), rule, own_delay)


def _demanded(
    retry_delay: Callable[[BaseException, int], float | None], job: Job, error: BaseException
) -> float | None:
    """Return the delay that an error itself demands; None, with a log message, if that cannot be told."""
    try:
        delay = retry_delay(error, job.failures)
    except Exception:
        logger.exception("%s: the pause after %s cannot be told; the back-off is used", job.id, class_of(error))
        return None
    return None if delay is None else _delay_of(job, delay)


def broken(job: Job, policy: Policy, error: BaseException, started_ms: int, run_ms: int, *, acked: bool) -> Settlement:
    """Return the settlement of an attempt whose end could not be decided. It counts: else it might repeat for ever.

    Nothing that may be the cause is called again: the default back-off follows, and the record of the error is plain.
    """
    if acked:
        return recorded(job, error, started_ms, run_ms)
    kind, policy = type(error), Policy(max_attempts=policy.max_attempts)
    return failed(job, policy, started_ms, run_ms, kind, class_of(error), error_record(error), policy.retry_in)


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
        "keys of the handler's argument. Its meaning is unclear, so all ids of the batch count as failed"
    )
    wrong.__cause__ = error
    return dict.fromkeys(ids, wrong)


def _exception(value: object) -> BaseException:
    if isinstance(value, BaseException):
        return value
    return Exception(value if isinstance(value, str) else repr(value)[:REASON_CHARS])


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
        return Settlement(job, started_ms, run_ms, verb="record")
    outcome = AttemptOutcome.TIMEOUT if timed_out or isinstance(error, JobTimeout) else AttemptOutcome.FAILED
    return Settlement(
        job,
        started_ms,
        run_ms,
        verb="record",
        outcome=outcome,
        reason="acked before it began",
        error_class=class_of(error),
        error=record(error),
    )


def rule_of(policy: Policy, kind: type[BaseException]) -> Backoff | str:
    """Return the back-off after such an exception, or the reason against another attempt. The nearest class counts."""
    if not policy.retry_for and not policy.give_up_on:
        return policy.retry_in
    for base in kind.__mro__:
        if base in policy.give_up_on:
            return "gave up"
        if base in policy.retry_for:
            return policy.retry_for[base]
    return "not retried" if policy.only_these else policy.retry_in


def failed(
    job: Job,
    policy: Policy,
    started_ms: int,
    run_ms: int,
    kind: type[BaseException],
    error_class: str,
    error: bytes,
    rule: Backoff | str,
    own_delay: float | None = None,
) -> Settlement:
    """Return the settlement of a failed attempt.

    Args:
        kind: class of the failure.
        error_class: name of the class to store.
        error: stored form of the error.
        rule: see :func:`rule_of`.
        own_delay: seconds instead of those of the back-off.
    """
    if isinstance(rule, str):
        reason = f"{rule}: {name_of(kind)}"[:REASON_CHARS]
        return bury(job, started_ms, run_ms, reason=reason, error_class=error_class, error=error)
    outcome = AttemptOutcome.TIMEOUT if issubclass(kind, JobTimeout) else AttemptOutcome.FAILED
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
            oldest=job.merged,
            timed_out=outcome == AttemptOutcome.TIMEOUT,
        )
        return with_merge_rules(settlement, policy)
    delay = safe_delay(rule, job.failures) if own_delay is None else own_delay
    return with_merge_rules(
        fail(job, started_ms, run_ms, delay_ms=ms_of(delay), outcome=outcome, error_class=error_class, error=error),
        policy,
    )


def _delay_of(job: Job, delay: object) -> float | None:
    """Return the delay of a handler's verdict in seconds; None, with a log message, if it is invalid."""
    if isinstance(delay, timedelta):
        delay = delay.total_seconds()
    if isinstance(delay, int) and not isinstance(delay, bool):
        return float(clamp(delay))
    if isinstance(delay, float) and math.isfinite(delay):
        return clamp(delay)
    logger.error("%s: %.60r is no delay; give seconds or a timedelta. It is ignored", job.id, delay)
    return None


def _priority_of(job: Job, priority: object) -> int | None:
    """Return the priority of a handler's verdict; None, with a log message, if it is invalid."""
    if priority is None or (type(priority) is int and 0 <= priority < PRIORITIES):
        return priority
    logger.error("%s: %.60r is no priority; give 0 (first) to 7. It stays as it is", job.id, priority)
    return None


def _reason(error: BaseException) -> str:
    return text_of(error)[:REASON_CHARS]
